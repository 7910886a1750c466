"""Is there room for more sessions here? The limits of one proxy: open sessions, and bytes of its store and shards."""

import shutil
from collections.abc import Callable
from pathlib import Path

from rolloutfleet.spec import STORE_SHARE_OF_STORAGE, LimitsSpec
from rolloutfleet_proxy.store.database import FILE


class Admission:
    """Counts open sessions as they start and end, and looks at the size of store and shards when asked."""

    def __init__(
        self, limits: LimitsSpec, folder: Path, *, sessions_open: int, shard_bytes: Callable[[], int] = lambda: 0
    ) -> None:
        self._limits = limits
        self._folder = folder
        self._shard_bytes = shard_bytes
        self.sessions_open = sessions_open

    def has_room(self, sessions: int) -> bool:
        """Whether so many more sessions fit."""
        most = self._limits.sessions
        return (most is None or self.sessions_open + sessions <= most) and self.has_bytes(0)

    def has_bytes(self, nbytes: int) -> bool:
        """Whether so many more bytes fit, where there is room at all."""
        held = self._held_bytes()
        return held < (most := self._most_bytes(held)) and held + nbytes <= most

    def _held_bytes(self) -> int:
        files = (self._folder / FILE, self._folder / f"{FILE}-wal")
        return sum(file.stat().st_size for file in files if file.exists()) + self._shard_bytes()

    def _most_bytes(self, held: int) -> float:
        """The limit given, else a share of what the disk holds for this store: its own bytes and what is free."""
        if self._limits.bytes is not None:
            return self._limits.bytes
        return STORE_SHARE_OF_STORAGE * (shutil.disk_usage(self._folder).free + held)
