"""The parser of one reply's text: text -> pieces, as the text comes. Incremental, and pure."""

from __future__ import annotations

from abc import ABC, abstractmethod

from rolloutfleet_proxy.tokens.reply_pieces import Kind, Piece, WrittenCall
from rolloutfleet_proxy.tokens.reply_text import Alphabet


class ReplyParser(ABC):
    """Fed with one reply's text as it comes. A format takes pieces off the text in steps."""

    def __init__(self, alphabet: Alphabet) -> None:
        self._plain = alphabet.plain
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
    @abstractmethod
    def in_thought(self) -> bool:
        """Whether a thought has begun that has not ended."""

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
