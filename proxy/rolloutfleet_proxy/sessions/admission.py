"""Is there room here? The limits of one proxy: open sessions, bytes of store and shards, and what its disk has left."""

import contextlib
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from rolloutfleet.spec import STORE_SHARE_OF_STORAGE, LimitsSpec
from rolloutfleet_proxy.store.database import FILE, Database
from rolloutfleet_proxy.store.writer import StoreFull

RESERVE = 64 << 20
RESERVE_SHARE = 0.02
"""Bytes of the disk, or a share of a small one, that are left to calls under way: with less, no call is begun."""
LOOK_AGAIN = 1.0
"""Seconds for which a look at a disk with room is taken for true."""


class Admission:
    """Counts open sessions as they start and end, and looks at the size of store and shards when asked."""

    def __init__(
        self,
        limits: LimitsSpec,
        database: Database,
        *,
        sessions_open: int,
        shard_bytes: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self._database = database
        self._folder = database.folder
        self._files = (self._folder / FILE, self._folder / f"{FILE}-wal")
        self._shard_bytes = shard_bytes
        self._clock = clock
        self._looked = float("-inf")
        self.sessions_open = sessions_open

    def has_room(self, sessions: int) -> bool:
        """Whether so many more sessions fit."""
        most = self.limits.sessions
        return (most is None or self.sessions_open + sessions <= most) and self.has_bytes(0)

    def has_bytes(self, nbytes: int) -> bool:
        """Whether so many more bytes fit, where there is room at all."""
        held = self._held_bytes()
        return held < (most := self._most_bytes(held)) and held + nbytes <= most

    def check_disk(self) -> None:
        """Raises StoreFull where a turn may find no room when it is to be committed: its generation would be wasted.

        Pages that the store has free within its file count as room.
        """
        now = self._clock()
        if now - self._looked < LOOK_AGAIN:
            return
        disk = shutil.disk_usage(self._folder)
        reserve = min(RESERVE, RESERVE_SHARE * disk.total)
        if disk.free < reserve and disk.free + self._free_within() < reserve:
            # Not noted: the next call looks again, so that room is found as soon as it is there.
            raise StoreFull(f"the store's disk has {disk.free} bytes left, and {reserve:.0f} are kept for what runs")
        self._looked = now

    def is_full(self) -> bool:
        """Whether a generation would be refused now for want of room on the disk."""
        try:
            self.check_disk()
        except StoreFull:
            return True
        return False

    def note_full(self) -> None:
        """A commit found no room: the next call looks for itself."""
        self._looked = float("-inf")

    def _free_within(self) -> int:
        try:
            with contextlib.closing(self._database.connect(read_only=True)) as connection:
                [pages] = connection.execute("PRAGMA freelist_count").fetchone()
                [size] = connection.execute("PRAGMA page_size").fetchone()
        except sqlite3.Error:
            return 0
        return int(pages) * int(size)

    def _held_bytes(self) -> int:
        return sum(map(_size, self._files)) + self._shard_bytes()

    def _most_bytes(self, held: int) -> float:
        """The limit given, else a share of what the disk holds for this store: its own bytes and what is free."""
        if self.limits.bytes is not None:
            return self.limits.bytes
        return STORE_SHARE_OF_STORAGE * (shutil.disk_usage(self._folder).free + held)


def _size(file: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
