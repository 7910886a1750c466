"""Admission under the staleness budget: sessions wait for it before they start, and those that ended unseen are found.

A session ends in the trainer's own hands, or elsewhere: its agent closes it, it goes stale, its store is lost. While
somebody waits for room, the proxies are asked what became of the sessions that count as running.

`StalenessFilter`: which trajectories of an export are too old to be handed out, and how many were seen.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from rolloutfleet.broadcast import Broadcast
from rolloutfleet.errors import GROUP_CLOSED, OWNER_GONE, SESSION_CLOSED, STORE_LOST
from rolloutfleet.fleet.budget_slots import BudgetSlots
from rolloutfleet.fleet.exceptions import BadArgument, FleetError, Gone, NotKnown, Refused, TookTooLong
from rolloutfleet.fleet.proxies import Proxies, each, paged
from rolloutfleet.fleet.trajectories import Trajectory, session_of
from rolloutfleet.fleet.transport import read_answer
from rolloutfleet.fleet.waiting import Waiting
from rolloutfleet.fleet.weights import FleetWeights
from rolloutfleet.staleness import StalenessManager
from rolloutfleet.tasks import end_tasks
from rolloutfleet.wire import SessionList, SessionStatus
from rolloutfleet.wording import counted

log = logging.getLogger("rolloutfleet.fleet")

POLL_INTERVAL: Final = 1.0
"""Seconds between looks at version and sessions, while somebody waits."""
IDLE: Final = 30.0
"""Seconds that somebody waits while nothing runs, until that is logged."""
LIST_TIMEOUT: Final = 10.0
PAGE: Final = 1000
OPEN: Final = "open"
HELD: Final = frozenset(("live", "leased"))


@dataclass(eq=False)
class Admission:
    """The budget of one fleet object. One event loop's; the manager may be shared with others."""

    manager: StalenessManager
    _proxies: Proxies
    _weights: FleetWeights
    _waiting: Waiting
    _lost_after: float
    _signal: Broadcast = field(default_factory=Broadcast, init=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _polling: asyncio.Task[None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.changed = self._signal.wake
        """There may be room now."""
        self.slots = BudgetSlots(self.manager, changed=self.changed)
        self._weights.changed = self.changed

    @contextlib.asynccontextmanager
    async def admitted(self, sessions: int, *, timeout: float | None) -> AsyncIterator[None]:
        """Begin once so many sessions may start; they count as submitted then. First come, first served.

        A block that ends with an exception has started none. Raises BadArgument where there never will be room,
        TookTooLong.
        """
        await self._weights.learn()
        await self._admit(sessions, timeout=timeout)
        try:
            yield
        except BaseException:
            self.manager.on_rejected(sessions)
            self.changed()
            raise

    async def _admit(self, sessions: int, *, timeout: float | None) -> None:
        most = self.manager.max_concurrent
        if sessions > most:
            raise BadArgument("group_size", f"is {sessions}, and max_concurrent {most}: it would wait forever")
        self.manager.on_enqueued(sessions)
        try:
            async with asyncio.timeout(timeout):
                async with self._turn:
                    await self._until_admitted(sessions)
        except TimeoutError:
            self.manager.on_dequeued(sessions)
            raise TookTooLong(
                f"no room for {counted(sessions, 'session')} within {timeout:g} s: {self._described()}{self._advice()}"
            ) from None
        except BaseException:
            self.manager.on_dequeued(sessions)
            raise

    async def recovered(self, version: int, *, held: int | None) -> None:
        """The trainer goes on at `version`; `held` ended sessions are with the fleet, or as many as are found."""
        self.manager.on_version_recovered(version, held=await self._adopted() if held is None else held)
        self.changed()

    async def _adopted(self) -> int:
        """Take over the sessions that the fleet holds; how many of them have ended."""
        await self._poll_sessions()
        for ordinal in await self._proxies.ordinals():
            try:
                async for shown in self._listed(ordinal):
                    if not shown.train:
                        continue
                    if shown.state == OPEN:
                        self.slots.adopt(shown.session_id, ordinal=ordinal, ended=False)
                    elif shown.fate in HELD:
                        self.slots.adopt(shown.session_id, ordinal=ordinal, ended=True, left=_trajectory_ids(shown))
            except FleetError as error:
                log.warning("what proxy %d holds is not counted: %s", ordinal, error)
        return self.slots.accepted()

    def _described(self) -> str:
        counts, version = self.manager.counts, self._weights.version
        earlier = self.slots.adopted_running()
        rest = counted(earlier, "session of earlier runs is", "sessions of earlier runs are")
        return (
            f"version {version}, {counts.running} running, {counts.accepted} accepted, "
            f"capacity {self.manager.capacity(version)}"
        ) + (f"; {rest} open" if earlier else "")

    def _advice(self) -> str:
        if not self.slots.adopted_running():
            return ""
        return ". Close or delete them, or say how they end: recover(…, open='close')"

    async def _until_admitted(self, sessions: int) -> None:
        idle_since = self._proxies.clock()
        with self._waiting.line("waiting for room") as tell:
            while True:
                if self.manager.submit_if_room(sessions, version=self._weights.version):
                    return
                tell(f"waiting for room: {self._described()}", 0)
                if self.manager.counts.running:
                    idle_since = self._proxies.clock()
                elif self._proxies.clock() - idle_since >= IDLE:
                    idle_since = float("inf")
                    log.warning("waiting for another version, or for an export of what is held: %s", self._described())
                if self._polling is None or self._polling.done():
                    # Beside the wait: a proxy that is slow to say must not hold up a session that could start.
                    self._polling = asyncio.create_task(self._poll())
                await self._signal.wait(POLL_INTERVAL)

    async def close(self) -> None:
        """Look no more."""
        if self._polling is not None:
            await end_tasks([self._polling])

    async def _poll(self) -> None:
        """Learn version and sessions as they are now, and rest a moment."""
        await each([self._weights.show(), self._poll_sessions()])
        self.changed()
        await asyncio.sleep(POLL_INTERVAL)

    async def _poll_sessions(self) -> None:
        """Find out what became of the sessions that hold a place."""
        await self._proxies.refresh()
        await each([self._poll_proxy(ordinal) for ordinal in self.slots.ordinals()])

    async def _poll_proxy(self, ordinal: int) -> None:
        try:
            listed = {shown.session_id: shown async for shown in self._listed(ordinal)}
            for name in self.slots.sessions(ordinal):
                if name not in listed:
                    await self.poll_session(name)
                elif listed[name].state != OPEN:
                    self._ended(listed[name])
            self.slots.mark(ordinal, lost=False)
        except FleetError as error:
            if self._lost(ordinal, error):
                self.slots.mark(ordinal, lost=True)

    async def _listed(self, ordinal: int) -> AsyncIterator[SessionStatus]:
        """The sessions of a proxy, page by page. Raises Unreachable, Refused."""

        async def fetch(query: dict[str, str | int]) -> SessionList:
            answer = await self._proxies.ask(ordinal, "GET", "/sessions", query=query, timeout=LIST_TIMEOUT)
            return read_answer(answer, SessionList)

        async for page in paged(fetch, {"limit": PAGE}):
            for shown in page.sessions:
                yield shown

    async def poll_session(self, name: str) -> None:
        """Find out what became of one: of those that are not listed the rows are gone, or were just made."""
        try:
            shown = await self._proxies.call("GET", f"/sessions/{name}", SessionStatus, patience=0.0)
        except (Gone, NotKnown) as error:
            # Closed and gone is acknowledged, by whomever, or was empty.
            if error.code in (SESSION_CLOSED, GROUP_CLOSED):
                self.slots.ended(name)
                self.slots.forget(name)
            else:
                self.slots.gone(name)
            return
        if shown.state != OPEN:
            self._ended(shown)

    def _ended(self, shown: SessionStatus) -> None:
        deleted = shown.state == "deleted" and not shown.leased
        if deleted or shown.fate not in (None, *HELD, "acknowledged"):
            self.slots.gone(shown.session_id)
        else:
            self.slots.ended(shown.session_id, left=_trajectory_ids(shown))

    def _lost(self, ordinal: int, error: FleetError) -> bool:
        """A proxy that does not answer keeps its places for a while; one that is no more gives them back at once."""
        if isinstance(error, Refused) and error.code in (STORE_LOST, OWNER_GONE):
            return True
        outage = self._proxies.outages.get(ordinal)
        too_long = outage is not None and self._proxies.clock() - outage.since >= self._lost_after
        return too_long or ordinal not in self._proxies.known


def _trajectory_ids(shown: SessionStatus) -> list[str]:
    """The names of the trajectories that a session has made so far."""
    return [f"{shown.session_id}-trajectory-{number}" for number in range(1, shown.trajectories + 1)]


TooOld = Literal["drop", "keep"]


@dataclass(frozen=True, slots=True)
class Counts:
    """What a fleet object has seen. Trajectories."""

    handed_out: int = 0
    acknowledged: int = 0
    too_old_dropped: int = 0
    too_old_kept: int = 0


@dataclass(eq=False)
class StalenessFilter:
    """Judges and counts what a fleet object hands out, and tells the budget. Without a budget nothing is too old."""

    _budget: StalenessManager | None
    _slots: BudgetSlots
    _weights: FleetWeights
    _too_old: TooOld
    counts: Counts = field(default=Counts(), init=False)

    def drops(self, trajectory: Trajectory) -> bool:
        """Whether it is not to be handed out; counted either way."""
        late = (
            self._budget is not None
            and trajectory.oldest_version is not None
            and self._weights.version - trajectory.oldest_version > self._budget.max_staleness
        )
        dropped = late and self._too_old == "drop"
        self._count(handed_out=not dropped, too_old_dropped=dropped, too_old_kept=late and not dropped)
        self._slots.judged(trajectory.session_id, trajectory.trajectory_id, too_old=dropped)
        return dropped

    def acknowledged(self, trajectory_ids: Iterable[str]) -> None:
        """They are trained."""
        names = list(trajectory_ids)
        self._count(acknowledged=len(names))
        for name in names:
            self._slots.trained(session_of(name), name)

    def _count(self, **more: int) -> None:
        counted = {name: getattr(self.counts, name) + number for name, number in more.items()}
        self.counts = replace(self.counts, **counted)
