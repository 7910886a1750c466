"""`rolloutfleet sessions`: the sessions that a fleet holds."""

import time
from collections.abc import Iterator
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any

import typer

from rolloutfleet.cli.reach import Fleet
from rolloutfleet.cli.show import console, print_json, span, table, text
from rolloutfleet.cli.where import AdminKeyFile, AsJson, FleetFile, StateDir, Url, find_fleet


class State(StrEnum):
    OPEN = "open"
    CLOSED = "closed"
    DELETED = "deleted"


def sessions(
    state_dir: StateDir = None,
    fleet_file: FleetFile = None,
    url: Url = None,
    admin_key_file: AdminKeyFile = None,
    state: Annotated[State | None, typer.Option("--state", help="Only those in this state.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List the sessions of all proxies, each proxy's oldest first."""
    where = find_fleet(state_dir=state_dir, fleet_file=fleet_file, url=url, admin_key_file=admin_key_file)
    with Fleet(where) as fleet:
        found = list(islice(_all(fleet, state), limit + 1))
    if as_json:
        print_json(found[:limit])
        return
    numbers = ("turns", "tokens", "trajectories", "age")
    shown = table("session", "task", "state", *numbers, numbers=numbers)
    now = time.time()
    for each in found[:limit]:
        shown.add_row(
            each["session_id"],
            text(each["task_id"]),
            each["state"],
            str(each["turns"]),
            str(each["tokens"]),
            str(each["trajectories"]),
            span(max(0.0, now - each["created_at"])),
        )
    console().print(shown)
    if len(found) > limit:
        print(f"… and more; --limit {limit * 10} shows more of them")


def _all(fleet: Fleet, state: State | None) -> Iterator[dict[str, Any]]:
    """Page by page, proxy by proxy."""
    for proxy in fleet.each():
        cursor: str | None = None
        while True:
            page = proxy.get("/sessions", state=state, cursor=cursor)
            yield from page["sessions"]
            cursor = page.get("cursor")
            if not cursor:
                break
