"""The StatefulSet of proxies. It replaces no pod by itself (OnDelete): the operator decides order and pace."""

import copy
import math
from collections.abc import Sequence
from typing import Any, Final

from rolloutfleet.settings import ProxySettings
from rolloutfleet.spec import FleetSpec, memory_limit
from rolloutfleet.units import format_quantity
from rolloutfleet_operator.cluster.children import names, network
from rolloutfleet_operator.cluster.children import settings as settings_of
from rolloutfleet_operator.cluster.children.hashes import content_hash
from rolloutfleet_operator.cluster.children.merging import Fixed, merge
from rolloutfleet_operator.cluster.children.names import Component, Fleet, child, labels, selector
from rolloutfleet_operator.cluster.children.pods import (
    TMP,
    Manifest,
    container_of,
    get,
    place,
    pod_template,
    resources,
    set_default_requests,
)
from rolloutfleet_operator.cluster.children.secret import ADMIN_KEYS, CONTROL_KEY, ENGINE_KEY
from rolloutfleet_operator.cluster.settings import OperatorSettings
from rolloutfleet_operator.policy.observed import RESTART_NOTE
from rolloutfleet_operator.policy.workers import engines_by_address

CONTAINER: Final = "proxy"
STATE: Final = "state"
DUMPS: Final = "dumps"
PATH: Final = "spec.proxies.podTemplate"
ENVIRONMENT: Final = "ROLLOUTFLEET_"

_LEAVING: Final = 5
"""Seconds from a deleted pod's leaving the Service to its end, for other nodes to hear of it."""
GRACE_BEYOND_DRAIN: Final = 30 + _LEAVING
START_PERIOD: Final = 2
START_TRIES: Final = 1800
"""Together an hour for a full store to be opened, before the kubelet gives up on a start."""


def stateful_set(fleet: Fleet, template: Manifest, *, replicas: int, claims: Sequence[Manifest] | None) -> Manifest:
    """The StatefulSet. `claims` are the claim templates of the one that is there: those can't be changed."""
    spec: Manifest = {
        "replicas": replicas,
        "serviceName": fleet.headless,
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "selector": {"matchLabels": selector(fleet, Component.PROXY)},
        "template": template,
        "revisionHistoryLimit": 2,
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
    }
    if not fleet.spec.proxies.storage.ephemeral:
        spec["volumeClaimTemplates"] = [_as_made(each) for each in claims] if claims else [claim_template(fleet)]
    return child(fleet, "StatefulSet", fleet.proxies, Component.PROXY, spec=spec)


def claim_template(fleet: Fleet) -> Manifest:
    storage = fleet.spec.proxies.storage
    assert storage.capacity is not None
    spec: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": format_quantity(storage.capacity)}},
    }
    if storage.class_name is not None:
        spec["storageClassName"] = storage.class_name
    return {"metadata": {"name": STATE, "labels": labels(fleet, Component.PROXY)}, "spec": spec}


def _as_made(claim: Manifest) -> Manifest:
    """A claim template of the StatefulSet that is there, less what the API server added: it can't be changed.

    Its size is that of the fleet's beginning; claims that should be larger are let grow when they are there.
    """
    spec = {name: claim["spec"][name] for name in ("accessModes", "storageClassName") if name in claim["spec"]}
    requests = {"requests": claim["spec"]["resources"]["requests"]}
    meta = {"name": claim["metadata"]["name"], "labels": claim["metadata"].get("labels") or {}}
    return {"metadata": meta, "spec": {**spec, "resources": requests}}


def template(fleet: Fleet, operator: OperatorSettings, settings: ProxySettings) -> Manifest:
    """The pods' template, the user's part merged in and its hash on it. Raises TemplateInvalid."""
    spec = fleet.spec
    grace = math.ceil(spec.disruption.drain_timeout) + GRACE_BEYOND_DRAIN
    annotations = {names.SETTINGS_HASH: settings_of.restart_hash(settings)}
    made = pod_template(fleet, Component.PROXY, _container(fleet, operator), grace=grace, annotations=annotations)
    made["spec"]["volumes"] += _volumes(fleet)
    place(made["spec"], spec.proxies.node_selector, spec.proxies.tolerations)
    merged = merge(made, spec.proxies.pod_template, path=PATH, fixed=_fixed(settings))
    merged["metadata"]["annotations"][names.TEMPLATE_HASH] = _template_hash(merged, spec)
    set_default_requests(merged, CONTAINER, cpu="100m")  # which makes no pod outdated either
    if spec.restart is not None:
        # Beside the hash: that a restart was asked for makes nothing outdated, and a new pod needs none.
        merged["metadata"]["annotations"][RESTART_NOTE] = spec.restart.id
    return merged


