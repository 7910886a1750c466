"""Orphans: files that no row holds, and rows whose file is gone. Found by a look at both, let go after a grace.

A crash between a file and its row leaves the first kind; only somebody else's hand on the folder leaves the second.
The look goes through both in pages, so it takes little memory however many there are.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from rolloutfleet_proxy.shards import rows
from rolloutfleet_proxy.shards.files import ShardFiles
from rolloutfleet_proxy.store.reader import Reader
from rolloutfleet_proxy.store.writer import Writer
from rolloutfleet_proxy.telemetry import logger

T = TypeVar("T")

GRACE: Final = 60.0
"""Seconds that an orphan is left in peace after it was first seen."""
LOOK_EVERY: Final = 600.0
"""Seconds between two looks; each /audit looks too."""
_PAGE: Final = 500
_REMEMBERED: Final = 10_000
"""Orphans that are remembered at once; the others wait for a later look."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A file without a row (`row` is None), or a row without its file."""

    file: str
    row: int | None = None


class Orphans:
    """What is left over on either side. `arriving` are files that are written just now and get their row yet."""

    def __init__(
        self,
        files: ShardFiles,
        writer: Writer,
        reader: Reader,
        *,
        arriving: Collection[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = files
        self._writer = writer
        self._reader = reader
        self._arriving = arriving
        self._clock = clock
        self._next_look = float("-inf")
        self._seen: dict[Orphan, float] = {}
        """When each was first seen."""

    async def count(self) -> int:
        """How many there are now."""
        count = 0
        found = dict[Orphan, float]()
        looking = self._look()
        while page := await asyncio.to_thread(lambda: list(islice(looking, _PAGE))):
            count += len(page)
            for orphan in page[: _REMEMBERED - len(found)]:
                found[orphan] = self._seen.get(orphan, self._clock())
        self._seen = found
        self._next_look = self._clock() + LOOK_EVERY
        return count

    async def tick(self) -> None:
        """Look, when it is time to, and let go of what has had its grace."""
        if self._clock() >= self._next_look:
            await self.count()
        late = [orphan for orphan, seen in self._seen.items() if self._clock() - seen >= GRACE]
        for orphan in late:
            del self._seen[orphan]
            if orphan.row is None:
                await asyncio.to_thread(self._remove, orphan.file)
            else:
                logger.warning("the file %s of a shard is gone, and so the shard", orphan.file)
                await self._writer.run(partial(rows.delete_row, row=orphan.row, file=orphan.file), frees=True)

    def _look(self) -> Iterator[Orphan]:
        for files in _paged(self._files.names()):
            # In this order: a file that is not arriving any more has its row by now, or never will.
            settled = [file for file in files if file not in self._arriving]
            yield from map(Orphan, self._unknown(settled))
        after = 0
        while page := self._reader.run_blocking(partial(rows.pages, after=after, limit=_PAGE)):
            after = page[-1][0]
            lost = {row: file for row, file in page if not self._files.is_there(file)}
            if lost:
                still = self._reader.run_blocking(partial(rows.files_of_rows, ids=list(lost)))
                yield from (Orphan(file, row) for row, file in lost.items() if still.get(row) == file)

    def _unknown(self, files: list[str]) -> list[str]:
        known = self._reader.run_blocking(partial(rows.known_files, files=files))
        # A file that was just removed is not known either.
        return [file for file in files if file not in known and self._files.is_there(file)]

    def _remove(self, file: str) -> None:
        if self._unknown([file]):
            self._files.remove(file)


def _paged(items: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(items)
    while page := list(islice(remaining, _PAGE)):
        yield page
