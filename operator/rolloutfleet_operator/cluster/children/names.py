"""Names, labels, annotations, ports and paths of all that is made for a fleet."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from rolloutfleet.spec import API_VERSION, KIND, FleetSpec
from rolloutfleet_operator.policy.observed import GROUP

OPERATOR: Final = "rolloutfleet-operator"
"""Field manager, and who manages what is made."""

FLEET_LABEL: Final = f"{GROUP}/fleet"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
COMPONENT: Final = "app.kubernetes.io/component"
TEMPLATE_HASH: Final = f"{GROUP}/template-hash"
SETTINGS_HASH: Final = f"{GROUP}/settings-hash"
CONTROL_KEY_HASH: Final = f"{GROUP}/control-key-hash"
APPLIED_HASH: Final = f"{GROUP}/applied-hash"
GENERATION: Final = f"{GROUP}/generation"
ROTATION_ID: Final = f"{GROUP}/rotation-id"
ROTATED_AT: Final = f"{GROUP}/rotated-at"

READY_PERIOD: Final = 5
READY_FAILURES: Final = 2
"""Seconds between readiness probes of a proxy, and failures in a row after which it is not ready."""
LEAVE_TIME: Final = READY_PERIOD * READY_FAILURES + 2.0
"""Seconds until other nodes have heard that a proxy is not ready."""

PROXY_PORT: Final = 8080
SERVICE_PORT: Final = 80
GATEWAY_PORT: Final = 30000
GATEWAY_METRICS_PORT: Final = 29000
ENGINE_PORT: Final = 30000

STATE_PATH: Final = "/state"
DUMPS_PATH: Final = "/dumps"
SETTINGS_PATH: Final = "/etc/rolloutfleet/settings"
SETTINGS_FILE: Final = "settings.json"
SIMULATED_MODEL_PATH: Final = "/opt/rolloutfleet/simulated-model"
"""In the proxy's image: the tokenizer of the simulated engine."""

POD_INDEX_LABEL: Final = "apps.kubernetes.io/pod-index"


API_KINDS: Final[Mapping[str, tuple[str, str]]] = {
    # kind: (apiVersion, its name in paths)
    "ConfigMap": ("v1", "configmaps"),
    "Event": ("v1", "events"),
    "PersistentVolume": ("v1", "persistentvolumes"),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "Pod": ("v1", "pods"),
    "Secret": ("v1", "secrets"),
    "Service": ("v1", "services"),
    "EndpointSlice": ("discovery.k8s.io/v1", "endpointslices"),
    "Node": ("v1", "nodes"),
    "Deployment": ("apps/v1", "deployments"),
    "StatefulSet": ("apps/v1", "statefulsets"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "Ingress": ("networking.k8s.io/v1", "ingresses"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
    KIND: (API_VERSION, "rolloutfleets"),
}


class Component(StrEnum):
    PROXY = "proxy"
    GATEWAY = "gateway"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A fleet as its children need to know it."""

    name: str
    namespace: str
    uid: str
    generation: int
    spec: FleetSpec
    unknown: tuple[str, ...] = ()
    """Paths of what else the spec has, which this release has no field for."""

    @property
    def proxies(self) -> str:
        """The StatefulSet and its budget; pods add their ordinal."""
        return f"{self.name}-proxy"

    @property
    def headless(self) -> str:
        """The Service that resolves each proxy by name, ready or not."""
        return f"{self.name}-proxies"

    @property
    def service(self) -> str:
        """The Service of ready proxies."""
        return self.name

    @property
    def gateway(self) -> str:
        return f"{self.name}-gateway"

    @property
    def engine(self) -> str:
        return f"{self.name}-engine"

    @property
    def engines(self) -> str:
        """The Service that resolves to every engine there is, ready or not."""
        return f"{self.name}-engine-pods"

    @property
    def settings(self) -> str:
        return f"{self.name}-settings"

    @property
    def own_keys(self) -> str:
        """The Secret that is generated."""
        return f"{self.name}-keys"

    @property
    def control_key(self) -> str:
        """The generated Secret with the key of the gateways' control plane."""
        return f"{self.name}-gateway-key"

    @property
    def keys(self) -> str:
        """The Secret with admin keys that pods mount."""
        return self.spec.auth.secret or self.own_keys

    @property
    def claims(self) -> str:
        """How the claims of the proxies' volumes begin; the ordinal follows."""
        return f"state-{self.proxies}-"


def selector(fleet: Fleet, component: Component) -> dict[str, str]:
    """The labels that choose the pods of one component; they never change."""
    return {FLEET_LABEL: fleet.name, COMPONENT: component.value}


def labels(fleet: Fleet, component: Component) -> dict[str, str]:
    """The labels that every child has. No version is among them: an upgrade alone changes no pod."""
    return {
        "app.kubernetes.io/name": "rolloutfleet",
        "app.kubernetes.io/instance": fleet.name,
        MANAGED_BY: OPERATOR,
        **selector(fleet, component),
    }


def owner(fleet: Fleet) -> dict[str, object]:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": fleet.name,
        "uid": fleet.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def child(
    fleet: Fleet,
    kind: str,
    name: str,
    component: Component,
    annotations: Mapping[str, str] | None = None,
    **body: object,
) -> dict[str, Any]:
    """A child that ends with its fleet."""
    metadata: dict[str, object] = {
        "name": name,
        "namespace": fleet.namespace,
        "labels": labels(fleet, component),
        "ownerReferences": [owner(fleet)],
    }
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": API_KINDS[kind][0], "kind": kind, "metadata": metadata, **body}
