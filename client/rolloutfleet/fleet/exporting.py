"""An export over all proxies: handed out one by one, renewed meanwhile, and acknowledged in the end."""

from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Self

from rolloutfleet.fleet.admission import StalenessFilter
from rolloutfleet.fleet.exceptions import BadArgument, TookTooLong
from rolloutfleet.fleet.leases import Held, Leases
from rolloutfleet.fleet.prefetching import ExportOptions, Prefetcher
from rolloutfleet.fleet.proxies import Proxies
from rolloutfleet.fleet.trajectories import Trajectory
from rolloutfleet.fleet.waiting import Waiting
from rolloutfleet.fleet.weights import FleetWeights
from rolloutfleet.grouping import grouped
from rolloutfleet.wire import ExportStatus

TELL_INTERVAL: Final = 0.5

Names = Iterable[Trajectory | str] | Trajectory | str
"""Trajectories, or their ids."""


@dataclass(eq=False, repr=False)
class AsyncExport(AsyncIterator[Trajectory]):
    """`async with fleet.export(…) as export: async for trajectory in export: …`

    When the block ends well, what was handed out is acknowledged and the rest given back; when it ends with an
    exception, all of it is given back that was not acknowledged before.
    """

    _proxies: Proxies
    _leases: Leases
    _wanted: ExportOptions
    _staleness: StalenessFilter
    _weights: FleetWeights
    _waiting: Waiting
    dropped: list[str] = field(default_factory=list, init=False)
    """Trajectories that were too old, and so not handed out. They are acknowledged with the others."""
    _queue: deque[Trajectory] = field(default_factory=deque, init=False)
    _count: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._held, heard = Held(self._leases), self._weights.heard
        self._prefetcher = Prefetcher(
            self._proxies, self._leases, self._held.lease_of, self._wanted, self._still_wanted, heard
        )
        self.statuses: dict[str, ExportStatus] = self._prefetcher.statuses
        """Of each session that was named, or that an answer told of: leased, damaged, not_ready, leased_elsewhere,
        evaluation, gone, or unknown, as it was when last asked."""

    @property
    def unreachable(self) -> dict[int, str]:
        """Proxies that don't answer or ask to wait, and why: what they hold is still to come."""
        return self._prefetcher.missing

    @property
    def leases(self) -> dict[str, frozenset[str]]:
        """The trajectories that it holds, by lease: leased, and neither acknowledged nor given back. What was leased
        ahead is among them."""
        held = dict(self._held.lease_of)  # may be asked by another thread
        return {lease: frozenset(names) for lease, names in grouped(held, held.__getitem__).items()}

    async def __aenter__(self) -> Self:
        try:
            await self._prefetcher.begin()
        except BaseException:
            await self._prefetcher.stop()
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._prefetcher.stop()
        keep = self._wanted.on_exit == "keep"
        await self._held.end(error, kept=self._held.handed_out.difference(self.dropped) if keep else ())

    async def __anext__(self) -> Trajectory:
        """The next trajectory. Raises TookTooLong; Refused where a proxy won't export at all."""
        if not self._queue:
            await self._fill()
        if not self._queue:
            raise StopAsyncIteration
        found = self._queue.popleft()
        self._count += 1
        self._held.handed_out.add(found.trajectory_id)
        return replace(found, lease_id=self._held.lease_of[found.trajectory_id])

    async def acknowledge(self, trajectories: Names) -> None:
        """They are trained, before the block ends. Raises BadArgument for what was not handed out, LeaseLost."""
        await self._held.acknowledge(self._names(trajectories))

    async def release(self, trajectories: Names) -> None:
        """They are given back, to be exported again. Raises BadArgument for what was not handed out."""
        await self._held.release(self._names(trajectories))

    async def _fill(self) -> None:
        """Wait until there is something to hand out, or nothing more will come."""
        until = None if self._wanted.timeout is None else self._proxies.clock() + self._wanted.timeout
        with self._waiting.line("waiting for trajectories", total=self._wanted.count) as tell:
            while self._wanted.count is None or self._count < self._wanted.count:
                self._judge(self._prefetcher.take_group())
                if self._queue or (self._prefetcher.over() and not self._prefetcher.ready):
                    return
                left = TELL_INTERVAL if until is None else min(TELL_INTERVAL, until - self._proxies.clock())
                if left <= 0:
                    of = "" if self._wanted.count is None else f" of {self._wanted.count}"
                    late = f"within {self._wanted.timeout:g} s{self._missing()}"
                    raise TookTooLong(f"{self._count}{of} trajectories came {late}")
                tell(f"waiting for trajectories{self._missing()}", self._count)
                await self._prefetcher.signal.wait(left)

    def _judge(self, group: list[Trajectory]) -> None:
        for trajectory in group:
            if self._staleness.drops(trajectory):
                self.dropped.append(trajectory.trajectory_id)
                self._held.handed_out.add(trajectory.trajectory_id)
            else:
                self._queue.append(trajectory)

    def _still_wanted(self) -> int | None:
        if self._wanted.count is None:
            return None
        return self._wanted.count - self._count - len(self._queue)

    def _missing(self) -> str:
        down = ", ".join(map(str, sorted(self._prefetcher.missing)))
        return f" (no answer from proxy {down})" if down else ""

    def _names(self, trajectories: Names) -> list[str]:
        given = [trajectories] if isinstance(trajectories, Trajectory | str) else list(trajectories)
        names = list(dict.fromkeys(each if isinstance(each, str) else each.trajectory_id for each in given))
        foreign = [name for name in names if name not in self._held.handed_out]
        if foreign:
            raise BadArgument("trajectories", f"{foreign[0]} is not held by this export")
        return names
