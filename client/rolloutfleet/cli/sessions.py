"""`rolloutfleet session`: start one for an agent of yours, end it, and list the sessions that a fleet holds.

`rolloutfleet turns`: what was captured of one session.
"""

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer

from rolloutfleet.cli.failures import warn
from rolloutfleet.cli.options import AsJson, FleetOptions, group, takes_options
from rolloutfleet.cli.session_list import list_sessions
from rolloutfleet.cli.show import console, print_json, reason, sampled, table, text
from rolloutfleet.fleet import Fleet, FleetError
from rolloutfleet.programs import Program, settings_of
from rolloutfleet.wire import Lineage, Outcome

app = group("Start a session for an agent, end sessions, and list them.")

Names = Annotated[list[str], typer.Argument(metavar="SESSION...", help="Ids of sessions, as `list` shows them.")]


@app.command("new")
@takes_options
def new(
    task: Annotated[str | None, typer.Option(metavar="ID", help="The id of its task.")] = None,
    sampling: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help='How it is sampled: \'{"defaults": {"temperature": 1}, "overrides": {"max_tokens": 4096}}\'.',
        ),
    ] = None,
    program: Annotated[
        Program, typer.Option("--for", help="Whose settings are printed; openai: any program with an OpenAI SDK.")
    ] = "openai",
    model: Annotated[str, typer.Option(metavar="NAME", help="What Claude Code or Codex calls the model.")] = "policy",
    *,
    options: FleetOptions,
    as_json: AsJson = False,
) -> None:
    """Start a session, and print what a program needs to use it: lines for a shell, or of Codex' config.toml.

    After [bold]eval "$(rolloutfleet session new --for claude-code)"[/bold], `claude` in that shell uses the session.
    """
    said = None if sampling is None else _parsed(sampling)
    with options.fleet() as fleet:
        started = fleet.start_session(task, sampling=said)
    if as_json:
        names = ("session_id", "group_id", "task_id", "base_url", "api_key")
        print_json({name: getattr(started, name) for name in names})
        return
    print(f"# rolloutfleet session close {started.session_id}")
    print(settings_of(program, base_url=started.base_url, key=started.api_key, model=model), end="")


@app.command("close")
@takes_options
def close(
    sessions: Names,
    outcome: Annotated[
        Outcome | None,
        typer.Option(
            help="How they ended [default: truncated where the context or a limit ended the newest call, else"
            " completed]."
        ),
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why, in a few words.")] = None,
    *,
    options: FleetOptions,
) -> None:
    """Close sessions: their turns since the last reward become a trajectory, which can be exported."""

    def end(fleet: Fleet, session: str) -> None:
        made = fleet.close_session(session, outcome=outcome, reason=reason)
        print(f"{session}: closed; {f'made {made}' if made else 'nothing was open'}")

    _each(options, sessions, end)


@app.command("delete")
@takes_options
def delete(sessions: Names, *, options: FleetOptions) -> None:
    """Delete sessions: all of them is discarded but for what is leased."""

    def end(fleet: Fleet, session: str) -> None:
        fleet.delete(session)
        print(f"{session}: deleted")

    _each(options, sessions, end)


app.command("list")(list_sessions)


def _parsed(sampling: str) -> dict[str, Any]:
    try:
        said = json.loads(sampling)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise typer.BadParameter("must be a JSON object with defaults and overrides", param_hint="--sampling")
    return said


def _each(options: FleetOptions, sessions: list[str], end: Callable[[Fleet, str], None]) -> None:
    """End all that can be ended. Raises FleetError where one can't, once all were tried."""
    problems: list[FleetError] = []
    with options.fleet() as fleet:
        for session in sessions:
            try:
                end(fleet, session)
            except FleetError as error:
                problems.append(error)
    for problem in problems[:-1]:
        warn(problem)
    if problems:
        raise problems[-1]


@takes_options
def turns(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")],
    *,
    options: FleetOptions,
    as_json: AsJson = False,
) -> None:
    """List a session's turns: number, the parent's number, tokens, weight versions, reward, why it is a fork,
    what it was sampled with; and who made it, where sub-agents did.

    --json has the parents' ids, and each token's id, log-probability and version.
    """
    with options.fleet() as fleet:
        found = fleet.turns(session)
    if as_json:
        print_json([turn.model_dump(exclude_unset=True) for turn in found])
        return
    columns = (
        "turn",
        "",
        "parent",
        "trajectory",
        "finish",
        "prompt",
        "output",
        "versions",
        "reward",
        "fork",
        "sampling",
    )
    with_lineages = any(turn.lineage.kind != "main" for turn in found)
    shown = table(*columns, *["lineage"] * with_lineages, numbers=("", "parent", "prompt", "output", "reward"))
    numbers = {turn.turn_id: number for number, turn in enumerate(found, start=1)}
    for turn in found:
        shown.add_row(
            turn.turn_id,
            str(numbers[turn.turn_id]),
            text(numbers.get(turn.parent_id or "")),
            text((turn.trajectory_id or "").removeprefix(f"{session}-")),
            turn.finish_reason,
            str(turn.prompt_tokens),
            str(turn.completion_tokens),
            ", ".join(str(version) for version in sorted(set(turn.versions))),
            text(turn.reward),
            "" if turn.branch_reason is None else text(reason(turn.branch_reason)),
            sampled(None if turn.sampling is None else turn.sampling.model_dump()),
            *[_lineage(turn.lineage)] * with_lineages,
        )
    console().print(shown)


def _lineage(lineage: Lineage) -> str:
    return text(lineage.kind if lineage.kind == "main" or lineage.id is None else f"{lineage.kind} {lineage.id}")
