"""All children of a fleet, in the order in which they are applied."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rolloutfleet.settings import ProxySettings
from rolloutfleet_operator.cluster.children import disruption, engines, gateway, network, proxies, settings
from rolloutfleet_operator.cluster.children.names import Fleet
from rolloutfleet_operator.cluster.children.pods import Manifest
from rolloutfleet_operator.cluster.settings import OperatorSettings
from rolloutfleet_operator.policy.decide import Evictable

KINDS: Final = (
    "ConfigMap",
    "Service",
    "PodDisruptionBudget",
    "NetworkPolicy",
    "Ingress",
    "Deployment",
    "StatefulSet",
)
"""What a fleet may have, besides its Secrets: those are never listed."""


@dataclass(frozen=True, slots=True)
class Part:
    """A child that the spec asks for. `make` raises TemplateInvalid or FieldInvalid where the spec can't be used."""

    kind: str
    name: str
    make: Callable[[], Manifest]


def parts(
    fleet: Fleet, operator: OperatorSettings, proxy_settings: ProxySettings, evictable: Evictable
) -> Iterator[Part]:
    """Every child but the Secrets and what makes pods."""
    spec = fleet.spec
    yield Part("ConfigMap", fleet.settings, lambda: settings.config_map(fleet, proxy_settings))
    yield Part("Service", fleet.headless, lambda: network.proxies_by_name(fleet))
    yield Part("Service", fleet.service, lambda: network.ready_proxies(fleet))
    yield Part("Service", fleet.gateway, lambda: network.gateway_service(fleet))
    if (source := network.engine_source(fleet)) is not None:
        yield Part("Service", fleet.engines, lambda: network.engine_service(fleet, source))
    if not spec.suspend:
        yield Part("PodDisruptionBudget", fleet.proxies, lambda: disruption.of_proxies(fleet, evictable))
        if spec.gateway.replicas_on_a_cluster > 1:
            yield Part("PodDisruptionBudget", fleet.gateway, lambda: disruption.of_gateways(fleet))
    if spec.network_policy is not None:
        yield Part("NetworkPolicy", fleet.name, lambda: network.of_proxies(fleet, operator))
        yield Part("NetworkPolicy", fleet.gateway, lambda: network.of_gateways(fleet, operator))
    if spec.endpoint.ingress is not None:
        yield Part("Ingress", fleet.name, lambda: network.ingress(fleet))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """How many pods of each component there should be now."""

    proxies: int
    gateways: int
    engines: int


def workloads(
    fleet: Fleet,
    operator: OperatorSettings,
    template: Manifest | None,
    counts: Replicas,
    claims: Sequence[Manifest] | None,
    control_key: str | None,
) -> Iterator[Part]:
    """What makes pods. `claims` are the claim templates of the StatefulSet that is there, `control_key` changes with
    the key of the gateways' control plane.

    Without a `template` of the proxies (theirs can't be used) the StatefulSet is not part, and stays as it is; without
    a `control_key` so does the gateways' Deployment.
    """
    engine = fleet.spec.engine
    if engine is not None:
        yield Part(
            "Deployment", fleet.engine, lambda: engines.deployment(fleet, engine, operator, replicas=counts.engines)
        )
    if control_key is not None:
        yield Part(
            "Deployment",
            fleet.gateway,
            lambda: gateway.deployment(fleet, operator, replicas=counts.gateways, control_key=control_key),
        )
    if template is not None:
        yield Part(
            "StatefulSet",
            fleet.proxies,
            lambda: proxies.stateful_set(fleet, template, replicas=counts.proxies, claims=claims),
        )
