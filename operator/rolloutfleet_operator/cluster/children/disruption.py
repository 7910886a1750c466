"""Disruption budgets: how many pods a node's drain may take at once."""

from rolloutfleet_operator.cluster.children.names import Component, Fleet, child, selector
from rolloutfleet_operator.cluster.children.pods import Manifest
from rolloutfleet_operator.policy.decide import Evictable


def of_proxies(fleet: Fleet, evictable: Evictable) -> Manifest:
    return _budget(fleet, fleet.proxies, Component.PROXY, evictable)


def of_gateways(fleet: Fleet) -> Manifest:
    """For several gateways only: of a single one it would hold up every node's drain."""
    return _budget(fleet, fleet.gateway, Component.GATEWAY, Evictable(ready=1, unready=True))


def _budget(fleet: Fleet, name: str, component: Component, evictable: Evictable) -> Manifest:
    spec = {
        "maxUnavailable": evictable.ready,
        "selector": {"matchLabels": selector(fleet, component)},
        # Where unready pods may not go, one that never gets ready holds up a node's drain for good.
        "unhealthyPodEvictionPolicy": "AlwaysAllow" if evictable.unready else "IfHealthyBudget",
    }
    return child(fleet, "PodDisruptionBudget", name, component, spec=spec)
