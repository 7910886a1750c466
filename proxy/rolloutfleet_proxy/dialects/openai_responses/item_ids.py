"""The ids of a turn's items, and what they say when they come back. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

_TURN: Final = "turn-"
_MADE: Final = re.compile(r"[a-z]{2,3}_([0-9a-f]{24})(?:_[0-9]+)?")

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
    return None if found is None else found[1]
