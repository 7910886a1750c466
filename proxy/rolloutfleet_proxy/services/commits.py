"""The last commits, in memory, for those who follow them. Who reads slowly misses some, is told so, and delays nobody.

Readers have no queues: each knows only which commit it has seen last.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from rolloutfleet.broadcast import Broadcast
from rolloutfleet_proxy.domain.errors import Draining, TooManyViewers

REMEMBERED: Final = 1024
AT_ONCE: Final = 256
"""Commits that a reader is given at once."""
READERS: Final = 8
SILENCE: Final = 15.0
"""Seconds after which a reader is told that there is nothing to tell."""
START: Final = "0"
"""In the place of a turn's name: before the first one."""
PACE: Final = 0.05
"""Seconds for which commits are gathered behind those that a reader has just been given."""


class Commit(msgspec.Struct, frozen=True, gc=False):
    """As `wire.CommittedTurn`."""

    seq: int
    session_id: str
    turn_id: str
    parent_id: str | None


class CommitReader:
    """One who follows. It ends when it is told to, or its client leaves."""

    def __init__(self, commits: "Commits", after: str | None) -> None:
        self.ended = False
        self._commits = commits
        self._seen = commits.place_of(after)

    def end(self) -> None:
        self.ended = True
        self._commits.changed.wake()

    def take(self) -> list[Commit] | None:
        """What it has not seen yet, if there is anything; None where it missed some, and goes on with the next one."""
        found = self._commits.behind(self._seen)
        self._seen = self._commits.newest if found is None else self._seen + len(found)
        return found

    @property
    def last(self) -> str:
        """Name of the last turn that it has seen; START where there is none."""
        return self._commits.name_of(self._seen)

    async def wait(self) -> bool:
        """Return when there is something new, or it has ended; False where SILENCE is over."""
        await asyncio.sleep(PACE)
        if not self.ended and self._seen == self._commits.newest:
            await self._commits.changed.wait(SILENCE)
        return self.ended or self._seen != self._commits.newest


class Commits:
    """The ring, and who reads it."""

    def __init__(self, before: Iterable[tuple[str, str, str | None]] = ()) -> None:
        """`before`: (session_id, turn_id, parent_id) of those before the proxy's start, oldest first."""
        self.changed = Broadcast()
        self.newest = 0
        self._ring: deque[Commit] = deque(maxlen=REMEMBERED)
        self._readers: set[CommitReader] = set()
        for each in before:
            self.add(*each)

    def add(self, session_id: str, turn_id: str, parent_id: str | None) -> None:
        """A turn was committed."""
        self.newest += 1
        self._ring.append(Commit(self.newest, session_id, turn_id, parent_id))
        if self._readers:
            self.changed.wake()

    def remembered(self) -> list[tuple[str, str, str | None]]:
        """(session_id, turn_id, parent_id) of each, oldest first: `before` of the next life."""
        return [(each.session_id, each.turn_id, each.parent_id) for each in self._ring]

    @contextmanager
    def reader(self, after: str | None, *, holding: bool) -> Iterator[CommitReader]:
        """Someone who reads what comes behind a turn, or from now on. `holding`: the proxy drains, and holds its calls.

        Raises TooManyViewers, Draining.
        """
        if holding:
            raise Draining("This proxy is draining: follow again after Retry-After.")
        if len(self._readers) >= READERS:
            raise TooManyViewers(f"{READERS} follow this proxy's commits already, as many as may.")
        reader = CommitReader(self, after)
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)

    def end_readers(self) -> None:
        """The proxy drains: nobody who looks on is waited for."""
        for reader in list(self._readers):
            reader.end()

    def place_of(self, turn_id: str | None) -> int:
        """The number of a turn's commit; the newest of none, and -1 of one that is not remembered."""
        if not turn_id:
            return self.newest
        if turn_id == START:
            return 0
        return next((commit.seq for commit in self._ring if commit.turn_id == turn_id), -1)

    def name_of(self, seq: int) -> str:
        oldest = self.newest - len(self._ring) + 1
        return self._ring[seq - oldest].turn_id if oldest <= seq <= self.newest else START

    def behind(self, seq: int) -> list[Commit] | None:
        """The first of those behind a number; None where some of them are not remembered."""
        oldest = self.newest - len(self._ring) + 1
        if seq < oldest - 1:
            return None
        first = seq + 1 - oldest
        return [self._ring[place] for place in range(first, min(len(self._ring), first + AT_ONCE))]
