"""`rolloutfleet session`: start one for an agent of yours, end it, and list the sessions that a fleet holds."""

import heapq
import shlex
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import chain, islice
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from rolloutfleet.cli.failures import CommandFailed, warn
from rolloutfleet.cli.reach import Fleet
from rolloutfleet.cli.show import console, print_json, span, table, text
from rolloutfleet.cli.where import AdminKeyFile, AsJson, FleetFile, StateDir, Url, find_fleet

PAGE: Final = 1000

app = typer.Typer(
    help="Start a session for an agent, end it, and list what there is.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

Names = Annotated[list[str], typer.Argument(metavar="SESSION...", help="Ids of sessions, as `list` shows them.")]


class State(StrEnum):
    OPEN = "open"
    CLOSED = "closed"
    DELETED = "deleted"


@app.callback(invoke_without_command=True)
def help_unless_asked(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("new")
def new(
    task: Annotated[str | None, typer.Option("--task", metavar="ID", help="The task that it is for.")] = None,
    state_dir: StateDir = None,
    fleet_file: FleetFile = None,
    url: Url = None,
    admin_key_file: AdminKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Start a session, and print what an OpenAI SDK needs of it, as lines for a shell.

    [bold]eval "$(rolloutfleet session new)"[/bold], and an agent that is started there talks in the session.
    """
    where = find_fleet(state_dir=state_dir, fleet_file=fleet_file, url=url, admin_key_file=admin_key_file)
    with Fleet(where) as fleet:
        started = fleet.post("/sessions", {} if task is None else {"task_id": task})
    if as_json:
        print_json(started)
        return
    print(f"# rolloutfleet session close {started['session_id']}")
    print(f"export OPENAI_BASE_URL={shlex.quote(started['base_url'])}")
    print(f"export OPENAI_API_KEY={shlex.quote(started['api_key'])}")


@app.command("close")
def close(
    sessions: Names,
    state_dir: StateDir = None,
    fleet_file: FleetFile = None,
    url: Url = None,
    admin_key_file: AdminKeyFile = None,
) -> None:
    """Close sessions: what they made since the last reward becomes a trajectory, which can be exported."""
    where = find_fleet(state_dir=state_dir, fleet_file=fleet_file, url=url, admin_key_file=admin_key_file)

    def end(fleet: Fleet, session: str) -> None:
        made = fleet.post(f"{_path(session)}/close", {})["trajectory_id"]
        print(f"{session}: closed; {f'made {made}' if made else 'nothing was open'}")

    with Fleet(where) as fleet:
        _each(fleet, sessions, end)


@app.command("delete")
def delete(
    sessions: Names,
    state_dir: StateDir = None,
    fleet_file: FleetFile = None,
    url: Url = None,
    admin_key_file: AdminKeyFile = None,
) -> None:
    """Delete sessions: all of them is discarded but for what is leased."""
    where = find_fleet(state_dir=state_dir, fleet_file=fleet_file, url=url, admin_key_file=admin_key_file)

    def end(fleet: Fleet, session: str) -> None:
        fleet.send("DELETE", _path(session))
        print(f"{session}: deleted")

    with Fleet(where) as fleet:
        _each(fleet, sessions, end)


@app.command("list")
def list_sessions(
    state_dir: StateDir = None,
    fleet_file: FleetFile = None,
    url: Url = None,
    admin_key_file: AdminKeyFile = None,
    state: Annotated[State | None, typer.Option("--state", help="Only those in this state.")] = None,
    task: Annotated[str | None, typer.Option("--task", metavar="ID", help="Only those of this task.")] = None,
    newest: Annotated[bool, typer.Option("--newest", help="The newest of all first.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List the sessions of all proxies: each proxy's oldest first, or the newest of all."""
    where = find_fleet(state_dir=state_dir, fleet_file=fleet_file, url=url, admin_key_file=admin_key_file)
    asked = {"state": state, "task_id": task, "order": "newest" if newest else None, "limit": min(limit + 1, PAGE)}
    with Fleet(where) as fleet:
        found = _found(fleet, asked, newest=newest, limit=limit + 1)
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


def _found(fleet: Fleet, asked: dict[str, Any], *, newest: bool, limit: int) -> list[dict[str, Any]]:
    """Of the proxies that answer; the others are named on the error output. Raises CommandFailed where none does."""
    problems: list[CommandFailed] = []
    proxies = list(fleet.each())
    lists = [_of_proxy(proxy, asked, problems) for proxy in proxies]
    merged = heapq.merge(*lists, key=lambda each: -each["created_at"]) if newest else chain.from_iterable(lists)
    found = list(islice(merged, limit))
    if len(problems) == len(proxies):
        raise problems[0]
    for problem in problems:
        warn(problem)
    return found


def _of_proxy(proxy: Fleet, asked: dict[str, Any], problems: list[CommandFailed]) -> Iterator[dict[str, Any]]:
    """Page by page; what is wrong goes to `problems`."""
    cursor: str | None = None
    while True:
        try:
            page = proxy.get("/sessions", cursor=cursor, **asked)
        except CommandFailed as error:
            problems.append(error)
            return
        yield from page["sessions"]
        cursor = page.get("cursor")
        if not cursor:
            return


def _each(fleet: Fleet, sessions: list[str], end: Callable[[Fleet, str], None]) -> None:
    """End all that can be ended. Raises CommandFailed for those that can't, once all were tried."""
    problems: list[CommandFailed] = []
    for session in sessions:
        try:
            end(fleet, session)
        except CommandFailed as error:
            problems.append(error)
    for problem in problems[:-1]:
        warn(problem)
    if problems:
        raise problems[-1]


def _path(session: str) -> str:
    return f"/sessions/{quote(session, safe='')}"
