"""Which engines are to be added to each gateway, and which removed.

A gateway discovers none by itself, and forgets all when it restarts. So at every pass each gateway's list is compared
with the engines that there are, whatever was sent to it before.
"""

from collections.abc import Iterator, Sequence, Set

from rolloutfleet.spec import FleetSpec
from rolloutfleet_operator.policy.actions import AddWorker, RemoveWorker
from rolloutfleet_operator.policy.observed import ObservedFleet, ObservedWorker


def changes_of(
    gateway: str, listed: Sequence[ObservedWorker], *, ready: Set[str], there: Set[str]
) -> Iterator[AddWorker | RemoveWorker]:
    """Of one gateway: `ready` are the engines that can serve, `there` those that have not gone and are not ending.

    One that is there and not ready (it is paused, or starts) is not added, and not taken from who has it: the gateway
    itself sends nothing to what answers no health check, and the engine's sessions come back with it. One that the
    gateway lets go of already is not removed again: the second time would take the next one at that address. Removals
    are first, as an engine that ends serves on for some seconds only.
    """
    for worker in listed:
        if worker.url not in there and not worker.draining and worker.id is not None:
            yield RemoveWorker(gateway=gateway, url=worker.url, id=worker.id)
    for url in sorted(ready - {worker.url for worker in listed}):
        yield AddWorker(gateway=gateway, url=url)


def changes(spec: FleetSpec, observed: ObservedFleet) -> Iterator[AddWorker | RemoveWorker]:
    """For every gateway that answered. Engines named by address are the gateways' own to keep."""
    engines = observed.engines
    if engines_by_address(spec) is not None or engines.urls is None:
        return
    ready, there = frozenset(engines.ready), frozenset(engines.urls)
    for gateway, listed in observed.gateway.lists.items():
        yield from changes_of(gateway, listed, ready=ready & there, there=there)


def engines_by_address(spec: FleetSpec) -> list[str] | None:
    """The engines' addresses, where gateways are started with them."""
    return None if spec.gateway.engines is None else spec.gateway.engines.urls
