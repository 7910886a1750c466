"""What is shown of a folder: dumps, kept files and exports, without any fleet.

Files are looked through one after the other, in a thread, and what is remembered of each is a line a session. The
files that are looked at are opened again, and the last few stay open.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from rolloutfleet.inspect.documents import chunk_document, newest, strip, tree_document, turn_document
from rolloutfleet.inspect.indexing import Entry, Found, looked_through, opened
from rolloutfleet.inspect.names import digest_name, safe_name
from rolloutfleet.inspect.sources import Json, NotNow, NotThere
from rolloutfleet.threads import in_thread
from rolloutfleet.viewing import Recorded, RecordedBranch, Texts, Unreadable
from rolloutfleet.viewing.texts import ids_alone
from rolloutfleet.wire import ShownTurn

KEPT: Final = 2
"""Files, and branches with their tokens, that stay in memory."""
MOST_UNREADABLE: Final = 200
"""Files that are named as such."""


class FolderSource:
    """A `Source` of the files in a folder and the folders in it."""

    live = False

    def __init__(self, folder: Path, texts: Texts) -> None:
        self._folder, self._texts = folder, texts
        self._entries: dict[str, Entry] = {}
        self._heads: dict[str, list[str]] = {}
        """Keys of entries of which only their file's first line is known."""
        self._lines: list[Json] | None = None
        self._unreadable: list[Json] = []
        self._files = 0
        self._complete = False
        self._first = asyncio.Event()
        self._reading = asyncio.Lock()
        self._opened = lru_cache(KEPT)(lambda file: opened(folder, file, texts))
        self._branches = lru_cache(KEPT)(_turns_of)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The files are looked through meanwhile."""
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(self.refresh())
            try:
                yield
            finally:
                looking.cancel()

    async def refresh(self) -> None:
        """Look through all of them, as they are now."""
        files = looked_through(self._folder)
        while (found := await in_thread(next, files, None)) is not None:
            self._take(found)
        self._complete = True
        self._first.set()

    def _take(self, found: Found) -> None:
        if found.why is not None:
            self._files += 1
            for key in self._heads.pop(found.file, ()):
                self._entries.pop(key, None)
            if len(self._unreadable) < MOST_UNREADABLE:
                self._unreadable.append({"file": found.file, "why": found.why})
        else:
            self._files += found.whole
            entries = {digest_name(entry.file, entry.name): entry for entry in found.entries}
            self._entries |= entries
            if not found.whole:
                self._heads[found.file] = list(entries)
        self._lines = None
        self._first.set()

    def seen(self) -> None:
        pass

    async def overview(self) -> Json:
        lines, _ = await self.sessions()
        return {
            "source": "files",
            "folder": self._folder.resolve().name,
            "files": self._files,
            "complete": self._complete,
            **newest(lines),
            "unreadable": self._unreadable,
            "fleet": {},
            "proxies": [],
            "failed": {},
            "trouble": None,
        }

    async def sessions(self) -> tuple[list[Json], bool]:
        await self._first.wait()
        if self._lines is None:
            lines = [self._line(key, entry) for key, entry in self._entries.items()]
            self._lines = sorted(lines, key=lambda line: (-(line["created_at"] or 0.0), line["session_id"]))
        return self._lines, self._complete

    async def tree(self, key: str) -> Json:
        entry, recorded = await self._recorded(key)
        facts = {"metadata": {name: value for name, value in recorded.facts.items() if value is not None}}
        ends = [branch.last for branch in recorded.branches]
        return tree_document(self._line(key, entry) | facts, recorded.turns, ends)

    async def turn(self, key: str, turn: str) -> Json:
        found = await self._turn(key, turn)
        count = len(found.tokens.input_ids)
        output = found.tokens.logprobs[max(0, count - found.completion_tokens) :] if found.completion_tokens else []
        return turn_document(found, tokens=count, strip=strip(output))

    async def strip(self, key: str, turn: str) -> Json:
        return {"strip": (await self.turn(key, turn))["strip"]}

    async def chunk(self, key: str, turn: str, number: int) -> Json:
        document = chunk_document((await self._turn(key, turn)).tokens, number)
        if not document["input_ids"]:
            raise NotThere
        return document

    async def command(self, key: str) -> str | None:
        return None

    def _line(self, key: str, entry: Entry) -> Json:
        return {"key": key, "group": safe_name(str(entry.line["group_id"])), **entry.line}

    async def _recorded(self, key: str) -> tuple[Entry, Recorded]:
        await self._first.wait()
        entry = self._entries.get(key)
        if entry is None:
            raise NotThere
        async with self._reading:
            return entry, await in_thread(self._open, entry)

    async def _turn(self, key: str, turn: str) -> ShownTurn:
        """With its messages and tokens, of the branch that has them."""
        _, recorded = await self._recorded(key)
        shape = next((each for each in recorded.turns if safe_name(each.turn_id) == turn), None)
        if shape is None:
            raise NotThere
        async with self._reading:
            return await in_thread(self._read_turn, recorded, shape)

    def _open(self, entry: Entry) -> Recorded:
        """Raises NotThere, NotNow."""
        try:
            found = self._opened(entry.file)
        except Unreadable as error:
            raise NotNow(str(error)) from None
        for recorded in found:
            if recorded.name == entry.name:
                return recorded
        raise NotThere

    def _read_turn(self, recorded: Recorded, shape: ShownTurn) -> ShownTurn:
        holding = [each for each in recorded.branches if shape.turn_id in each.turn_ids]
        found = [self._read(branch, shape.turn_id) for branch in holding[:1]]
        if found and found[0].completion_tokens < shape.completion_tokens:
            # An export has a turn's tokens in the row that trains it, and holes elsewhere.
            found = [self._read(branch, shape.turn_id) for branch in holding]
        if not found:
            raise NotThere
        return max(found, key=lambda each: each.completion_tokens)

    def _read(self, branch: RecordedBranch, turn_id: str) -> ShownTurn:
        try:
            return self._branches(branch)[turn_id]
        except (ValueError, LookupError, TypeError, ArithmeticError) as error:
            why = "its lists don't fit together" if self._texts is ids_alone else "are they of this tokenizer?"
            raise NotNow(f"its tokens can't be shown ({type(error).__name__}): {why}") from None


def _turns_of(branch: RecordedBranch) -> dict[str, ShownTurn]:
    return {turn.turn_id: turn for turn in branch.read()}
