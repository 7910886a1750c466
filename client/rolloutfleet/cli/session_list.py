"""`rolloutfleet session list`: the sessions that a fleet holds, and those of them that somebody looks for."""

import time
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from rolloutfleet.cli.failures import of_those_that_answer
from rolloutfleet.cli.options import AsJson, FleetOptions, takes_options
from rolloutfleet.cli.show import console, print_json, span, table, text
from rolloutfleet.wire import Outcome, SessionState, SessionStatus

_COLUMNS = ("session", "task", "state", "turns", "tokens", "trajectories", "branches", "reward", "versions", "age")
_NUMBERS = ("turns", "tokens", "trajectories", "branches", "reward", "age")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenOptions:
    """The options that choose sessions, named as `fleet.sessions` takes them."""

    state: Annotated[SessionState | None, typer.Option(help="Only sessions in this state.")] = None
    outcome: Annotated[Outcome | None, typer.Option(help="Only sessions that ended so.")] = None
    task_id: Annotated[str | None, typer.Option("--task", metavar="ID", help="Only sessions of this task.")] = None
    group_id: Annotated[str | None, typer.Option("--group", metavar="ID", help="Only sessions of this group.")] = None
    rewarded: Annotated[
        bool | None, typer.Option("--rewarded/--unrewarded", help="Only sessions with a reward, or without.")
    ] = None
    min_reward: Annotated[float | None, typer.Option(help="Only of this reward or more.")] = None
    max_reward: Annotated[float | None, typer.Option(help="Only of this reward or less.")] = None
    min_branches: Annotated[
        int | None, typer.Option(help="Only with as many branches: turns that no turn extends.")
    ] = None
    min_turns: Annotated[int | None, typer.Option(help="Only with as many turns.")] = None
    max_turns: Annotated[int | None, typer.Option(help="Only with no more turns.")] = None
    min_tokens: Annotated[int | None, typer.Option(help="Only with as many tokens.")] = None
    max_tokens: Annotated[int | None, typer.Option(help="Only with no more tokens.")] = None
    min_version: Annotated[int | None, typer.Option(help="Only with tokens of this weight version or later.")] = None
    max_version: Annotated[int | None, typer.Option(help="Only with tokens of this weight version or earlier.")] = None


@takes_options
def list_sessions(
    options: FleetOptions,
    chosen: ChosenOptions,
    newest: Annotated[bool, typer.Option("--newest", help="Newest first, over all proxies.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List the sessions of all proxies: each proxy's oldest first, or the newest of all."""
    with options.fleet() as fleet:
        found = of_those_that_answer(lambda: fleet.sessions(**asdict(chosen), newest=newest, limit=limit + 1))
    if as_json:
        print_json([each.model_dump(exclude_unset=True) for each in found[:limit]])
        return
    shown = table(*_COLUMNS, numbers=_NUMBERS)
    for each in found[:limit]:
        shown.add_row(*_row(each, now=time.time()))
    console().print(shown)
    if len(found) > limit:
        print(f"… and more; --limit {limit * 10} shows more of them")


def _row(session: SessionStatus, *, now: float) -> tuple[str, ...]:
    return (
        session.session_id,
        text(session.task_id),
        session.state if session.outcome in (None, "completed") else f"{session.state}, {session.outcome}",
        str(session.turns),
        str(session.tokens),
        str(session.trajectories),
        text(session.branches),
        text(session.reward),
        _versions(session),
        span(max(0.0, now - session.created_at)),
    )


def _versions(session: SessionStatus) -> str:
    """`3`, or `3 to 5`."""
    ends = [version for version in (session.version_min, session.version_max) if version is not None]
    return text(" to ".join(map(str, dict.fromkeys(ends))))
