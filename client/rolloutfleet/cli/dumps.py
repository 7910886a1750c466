"""`rolloutfleet dumps`: what stale sessions left. List it, look into it, check it, and take it in again.

Where the `dumps` commands look: a folder on this machine, or the proxies of a fleet.
"""

import contextlib
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, TypeVar, cast

import typer
from rich.progress import track
from rich.text import Text

from rolloutfleet.cli.failures import CommandFailed, failed, of_those_that_answer, warn, wrong
from rolloutfleet.cli.options import AsJson, FleetOptions, group, takes_options
from rolloutfleet.cli.show import console, print_json, sampled, size, span, table, text
from rolloutfleet.dumps.checks import Inspected, inspect
from rolloutfleet.dumps.files import CLAIM_MARK, IMPORTED_MARK, glance, open_dump, parse_dump_name
from rolloutfleet.dumps.form import Damaged, Dump, DumpedTurn
from rolloutfleet.dumps.reading import load
from rolloutfleet.fleet import Fleet, FleetError
from rolloutfleet.grouping import grouped
from rolloutfleet.wire import DumpState, ImportedDump, ListedDump
from rolloutfleet.wording import counted


@dataclass(frozen=True, slots=True)
class FolderSource:
    """A folder with dump files."""

    path: Path

    def listed(self, state: DumpState | None = None) -> list[ListedDump]:
        try:
            found = list(_in_folder(self.path))
        except OSError as error:
            raise wrong(f"{self.path} can't be read: {error.strerror}") from None
        return [listed for listed in found if state in (None, listed.state)]

    def open(self, name: str) -> BinaryIO:
        for file in (self.path / name, self.path / f"{name}{IMPORTED_MARK}"):
            try:
                return open_dump(file)
            except FileNotFoundError:
                continue
            except Damaged as error:
                raise failed(f"{file} is not a dump: {error}") from None
            except OSError as error:
                raise failed(f"{file} can't be read: {error.strerror}") from None
        raise failed(f"there is no {name} in {self.path}")


@dataclass(frozen=True, slots=True)
class FleetSource:
    """The folders of a fleet's proxies; several of them may be one."""

    fleet: Fleet

    def listed(self, state: DumpState | None = None) -> list[ListedDump]:
        """Of a file that several proxies list, the one that its own proxy does, if that is among them."""
        best: dict[tuple[str, str], ListedDump] = {}
        for dump in of_those_that_answer(lambda: self.fleet.dumps(state=state)):
            known = best.setdefault((dump.name, dump.state), dump)
            name = parse_dump_name(dump.name)
            if name is not None and known.ordinal != dump.ordinal == name.ordinal:
                best[dump.name, dump.state] = dump
        return [best[key] for key in sorted(best)]

    def open(self, name: str) -> BinaryIO:
        # A file may be larger than memory, whether or not it is a dump.
        into = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 (the caller closes it)
        try:
            self.fleet.fetch_dump(name, into)
        except OSError as error:
            raise failed(f"{name} can't be kept on this machine: {error.strerror}") from None
        into.seek(0)
        return into


Source = FolderSource | FleetSource
"""Where dumps are. It lists all of them, by name, and opens one; both raise CommandFailed and FleetError."""


def by_group(dumps: Iterable[ListedDump]) -> list[list[ListedDump]]:
    """Those of one group at one proxy together, so that they are imported, and then exported, together."""
    return list(grouped(dumps, lambda dump: (dump.ordinal, dump.group_id or dump.session_id)).values())


def _in_folder(folder: Path) -> Iterator[ListedDump]:
    """Raises OSError."""
    for file in sorted(folder.iterdir()):
        plain, claim, _ = file.name.partition(CLAIM_MARK)
        name = parse_dump_name(plain.removesuffix(IMPORTED_MARK))
        if name is None:
            continue
        try:
            seen, head = file.lstat(), glance(file)
        except FileNotFoundError:
            continue
        yield ListedDump(
            name=str(name),
            session_id=name.session_id,
            trajectory=name.number,
            state="importing" if claim else "imported" if file.name.endswith(IMPORTED_MARK) else "ready",
            bytes=seen.st_size if stat.S_ISREG(seen.st_mode) else 0,
            modified=seen.st_mtime,
            **dict(head),
        )


T = TypeVar("T")

AT_ONCE = 1000
"""Dumps that one call may name."""

