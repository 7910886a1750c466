"""Admission under the staleness budget: sessions wait for it before they start, and those that ended unseen are found.

A session ends in the trainer's own hands, or elsewhere: its agent closes it, it goes stale, its store is lost. While
somebody waits for room, the proxies are asked what became of the sessions that count as running.

`StalenessFilter`: which trajectories of an export are too old to be handed out, and how many were seen.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from rolloutfleet.errors import OWNER_GONE, SESSION_CLOSED, STORE_LOST
from rolloutfleet.fleet.budget_slots import BudgetSlots
from rolloutfleet.fleet.exceptions import BadArgument, FleetError, Gone, NotKnown, Refused, TookTooLong
from rolloutfleet.fleet.proxies import Proxies, each, paged
from rolloutfleet.fleet.trajectories import Trajectory
from rolloutfleet.fleet.waiting import Waiting
from rolloutfleet.fleet.weights import FleetWeights
from rolloutfleet.staleness import StalenessManager
from rolloutfleet.wire import SessionList, SessionStatus

log = logging.getLogger("rolloutfleet.fleet")

POLL_INTERVAL: Final = 1.0
"""Seconds between looks at version and sessions, while somebody waits."""
LIST_TIMEOUT: Final = 10.0
PAGE: Final = 1000
OPEN: Final = "open"
HELD: Final = frozenset(("live", "leased"))


class Admission:
    """The budget of one fleet object. One event loop's; the manager may be shared with others."""

    def __init__(
        self, manager: StalenessManager, proxies: Proxies, weights: FleetWeights, *, lost_after: float, waiting: Waiting
    ) -> None:
        self.manager = manager
        self.slots = BudgetSlots(manager, changed=self.changed)
        self._proxies = proxies
        self._weights = weights
        weights.changed = self.changed
        self._lost_after = lost_after
        self._waiting = waiting
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()
        self._polling: asyncio.Task[None] | None = None

    def changed(self) -> None:
        """There may be room now."""
        self._changed.set()

    async def admit(self, sessions: int, *, timeout: float | None) -> None:
        """Return once so many sessions may start; they count as submitted then. First come, first served.

        Raises BadArgument where there never will be room, TookTooLong.
        """
        most = self.manager.max_concurrent
        if sessions > most:
            raise BadArgument("group_size", f"is {sessions}, and max_concurrent {most}: it would wait for ever")
        self.manager.on_enqueued(sessions)
        try:
            async with asyncio.timeout(timeout):
                async with self._turn:
                    await self._until_admitted(sessions)
        except TimeoutError:
            self.manager.on_dequeued(sessions)
            raise TookTooLong(
                f"no room for {sessions} sessions within {timeout:g} s: {self.described()}{self._advice()}"
            ) from None
        except BaseException:
            self.manager.on_dequeued(sessions)
            raise

    def described(self) -> str:
        counts, version = self.manager.counts, self._weights.version
        earlier = self.slots.adopted_running()
        return (
            f"version {version}, {counts.running} running, {counts.accepted} accepted, "
            f"capacity {self.manager.capacity(version)}"
        ) + (f"; {earlier} sessions of earlier runs are open" if earlier else "")

    def _advice(self) -> str:
        if not self.slots.adopted_running():
            return ""
        return ". Close or delete them, or say how they end: recover(…, open='close')"

    async def _until_admitted(self, sessions: int) -> None:
        with self._waiting.line("waiting for room") as tell:
            while True:
                self._changed.clear()
                if self.manager.submit_if_room(sessions, version=self._weights.version):
                    return
                tell(f"waiting for room: {self.described()}", 0)
                if self._polling is None or self._polling.done():
                    # Beside the wait: a proxy that is slow to say must not hold up a session that could start.
                    self._polling = asyncio.create_task(self._poll())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_INTERVAL):
                        await self._changed.wait()

    async def close(self) -> None:
        """Look no more."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    async def _poll(self) -> None:
        """Learn version and sessions as they are now, and rest a moment."""
        await each([self._weights.show(), self.poll_sessions()])
        self.changed()
        await asyncio.sleep(POLL_INTERVAL)

    async def poll_sessions(self) -> None:
        """Find out what became of the sessions that hold a place."""
        await self._proxies.refresh()
        await each([self._poll_proxy(ordinal) for ordinal in self.slots.ordinals()])

    async def _poll_proxy(self, ordinal: int) -> None:
        try:
            await self._update_slots(ordinal)
        except FleetError as error:
            self._poll_failed(ordinal, error)
        else:
            self.slots.found(ordinal)

    async def _update_slots(self, ordinal: int) -> None:
        listed = {shown.session_id: shown async for shown in self.listed(ordinal)}
        for name in self.slots.sessions(ordinal):
            shown = listed.get(name)
            if shown is None:
                await self._poll_session(name)
            elif shown.state != OPEN:
                self._ended(shown)

    async def listed(self, ordinal: int) -> AsyncIterator[SessionStatus]:
        """The sessions of a proxy, page by page. Raises Unreachable, Refused."""

        async def fetch(query: dict[str, str | int]) -> SessionList:
            answer = await self._proxies.ask(ordinal, "GET", "/sessions", query=query, timeout=LIST_TIMEOUT)
            return SessionList.model_validate_json(answer.content)

        async for page in paged(fetch, {"limit": PAGE}):
            for shown in page.sessions:
                yield shown

    async def _poll_session(self, name: str) -> None:
        """One that is not listed: its rows are gone, or were just made."""
        try:
            shown = await self._proxies.call("GET", f"/sessions/{name}", SessionStatus, patience=0.0)
        except (Gone, NotKnown) as error:
            # Closed and gone is acknowledged, by whomever, or was empty.
            if error.code == SESSION_CLOSED:
                self.slots.ended(name)
                self.slots.forget(name)
            else:
                self.slots.gone(name)
            return
        if shown.state != OPEN:
            self._ended(shown)

    def _ended(self, shown: SessionStatus) -> None:
        if shown.state == "deleted" and not shown.leased:
            self.slots.gone(shown.session_id)
            return
        if shown.fate is not None and shown.fate not in (*HELD, "acknowledged"):
            self.slots.gone(shown.session_id)
            return
        self.slots.ended(shown.session_id, left=trajectory_ids(shown))

    def _poll_failed(self, ordinal: int, error: FleetError) -> None:
        """A proxy that does not answer keeps its places for a while; one that is no more gives them back at once."""
        if isinstance(error, Refused) and error.code in (STORE_LOST, OWNER_GONE):
            self.slots.lost(ordinal)
            return
        outage = self._proxies.outages.get(ordinal)
        away = ordinal not in self._proxies.known
        if away or (outage is not None and self._proxies.clock() - outage.since >= self._lost_after):
            self.slots.lost(ordinal)


def trajectory_ids(shown: SessionStatus) -> list[str]:
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


class StalenessFilter:
    """Judges and counts what a fleet object hands out, and tells the budget. Without a budget nothing is too old."""

    def __init__(self, admission: Admission | None, weights: FleetWeights, *, too_old: TooOld) -> None:
        self.counts = Counts()
        self._admission = admission
        self._too_old = too_old
        self._weights = weights

    def drops(self, trajectory: Trajectory) -> bool:
        """Whether it is not to be handed out; counted either way."""
        late = (
            self._admission is not None
            and trajectory.oldest_version is not None
            and self._weights.version - trajectory.oldest_version > self._admission.manager.max_staleness
        )
        dropped = late and self._too_old == "drop"
        counts = self.counts
        self.counts = replace(
            counts,
            handed_out=counts.handed_out + (not dropped),
            too_old_dropped=counts.too_old_dropped + dropped,
            too_old_kept=counts.too_old_kept + (late and not dropped),
        )
        if self._admission is not None:
            self._admission.slots.judged(trajectory.session_id, trajectory.trajectory_id, too_old=dropped)
        return dropped

    def acknowledged(self, trajectory_ids: Iterable[str]) -> None:
        """They are trained."""
        names = list(trajectory_ids)
        self.counts = replace(self.counts, acknowledged=self.counts.acknowledged + len(names))
        if self._admission is not None:
            for name in names:
                self._admission.slots.trained(name.rpartition("-trajectory-")[0], name)
