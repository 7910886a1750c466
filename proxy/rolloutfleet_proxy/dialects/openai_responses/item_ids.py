"""The items of a turn, their ids, and the meaning of an id that comes back. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from rolloutfleet_proxy.domain.turn import CONTENT, Answer
from rolloutfleet_proxy.domain.turn import REASONING as REASONS

_TURN: Final = "turn-"
_MADE: Final = re.compile(r"(rs|msg|fc|ctc)_([0-9a-f]{24})(?:_[0-9]+)?")

REASONING: Final = "rs"
MESSAGE: Final = "msg"
CALL: Final = "fc"
CUSTOM_CALL: Final = "ctc"


def text_id(kind: str, turn: str, index: int) -> str:
    """Of a turn's reasoning or message number `index`; most turns have one of each, whose ids name no number."""
    return f"{kind}_{turn.removeprefix(_TURN)}" if index == 0 else numbered_id(kind, turn, index)


def numbered_id(kind: str, turn: str, index: int) -> str:
    return f"{kind}_{turn.removeprefix(_TURN)}_{index}"


def made_by(given: Any) -> str | None:
    """What the ids of one turn's items have in common; None of an id that is none of ours."""
    found = _MADE.fullmatch(given) if type(given) is str else None
    return None if found is None else found[2]


def kind_of_item(made: str) -> str:
    """Of an id of ours."""
    return made.partition("_")[0]


def turn_of_item(made: str) -> str:
    """The name of the turn whose item has this id of ours."""
    return f"{_TURN}{made.split('_')[1]}"


def texts_of(answer: Answer) -> list[tuple[str, int, str]]:
    """Of each item of reasoning and each message its field in the output, its number among those, and its text.

    A message that says nothing is there where nothing else is.
    """
    said = answer.said()
    cut_off = said and answer.finish_reason == "length"
    if not (answer.output.get("tool_calls") or cut_off or any(field == CONTENT for field, _ in said)):
        said.append((CONTENT, ""))
    seen = Counter[str]()
    numbered = []
    for field, text in said:
        numbered.append((field, seen[field], text))
        seen[field] += 1
    return numbered


def items_of(turn: str, answer: Answer) -> Iterator[tuple[str, Any]]:
    """The id of each item of a turn, with its text, or with its call as messages have it."""
    for field, index, text in texts_of(answer):
        yield text_id(REASONING if field == REASONS else MESSAGE, turn, index), text
    declared = (answer.extras.kept or {}).get("declared", {})
    for index, call in enumerate(answer.output.get("tool_calls") or ()):
        tool = declared.get(call["function"]["name"], {})
        yield numbered_id(CUSTOM_CALL if tool.get("custom") else CALL, turn, index), call
