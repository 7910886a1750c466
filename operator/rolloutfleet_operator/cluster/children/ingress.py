"""The Ingress, made only where `spec.endpoint.ingress` is given.

    ingress: {host: rollouts.example.com, className: nginx, annotations: {…}, tls: [{hosts: […], secretName: …}]}

Any ready proxy may take a call: the one that is not its session's owner passes it on.
"""

from typing import Any, Final

from rolloutfleet_operator.cluster.children.fields import check_names
from rolloutfleet_operator.cluster.children.names import Component, Fleet, metadata
from rolloutfleet_operator.cluster.children.pods import Manifest

PATH: Final = "spec.endpoint.ingress"
_KNOWN: Final[dict[str, type]] = {"host": str, "className": str, "annotations": dict, "tls": list}


def ingress(fleet: Fleet) -> Manifest:
    """Raises FieldInvalid."""
    asked: Any = fleet.spec.endpoint.ingress or {}
    check_names(asked, _KNOWN, PATH)
    backend = {"service": {"name": fleet.service, "port": {"name": "http"}}}
    rule: Manifest = {"http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}
    if "host" in asked:
        rule["host"] = asked["host"]
    spec: Manifest = {"rules": [rule]}
    if "className" in asked:
        spec["ingressClassName"] = asked["className"]
    if "tls" in asked:
        spec["tls"] = asked["tls"]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": metadata(fleet, fleet.name, Component.PROXY, asked.get("annotations")),
        "spec": spec,
    }