app = group("Dumps of stale sessions: list, inspect, verify and import them.")

Directory = Annotated[
    Path | None, typer.Option("--dir", metavar="DIR", help="Read this folder instead of asking a fleet.")
]
Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Names of dumps, as `list` shows them.")]


@app.command("list")
@takes_options
def list_dumps(
    directory: Directory = None,
    state: Annotated[DumpState | None, typer.Option(help="Only dumps in this state.")] = None,
    *,
    options: FleetOptions,
    as_json: AsJson = False,
) -> None:
    """List dumps: of all proxies of a fleet, or of a folder. Those that are ready can be imported."""
    with _source(directory, options) as source:
        found = source.listed(state)
    if as_json:
        print_json([dump.model_dump() for dump in found])
        return
    _print_list(found, of_fleet=directory is None)


@app.command("show")
@takes_options
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The dump's name, as `list` shows it.")],
    directory: Directory = None,
    *,
    options: FleetOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print the dump itself.")] = False,
) -> None:
    """Show what a dump holds: its session, and its turns with tokens, weight versions and rewards."""
    _named(name)
    with _source(directory, options) as source, source.open(name) as file:
        if as_json:
            shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return
        try:
            dump = load(file)
        except Damaged as error:
            raise failed(f"{name} is damaged: {error}") from None
    _print_dump(dump)


@app.command("verify")
@takes_options
def verify(names: Names = None, directory: Directory = None, *, options: FleetOptions, as_json: AsJson = False) -> None:
    """Check the named dumps, or all that are ready: that no byte was changed, and that every turn is complete.

    Exit status 1 if something is wrong with any of them.
    """
    with _source(directory, options) as source:
        chosen = [_named(name) for name in names or ()] or [dump.name for dump in source.listed("ready")]
        found = {name: _checked(source, name) for name in _progress(chosen, "checking")}
    bad = sum(bool(each.all_problems) for each in found.values())
    if as_json:
        print_json([{"name": name, "problems": each.all_problems} for name, each in found.items()])
    else:
        _print_checked(found)
    if bad:
        raise failed(f"{bad} of {counted(len(found), 'dump')} {'is' if bad == 1 else 'are'} damaged or incomplete")


@app.command("import")
@takes_options
def import_dumps(
    names: Names = None,
    everything: Annotated[bool, typer.Option("--all", help="All dumps that are ready.")] = False,
    group: Annotated[str | None, typer.Option(metavar="ID", help="All of this group.")] = None,
    incomplete: Annotated[
        bool, typer.Option("--incomplete", help="Also dumps whose shards are missing, without these shards.")
    ] = False,
    *,
    options: FleetOptions,
    as_json: AsJson = False,
) -> None:
    """Import dumps, so that their trajectories can be exported. Dumps of a group are imported together.

    Each goes to the proxy whose session it was, if that one has it in its folder. A refused dump stays as it is, and
    the others are still imported; the exit status is then 1.
    """
    if sum((bool(names), everything, group is not None)) != 1:
        raise wrong("name the dumps, or give --group ID or --all")
    for name in names or ():
        _named(name)
    with options.fleet() as fleet:
        chosen = _chosen(FleetSource(fleet), names, group)
        imported, refused = _import(fleet, chosen, incomplete=incomplete)
    if as_json:
        print_json([each.model_dump(exclude_unset=True) for each in imported])
    else:
        sessions = len({each.session_id for each in imported})
        turns = sum(each.turns for each in imported)
        print(
            f"imported {counted(len(imported), 'dump')} of {counted(sessions, 'session')} with {counted(turns, 'turn')}"
            f"{'; rolloutfleet export takes them' if imported else ''}"
        )
    if refused:
        raise failed(f"{counted(refused, 'dump')} not imported")


def _chosen(source: FleetSource, names: Sequence[str] | None, group: str | None) -> list[ListedDump]:
    ready = source.listed("ready")
    if group is not None:
        return [dump for dump in ready if dump.group_id == group]
    if not names:
        return ready
    by_name = {dump.name: dump for dump in ready}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise failed(f"no proxy has {', '.join(missing[:5])} ready to be imported; see rolloutfleet dumps list")
    return [by_name[name] for name in names]


