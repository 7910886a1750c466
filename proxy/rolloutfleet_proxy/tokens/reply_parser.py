"""The parser of one reply's text: text -> pieces, as the text comes. Incremental, and pure.

Joined, the texts of all pieces are that text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import NamedTuple

from rolloutfleet_proxy.tokens.reply_text import Alphabet


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


class ReplyParser(ABC):
    """Fed with one reply's text as it comes. A format takes pieces off the text in steps."""

    def __init__(self, alphabet: Alphabet, within: Kind) -> None:
        self._plain = alphabet.plain
        self._within = within
        """What the text is up to the next mark: a call's until its end has come, `OWN` where that is yet to be seen."""
        self._text = ""
        """What is in no piece yet."""
        self._later: list[str] = []
        """Text behind that which waits for a mark, without that mark."""
        self._pieces: list[Piece] = []

    def feed(self, text: str) -> list[Piece]:
        """What is certain after this text, which follows the one fed before."""
        if self._waits_beyond(text):
            self._later.append(text)  # to join it each time would cost the square of a long call
            return []
        self._text = "".join([self._text, *self._later, text])
        self._later.clear()
        return self._advanced(final=False)

    def finish(self) -> list[Piece]:
        """The rest, where no more comes."""
        self._text = "".join([self._text, *self._later])
        return self._advanced(final=True)

    @property
    def in_thought(self) -> bool:
        """Whether a thought has begun that has not ended."""
        return self._within is Kind.REASONING

    @abstractmethod
    def _waits_beyond(self, text: str) -> bool:
        """Whether the text before this one waits for a mark that is not in it."""

    @abstractmethod
    def _step(self, final: bool) -> bool:
        """Take what can be taken off the text; whether there may be more."""

    def _advanced(self, *, final: bool) -> list[Piece]:
        while self._text and self._step(final):
            pass
        pieces, self._pieces = self._pieces, []
        return pieces

    def _take(self, kind: Kind, length: int, call: WrittenCall | None = None) -> None:
        if length:
            self._pieces.append(Piece(kind, self._plain(self._text[:length]), call))
            self._text = self._text[length:]
