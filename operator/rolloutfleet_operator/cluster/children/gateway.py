"""The gateway: the stock `smg` as a Deployment, which needs no rights.

It starts with the engines of their headless Service (`engine_addresses`), and is told of later ones (`policy.workers`).
"""

from typing import Final

from rolloutfleet_operator import commands, smg
from rolloutfleet_operator.cluster.children import names, network, pods
from rolloutfleet_operator.cluster.children.merging import Fixed, merge
from rolloutfleet_operator.cluster.children.names import Component, Fleet
from rolloutfleet_operator.cluster.children.pods import INIT, TMP, Manifest
from rolloutfleet_operator.cluster.children.secret import CONTROL_KEY, ENGINE_KEY
from rolloutfleet_operator.cluster.children.templates import noted
from rolloutfleet_operator.cluster.settings import OperatorSettings
from rolloutfleet_operator.policy.workers import engines_by_address

CONTAINER: Final = "gateway"
PATH: Final = "spec.gateway.podTemplate"
SHUTDOWN: Final = 60
"""Seconds that generations have to finish when a gateway is replaced."""
_LEAVING: Final = 5
"""Seconds from leaving the Service to the end of new requests, for other nodes to hear of it."""
GRACE: Final = SHUTDOWN + _LEAVING + 10


def deployment(fleet: Fleet, operator: OperatorSettings, *, replicas: int, control_key: str) -> Manifest:
    """`control_key` changes with the key of the control plane, which is read at the start. Raises TemplateInvalid."""
    spec = fleet.spec.gateway
    container, annotations = _container(fleet, operator), {names.CONTROL_KEY_HASH: control_key}
    template = pods.pod_template(fleet, Component.GATEWAY, container, grace=GRACE, annotations=annotations)
    pod = template["spec"]
    pods.place(pod, spec.node_selector, spec.tolerations)
    pods.leave_lost_nodes_soon(pod)
    pod["volumes"].append(CONTROL_KEY.volume(fleet.control_key))
    if spec.api_key_secret is not None:
        pod["volumes"].append(ENGINE_KEY.volume(spec.api_key_secret))
    fixed = Fixed(container=CONTAINER, volumes=frozenset((TMP, CONTROL_KEY.name, ENGINE_KEY.name)))
    merged = merge(template, spec.pod_template, path=PATH, fixed=fixed)
    pods.set_default_requests(merged, CONTAINER, cpu="100m", memory="128Mi")
    pods.set_keepalive(merged)
    # The next one serves before the last one goes.
    made = pods.deployment_of(
        fleet,
        fleet.gateway,
        Component.GATEWAY,
        merged,
        replicas=replicas,
        surge=1,
        unavailable=0,
    )
    source = network.engine_source(fleet)
    return noted(made, [None if source is None else source.port, engines_by_address(fleet.spec)])


def arguments(fleet: Fleet) -> list[str]:
    """The flags of smg."""
    words = commands.flags(
        {
            "--host": "0.0.0.0",
            "--port": names.GATEWAY_PORT,
            "--prometheus-host": "0.0.0.0",
            "--prometheus-port": names.GATEWAY_METRICS_PORT,
            **smg.flags(fleet.spec),
            "--health-check-interval-secs": 5,
            "--health-check-timeout-secs": 5,
            "--health-failure-threshold": 2,
            "--shutdown-grace-period-secs": SHUTDOWN,
        }
    )
    urls = engines_by_address(fleet.spec)
    return [*words, *(smg.pushed_engines() if urls is None else smg.named_engines(urls))]


def _container(fleet: Fleet, operator: OperatorSettings) -> Manifest:
    spec = fleet.spec.gateway
    mounts: list[Manifest] = [{"name": TMP, "mountPath": "/tmp"}, CONTROL_KEY.mount()]
    if spec.api_key_secret is not None:
        mounts.append(ENGINE_KEY.mount())
    api_key = None if spec.api_key_secret is None else ENGINE_KEY.file
    command = smg.command("python3", control_key=CONTROL_KEY.file, api_key=api_key)
    if (found := network.engine_source(fleet)) is not None:
        command = smg.with_engines_of(
            operator.host(fleet.engines, fleet.namespace),
            found.port,
            gateway_port=names.GATEWAY_PORT,
            control_key=CONTROL_KEY.file,
            command=command,
        )
    return {
        "name": CONTAINER,
        "image": operator.gateway_image,
        "command": [*INIT, *command],
        "args": arguments(fleet),
        "ports": [
            {"name": "http", "containerPort": names.GATEWAY_PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": names.GATEWAY_METRICS_PORT, "protocol": "TCP"},
        ],
        "resources": pods.resources(spec.resources),
        "volumeMounts": mounts,
        "startupProbe": pods.get("/liveness", "http", period=2, timeout=5, failures=150),
        "livenessProbe": pods.get("/liveness", "http", period=10, timeout=5, failures=6),
        "readinessProbe": pods.get("/readiness", "http", period=5, timeout=5, failures=2),
        "lifecycle": {"preStop": {"sleep": {"seconds": _LEAVING}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
