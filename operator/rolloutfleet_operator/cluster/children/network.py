"""How a fleet is reached, and by whom: Services, and, where the spec asks for them, NetworkPolicies and the Ingress.

    networkPolicy: {}                                    # proxies are reached from the fleet's own namespace
    networkPolicy: {from: [{namespaceSelector: …}, …]}   # from there instead, as a NetworkPolicy's `from` has it
    endpoint:
      ingress: {host: rollouts.example.com, className: nginx, annotations: {…}, tls: [{hosts: […], secretName: …}]}

The fleet itself and the operator always get through a NetworkPolicy; the gateway is for proxies and the operator alone.
Through Service and Ingress any ready proxy may take a call: the one that is not its session's owner passes it on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rolloutfleet_operator.cluster.children import names
from rolloutfleet_operator.cluster.children.names import Component, Fleet, child, selector
from rolloutfleet_operator.cluster.children.pods import Manifest
from rolloutfleet_operator.cluster.settings import OperatorSettings
from rolloutfleet_operator.policy.reasons import ProblemReason

POLICY_PATH: Final = "spec.networkPolicy"
INGRESS_PATH: Final = "spec.endpoint.ingress"
_OF_INGRESS: Final[dict[str, type]] = {"host": str, "className": str, "annotations": dict, "tls": list}
_KINDS: Final[Mapping[type, str]] = {str: "text", list: "a list", dict: "a mapping"}


class FieldInvalid(Exception):
    """A field that can't be used; the message names it by its path."""

    reason: Final = ProblemReason.SPEC_INVALID


def of_proxies(fleet: Fleet, operator: OperatorSettings) -> Manifest:
    """Raises FieldInvalid."""
    asked: Any = fleet.spec.network_policy or {}
    _check_names(asked, {"from": list}, POLICY_PATH)
    others = asked.get("from", [{"podSelector": {}}])
    ingress = [{"from": [*_known(fleet, operator), *others], "ports": [_port("http")]}]
    return _policy(fleet, fleet.name, Component.PROXY, ingress)


def of_gateways(fleet: Fleet, operator: OperatorSettings) -> Manifest:
    """Anybody may read metrics."""
    ingress = [{"from": _known(fleet, operator), "ports": [_port("http")]}, {"ports": [_port("metrics")]}]
    return _policy(fleet, fleet.gateway, Component.GATEWAY, ingress)


def _known(fleet: Fleet, operator: OperatorSettings) -> list[Manifest]:
    return [{"podSelector": {"matchLabels": {names.FLEET_LABEL: fleet.name}}}, _operator(operator)]


def _policy(fleet: Fleet, name: str, component: Component, ingress: list[Manifest]) -> Manifest:
    pods = {"matchLabels": selector(fleet, component)}
    spec = {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": ingress}
    return child(fleet, "NetworkPolicy", name, component, spec=spec)


def _operator(operator: OperatorSettings) -> Manifest:
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator.lease_namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": names.OPERATOR}},
    }


def _port(name: str) -> Manifest:
    return {"port": name, "protocol": "TCP"}


def ingress(fleet: Fleet) -> Manifest:
    """Raises FieldInvalid."""
    asked: Any = fleet.spec.endpoint.ingress or {}
    _check_names(asked, _OF_INGRESS, INGRESS_PATH)
    backend = {"service": {"name": fleet.service, "port": {"name": "http"}}}
    rule: Manifest = {"http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}
    if "host" in asked:
        rule["host"] = asked["host"]
    spec: Manifest = {"rules": [rule]}
    if "className" in asked:
        spec["ingressClassName"] = asked["className"]
    if "tls" in asked:
        spec["tls"] = asked["tls"]
    return child(fleet, "Ingress", fleet.name, Component.PROXY, asked.get("annotations"), spec=spec)


def _check_names(given: Mapping[str, Any], known: Mapping[str, type], path: str) -> None:
    """Raises FieldInvalid for a name that is not known, and for a value of another type."""
    for name, value in given.items():
        if name not in known:
            raise FieldInvalid(f"{path}.{name}: no such field; known here: {', '.join(sorted(known))}")
        if not isinstance(value, known[name]):
            raise FieldInvalid(f"{path}.{name}: must be {_KINDS[known[name]]}, not {value!r}")


def proxies_by_name(fleet: Fleet) -> Manifest:
    """Each proxy under its own name, unready ones too: sessions have one owner, and others pass calls on to it."""
    return _service(
        fleet, fleet.headless, Component.PROXY, names.PROXY_PORT, clusterIP="None", publishNotReadyAddresses=True
    )


def ready_proxies(fleet: Fleet) -> Manifest:
    """Any ready proxy: where sessions are started, and where their calls go."""
    return _service(fleet, fleet.service, Component.PROXY, names.SERVICE_PORT, type="ClusterIP")


def address(fleet: Fleet, operator: OperatorSettings) -> str:
    """The address of that Service."""
    return f"http://{operator.host(fleet.service, fleet.namespace)}"


def gateway_service(fleet: Fleet) -> Manifest:
    return _service(fleet, fleet.gateway, Component.GATEWAY, names.GATEWAY_PORT, type="ClusterIP")


@dataclass(frozen=True, slots=True)
class EngineSource:
    """The labels and port of the pods that are engines of the fleet, its own or others'."""

    labels: Mapping[str, str]
    port: int


def engine_source(fleet: Fleet) -> EngineSource | None:
    """None where engines are named by address."""
    source = fleet.spec.gateway.engines
    if source is not None and source.selector is not None:
        return EngineSource(source.selector, source.port)
    return None if fleet.spec.engine is None else EngineSource(selector(fleet, Component.ENGINE), names.ENGINE_PORT)


def engine_service(fleet: Fleet, source: EngineSource) -> Manifest:
    """Every engine there is, unready ones too, as one in a pause is: for a gateway that starts."""
    ports = [{"name": "http", "port": source.port, "targetPort": source.port, "protocol": "TCP"}]
    spec = {"selector": dict(source.labels), "ports": ports, "clusterIP": "None", "publishNotReadyAddresses": True}
    return child(fleet, "Service", fleet.engines, Component.ENGINE, spec=spec)


def _service(fleet: Fleet, name: str, component: Component, port: int, **more: object) -> Manifest:
    ports = [{"name": "http", "port": port, "targetPort": "http", "protocol": "TCP"}]
    return child(
        fleet, "Service", name, component, spec={"selector": selector(fleet, component), "ports": ports, **more}
    )
