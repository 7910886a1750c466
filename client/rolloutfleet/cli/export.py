"""`rolloutfleet export`: take trajectories out of a fleet, under a lease.

`rolloutfleet ack` and `rolloutfleet release`: end a lease, one way or the other.

`rolloutfleet export --to`: everything that is ready, from all proxies, as files in a folder.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rolloutfleet.cli.failures import CommandFailed, failed, warn, wrong
from rolloutfleet.cli.options import AsJson, FleetOptions, takes_options
from rolloutfleet.cli.show import console, print_json, size, span, table, text
from rolloutfleet.files.folder import ExportFolder, FolderInUse, WrongFolder, sync
from rolloutfleet.files.forms import FileForm, MissingLibrary, PartFull, check_form
from rolloutfleet.files.writing import Progress as Done
from rolloutfleet.files.writing import Summary, export_to
from rolloutfleet.fleet import Fleet, FleetError, Whereabouts
from rolloutfleet.fleet.exceptions import BadArgument
from rolloutfleet.fleet.leases import ExportFile, Format
from rolloutfleet.tensors import read_metadata
from rolloutfleet.units import parse_quantity
from rolloutfleet.wire import EXPORT_METADATA_KEY, TRAINED_OUTCOMES, Credit, ExportStyle, Included, LineageKind, Outcome
from rolloutfleet.wording import counted

KINDS: Final = ", ".join(get_args(LineageKind))
OUTCOMES: Final = ", ".join(get_args(Outcome))
INCLUDED: Final = ", ".join(get_args(Included))

TRAJECTORIES: Final = "trajectory", "trajectories"

SMALLEST_PART = 2**10
LARGEST_PART = 2**32


@takes_options
def export(
    session: Annotated[list[str] | None, typer.Option(metavar="ID", help="A session's id; may be repeated.")] = None,
    group: Annotated[str | None, typer.Option(metavar="ID", help="A whole group.")] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, help="At most this many, of any session.")] = None,
    to: Annotated[
        FileForm | None,
        typer.Option(help="Everything that is ready, as files in the folder -o DIR; parquet needs pyarrow."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE|DIR", help="Where to write; - is standard output.")
    ] = None,
    part_size: Annotated[str, typer.Option(metavar="BYTES", help="With --to: the size of a part, like 64Mi.")] = "64Mi",
    form: Annotated[Format | None, typer.Option("--format", help="The format without --to [default: json].")] = None,
    style: Annotated[ExportStyle, typer.Option(help="One row per leaf of the tree, or one row per turn.")] = "concat",
    discount: Annotated[float, typer.Option(min=0.0, max=1.0, help="The discount of rewards.")] = 1.0,
    context: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help=f"Turns of such lineages are not trained: {KINDS}; may be repeated."),
    ] = None,
    credit: Annotated[
        Credit, typer.Option(help="Whose reward rows without one get: the session's, or nobody's.")
    ] = "session",
    train: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OUTCOME",
            help=f"Sessions that ended so are trained, others only if rewarded: {OUTCOMES}; may be repeated"
            f" [default: {', '.join(TRAINED_OUTCOMES)}].",
        ),
    ] = None,
    include: Annotated[
        list[str] | None, typer.Option(metavar="PART", help=f"What rows have as well: {INCLUDED}; may be repeated.")
    ] = None,
    lease_seconds: Annotated[
        float | None, typer.Option(min=1.0, help="How long the lease lasts [default: 600, with --to 60 and renewed].")
    ] = None,
    acknowledge: Annotated[
        bool, typer.Option("--ack", help="Acknowledge once the file is on disk; the fleet then deletes them.")
    ] = False,
    *,
    options: FleetOptions,
) -> None:
    """Lease finished trajectories and write them to a file, or with --to all of them to a folder.

    [bold]export --to parquet|jsonl|safetensors|sft -o DIR[/bold] takes what is ready from all proxies and writes it as
    part-00000.parquet and so on, one record per row of a trajectory; sft writes examples for supervised fine-tuning, as
    JSON lines, of the rows that train something. A part is acknowledged once it is durable on disk. If it is killed at
    any moment, run it again: finished parts stay, the rest is added, nothing is lost or written twice. Further runs
    into the same folder add parts.

    [bold]export -o FILE[/bold] writes one lease of one proxy, as JSON or safetensors. Without --ack the trajectories
    return to the fleet when the lease ends; `rolloutfleet ack` and `release` end it earlier. Without -o they are only
    shown, and given back at once.
    """
    if unknown := [kind for kind in context or () if kind not in get_args(LineageKind)]:
        raise wrong(f"--context {unknown[0]} is not a kind of lineage; one of {KINDS}")
    if sum(choice is not None for choice in (session or None, group, most)) > 1:
        raise wrong("--session, --group and --max exclude each other; keep one")
    wanted: dict[str, Any] = {
        "session_ids": session or None,
        "group_id": group,
        "style": style,
        "discount": discount,
        "lineages": dict.fromkeys(context or (), "context"),
        "credit": credit,
        "train": train or TRAINED_OUTCOMES,
        "include": include or (),
    }
    folder = None if to is None else _folder(output, form, acknowledge)
    if folder is None:
        _check_file(output, form, acknowledge)
    part_bytes = _part_bytes(part_size)
    if to is not None and folder is not None:
        wanted |= {"most": most, "lease_seconds": lease_seconds or LEASE_SECONDS}
        export_files(options.find(), to, folder, part_bytes=part_bytes, **wanted)
        return
    wanted |= {"max_trajectories": most, "lease_seconds": lease_seconds or 600.0}
    with options.fleet() as fleet:
        file = fleet.export_file(form=form or "json", **wanted)
        _finish(fleet, file, form or "json", output=output, acknowledge=acknowledge)


def _check_file(output: Path | None, form: Format | None, acknowledge: bool) -> None:
    if acknowledge and (output is None or str(output) == "-"):
        raise wrong("--ack deletes what was exported from the fleet, so it needs -o FILE to keep it")
    if form == "safetensors" and output is None:
        raise wrong("safetensors are for a file; give -o FILE")


def _folder(output: Path | None, form: Format | None, acknowledge: bool) -> Path:
    if output is None or str(output) == "-":
        raise wrong("--to writes parts into a folder; give -o DIR")
    if form is not None:
        raise wrong("--to names the format; leave --format out")
    if acknowledge:
        raise wrong("--to acknowledges each part by itself; leave --ack out")
    return output


def _part_bytes(text: str) -> int:
    try:
        amount = parse_quantity(text)
    except ValueError as error:
        raise wrong(f"--part-size: {error}") from None
    if not SMALLEST_PART <= amount <= LARGEST_PART:
        raise wrong("--part-size: a part can have 1Ki to 4Gi")
    return amount


def _finish(fleet: Fleet, file: ExportFile, form: Format, *, output: Path | None, acknowledge: bool) -> None:
    """Keep the answer before the lease is ended, never after."""
    taken = json.loads(file.content) if form == "json" else described(file.content)
    if output is not None and str(output) == "-":
        sys.stdout.buffer.write(file.content)
        sys.stdout.buffer.flush()
        return
    if file.lease_id and output is not None:
        try:
            _write_durably(output, file.content)
        except OSError as error:
            with suppress(FleetError):
                fleet.end_lease(file.lease_id, acknowledge=False)
            raise failed(
                f"{output} can't be written: {error.strerror}; lease {file.lease_id} is given back, or ends by itself"
            ) from None
    if file.lease_id and (acknowledge or output is None):
        fleet.end_lease(file.lease_id, acknowledge=acknowledge)
    _show(taken, file.lease_id, output=output, acknowledged=acknowledge)


def described(content: bytes) -> dict[str, Any]:
    """The export's JSON from the header of a safetensors file. Raises CommandFailed where there is none."""
    try:
        found: dict[str, Any] = json.loads(read_metadata(content)[EXPORT_METADATA_KEY])
    except (ValueError, KeyError, TypeError):
        raise failed("the answer is not a safetensors file with an export in its header") from None
    return found


