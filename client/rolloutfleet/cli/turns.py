"""`rolloutfleet turns`: what was captured of one session."""

from typing import Annotated, Any

import typer

from rolloutfleet.cli.api import NativeApi
from rolloutfleet.cli.options import AsJson, FleetOptions, takes_fleet_options
from rolloutfleet.cli.show import console, print_json, table, text


@takes_fleet_options
def turns(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")],
    *,
    options: FleetOptions,
    as_json: AsJson = False,
) -> None:
    """List a session's turns: number, the parent's number, tokens, weight versions, reward, why it starts a branch.

    --json has the parents' ids, and each token's id, log-probability and version.
    """
    with NativeApi(options.find()) as api:
        found = [turn for page in api.pages(f"/sessions/{session}/turns") for turn in page["turns"]]
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


def _reason(reason: dict[str, Any] | None) -> str:
    if reason is None:
        return ""
    return text(reason["field"] if reason["message"] is None else f"{reason['field']} of message {reason['message']}")


def _distinct(versions: list[int]) -> str:
    return ", ".join(str(version) for version in sorted(set(versions)))
