"""The gateway: the stock `sglang-router` as a Deployment, and what lets it look for engines."""

from typing import Final

from rolloutfleet.spec import FleetSpec
from rolloutfleet_operator.cluster.children import keyed
from rolloutfleet_operator.cluster.children.merging import Fixed, merge
from rolloutfleet_operator.cluster.children.names import (
    ENGINE_PORT,
    GATEWAY_METRICS_PORT,
    GATEWAY_PORT,
    Component,
    Fleet,
    Release,
    labels,
    metadata,
    selector,
)
from rolloutfleet_operator.cluster.children.pods import TMP, Manifest, flags, get, place, pod_template, resources

CONTAINER: Final = "gateway"
PATH: Final = "spec.gateway.podTemplate"
SHUTDOWN: Final = 60
"""Seconds that generations have to finish when a gateway is replaced."""
_LEAVING: Final = 5
"""Seconds from leaving the Service to the end of new requests, for other nodes to hear of it."""
GRACE: Final = SHUTDOWN + _LEAVING + 10
LONGEST_ROUTE: Final = 14_400.0
"""Seconds for which an idle session's engine is remembered, at the least (the gateway's own default)."""


def deployment(fleet: Fleet, release: Release, *, replicas: int) -> Manifest:
    """Raises TemplateInvalid."""
    spec = fleet.spec.gateway
    template = pod_template(fleet, Component.GATEWAY, _container(fleet, release), grace=GRACE)
    pod = template["spec"]
    place(pod, spec.node_selector, spec.tolerations)
    if discovers(fleet.spec):
        pod |= {"serviceAccountName": fleet.gateway, "automountServiceAccountToken": True}
    if spec.api_key_secret is not None:
        pod["volumes"].append(keyed.volume(spec.api_key_secret))
    fixed = Fixed(container=CONTAINER, volumes=frozenset((TMP, keyed.VOLUME)), labels=labels(fleet, Component.GATEWAY))
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(fleet, fleet.gateway, Component.GATEWAY),
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 2,
            # The next one serves before the last one goes.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "selector": {"matchLabels": selector(fleet, Component.GATEWAY)},
            "template": merge(template, spec.pod_template, path=PATH, fixed=fixed),
        },
    }


def discovers(spec: FleetSpec) -> bool:
    """Whether the gateway looks for pods; else it is told addresses."""
    return spec.gateway.engines is None or spec.gateway.engines.urls is None


def service_account(fleet: Fleet) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(fleet, fleet.gateway, Component.GATEWAY),
        "automountServiceAccountToken": False,
    }


def role_binding(fleet: Fleet, release: Release) -> Manifest:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata(fleet, fleet.gateway, Component.GATEWAY),
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": release.gateway_role,
        },
        "subjects": [{"kind": "ServiceAccount", "name": fleet.gateway, "namespace": fleet.namespace}],
    }


def arguments(fleet: Fleet) -> list[str]:
    """The command line of sglang-router."""
    spec = fleet.spec
    words = flags(
        {
            "--host": "0.0.0.0",
            "--port": GATEWAY_PORT,
            "--prometheus-host": "0.0.0.0",
            "--prometheus-port": GATEWAY_METRICS_PORT,
            "--policy": spec.gateway.policy,
            "--max-idle-secs": int(max(LONGEST_ROUTE, spec.sessions.stale_after)),
            # A silent retry of a generation would make a second one, and the breaker counts an agent's bad requests
            # against a healthy engine.
            "--disable-retries": None,
            "--disable-circuit-breaker": None,
            "--worker-startup-check-interval": 2,
            "--health-check-interval-secs": 5,
            "--health-check-timeout-secs": 5,
            "--health-failure-threshold": 2,
            "--health-success-threshold": 1,
            "--shutdown-grace-period-secs": SHUTDOWN,
            "--log-level": "warn",
        }
    )
    return [*words, *_engines(fleet)]


def _engines(fleet: Fleet) -> list[str]:
    source = fleet.spec.gateway.engines
    if source is not None and source.urls is not None:
        return ["--worker-urls", *source.urls]
    chosen = selector(fleet, Component.ENGINE) if source is None else source.selector or {}
    return [
        "--service-discovery",
        "--service-discovery-namespace",
        fleet.namespace,
        "--service-discovery-port",
        str(ENGINE_PORT if source is None else source.port),
        "--selector",
        *(f"{name}={value}" for name, value in sorted(chosen.items())),
    ]


def _container(fleet: Fleet, release: Release) -> Manifest:
    spec = fleet.spec.gateway
    mounts: list[Manifest] = [{"name": TMP, "mountPath": "/tmp"}]
    started: Manifest = {"args": arguments(fleet)}
    if spec.api_key_secret is not None:
        mounts.append(keyed.mount())
        started["command"] = keyed.command("sglang_router.launch_router")
    return {
        "name": CONTAINER,
        "image": release.gateway_image,
        **started,
        "ports": [
            {"name": "http", "containerPort": GATEWAY_PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": GATEWAY_METRICS_PORT, "protocol": "TCP"},
        ],
        "resources": resources(spec.resources),
        "volumeMounts": mounts,
        "startupProbe": get("/liveness", "http", period=2, timeout=5, failures=150),
        "livenessProbe": get("/liveness", "http", period=10, timeout=5, failures=6),
        "readinessProbe": get("/readiness", "http", period=5, timeout=5, failures=2),
        "lifecycle": {"preStop": {"sleep": {"seconds": _LEAVING}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
