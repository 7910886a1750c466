"""`rolloutfleet session`: start one for an agent of yours, end it, and list the sessions that a fleet holds."""

import heapq
import shlex
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from rolloutfleet.cli.api import NativeApi
from rolloutfleet.cli.failures import CommandFailed, warn, warn_unless_all_failed
from rolloutfleet.cli.groups import group
from rolloutfleet.cli.options import AsJson, FleetOptions, takes_fleet_options
from rolloutfleet.cli.show import console, print_json, span, table, text
from rolloutfleet.wire import SessionState

PAGE: Final = 1000

app = group("Start a session for an agent, end it, and list what there is.")

Names = Annotated[list[str], typer.Argument(metavar="SESSION...", help="Ids of sessions, as `list` shows them.")]


@app.command("new")
@takes_fleet_options
def new(
    task: Annotated[str | None, typer.Option("--task", metavar="ID", help="The task that it is for.")] = None,
    *,
    options: FleetOptions,
    as_json: AsJson = False,
) -> None:
    """Start a session, and print what an OpenAI SDK needs of it, as lines for a shell.

    [bold]eval "$(rolloutfleet session new)"[/bold], and an agent that is started there talks in the session.
    """
    with NativeApi(options.find()) as api:
        started = api.post("/sessions", {} if task is None else {"task_id": task})
    if as_json:
        print_json(started)
        return
    print(f"# rolloutfleet session close {started['session_id']}")
    print(f"export OPENAI_BASE_URL={shlex.quote(started['base_url'])}")
    print(f"export OPENAI_API_KEY={shlex.quote(started['api_key'])}")


@app.command("close")
@takes_fleet_options
def close(
    sessions: Names,
    *,
    options: FleetOptions,
) -> None:
    """Close sessions: what they made since the last reward becomes a trajectory, which can be exported."""

    def end(api: NativeApi, session: str) -> None:
        made = api.post(f"{_path(session)}/close", {})["trajectory_id"]
        print(f"{session}: closed; {f'made {made}' if made else 'nothing was open'}")

    with NativeApi(options.find()) as api:
        _each(api, sessions, end)


@app.command("delete")
@takes_fleet_options
def delete(
    sessions: Names,
    *,
    options: FleetOptions,
) -> None:
    """Delete sessions: all of them is discarded but for what is leased."""

    def end(api: NativeApi, session: str) -> None:
        api.send("DELETE", _path(session))
        print(f"{session}: deleted")

    with NativeApi(options.find()) as api:
        _each(api, sessions, end)


@app.command("list")
@takes_fleet_options
def list_sessions(
    options: FleetOptions,
    state: Annotated[SessionState | None, typer.Option("--state", help="Only those in this state.")] = None,
    task: Annotated[str | None, typer.Option("--task", metavar="ID", help="Only those of this task.")] = None,
    newest: Annotated[bool, typer.Option("--newest", help="The newest of all first.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List the sessions of all proxies: each proxy's oldest first, or the newest of all."""
    asked = {"state": state, "task_id": task, "order": "newest" if newest else None, "limit": min(limit + 1, PAGE)}
    with NativeApi(options.find()) as api:
        found = _found(api, asked, newest=newest, limit=limit + 1)
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


def _found(api: NativeApi, asked: dict[str, Any], *, newest: bool, limit: int) -> list[dict[str, Any]]:
    """Of the proxies that answer; the others are named on the error output. Raises CommandFailed where none does."""
    problems: list[CommandFailed] = []
    proxies = list(api.each())
    lists = [_of_proxy(proxy, asked, problems) for proxy in proxies]
    merged = heapq.merge(*lists, key=lambda each: -each["created_at"]) if newest else chain.from_iterable(lists)
    found = list(islice(merged, limit))
    warn_unless_all_failed(problems, answered=len(problems) < len(proxies))
    return found


def _of_proxy(proxy: NativeApi, asked: dict[str, Any], problems: list[CommandFailed]) -> Iterator[dict[str, Any]]:
    """Page by page; what is wrong goes to `problems`."""
    try:
        for page in proxy.pages("/sessions", **asked):
            yield from page["sessions"]
    except CommandFailed as error:
        problems.append(error)


def _each(api: NativeApi, sessions: list[str], end: Callable[[NativeApi, str], None]) -> None:
    """End all that can be ended. Raises CommandFailed for those that can't, once all were tried."""
    problems: list[CommandFailed] = []
    for session in sessions:
        try:
            end(api, session)
        except CommandFailed as error:
            problems.append(error)
    for problem in problems[:-1]:
        warn(problem)
    if problems:
        raise problems[-1]


def _path(session: str) -> str:
    return f"/sessions/{quote(session, safe='')}"
