"""The token ids from a session's root to one of its turns, which the next prompt must begin with.

A turn's row holds only what its parent lacks, so they are put together from the path; those lately used are kept.
"""

from array import array
from collections.abc import Iterable
from typing import NamedTuple

from rolloutfleet_proxy.caches import ByteCache
from rolloutfleet_proxy.engine.request import ids_json
from rolloutfleet_proxy.store.store import Reader
from rolloutfleet_proxy.store.turns import load_ids

_ENTRY_BYTES = 400


class Path(NamedTuple):
    """The ids of a turn and of all before it."""

    prompt_ids: "array[int]"
    """The whole prompt's."""
    output_ids: "array[int]"
    prompt_json: bytes
    """The prompt's ids as a JSON array: what was sent to the engine, and what the next turn's begins with."""


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
        ids = len(path.prompt_ids) + len(path.output_ids)
        self._lately.put((session, number), path, _ENTRY_BYTES + 4 * ids + len(path.prompt_json))

    def forget(self, session: int, numbers: Iterable[int]) -> None:
        """Drop turns of a session that nothing will continue any more."""
        for number in numbers:
            self._lately.pop((session, number))

    async def get(self, session: int, number: int) -> Path:
        """Raises LookupError where the turn is gone."""
        path = self._lately.get((session, number))
        if path is None:
            prompt, output = await self._reader.run(lambda connection: load_ids(connection, session, number))
            path = Path(prompt, output, ids_json(prompt))
            self.keep(session, number, path)
        return path
