"""Orphans: files that no row holds, and rows whose file is gone. Found by a look at both, let go after a grace.

A crash between a file and its row leaves the first kind; only somebody else's hand on the folder leaves the second.
The look goes through both in pages, so it takes little memory however many there are.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import islice
from typing import Final

from rolloutfleet_proxy.shards.files import ShardFiles
from rolloutfleet_proxy.store import shards as rows
from rolloutfleet_proxy.store.store import Store
from rolloutfleet_proxy.telemetry import logger

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


@dataclass(slots=True)
class Orphans:
    """What is left over on either side. `arriving` are files that are written just now and get their row yet."""

    files: ShardFiles
    store: Store
    _: KW_ONLY
    arriving: Collection[str]
    clock: Callable[[], float] = time.monotonic
    _next_look: float = float("-inf")
    _seen: dict[Orphan, float] = field(default_factory=dict)
    """When each was first seen."""

    async def count(self) -> int:
        """How many there are now."""
        count = 0
        found = dict[Orphan, float]()
        looking = self._look()
        while page := await asyncio.to_thread(lambda: list(islice(looking, _PAGE))):
            count += len(page)
            for orphan in page[: _REMEMBERED - len(found)]:
                found[orphan] = self._seen.get(orphan, self.clock())
        self._seen = found
        self._next_look = self.clock() + LOOK_EVERY
        return count

    async def tick(self) -> None:
        """Look, when it is time to, and let go of what has had its grace."""
        if self.clock() >= self._next_look:
            await self.count()
        late = [orphan for orphan, seen in self._seen.items() if self.clock() - seen >= GRACE]
        for orphan in late:
            del self._seen[orphan]
            if orphan.row is None:
                await asyncio.to_thread(self._remove, orphan.file)
            else:
                logger.warning("the file %s of a shard is gone, and so the shard", orphan.file)
                await self.store.write(partial(rows.delete_row, row=orphan.row, file=orphan.file), frees=True)

    def _look(self) -> Iterator[Orphan]:
        names = self.files.names()
        while files := list(islice(names, _PAGE)):
            # In this order: a file that is not arriving any more has its row by now, or never will.
            settled = [file for file in files if file not in self.arriving]
            yield from map(Orphan, self._unknown(settled))
        after = 0
        while page := self.store.reader.run_blocking(partial(rows.pages, after=after, limit=_PAGE)):
            after = page[-1][0]
            lost = {row: file for row, file in page if not self.files.is_there(file)}
            if lost:
                still = self.store.reader.run_blocking(partial(rows.files_of_rows, ids=list(lost)))
                yield from (Orphan(file, row) for row, file in lost.items() if still.get(row) == file)

    def _unknown(self, files: list[str]) -> list[str]:
        known = self.store.reader.run_blocking(partial(rows.known_files, files=files))
        # A file that was just removed is not known either.
        return [file for file in files if file not in known and self.files.is_there(file)]

    def _remove(self, file: str) -> None:
        if self._unknown([file]):
            self.files.remove(file)