def _import(fleet: Fleet, chosen: Sequence[ListedDump], *, incomplete: bool) -> tuple[list[ImportedDump], int]:
    """(what came of each, how many were refused). One call for each group: what is wrong with one stops no other."""
    imported: list[ImportedDump] = []
    refused = 0
    calls = [dumps[at : at + AT_ONCE] for dumps in by_group(chosen) for at in range(0, len(dumps), AT_ONCE)]
    for dumps in _progress(calls, "importing"):
        try:
            names = [dump.name for dump in dumps]
            imported += fleet.import_dumps(names, ordinal=dumps[0].ordinal, incomplete=incomplete)
        except FleetError as error:
            warn(error)
            refused += len(dumps)
    return imported, refused


@contextlib.contextmanager
def _source(directory: Path | None, options: FleetOptions) -> Iterator[Source]:
    if directory is None:
        with options.fleet() as fleet:
            yield FleetSource(fleet)
        return
    if options.state_dir is not None or options.url is not None:
        raise wrong("--dir is a folder; it goes with neither --state-dir nor --url")
    if not directory.is_dir():
        raise wrong(f"{directory} is not a folder")
    yield FolderSource(directory)


def _named(name: str) -> str:
    if parse_dump_name(name) is None:
        raise wrong(f"{name!r} is not a valid dump name; see rolloutfleet dumps list")
    return name


def _checked(source: Source, name: str) -> Inspected:
    try:
        with source.open(name) as file:
            return inspect(file, name=name)
    except (CommandFailed, FleetError) as error:
        return Inspected(problems=[str(error)])


def _progress(things: Sequence[T], doing: str) -> Iterable[T]:
    """With a bar where somebody looks at a screen, and there is something to wait for."""
    out = console()
    return track(things, doing, console=out, transient=True) if out.is_terminal and len(things) > 1 else things


def _print_list(found: Sequence[ListedDump], *, of_fleet: bool) -> None:
    if not found:
        print("no dumps")
        return
    faults = [""] if any(dump.fault for dump in found) else []
    proxies = ["proxy"] if of_fleet else []
    shown = table("dump", "task", "state", "size", "age", *proxies, *faults, numbers=("size", "age"))
    now = time.time()
    for dump in found:
        age = span(max(0.0, now - (dump.dumped_at or dump.modified)))
        proxy = [str(dump.ordinal)] if of_fleet else []
        fault = [Text(dump.fault or "", "red")] if faults else []
        shown.add_row(dump.name, text(dump.task_id), dump.state, size(dump.bytes), age, *proxy, *fault)
    console().print(shown)


def _print_checked(found: dict[str, Inspected]) -> None:
    if not found:
        print("no dumps")
        return
    shown = table("dump", "turns", "tokens", "shards", "", numbers=("turns", "tokens", "shards"))
    for name, each in found.items():
        said = Text("\n".join(each.all_problems), "red") if each.all_problems else "whole"
        shown.add_row(name, str(each.turns), str(each.tokens), str(each.shards), said)
    console().print(shown)


def _print_dump(dump: Dump) -> None:
    out = console()
    head, session, trajectory = dump.head, dump.head.session, dump.head.trajectory
    facts = {
        "session": session.session_id,
        "group": session.group_id,
        "task": text(session.task_id),
        "trajectory": "open" if trajectory is None else f"{trajectory.number}, closed by {trajectory.closed_by}",
        "dumped": f"{span(max(0.0, time.time() - head.dumped_at))} ago by proxy {head.ordinal}: {head.reason}",
        "shards": text(len(dump.shards) or None),
        "missing": text(", ".join(dump.end.incomplete)),
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        out.print(f"{name:{width}}  {value}", soft_wrap=True)
    numbers = ("", "parent", "prompt", "output", "reward")
    shown = table(
        "turn", "", "parent", "finish", "prompt", "output", "versions", "reward", "sampling", "", numbers=numbers
    )
    for turn in dump.turns:
        shown.add_row(*_row(turn))
    out.print()
    out.print(shown)


def _row(turn: DumpedTurn) -> tuple[str, ...]:
    return (
        turn.turn_id,
        str(turn.number),
        text(turn.parent),
        turn.finish_reason,
        str(turn.prompt_tokens),
        str(len(turn.output_ids.numpy())),
        ", ".join(str(version) for version in sorted(set(turn.versions.numpy().tolist()))),
        text(turn.reward),
        sampled((turn.extras or {}).get("sampling")),
        f"context, of trajectory {turn.trajectory}" if turn.context else "",
    )
