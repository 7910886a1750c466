"""`rolloutfleet turns`: what was captured of one session."""

from typing import Annotated, Any

import typer

from rolloutfleet.cli.reach import Fleet
from rolloutfleet.cli.show import console, print_json, table, text
from rolloutfleet.cli.where import AdminKeyFile, AsJson, FleetFile, StateDir, Url, find_fleet


def turns(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")],
    state_dir: StateDir = None,
    fleet_file: FleetFile = None,
    url: Url = None,
    admin_key_file: AdminKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """List a session's turns: number, the parent's number, tokens, weight versions, reward, why it starts a branch.

    --json has the parents' ids, and each token's id, log-probability and version.
    """
    where = find_fleet(state_dir=state_dir, fleet_file=fleet_file, url=url, admin_key_file=admin_key_file)
    with Fleet(where) as fleet:
        found = all_turns(fleet, session)
    if as_json:
        print_json(found)
        return
    columns = ("turn", "", "parent", "trajectory", "finish", "prompt", "output", "versions", "reward", "branch")
    shown = table(*columns, numbers=("", "parent", "prompt", "output", "reward"))
    places = {each["turn_id"]: place for place, each in enumerate(found, start=1)}
    for each in found:
        shown.add_row(
            each["turn_id"],
            str(places[each["turn_id"]]),
            text(places.get(each["parent_id"])),
            text((each["trajectory_id"] or "").removeprefix(f"{session}-")),
            each["finish_reason"],
            str(each["prompt_tokens"]),
            str(each["completion_tokens"]),
            _distinct(each.get("versions") or []),
            text(each["reward"]),
            _reason(each.get("branch_reason")),
        )
    console().print(shown)


def all_turns(fleet: Fleet, session: str) -> list[dict[str, Any]]:
    """Every page. Raises CommandFailed."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = fleet.get(f"/sessions/{session}/turns", cursor=cursor)
        found.extend(page["turns"])
        cursor = page.get("cursor")
        if not cursor:
            return found


def _reason(reason: dict[str, Any] | None) -> str:
    if reason is None:
        return ""
    return text(reason["field"] if reason["message"] is None else f"{reason['field']} of message {reason['message']}")


def _distinct(versions: list[int]) -> str:
    return ", ".join(str(version) for version in sorted(set(versions)))