def _write_durably(file: Path, content: bytes) -> None:
    """On disk under its name when this returns, so that the fleet may forget it. Raises OSError."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        sync(draft)
        draft.replace(file)
        sync(file.parent)
    finally:
        draft.unlink(missing_ok=True)


def _show(taken: dict[str, Any], lease: str | None, *, output: Path | None, acknowledged: bool) -> None:
    out = console()
    shown = table("trajectory", "task", "turns", "rows", numbers=("turns", "rows"))
    for each in taken["trajectories"]:
        shown.add_row(each["trajectory_id"], text(each.get("task_id")), str(len(each["turns"])), str(len(each["rows"])))
    if taken["trajectories"]:
        out.print(shown)
    else:
        out.print("nothing to export now")
    for each in taken["sessions"]:
        if each["status"] != "leased":
            out.print(f"{each['session_id']}: {each['status'].replace('_', ' ')}")
    if lease and acknowledged:
        out.print(f"written to {output} and acknowledged", soft_wrap=True)
    elif lease and output is not None:
        left = span(taken.get("expires_in"))
        out.print(f"written to {output}; lease {lease} ends in {left}: rolloutfleet ack {lease}", soft_wrap=True)


Lease = Annotated[str, typer.Argument(metavar="LEASE", help="The lease's id, as `export` showed it.")]
Trajectories = Annotated[
    list[str] | None,
    typer.Option("--trajectory", metavar="ID", help="Only this trajectory; may be repeated [default: all]."),
]


@takes_options
def ack(lease: Lease, trajectory: Trajectories = None, *, options: FleetOptions, as_json: AsJson = False) -> None:
    """Acknowledge an export: you have its trajectories, and the fleet deletes them."""
    _end(options, lease, trajectory, acknowledge=True, as_json=as_json)


@takes_options
def release(lease: Lease, trajectory: Trajectories = None, *, options: FleetOptions, as_json: AsJson = False) -> None:
    """Give an export back: its trajectories can be exported again, with the same ids."""
    _end(options, lease, trajectory, acknowledge=False, as_json=as_json)


def _end(
    options: FleetOptions, lease: str, trajectories: list[str] | None, *, acknowledge: bool, as_json: bool
) -> None:
    with options.fleet() as fleet:
        answer = fleet.end_lease(lease, acknowledge=acknowledge, trajectory_ids=trajectories or None)
    if as_json:
        print_json(answer.model_dump(exclude_unset=True))
    else:
        print(f"{lease}: {'acknowledged' if acknowledge else 'released'}")


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
    except (FleetError, PartFull) as error:
        raise failed(f"{error}; what is finished stays in {output}, run it again for the rest") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise failed(f"{output} can't be written: {why}; what is finished stays, the rest goes back") from None
    _show_summary(summary, output)


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


def _show_summary(summary: Summary, output: Path) -> None:
    done, out = summary.done, console()
    if summary.again:
        again = counted(summary.again, "trajectory was", "trajectories were")
        out.print(f"{again} in the folder already; the fleet has been told", soft_wrap=True)
    if done.trajectories:
        taken = f"{counted(done.trajectories, *TRAJECTORIES)}, {counted(done.tokens, 'token')}"
        out.print(
            f"{taken}: {counted(done.parts, 'part')} ({size(done.bytes)}) in {output}, acknowledged", soft_wrap=True
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
        lost = counted(len(summary.lost), *TRAJECTORIES)
        yield failed(f"in the files, and leased by others meanwhile: {lost}: {named}")
    if summary.unheard:
        unheard = counted(summary.unheard, *TRAJECTORIES)
        yield failed(f"in the files, though their proxies could not be told yet: {unheard}")
    for ordinal, why in sorted(summary.unreachable.items()):
        yield failed(f"proxy {ordinal} did not answer, what it holds is still to come: {why}")
