"""The files of a folder, looked through for what they hold. Anything may lie there; links are not followed."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rolloutfleet.dumps.files import CLAIM_MARK, open_dump
from rolloutfleet.dumps.form import Damaged, DumpHead
from rolloutfleet.dumps.reading import read_head
from rolloutfleet.inspect.documents import SUMMARY, summary_of_turns
from rolloutfleet.inspect.sources import Json
from rolloutfleet.viewing import Recorded, Texts, Unreadable, load_texts, open_file
from rolloutfleet.viewing.files import DUMP_BEGINS, OF_RECORDS

SUFFIXES: Final = (".json", ".jsonl", ".parquet", ".safetensors", ".imported")
DEEPEST: Final = 4
"""Folders below the given one."""
MOST_FILES: Final = 100_000
LARGEST: Final = 512 << 20
"""Bytes of an export's file, and of what a compressed one expands to: exports are read whole."""
_OF_SESSION: Final = ("session_id", "task_id", "group_id", "outcome", "outcome_reason", "created_at", "turns", "tokens")
"""Fields of a dump's head that have the same names in a line."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is remembered of a session, or of a trajectory, in a file."""

    file: str
    """Below the folder."""
    name: str
    """Of what is recorded there."""
    line: Json
    """For the list, without names for paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a look at a file found."""

    file: str
    entries: Sequence[Entry] = field(default_factory=tuple)
    why: str | None = None
    """Why nothing of it can be shown."""
    whole: bool = True
    """Whether that was all; False: only what its first line says."""


def looked_through(folder: Path) -> Iterator[Found]:
    """First what the first lines of dumps say, which is quick; then all of every file."""
    files = [str(file.relative_to(folder)) for file in _files(folder, DEEPEST)][:MOST_FILES]
    heads: dict[str, Json] = {}
    for file in files:
        try:
            head = heads[file] = _head(folder / file)
        except Unreadable:
            continue
        yield Found(file=file, entries=[Entry(file, head["session_id"], head)], whole=False)
    for file in files:
        yield _looked_at(folder, file, heads.pop(file, None))


def opened(folder: Path, file: str, texts: Texts) -> list[Recorded]:
    """What a file holds. Raises Unreadable."""
    path = folder / file
    try:
        with open_dump(path) as checked:
            begins = checked.read(len(DUMP_BEGINS))
            size = os.fstat(checked.fileno()).st_size
    except Damaged as error:
        raise Unreadable(f"{file}: {error}") from None
    except OSError as error:
        raise Unreadable(f"{file} can't be read: {error.strerror or error}") from None
    if size > LARGEST and (begins != DUMP_BEGINS or path.suffix in OF_RECORDS):
        raise Unreadable(f"{file} has more than {LARGEST >> 20} MiB: `rolloutfleet show` may show it")
    return open_file(path, texts, most=LARGEST)


def _files(folder: Path, deeper: int) -> Iterator[Path]:
    """In the order of their names. What can't be listed is left out."""
    try:
        inside = sorted(folder.iterdir())
    except OSError:
        return
    for path in inside:
        if path.name.startswith(".") or path.is_symlink():
            continue
        if path.is_dir():
            yield from _files(path, deeper - 1) if deeper else ()
        elif path.name.endswith(SUFFIXES) or CLAIM_MARK in path.name:
            yield path


def _of_head(head: DumpHead) -> Json:
    state, source = ("kept", "kept") if head.is_kept else ("dumped", "dump")
    of_session = {name: getattr(head.session, name) for name in _OF_SESSION}
    return _line(state=state, source=source, fate=head.reason, ordinal=head.ordinal, **of_session)


def _line(**said: Any) -> Json:
    return dict.fromkeys((*SUMMARY, "outcome", "outcome_reason")) | {"in_flight": 0} | said


def _looked_at(folder: Path, file: str, head: Json | None) -> Found:
    """All of it, without texts. `head`: what the first line of a dump says."""
    try:
        found = opened(folder, file, load_texts(None))
        entries = [Entry(file, each.name, _of_recorded(each, head)) for each in found]
    except Unreadable as error:
        why = str(error).replace(str(folder / file), "it").removeprefix("it: ").removeprefix(f"{file}: ")
        return Found(file=file, why=why)
    return Found(file=file, entries=entries)


def _head(path: Path) -> Json:
    """What the first line of a dump says. Raises Unreadable."""
    try:
        with open_dump(path) as opened:
            return _of_head(read_head(opened))
    except (Damaged, OSError) as error:
        raise Unreadable(f"{path}: {error}") from None


def _of_recorded(recorded: Recorded, head: Json | None) -> Json:
    facts = recorded.facts
    said = head or _line(
        session_id=str(facts.get("session", recorded.name)),
        task_id=facts.get("task"),
        group_id=str(facts.get("group", "")),
        state="exported",
        fate=facts.get("marked"),
        ordinal=None,
        source="export",
        created_at=None,
    )
    summary = summary_of_turns(recorded.turns, recorded.versions)
    return said | {name: value for name, value in summary.items() if value is not None or name not in said}
