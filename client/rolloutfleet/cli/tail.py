"""`rolloutfleet tail`: turns as they are committed, at all proxies."""

import asyncio
import json
import time
from typing import Final

from rich.text import Text

from rolloutfleet.cli.failures import failed, warn
from rolloutfleet.cli.options import AsJson, FleetOptions, takes_options
from rolloutfleet.cli.show import console
from rolloutfleet.fleet import AsyncFleet, FleetError
from rolloutfleet.viewing import safe, said_in
from rolloutfleet.wire import CommittedTurn, ShownTurn

BEHIND: Final = 20
"""Turns that wait to be shown, from which on they are shown without what they say."""
SAID: Final = 80
"""Characters of an answer that are shown."""


@takes_options
def tail(*, options: FleetOptions, as_json: AsJson = False) -> None:
    """Show each turn as it is committed, at all proxies, until Ctrl-C; it goes on across restarts.

    A line has the time, the session, the turn's number, prompt and output tokens, why it ended, and how its answer
    begins. --json prints a line of JSON for each: the proxy's ordinal, seq, session_id, turn_id, parent_id.
    """
    asyncio.run(_tail(options.async_fleet(), as_json=as_json))


async def _tail(fleet: AsyncFleet, *, as_json: bool) -> None:
    async with fleet, fleet.events() as events:
        async for event in events:
            if event.commit is None:
                warn(failed(f"proxy {event.ordinal}: some turns were committed that are not shown here"))
            elif as_json:
                print(json.dumps({"ordinal": event.ordinal, **event.commit.model_dump()}), flush=True)
            else:
                turn = await _looked_up(fleet, event.commit) if events.waiting < BEHIND else None
                console().print(_line(event.commit, turn), soft_wrap=True)


async def _looked_up(fleet: AsyncFleet, commit: CommittedTurn) -> ShownTurn | None:
    """The turn; None where it can't be had now, or no more."""
    name = commit.turn_id
    try:
        async for page in fleet.conversation(commit.session_id, branch=name, cursor=name):
            return page.turns[0] if page.turns else None
    except FleetError:
        pass
    return None


def _line(commit: CommittedTurn, turn: ShownTurn | None) -> Text:
    line = Text(time.strftime("%H:%M:%S "), "dim")
    line.append(safe(commit.session_id), "bold")
    if turn is None:
        return line.append(f"  {safe(commit.turn_id)}")
    line.append(f"  turn {turn.number}")
    if turn.lineage.kind != "main":
        line.append(f"  {safe(turn.lineage.kind)}", "cyan")
    line.append(f"  {turn.prompt_tokens}+{turn.completion_tokens} tokens  {safe(turn.finish_reason)}", "dim")
    if turn.branch_reason is not None:
        line.append(f"  fork: {safe(turn.branch_reason.field)}", "red")
    return line.append(f"  {safe(_answer(turn))}", "green")


def _answer(turn: ShownTurn) -> str:
    """How it begins, in one line."""
    message = turn.messages[-1].message if turn.messages else {}
    shown = " ".join(str(said_in(message) or message.get("reasoning_content") or "").split())
    return shown if len(shown) <= SAID else f"{shown[:SAID]}…"
