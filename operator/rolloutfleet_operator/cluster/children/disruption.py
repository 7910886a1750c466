"""Disruption budgets: how many pods a node's drain may take at once."""

from rolloutfleet_operator.cluster.children.names import Component, Fleet, child, selector
from rolloutfleet_operator.cluster.children.pods import Manifest


def of_proxies(fleet: Fleet, most: int) -> Manifest:
    return _budget(fleet, fleet.proxies, Component.PROXY, most)


def of_gateways(fleet: Fleet) -> Manifest:
    """For several gateways only: of a single one it would hold up every node's drain."""
    return _budget(fleet, fleet.gateway, Component.GATEWAY, 1)


def _budget(fleet: Fleet, name: str, component: Component, most: int) -> Manifest:
    spec = {
        "maxUnavailable": most,
        "selector": {"matchLabels": selector(fleet, component)},
        # Else a pod that never gets ready would hold up a node's drain for good.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return child(fleet, "PodDisruptionBudget", name, component, spec=spec)
