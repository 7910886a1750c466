"""What a reply's text consists of, piece by piece. Joined, the texts of all pieces are that text."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, auto
from typing import NamedTuple


class Kind(IntEnum):
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()
    OWN = auto()
    """The format's own: marks, and white space beside them."""


@dataclass(frozen=True, slots=True)
class WrittenCall:
    name: str
    arguments: str
    """A JSON object, its values as they were written."""
    id: str | None = None
    """Where the format writes one."""


class Piece(NamedTuple):
    kind: Kind
    text: str
    call: WrittenCall | None = None
    """The call that is complete here. A call's pieces lie apart where words stand in it."""


def beside_calls(text: str) -> list[Piece]:
    """Text in a block that is no part of a call: words are content."""
    return [Piece(Kind.CONTENT if text.strip() else Kind.OWN, text)] if text else []
