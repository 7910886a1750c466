"""Is there room here? The limits of one proxy: open sessions, bytes of store and shards, and what its disk has left.

What is about to be written takes its room first: many starts at once would all find the same last place free.
"""

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rolloutfleet.spec_for_proxies import STORE_SHARE_OF_STORAGE, LimitsSpec
from rolloutfleet_proxy.domain.errors import DiskFull
from rolloutfleet_proxy.store.database import FILE, Database

RESERVE = 64 << 20
RESERVE_SHARE = 0.02
"""Bytes of the disk, or a share of a small one, that are left to calls under way: with less, no call is begun."""
LOOK_AGAIN = 1.0
"""Seconds for which a look at a disk with room is taken for true."""


@dataclass(slots=True)
class Places:
    """Room that the sessions of one start may take, on the writer's thread, before they are written."""

    admission: "Admission"
    sessions: int
    taken: bool = field(init=False, default=False)

    def take(self, *, ending: int = 0) -> bool:
        """Whether there is room, once so many sessions have ended; from then on it is taken. Asked again by the same
        start, it has it already."""
        self.taken = self.taken or self.admission.reserve(self.sessions, ending=ending)
        return self.taken


@dataclass(frozen=True, slots=True)
class Room:
    """The store's disk, in bytes."""

    total: int
    free: int
    most: int
    """Of store and shards: from there on no session is started."""
    full: bool
    """Whether a generation would be refused now."""


@dataclass(eq=False, slots=True)
class Admission:
    """Counts open sessions as they start and end, and looks at the size of store and shards when asked."""

    limits: LimitsSpec
    database: Database
    sessions_open: int
    shard_bytes: Callable[[], int] = lambda: 0
    clock: Callable[[], float] = time.monotonic
    _looked: float = field(init=False, default=float("-inf"))
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _sessions_reserved: int = field(init=False, default=0)
    _bytes_reserved: int = field(init=False, default=0)

    def has_room(self, sessions: int) -> bool:
        """Whether so many more sessions fit."""
        most = self.limits.sessions
        taken = self.sessions_open + self._sessions_reserved
        return (most is None or taken + sessions <= most) and self.has_bytes(0)

    @contextlib.contextmanager
    def places(self, sessions: int) -> Iterator[Places]:
        """Room to be taken within the block. What was taken counts as open sessions where the block ends well; with an
        exception it is given back."""
        places = Places(self, sessions)
        opened = 0
        try:
            yield places
            opened = sessions
        finally:
            if places.taken:
                with self._lock:
                    self._sessions_reserved -= sessions
                    self.sessions_open += opened

    def reserve(self, sessions: int, *, ending: int = 0) -> bool:
        """Take room for so many sessions, if there is, or will be when as many as are `ending` have ended."""
        with self._lock:
            if not self.has_room(sessions - ending):
                return False
            self._sessions_reserved += sessions
            return True

    def has_bytes(self, nbytes: int) -> bool:
        """Whether so many more bytes fit, where there is room at all."""
        held = self._held_bytes()
        taken = held + self._bytes_reserved
        return taken < (most := self._most_bytes(held)) and taken + nbytes <= most

    @contextlib.contextmanager
    def bytes_on_their_way(self, nbytes: int) -> Iterator[bool]:
        """Whether so many more bytes fit. They count as held until the block ends, by when the shelf counts them."""
        fits = self.has_bytes(nbytes)
        taken = nbytes if fits else 0
        self._bytes_reserved += taken
        try:
            yield fits
        finally:
            self._bytes_reserved -= taken

    def check_disk(self) -> None:
        """Raises DiskFull where a turn may find no room when it is to be committed: its generation would be wasted.

        Pages that the store has free within its file count as room.
        """
        now = self.clock()
        if now - self._looked < LOOK_AGAIN:
            return
        disk = shutil.disk_usage(self.database.folder)
        reserve = min(RESERVE, RESERVE_SHARE * disk.total)
        if disk.free < reserve and disk.free + self.database.free_bytes() < reserve:
            # Not noted: the next call looks again, so that room is found as soon as it is there.
            raise DiskFull(f"the store's disk has {disk.free} bytes left, and {reserve:.0f} are kept for what runs")
        self._looked = now

    def is_full(self) -> bool:
        """Whether a generation would be refused now for want of room on the disk."""
        try:
            self.check_disk()
        except DiskFull:
            return True
        return False

    def room(self) -> Room:
        """How much there is; looks at the disk."""
        disk = shutil.disk_usage(self.database.folder)
        return Room(disk.total, disk.free, most=int(self._most_bytes(self._held_bytes())), full=self.is_full())

    def note_full(self) -> None:
        """A commit found no room: the next call looks for itself."""
        self._looked = float("-inf")

    def _held_bytes(self) -> int:
        return sum(_size(self.database.folder / name) for name in (FILE, f"{FILE}-wal")) + self.shard_bytes()

    def _most_bytes(self, held: int) -> float:
        """The limit given, else a share of what the disk holds for this store: its own bytes and what is free."""
        if self.limits.bytes is not None:
            return self.limits.bytes
        return STORE_SHARE_OF_STORAGE * (shutil.disk_usage(self.database.folder).free + held)


def _size(file: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
