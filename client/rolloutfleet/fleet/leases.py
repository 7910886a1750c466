"""Leases that are held: renewed while the trainer works, acknowledged, or given back."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from rolloutfleet.errors import ALREADY_LEASED, LEASE_EXPIRED, LEASE_UNKNOWN
from rolloutfleet.fleet.exceptions import Conflict, FleetError, Gone, LeaseLost, NotKnown
from rolloutfleet.fleet.outbox import Outbox
from rolloutfleet.fleet.proxies import Proxies, each, owner_of
from rolloutfleet.wire import AckLease, Acknowledged, Released, Renewed, RenewLease

log = logging.getLogger("rolloutfleet.fleet")

RENEWALS: Final = 3
"""A lease is renewed this often in its time."""

ByLease = Mapping[str, Iterable[str]]
"""Trajectories by lease."""


class Leases:
    """Ends and renews leases. One event loop's."""

    def __init__(self, proxies: Proxies, outbox: Outbox) -> None:
        self._proxies = proxies
        self._outbox = outbox

    async def acknowledge(self, held: ByLease) -> None:
        """Trained. An owner that does not answer is told again and again in the background.

        Raises LeaseLost where somebody else has leased some of them since; the others are acknowledged.
        """
        answers = await each([self._acknowledge(lease, tuple(ids)) for lease, ids in held.items()])
        lost = [answer for answer in answers if isinstance(answer, LeaseLost)]
        if lost:
            raise LeaseLost([name for one in lost for name in one.trajectory_ids], str(lost[0]))
        _raise_first(answers)

    async def release(self, held: ByLease) -> None:
        """Given back. What can't be said now is said in the background; a lease that is over needs nothing."""
        _raise_first(await each([self._release(lease, tuple(ids)) for lease, ids in held.items()]))

    async def renew(self, leases: Iterable[str], *, seconds: float) -> None:
        """Let them run anew. Raises Conflict where one is over."""
        _raise_first(await each([self._renew(lease, seconds) for lease in leases]))

    async def keep(self, held: Mapping[str, object], *, seconds: float) -> None:
        """Renew what is held, again and again, until cancelled. `held` may change meanwhile."""
        while True:
            await asyncio.sleep(seconds / RENEWALS)
            for answer in await each([self._renew(lease, seconds) for lease in list(held)]):
                if isinstance(answer, FleetError):
                    # It may still be acknowledged in time, or late; that is where it shows.
                    log.warning("a lease could not be renewed: %s", answer)

    async def _acknowledge(self, lease: str, ids: tuple[str, ...]) -> None:
        async def deliver() -> None:
            try:
                await self._end(lease, "ack", Acknowledged, ids)
            except (Conflict, Gone, NotKnown) as error:
                if error.code in (ALREADY_LEASED, LEASE_EXPIRED):
                    raise LeaseLost(ids, error.said) from error
                raise

        await self._outbox.deliver(f"the acknowledgement of lease {lease}", deliver, trajectory_ids=frozenset(ids))

    async def _release(self, lease: str, ids: tuple[str, ...]) -> None:
        async def deliver() -> None:
            try:
                await self._end(lease, "release", Released, ids)
            except (Conflict, Gone, NotKnown) as error:
                if error.code not in (LEASE_EXPIRED, ALREADY_LEASED, LEASE_UNKNOWN):
                    raise

        await self._outbox.deliver(f"the release of lease {lease}", deliver)

    async def _end(
        self, lease: str, how: str, answer: type[Acknowledged] | type[Released], ids: tuple[str, ...]
    ) -> None:
        body = AckLease(trajectory_ids=list(ids))
        await self._proxies.call(
            "POST", f"/leases/{lease}/{how}", answer, body=body, owner=owner_of(lease), patience=0.0
        )

    async def _renew(self, lease: str, seconds: float) -> None:
        body = RenewLease(lease_seconds=seconds)
        await self._proxies.call("POST", f"/leases/{lease}/renew", Renewed, body=body, owner=owner_of(lease))


def _raise_first(answers: list[object]) -> None:
    for answer in answers:
        if isinstance(answer, FleetError):
            raise answer