def _fixed(settings: ProxySettings) -> Fixed:
    ours = settings_of.set_here(settings)

    def environment(name: str) -> str | None:
        field = name.removeprefix(ENVIRONMENT).partition("__")[0].lower()
        if name.startswith(ENVIRONMENT) and field in ours:
            return "is decided by the operator; change the field of the spec that it comes from"
        return None

    return Fixed(
        container=CONTAINER,
        volumes=frozenset((STATE, DUMPS, "settings", ADMIN_KEYS.name, ENGINE_KEY.name, CONTROL_KEY.name, TMP)),
        environment=environment,
    )


def _container(fleet: Fleet, operator: OperatorSettings) -> Manifest:
    spec = fleet.spec
    return {
        "name": CONTAINER,
        "image": spec.image or operator.proxy_image,
        "args": ["--settings", f"{names.SETTINGS_PATH}/{names.SETTINGS_FILE}"],
        "env": _environment(fleet, operator),
        "ports": [{"name": "http", "containerPort": names.PROXY_PORT, "protocol": "TCP"}],
        "resources": _resources(spec),
        "volumeMounts": _mounts(fleet),
        "startupProbe": get("/health", "http", period=START_PERIOD, timeout=5, failures=START_TRIES),
        # While a worker is replaced, calls wait in the socket's backlog, the kubelet's too.
        "livenessProbe": get("/health", "http", period=10, timeout=10, failures=30),
        "readinessProbe": get("/ready", "http", period=names.READY_PERIOD, timeout=5, failures=names.READY_FAILURES),
        "lifecycle": {"preStop": {"sleep": {"seconds": _LEAVING}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _environment(fleet: Fleet, operator: OperatorSettings) -> list[Manifest]:
    spec = fleet.spec
    variables: list[Manifest] = [
        {
            "name": f"{ENVIRONMENT}ORDINAL",
            "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{names.POD_INDEX_LABEL}']"}},
        }
    ]
    if not spec.endpoint.direct:
        variables.append({"name": f"{ENVIRONMENT}SERVICE_URL", "value": network.address(fleet, operator)})
    if spec.tokenizer.token_secret is not None:
        reference = {"name": spec.tokenizer.token_secret, "key": "token"}
        variables.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    return variables


def _template_hash(template: Manifest, spec: FleetSpec) -> str:
    """The hash by which a pod is outdated.

    Of `requests` and `limits`, memory is left out where it is derived from the budget: a raised budget restarts nobody.
    Replicas and versions are not part of a pod's template.
    """
    hashed, asked, derived = copy.deepcopy(template), spec.proxies.resources, _resources(spec)
    merged = container_of(hashed, CONTAINER).get("resources", {})
    for name, amounts in (("limits", asked.limits), ("requests", asked.requests)):
        if "memory" not in amounts and merged.get(name, {}).get("memory") == derived[name]["memory"]:
            del merged[name]["memory"]
    return content_hash(hashed)


def _resources(spec: FleetSpec) -> Manifest:
    made = resources(spec.proxies.resources)
    limits: dict[str, Any] = {"memory": format_quantity(memory_limit(spec)), **made.get("limits", {})}
    # Where nothing is asked for, Kubernetes would set aside the whole limit.
    requests: dict[str, Any] = {"memory": format_quantity(spec.memory.rss_budget), **made.get("requests", {})}
    return {**made, "limits": limits, "requests": requests}


def _mounts(fleet: Fleet) -> list[Manifest]:
    own_dumps = fleet.spec.sessions.dump.volume is not None
    dumps: Manifest = {"name": DUMPS if own_dumps else STATE, "mountPath": names.DUMPS_PATH}
    if not own_dumps:
        dumps["subPath"] = "dumps"
    mounts: list[Manifest] = [
        {"name": STATE, "mountPath": names.STATE_PATH},
        dumps,
        {"name": "settings", "mountPath": names.SETTINGS_PATH, "readOnly": True},
        ADMIN_KEYS.mount(),
        {"name": TMP, "mountPath": "/tmp"},
    ]
    if fleet.spec.gateway.api_key_secret is not None:
        mounts.append(ENGINE_KEY.mount())
    if engines_by_address(fleet.spec) is None:  # then proxies ask the gateway which engines there are
        mounts.append(CONTROL_KEY.mount())
    return mounts


def _volumes(fleet: Fleet) -> list[Manifest]:
    """Secrets and settings are mounted as folders, never as single files: those would not follow a change."""
    spec, keys = fleet.spec, ADMIN_KEYS.file.name
    volumes: list[Manifest] = [
        {"name": "settings", "configMap": {"name": fleet.settings}},
        {"name": ADMIN_KEYS.name, "secret": {"secretName": fleet.keys, "items": [{"key": keys, "path": keys}]}},
    ]
    if spec.proxies.storage.ephemeral:
        volumes.append({"name": STATE, "emptyDir": {}})
    if spec.sessions.dump.volume is not None:
        volumes.append({**spec.sessions.dump.volume, "name": DUMPS})
    if spec.gateway.api_key_secret is not None:
        volumes.append(ENGINE_KEY.volume(spec.gateway.api_key_secret))
    if engines_by_address(spec) is None:
        volumes.append(CONTROL_KEY.volume(fleet.control_key))
    return volumes
