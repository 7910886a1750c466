"""NetworkPolicies, made only where `spec.networkPolicy` is given.

    networkPolicy: {}                                    # proxies are reached from the fleet's own namespace
    networkPolicy: {from: [{namespaceSelector: …}, …]}   # from there instead, as a NetworkPolicy's `from` has it

The fleet itself and the operator always get through. The gateway is for proxies and the operator alone.
"""

from typing import Any, Final

from rolloutfleet_operator.cluster.children.fields import check_names
from rolloutfleet_operator.cluster.children.names import (
    FLEET_LABEL,
    OPERATOR,
    Component,
    Fleet,
    Release,
    metadata,
    selector,
)
from rolloutfleet_operator.cluster.children.pods import Manifest

PATH: Final = "spec.networkPolicy"


def of_proxies(fleet: Fleet, release: Release) -> Manifest:
    """Raises FieldInvalid."""
    asked: Any = fleet.spec.network_policy or {}
    check_names(asked, {"from": list}, PATH)
    others = asked.get("from", [{"podSelector": {}}])
    ingress = [{"from": [*_known(fleet, release), *others], "ports": [_port("http")]}]
    return _policy(fleet, fleet.name, Component.PROXY, ingress)


def of_gateways(fleet: Fleet, release: Release) -> Manifest:
    """Anybody may read metrics."""
    ingress = [{"from": _known(fleet, release), "ports": [_port("http")]}, {"ports": [_port("metrics")]}]
    return _policy(fleet, fleet.gateway, Component.GATEWAY, ingress)


def _known(fleet: Fleet, release: Release) -> list[Manifest]:
    return [{"podSelector": {"matchLabels": {FLEET_LABEL: fleet.name}}}, _operator(release)]


def _policy(fleet: Fleet, name: str, component: Component, ingress: list[Manifest]) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(fleet, name, component),
        "spec": {
            "podSelector": {"matchLabels": selector(fleet, component)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    }


def _operator(release: Release) -> Manifest:
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": release.operator_namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": OPERATOR}},
    }


def _port(name: str) -> Manifest:
    return {"port": name, "protocol": "TCP"}
