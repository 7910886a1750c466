"""Other operators, found by their Leases: which namespaces are theirs, and which of two acts on the same fleets.

An operator of one namespace has precedence over one of the whole cluster. Of two with the same scope, by two releases
of the chart, say, the one with the older Lease acts, and the other does nothing while that one is alive.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rolloutfleet_operator.cluster.api import Api, ApiRefused, ApiUnreachable, Object
from rolloutfleet_operator.cluster.lease import DURATION, LABELS, SCOPE
from rolloutfleet_operator.cluster.logs import logger
from rolloutfleet_operator.cluster.settings import OperatorSettings
from rolloutfleet_operator.policy.observed import seconds_of
from rolloutfleet_operator.policy.reasons import Problem, ProblemReason

INTERVAL: Final = 30.0
"""Seconds between reads of the Leases."""
RETRY_INTERVAL: Final = 2.0
"""Seconds until the next, where the API server did not answer."""

Name = tuple[str, str]
"""Namespace and name of a Lease."""


@dataclass(frozen=True, slots=True)
class OtherOperators:
    """Who else there is."""

    namespaces: frozenset[str] = frozenset()
    """Those with an operator of their own, which are left to it."""
    rivals: tuple[str, ...] = ()
    """Leases of operators with the same fleets as this one."""
    goes_first: bool = True
    """Before the rivals."""

    def leave_us(self, namespace: str) -> bool:
        """Whether that namespace's fleets are this operator's."""
        return self.goes_first and namespace not in self.namespaces

    def problems(self) -> tuple[Problem, ...]:
        """What the fleets' status says of it."""
        if not self.rivals:
            return ()
        message = (
            f"an operator with the Lease {', '.join(self.rivals)} has the same fleets; it stands aside. Remove one"
        )
        return (Problem(ProblemReason.TWO_OPERATORS, message),)


def others_of(leases: Sequence[Object], *, own: Name, scope: str | None, now: float) -> OtherOperators:
    """`scope` is the one namespace of this operator; None: it has all of them."""
    living = (lease for lease in leases if _is_alive(lease, now))
    alive = {(lease["metadata"]["namespace"], lease["metadata"]["name"]): lease for lease in living}
    by_age = sorted(alive, key=lambda name: (alive[name]["metadata"].get("creationTimestamp") or "", name))
    same = [name for name in by_age if _scope(alive[name]) == scope]
    rivals = tuple("/".join(name) for name in same if name != own)
    taken = {found for lease in alive.values() if (found := _scope(lease)) is not None} if scope is None else set()
    return OtherOperators(frozenset(taken), rivals, goes_first=not rivals or same[0] == own)


class Watch:
    """Looks at the Leases again and again; `now` is what the last look found. Until the first one, nothing is ours."""

    def __init__(self, api: Api, settings: OperatorSettings, clock: Callable[[], float]) -> None:
        self._api, self._scope, self._clock = api, settings.namespace, clock
        self._own = (settings.lease_namespace, settings.lease_name)
        self.now = OtherOperators(goes_first=False)

    async def follow(self, changed: Callable[[], None]) -> None:
        """Until cancelled; `changed` is called when `now` has."""
        while True:
            found = await self._look()
            if found is not None and found != self.now:
                _tell(self.now, found)
                self.now = found
                changed()
            await asyncio.sleep(INTERVAL if found is not None else RETRY_INTERVAL)

    async def _look(self) -> OtherOperators | None:
        """None where the API server does not answer. Whoever may list no Leases is taken to be alone."""
        chosen = ",".join(f"{name}={text}" for name, text in LABELS.items())
        try:
            leases = await self._api.list("Lease", None if self._scope is None else self._own[0], labels=chosen)
        except ApiRefused:
            return OtherOperators()
        except ApiUnreachable:
            return None
        return others_of(leases, own=self._own, scope=self._scope, now=self._clock())


def _tell(before: OtherOperators, now: OtherOperators) -> None:
    if now.namespaces != before.namespaces:
        names = ", ".join(sorted(now.namespaces)) or "none"
        logger.warning("namespaces with an operator of their own, left alone: %s", names)
    if now.rivals != before.rivals or (now.rivals and now.goes_first != before.goes_first):
        who = "this one acts" if now.goes_first else "this one stands aside"
        logger.warning("Leases of operators with the same fleets: %s; %s", ", ".join(now.rivals) or "none", who)


def _scope(lease: Object) -> str | None:
    scope: str | None = (lease["metadata"].get("annotations") or {}).get(SCOPE)
    return scope


def _is_alive(lease: Object, now: float) -> bool:
    # More patient than whoever waits for the Lease: clocks differ, and a replaced operator takes a moment, in which
    # nobody holds it.
    return now - seconds_of((lease.get("spec") or {}).get("renewTime") or "") < 4 * DURATION
