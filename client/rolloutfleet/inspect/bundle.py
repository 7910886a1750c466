"""The pages of some sessions as files, which any static server shows: those that the live page has, and its documents.

A folder is a bundle's by its `bundle.json`. That says so first, and whether it is complete last; `index.html` comes
before that. So what was broken off has no page to begin with, and is written anew by the next bundle.
"""

import asyncio
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rolloutfleet.inspect import pages
from rolloutfleet.inspect.app import encoded
from rolloutfleet.inspect.documents import newest
from rolloutfleet.inspect.sources import Json, NotNow, NotThere, Source

MARK: Final = "bundle.json"
FORMAT: Final = "rolloutfleet-inspect-bundle"
OURS: Final = ("index.html", "sessions.html", "data", "groups", "sessions", "static")
CHUNKS_AT_ONCE: Final = 4


class NotABundle(Exception):
    """The folder holds something else; the message says what to do."""


class NothingChosen(Exception):
    """There is no session to write; the folder is as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which sessions are written."""

    session_ids: Sequence[str] = ()
    task_id: str | None = None
    limit: int = 100
    """At most, the newest."""

    def of(self, lines: Sequence[Json]) -> list[Json]:
        """Those of a list, whose newest are first."""
        found = [line for line in lines if not self.session_ids or line["session_id"] in self.session_ids]
        return [line for line in found if self.task_id is None or line["task_id"] == self.task_id][: self.limit]


@dataclass(slots=True)
class Written:
    """What a bundle has."""

    sessions: int = 0
    bytes: int = 0
    missing: dict[str, str] = field(default_factory=dict)
    """Sessions that could not be read meanwhile, and why."""


async def write_bundle(
    source: Source, folder: Path, selection: Selection, progress: Callable[[int, int], None]
) -> Written:
    """Raises NotABundle, NothingChosen, NotNow, OSError. `progress` is told how many are written, and of how many."""
    _check(folder)
    lines, complete = await source.sessions()
    chosen = selection.of(lines)
    if not chosen:
        raise NothingChosen
    _empty(folder)
    _mark(folder, complete=False)
    shutil.copytree(pages.static_folder(), folder / "static", ignore=shutil.ignore_patterns("__pycache__"))
    writing = _Writing(source, folder)
    named = {line["session_id"] for line in chosen}
    writing.written.missing = {name: "there is no such session" for name in selection.session_ids if name not in named}
    kept = []
    for number, line in enumerate(chosen, 1):
        if await writing.session(line):
            kept.append(line)
        progress(number, len(chosen))
    await writing.rest(kept, complete=complete)
    _mark(folder, complete=True)
    return writing.written


def _check(folder: Path) -> None:
    """Raises NotABundle where there is something else than an earlier one."""
    inside = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if inside and (not _is_bundle(folder) or inside - {MARK, *OURS}):
        raise NotABundle(f"{folder} holds something else than a bundle; name a folder that is empty, or not there")


def _empty(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in (folder / name for name in OURS):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _is_bundle(folder: Path) -> bool:
    try:
        found = json.loads((folder / MARK).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("format") == FORMAT


def _mark(folder: Path, *, complete: bool) -> None:
    (folder / MARK).write_text(json.dumps({"format": FORMAT, "complete": complete}) + "\n")


@dataclass(slots=True)
class _Writing:
    """The files of one bundle."""

    source: Source
    folder: Path
    written: Written = field(default_factory=Written)

    async def session(self, line: Json) -> bool:
        """All of a session, its page last; False where it is gone, or can't be read."""
        try:
            await self._session(line["key"])
        except (NotThere, NotNow) as error:
            self.written.missing[line["session_id"]] = str(error) or "it is gone"
            return False
        self.written.sessions += 1
        return True

    async def _session(self, key: str) -> None:
        tree = await self.source.tree(key)
        for turn in tree["turns"]:
            await self._turn(key, turn["name"])
        self._document(f"data/sessions/{key}/tree.json", tree)
        self._file(f"sessions/{key}.html", await pages.session_page(self.source, key))

    async def _turn(self, key: str, name: str) -> None:
        turn, path = await self.source.turn(key, name), f"data/sessions/{key}/turns/{name}"
        self._document(f"{path}.json", turn)
        if turn["strip"] is None:
            self._document(f"{path}/strip.json", await self.source.strip(key, name))
        for first in range(0, turn["chunks"], CHUNKS_AT_ONCE):
            numbers = range(first, min(first + CHUNKS_AT_ONCE, turn["chunks"]))
            found = await asyncio.gather(*(self.source.chunk(key, name, number) for number in numbers))
            for number, chunk in zip(numbers, found, strict=True):
                self._document(f"{path}/tokens/{number}.json", chunk)

    async def rest(self, lines: Sequence[Json], *, complete: bool) -> None:
        """What leads to the sessions."""
        keys, tails = frozenset(line["key"] for line in lines), pages.Tails()
        for group in dict.fromkeys(line["group"] for line in lines):
            page = await pages.group_page(self.source, group, tails, only=keys)
            self._file(f"groups/{group}.html", page)
        self._document("data/sessions.json", {"sessions": list(lines), "complete": complete})
        overview = await self.source.overview() | newest(lines)
        self._document("data/fleet.json", overview)
        self._file("sessions.html", pages.sessions_html(len(lines), live=False))
        self._file("index.html", pages.fleet_html(overview, live=False))

    def _document(self, path: str, document: Json) -> None:
        self._file(path, encoded(document))

    def _file(self, path: str, content: bytes) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        self.written.bytes += len(content)
