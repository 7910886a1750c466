"""`rolloutfleet export`: take trajectories out of a fleet, under a lease. `--to` is in export_files.py."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import typer

from rolloutfleet.cli.api import NativeApi
from rolloutfleet.cli.export_files import LEASE_SECONDS, export_files
from rolloutfleet.cli.failures import failed, wrong
from rolloutfleet.cli.options import FleetOptions, takes_fleet_options
from rolloutfleet.cli.show import console, span, table, text
from rolloutfleet.files.forms import FileForm
from rolloutfleet.safetensors_layout import read_metadata
from rolloutfleet.units import parse_quantity
from rolloutfleet.wire import EXPORT_METADATA_KEY, JSON_MEDIA_TYPE, LEASE_ID_HEADER, TENSORS_MEDIA_TYPE, ExportStyle

SMALLEST_PART = 2**10
LARGEST_PART = 2**32


Format = Literal["json", "safetensors"]


@takes_fleet_options
def export(
    session: Annotated[
        list[str] | None, typer.Option("--session", metavar="ID", help="A session; may be given again.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="ID", help="A whole group.")] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, help="Any trajectories, at most so many.")] = None,
    to: Annotated[
        FileForm | None,
        typer.Option("--to", help="Everything that is ready, as files in the folder -o DIR; parquet takes pyarrow."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE|DIR", help="Write here; - is the output.")
    ] = None,
    part_size: Annotated[
        str, typer.Option("--part-size", metavar="BYTES", help="With --to: a part is full at this, like 64Mi.")
    ] = "64Mi",
    form: Annotated[
        Format | None, typer.Option("--format", help="What to write without --to: json unless given.")
    ] = None,
    style: Annotated[
        ExportStyle, typer.Option("--style", help="One row a leaf of the tree, or one row a turn.")
    ] = "concat",
    discount: Annotated[float, typer.Option("--discount", min=0.0, max=1.0, help="Of rewards, from the leaf.")] = 1.0,
    lease_seconds: Annotated[
        float | None,
        typer.Option("--lease-seconds", min=1.0, help="How long they are yours: 600, with --to 60 and renewed."),
    ] = None,
    acknowledge: Annotated[
        bool, typer.Option("--ack", help="Acknowledge once the file is on disk; the fleet then forgets them.")
    ] = False,
    *,
    options: FleetOptions,
) -> None:
    """Lease finished trajectories and write them to a file, or with --to all of them to a folder.

    [bold]export --to parquet|jsonl|safetensors -o DIR[/bold] takes what is ready from all proxies and writes it as
    part-00000.parquet and so on, a row of a trajectory a record. A part is acknowledged once it is durable on disk.
    Killed at any moment, run it again: finished parts stay, the rest comes, nothing is lost or written twice. More
    runs into the same folder add parts.

    [bold]export -o FILE[/bold] writes one lease of one proxy, as JSON or safetensors. Without --ack it comes back
    to the fleet when the lease ends; `rolloutfleet ack` and `release` end it earlier. Without -o only what was
    leased is shown, and given back at once.
    """
    if sum(choice is not None for choice in (session or None, group, most)) > 1:
        raise wrong("--session, --group and --max exclude each other; keep one")
    chosen = {"session_ids": session or None, "group_id": group}
    named = {name: value for name, value in chosen.items() if value is not None}
    folder = None if to is None else _folder(output, form, acknowledge)
    if folder is None:
        _check_file(output, form, acknowledge)
    part_bytes = _part_bytes(part_size)
    where = options.find()
    if to is not None and folder is not None:
        export_files(
            where,
            to,
            folder,
            part_bytes=part_bytes,
            most=most,
            style=style,
            discount=discount,
            lease_seconds=lease_seconds or LEASE_SECONDS,
            **named,
        )
        return
    form = form or "json"
    body: dict[str, Any] = {"style": style, "discount": discount, "lease_seconds": lease_seconds or 600.0, **named}
    if most is not None:
        body["max_trajectories"] = most
    with NativeApi(where) as api:
        # What is named has one owner, which any proxy finds; else each is asked until one has something.
        proxies = [api] if named else api.each()
        for proxy in proxies:
            answer = proxy.send("POST", "/export", json=body, accept=_media_type(form))
            if LEASE_ID_HEADER in answer.headers:
                break
        _finish(api, answer, form, output=output, acknowledge=acknowledge)


def _check_file(output: Path | None, form: Format | None, acknowledge: bool) -> None:
    if acknowledge and (output is None or str(output) == "-"):
        raise wrong("--ack forgets what was exported, so it needs -o FILE to keep it in")
    if form == "safetensors" and output is None:
        raise wrong("safetensors are for a file; say -o FILE")


def _folder(output: Path | None, form: Format | None, acknowledge: bool) -> Path:
    if output is None or str(output) == "-":
        raise wrong("--to writes parts into a folder; say -o DIR")
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


def _media_type(form: Format) -> str:
    return JSON_MEDIA_TYPE if form == "json" else TENSORS_MEDIA_TYPE


def _finish(api: NativeApi, answer: httpx.Response, form: Format, *, output: Path | None, acknowledge: bool) -> None:
    """Keep the answer before the lease is ended, never after."""
    taken = answer.json() if form == "json" else described(answer.content)
    lease = answer.headers.get(LEASE_ID_HEADER)
    if output is not None and str(output) == "-":
        sys.stdout.buffer.write(answer.content)
        sys.stdout.buffer.flush()
        return
    if lease and output is not None:
        _write_durably(output, answer.content)
    if lease and acknowledge:
        api.post(f"/leases/{lease}/ack", {})
    if lease and output is None:
        api.post(f"/leases/{lease}/release", {})
    _show(taken, lease, output=output, acknowledged=acknowledge)


def described(content: bytes) -> dict[str, Any]:
    """The export's JSON from the header of a safetensors file. Raises CommandFailed where there is none."""
    try:
        found: dict[str, Any] = json.loads(read_metadata(content)[EXPORT_METADATA_KEY])
    except (ValueError, KeyError, TypeError):
        raise failed("the answer is no safetensors file with an export in its header") from None
    return found


def _write_durably(file: Path, content: bytes) -> None:
    """On disk under its name when this returns, so that the fleet may forget it."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with draft.open("wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(file)
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise failed(f"{file} can't be written: {error.strerror}; the export comes back when its lease ends") from None


def _show(taken: dict[str, Any], lease: str | None, *, output: Path | None, acknowledged: bool) -> None:
    out = console()
    shown = table("trajectory", "task", "turns", "rows", numbers=("turns", "rows"))
    for each in taken["trajectories"]:
        shown.add_row(
            each["trajectory_id"],
            text(each.get("task_id")),
            str(len(each["turns"])),
            str(len(each["rows"])),
        )
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
