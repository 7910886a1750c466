"""Which store each proxy has: one that is another than before was lost with all that it held, and is said to be."""

from collections.abc import Iterable, Iterator
from typing import Final

from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import StoreStatus
from rolloutfleet_operator.policy.observed import ObservedFleet, ObservedPod, seconds_of, text_of
from rolloutfleet_operator.policy.reasons import Problem, ProblemReason

LOSS_SHOWN_FOR: Final = 86400.0
"""Seconds that a lost store is a problem of the fleet; its count stays."""


def of_fleet(spec: FleetSpec, observed: ObservedFleet, now: float) -> list[StoreStatus]:
    """Those in the status, with what the proxies answered since. On ephemeral storage each pod has another: none."""
    if spec.proxies.storage.ephemeral:
        return []
    stores = {each.ordinal: each for each in observed.status.stores}
    for pod in observed.pods:
        if pod.stats is not None and pod.stats.store_id:
            stores[pod.ordinal] = _seen(stores.get(pod.ordinal), pod, pod.stats.store_id, now)
    return [stores[ordinal] for ordinal in sorted(stores)]


def _seen(before: StoreStatus | None, pod: ObservedPod, id: str, now: float) -> StoreStatus:
    if before is None:
        return StoreStatus(ordinal=pod.ordinal, id=id)
    if before.id == id:
        return before
    return StoreStatus(ordinal=pod.ordinal, id=id, lost=before.lost + 1, lost_at=text_of(now))


def problems_of(fleet: str, stores: Iterable[StoreStatus], now: float) -> Iterator[Problem]:
    """A day long: a loss is over at once, and is to be seen nevertheless."""
    for store in stores:
        if store.lost_at is not None and now - seconds_of(store.lost_at) < LOSS_SHOWN_FOR:
            message = (
                f"at {store.lost_at} its store was another than before: what had been in that one, and was neither "
                "acknowledged nor dumped, is lost"
            )
            yield Problem(ProblemReason.STORE_LOST, message, f"{fleet}-proxy-{store.ordinal}")
