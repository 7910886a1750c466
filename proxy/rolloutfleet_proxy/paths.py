"""The token ids from a session's root to one of its turns, which the next prompt must begin with.

A turn's row holds only what its parent lacks, so they are put together from the path; those lately used are kept.
"""

from array import array

from rolloutfleet_proxy.caches import ByteCache
from rolloutfleet_proxy.store.reader import Reader
from rolloutfleet_proxy.turns import load_ids

_ENTRY_BYTES = 400

Path = tuple["array[int]", "array[int]"]
"""(whole prompt, output) of a turn."""


class Paths:
    """Prompt and output ids of turns, by session and number."""

    def __init__(self, reader: Reader, *, cache_bytes: int) -> None:
        self._reader = reader
        self._lately: ByteCache[tuple[int, int], Path] = ByteCache(cache_bytes)

    @property
    def cached_bytes(self) -> int:
        return self._lately.nbytes

    def keep(self, session: int, number: int, path: Path) -> None:
        """Remember a turn that was just committed: the next request most likely continues it."""
        self._lately.put((session, number), path, _ENTRY_BYTES + 4 * (len(path[0]) + len(path[1])))

    async def get(self, session: int, number: int) -> Path:
        """Raises LookupError where the turn is gone."""
        path = self._lately.get((session, number))
        if path is None:
            path = await self._reader.run(lambda connection: load_ids(connection, session, number))
            self.keep(session, number, path)
        return path
