"""What the pods of a fleet have in common."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rolloutfleet.spec import ResourcesSpec
from rolloutfleet_operator.cluster.children.names import Component, Fleet, child, labels, selector

USER: Final = 65532
TMP: Final = "tmp"
GIVEN_UP_AFTER: Final = 20
"""Seconds that a pod which has no state of its own stays on a node that is lost."""
_KEEPALIVE: Final = [
    {"name": "net.ipv4.tcp_keepalive_intvl", "value": "5"},
    {"name": "net.ipv4.tcp_keepalive_probes", "value": "3"},
]
INIT: Final = ("dumb-init", "--single-child", "--")
"""What commands begin with that stand in place of an image's own, as those do: no signal is lost on it."""

Manifest = dict[str, Any]


def pod_template(
    fleet: Fleet, component: Component, container: Manifest, *, grace: int, annotations: Mapping[str, str] | None = None
) -> Manifest:
    """A pod with one container of ours: not root, nothing to write to but /tmp and what is mounted, no API token."""
    spec: Manifest = {
        "automountServiceAccountToken": False,
        # A Service named like one of our settings would else be taken for it.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [{**container, "securityContext": restricted()}],
        "volumes": [{"name": TMP, "emptyDir": {}}],
        "affinity": {"podAntiAffinity": apart(fleet, component)},
    }
    if fleet.spec.image_pull_secrets:
        spec["imagePullSecrets"] = list(fleet.spec.image_pull_secrets)
    made: Manifest = {"labels": labels(fleet, component)}
    if annotations:
        made["annotations"] = dict(annotations)
    return {"metadata": made, "spec": spec}


def deployment_of(
    fleet: Fleet, name: str, component: Component, template: Manifest, *, replicas: int, surge: int, unavailable: int
) -> Manifest:
    """`surge` pods more and `unavailable` fewer than `replicas` are there, at the most, while pods are replaced."""
    spec = {
        "replicas": replicas,
        "revisionHistoryLimit": 2,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}},
        "selector": {"matchLabels": selector(fleet, component)},
        "template": template,
    }
    return child(fleet, "Deployment", name, component, spec=spec)


def restricted() -> Manifest:
    """As the Pod Security Standard `restricted` asks of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def apart(fleet: Fleet, component: Component) -> Manifest:
    """On other nodes, and in other zones, where there are any; never a reason to wait.

    Spread constraints over both would count for nothing on nodes that have no label for a zone.
    """
    pods = {"matchLabels": selector(fleet, component)}
    weights = {"kubernetes.io/hostname": 100, "topology.kubernetes.io/zone": 50}
    preferred = [
        {"weight": weight, "podAffinityTerm": {"topologyKey": key, "labelSelector": pods}}
        for key, weight in weights.items()
    ]
    return {"preferredDuringSchedulingIgnoredDuringExecution": preferred}


def place(spec: Manifest, node_selector: Mapping[str, str], tolerations: Sequence[Any]) -> None:
    """Add where a pod may run."""
    if node_selector:
        spec["nodeSelector"] = dict(node_selector)
    if tolerations:
        spec["tolerations"] = list(tolerations)


def leave_lost_nodes_soon(spec: Manifest) -> None:
    """Let Kubernetes replace the pod as soon as its node is known to be lost, and not five minutes later."""
    taints = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    soon = [
        {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": GIVEN_UP_AFTER}
        for taint in taints
    ]
    spec["tolerations"] = [*spec.get("tolerations", ()), *soon]


def set_keepalive(template: Manifest) -> None:
    """Let TCP keep-alive end connections to a lost node within seconds, unless the pod template sets sysctls itself.

    A pod with hostNetwork may not set these.
    """
    if not template["spec"].get("hostNetwork"):
        template["spec"].setdefault("securityContext", {}).setdefault("sysctls", _KEEPALIVE)


def container_of(template: Manifest, name: str) -> Manifest:
    """The container of that name; the template must have one."""
    found: Manifest = next(each for each in template["spec"]["containers"] if each["name"] == name)
    return found


def set_default_requests(template: Manifest, container: str, **defaults: str) -> None:
    """Request these amounts of what that container neither requests nor limits, so that it is not evicted first."""
    said = container_of(template, container).setdefault("resources", {})
    named = {*(said.get("requests") or {}), *(said.get("limits") or {})}
    more = {name: amount for name, amount in defaults.items() if name not in named}
    if more:
        said["requests"] = {**(said.get("requests") or {}), **more}


def resources(asked: ResourcesSpec) -> Manifest:
    made: Manifest = {
        "requests": {name: str(amount) for name, amount in asked.requests.items()},
        "limits": {name: str(amount) for name, amount in asked.limits.items()},
        "claims": list(asked.claims),
    }
    return {name: given for name, given in made.items() if given}


def get(path: str, port: str, *, period: int, timeout: int, failures: int) -> Manifest:
    """A probe by HTTP."""
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }
