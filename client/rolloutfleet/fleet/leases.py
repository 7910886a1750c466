"""Leases that are held: renewed while the trainer works, acknowledged, or given back.

One lease as a file: what `POST /export` answers, kept as it came.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import httpx

from rolloutfleet import wire
from rolloutfleet.errors import ALREADY_LEASED, LEASE_EXPIRED, LEASE_UNKNOWN
from rolloutfleet.fleet.admission import StalenessFilter
from rolloutfleet.fleet.exceptions import Conflict, FleetError, Gone, LeaseLost, NotKnown
from rolloutfleet.fleet.proxies import Proxies, ProxyRequest, each, new_key, owner_of, raise_first, repeat_by_owner
from rolloutfleet.fleet.trajectories import Leased
from rolloutfleet.grouping import grouped

log = logging.getLogger("rolloutfleet.fleet")

RENEWALS: Final = 3
"""A lease is renewed this often in its time."""

ByLease = Mapping[str, Collection[str]]
"""Trajectories by lease."""


def by_lease(trajectories: Iterable[Leased]) -> dict[str, list[str]]:
    lease_of = {each.trajectory_id: each.lease_id for each in trajectories}
    return grouped(lease_of, lease_of.__getitem__)


class Leases:
    """Ends and renews leases. One event loop's."""

    def __init__(self, proxies: Proxies, staleness: StalenessFilter) -> None:
        self._proxies = proxies
        self._staleness = staleness
        self._lost: set[str] = set()
        """Trajectories that were acknowledged too late, and not again since."""

    @property
    def trained(self) -> frozenset[str]:
        """Trajectories that were acknowledged, and whose proxies don't count them: not told yet, or too late."""
        return self._proxies.outbox.acknowledged | self._lost

    async def acknowledge(self, held: ByLease) -> None:
        """Trained, and counted so. An owner that does not answer is told again and again in the background.

        Raises LeaseLost where somebody else has leased some of them since; the others are acknowledged.
        """
        names = [name for ids in held.values() for name in ids]
        try:
            await self.repeat_acknowledged(held.items())
        except LeaseLost as lost:
            self._staleness.acknowledged(name for name in names if name not in lost.trajectory_ids)
            raise
        self._staleness.acknowledged(names)

    async def repeat_acknowledged(self, parts: Iterable[tuple[str, Collection[str]]]) -> None:
        """Trained, and counted before. Raises as `acknowledge`."""
        answers = await each([self._acknowledge(lease, tuple(ids)) for lease, ids in parts])
        lost = [answer for answer in answers if isinstance(answer, LeaseLost)]
        if lost:
            raise LeaseLost([name for one in lost for name in one.trajectory_ids], lost[0].why)
        raise_first(answers)

    async def release(self, held: ByLease) -> None:
        """Given back. What can't be said now is said in the background; a lease that is over needs nothing."""
        raise_first(await each([self._release(lease, tuple(ids)) for lease, ids in held.items()]))

    async def renew(self, leases: Iterable[str], *, seconds: float) -> None:
        """Let them run anew. Raises Conflict where one is over."""
        raise_first(await each([self._renew(lease, seconds) for lease in leases]))

    async def end(
        self, lease: str, trajectory_ids: Iterable[str] | None, *, acknowledge: bool
    ) -> wire.Acknowledged | wire.Released:
        """Acknowledge or release a lease, or a part of it, at once. Raises Refused, Unreachable."""
        how, answer = ("ack", wire.Acknowledged) if acknowledge else ("release", wire.Released)
        body = wire.AckLease(trajectory_ids=None if trajectory_ids is None else list(trajectory_ids))
        path = f"/leases/{lease}/{how}"
        return await self._proxies.call("POST", path, answer, body=body, owner=owner_of(lease), patience=0.0)

    async def keep(self, held: Mapping[str, str], *, seconds: float) -> None:
        """Renew the leases of what is held, again and again, until cancelled. `held` has the lease of each trajectory,
        and may change meanwhile."""

        async def renew(lease: str) -> None:
            try:
                await self._renew(lease, seconds)
            except FleetError as error:
                # It may still be acknowledged in time, or late; that is where it shows.
                log.warning("a lease could not be renewed: %s", error)

        await repeat_by_owner(held.values, renew, every=seconds / RENEWALS)

    async def _acknowledge(self, lease: str, ids: tuple[str, ...]) -> None:
        async def deliver() -> None:
            try:
                await self.end(lease, ids, acknowledge=True)
            except (Conflict, Gone, NotKnown) as error:
                if error.code not in (ALREADY_LEASED, LEASE_EXPIRED):
                    raise
                if len(ids) == 1:
                    self._lost.update(ids)
                    raise LeaseLost(ids, error.said) from error
                # One that is lost has the others of its lease refused, too.
                await self.repeat_acknowledged((lease, (one,)) for one in ids)
            else:
                self._lost.difference_update(ids)

        await self._proxies.outbox.deliver(
            f"the acknowledgement of lease {lease}", deliver, trajectory_ids=frozenset(ids)
        )

    async def _release(self, lease: str, ids: tuple[str, ...]) -> None:
        async def deliver() -> None:
            try:
                await self.end(lease, ids, acknowledge=False)
            except (Conflict, Gone, NotKnown) as error:
                if error.code not in (LEASE_EXPIRED, ALREADY_LEASED, LEASE_UNKNOWN):
                    raise

        await self._proxies.outbox.deliver(f"the release of lease {lease}", deliver)

    async def _renew(self, lease: str, seconds: float) -> None:
        body = wire.RenewLease(lease_seconds=seconds)
        await self._proxies.call("POST", f"/leases/{lease}/renew", wire.Renewed, body=body, owner=owner_of(lease))


@dataclass(eq=False)
class Held:
    """Trajectories that a block holds, until they are acknowledged or given back."""

    _leases: Leases
    lease_of: dict[str, str] = field(default_factory=dict, init=False)
    """The lease of each. Where one comes again, its lease has ended (somebody gave it back, or it ran out), and the new
    one takes its place."""
    handed_out: set[str] = field(default_factory=set, init=False)
    """Those that the trainer has, or that were dropped as too old."""

    async def acknowledge(self, names: Iterable[str]) -> None:
        """Raises LeaseLost."""
        await self._leases.acknowledge(self._taken([*names]))

    async def release(self, names: Iterable[str]) -> None:
        await self._leases.release(self._taken([*names]))

    async def end(self, error: BaseException | None, *, kept: Collection[str]) -> None:
        """The end of a block: what was handed out is acknowledged, but for what is kept, and the rest given back. Where
        it ends with an exception, all of it is given back."""
        if error is None:
            try:
                await self.acknowledge(self.handed_out.difference(kept))
            finally:
                await self.release(self.lease_of.keys() - kept)
            return
        try:
            await self.release(self.lease_of)
        except FleetError as problem:
            log.warning("not everything could be given back: %s", problem)

    def _taken(self, names: Iterable[str]) -> dict[str, list[str]]:
        """By lease, and no longer held."""
        found = grouped(names, self.lease_of.__getitem__)
        for name in names:
            del self.lease_of[name]
            self.handed_out.discard(name)
        return found


Format = Literal["json", "safetensors"]

READ_TIMEOUT: Final = 300.0
"""Seconds for the body of an export."""


@dataclass(frozen=True, slots=True)
class ExportFile:
    """What one lease holds, as docs/export.md describes the two formats."""

    content: bytes
    lease_id: str | None
    """None where nothing was leased."""


async def export_file(proxies: Proxies, asked: wire.AskExport, *, form: Format) -> ExportFile:
    """What is named is one owner's, whom any proxy finds; else each is asked until one has something.

    Raises Refused, Unreachable.
    """
    request: ProxyRequest = {
        "body": asked,
        "accept": wire.JSON_MEDIA_TYPE if form == "json" else wire.TENSORS_MEDIA_TYPE,
        "timeout": READ_TIMEOUT,
        "key": new_key(),
    }
    if asked.session_ids or asked.group_id:
        return _file(await proxies.send("POST", "/export", **request))
    for ordinal in await proxies.ordinals():
        found = _file(await proxies.ask(ordinal, "POST", "/export", **request))
        if found.lease_id is not None:
            break
    return found


def _file(answer: httpx.Response) -> ExportFile:
    return ExportFile(answer.content, answer.headers.get(wire.LEASE_ID_HEADER))
