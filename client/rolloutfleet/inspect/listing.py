"""The list of a fleet's sessions, kept in memory and read again in the background.

A whole list costs the proxies more the longer it is, so the pauses between two grow with the time that one takes. In
between, sessions that have new turns are asked for one by one.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from rolloutfleet.fleet import AsyncFleet, FleetError, Gone, NotEverywhere, NotKnown
from rolloutfleet.inspect.documents import session_of_status
from rolloutfleet.inspect.looking import Looking
from rolloutfleet.inspect.sources import Json
from rolloutfleet.wire import SessionStatus

SHORTEST_PAUSE: Final = 2.0
PAUSES: Final = 40
"""How many times as long as a list took the pause behind it is."""
TOUCHED_AT_ONCE: Final = 8
"""Sessions with new turns that are asked for each second."""
MOST_TOUCHED: Final = 1024
LINES_A_SECOND: Final = 2000
"""That every tab is made to read, on average."""


class Listing:
    """Sessions by id."""

    def __init__(
        self, fleet: AsyncFleet, looking: Looking, changed: Callable[[], None], clock: Callable[[], float]
    ) -> None:
        self._fleet, self._looking, self._changed, self._clock = fleet, looking, changed, clock
        self._known: dict[str, Json] = {}
        self._touched: dict[str, None] = {}
        self._sorted: list[Json] | None = None
        self.complete = False
        self.failed: dict[int, str] = {}
        """Why a proxy's are those of an earlier list, by ordinal."""
        self.trouble: str | None = None
        """Why all are."""
        self._news, self._told_at = False, clock()
        self.first = asyncio.Event()
        """Set once there is something to show."""

    def lines(self) -> list[Json]:
        """The newest first; the same object while nothing changes."""
        if self._sorted is None:
            self._sorted = sorted(self._known.values(), key=lambda line: (-line["created_at"], line["session_id"]))
        return self._sorted

    def touch(self, session_id: str) -> None:
        """It has a new turn."""
        if len(self._touched) < MOST_TOUCHED:
            self._touched[session_id] = None

    async def keep(self) -> None:
        """Read it again and again, while somebody looks."""
        while True:
            await self._looking.wait()
            began = self._clock()
            await self.refresh()
            self._tell()
            rest = max(SHORTEST_PAUSE, PAUSES * (self._clock() - began))
            until = self._clock() + rest
            while self._clock() < until:
                await asyncio.sleep(min(1.0, rest))
                await self._refresh_touched()
                self._tell()

    async def refresh(self) -> None:
        """Read all of it. What a proxy that does not answer had before stays."""
        found: dict[str, Json] = {}
        try:
            async for status in self._fleet.sessions(newest=True):
                self._take(found, status)
            self.failed, self.trouble = {}, None
        except NotEverywhere as error:
            self.failed, self.trouble = error.failed, None
        except FleetError as error:
            self.failed, self.trouble = {}, str(error)
            self.first.set()
            return
        kept = {name: line for name, line in self._known.items() if line["ordinal"] in self.failed}
        self._set(kept | found)
        self.complete = True
        self.first.set()

    def _take(self, found: dict[str, Json], status: SessionStatus) -> None:
        """The first list shows as it comes."""
        found[status.session_id] = session_of_status(status)
        if not self.complete and len(found) % 1000 == 0:
            self._set(dict(found))
            self.first.set()

    def _set(self, known: dict[str, Json]) -> None:
        if known != self._known:
            old = self._known
            self._known = {name: old[name] if old.get(name) == line else line for name, line in known.items()}
            self._sorted, self._news = None, True

    def _tell(self) -> None:
        """That the list is another; of a long one, which every tab then reads, not so often."""
        if self._news and self._clock() - self._told_at >= len(self._known) / LINES_A_SECOND:
            self._news, self._told_at = False, self._clock()
            self._changed()

    async def _refresh_touched(self) -> None:
        names = list(self._touched)[:TOUCHED_AT_ONCE]
        if not names:
            return
        for name in names:
            del self._touched[name]
        known = dict(self._known)
        for name, status in (await self._fleet.statuses(names)).items():
            if isinstance(status, SessionStatus):
                known[name] = {**session_of_status(status), "fate": known.get(name, {}).get("fate")}
            elif isinstance(status, NotKnown | Gone):
                known.pop(name, None)
        self._set(known)
