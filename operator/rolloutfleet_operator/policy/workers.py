"""Engines that are gone, and that a gateway still lists: its own discovery can miss a deleted pod."""

from collections.abc import Iterator

from rolloutfleet.spec import FleetSpec
from rolloutfleet_operator.policy.actions import RemoveWorker
from rolloutfleet_operator.policy.seen import FleetSeen


def gone(spec: FleetSpec, seen: FleetSeen) -> Iterator[RemoveWorker]:
    """Those that no pod stands for and that answer no health check; engines named by address are left alone."""
    named = spec.gateway.engines is not None and spec.gateway.engines.urls is not None
    if named or seen.engines.urls is None:
        return
    there = set(seen.engines.urls)
    for worker in seen.gateway.workers or ():
        if worker.url not in there and not worker.healthy:
            yield RemoveWorker(url=worker.url, id=worker.id)
