"""`rolloutfleet sessions`: the sessions that a fleet holds."""

from collections.abc import Iterator
from enum import StrEnum
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
    """List the sessions of all proxies: state, turns, and how long each has been idle."""
    where = find_fleet(state_dir=state_dir, fleet_file=fleet_file, url=url, admin_key_file=admin_key_file)
    with Fleet(where) as fleet:
        found = [each for _, each in zip(range(limit + 1), _all(fleet, state), strict=False)]
    if as_json:
        print_json(found[:limit])
        return
    shown = table(
        "session",
        "task",
        "state",
        "turns",
        "trajectories",
        "in flight",
        "idle",
        numbers=("turns", "trajectories", "in flight", "idle"),
    )
    for each in found[:limit]:
        shown.add_row(
            each["session_id"],
            text(each.get("task_id")),
            text(each.get("state")),
            text(each.get("turns")),
            text(each.get("trajectories")),
            text(each.get("in_flight")),
            span(each.get("idle_seconds")),
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
