"""`rolloutfleet export --to`: everything that is ready, from all proxies, as files in a folder."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rolloutfleet.cli.failures import CommandFailed, failed, warn, wrong
from rolloutfleet.cli.show import console, size
from rolloutfleet.files import (
    ExportFolder,
    FileForm,
    FolderInUse,
    MissingLibrary,
    Summary,
    WrongFolder,
    check_form,
    export_to,
)
from rolloutfleet.files import Progress as Done
from rolloutfleet.fleet import Fleet, FleetError, Whereabouts
from rolloutfleet.fleet.exceptions import BadArgument

LEASE_SECONDS: Final = 60.0
"""Renewed while it runs; what a killed run had leased and not written comes again after that at the latest."""
PAGE: Final = 32


def export_files(where: Whereabouts, form: FileForm, output: Path, *, part_bytes: int, **wanted: Any) -> None:
    """Raises CommandFailed."""
    try:
        check_form(form)
        with (
            ExportFolder(output, form) as folder,
            Fleet(where, progress=False) as fleet,
            _bar(fleet, wanted.get("most")) as tell,
        ):
            summary = export_to(fleet, folder, part_bytes=part_bytes, tell=tell, page=PAGE, **wanted)
    except (MissingLibrary, FolderInUse, WrongFolder, BadArgument) as error:
        raise wrong(str(error)) from None
    except FleetError as error:
        raise failed(f"{error}; what is finished stays in {output}, run it again for the rest") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise failed(f"{output} can't be written: {why}; what is finished stays, the rest goes back") from None
    _show(summary, output)


@contextmanager
def _bar(fleet: Fleet, most: int | None) -> Iterator[Any]:
    """A bar on the error output, where that is a terminal. Its end is the sessions that the fleet holds, or `most`."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    sums = fleet.audit().sessions
    held = sums.live + sums.leased
    columns = (
        TextColumn("exporting"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}, {task.fields[tokens]:,} tokens, {task.fields[parts]} parts"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as shown:
        unit = "sessions" if most is None else "trajectories"
        task = shown.add_task("", total=held if most is None else most, unit=unit, tokens=0, parts=0)

        def tell(done: Done) -> None:
            so_far = done.sessions if most is None else done.trajectories
            shown.update(task, completed=so_far, tokens=done.tokens, parts=done.parts)

        yield tell


def _show(summary: Summary, output: Path) -> None:
    done, out = summary.done, console()
    if summary.again:
        out.print(f"{summary.again} trajectories stood in the folder already; the fleet has been told", soft_wrap=True)
    if done.trajectories:
        parts = "1 part" if done.parts == 1 else f"{done.parts} parts"
        out.print(
            f"{done.trajectories} trajectories, {done.tokens} tokens: {parts} ({size(done.bytes)}) in {output}, "
            "acknowledged",
            soft_wrap=True,
        )
    else:
        out.print("nothing to export now")
    for problem in _problems(summary):
        warn(problem)
    if summary.unheard or summary.unreachable:
        raise failed("not everything was there; run it again")


def _problems(summary: Summary) -> Iterator[CommandFailed]:
    if summary.lost:
        named = ", ".join(summary.lost[:3]) + (" …" if len(summary.lost) > 3 else "")
        yield failed(f"{len(summary.lost)} trajectories are in the files, and were leased by others meanwhile: {named}")
    if summary.unheard:
        yield failed(f"{summary.unheard} trajectories are in the files, and their proxies could not be told yet")
    for ordinal, why in sorted(summary.unreachable.items()):
        yield failed(f"proxy {ordinal} did not answer, what it holds is still to come: {why}")
