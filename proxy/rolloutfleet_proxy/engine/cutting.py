"""Long strings are taken out of JSON as it comes. Pure.

With `return_routed_experts` SGLang puts the routing of every token into a reply, as base64 in `meta_info`: tens of MB
beside a few thousand ids. None of it is evidence, nor is the reply's text, and no other string of a reply is long. So
they are dropped from the bytes before anything else is done with them, and what is left is small.
"""

from __future__ import annotations

from typing import Final

from rolloutfleet_proxy.engine.evidence import Reason, Refused

LONGEST: Final = 1 << 16
"""Bytes of a string that stays."""

_QUOTE, _BACKSLASH = b'"', b"\\"


class Cutter:
    """Gives back the JSON that it is fed, every string longer than `longest` bytes as an empty one.

    The text may be cut anywhere, and begin with what is not JSON but has no quote in it.
    """

    def __init__(self, *, longest: int = LONGEST) -> None:
        self._longest = longest
        self._within = False
        self._string: list[bytes] = []
        self._length = 0
        self._escapes = False
        """The string ends, so far, with a backslash that does not stand for itself."""

    def feed(self, data: bytes) -> bytes:
        """What stays of more text. A string is held back until its end, or until it is too long to stay."""
        kept: list[bytes] = []
        for index, part in enumerate(data.split(_QUOTE)):
            if index and self._escapes:
                self._take(_QUOTE)
            elif index:
                kept += [*self._string, _QUOTE]
                self._string, self._length, self._within = [], 0, not self._within
            if self._within:
                self._take(part)
            else:
                kept.append(part)
        return b"".join(kept)

    def _take(self, piece: bytes) -> None:
        backslashes = len(piece) - len(piece.rstrip(_BACKSLASH))
        goes_on = backslashes == len(piece) and self._escapes
        self._escapes = (backslashes % 2 == 1) != goes_on
        self._length += len(piece)
        if self._length <= self._longest:
            self._string.append(piece)
        else:
            self._string.clear()


class CutText:
    """JSON as it comes, in pieces: from `big` bytes on without its long strings, those before included.

    Small enough pieces are never joined: each pass over 20 MB takes 10 to 40 ms.
    """

    def __init__(self, *, what: str, big: int, max_bytes: int) -> None:
        self.came = 0
        """Bytes, those that were taken out included."""
        self.pieces: list[bytes] = []
        self._what = what
        self._big = big
        self._max_bytes = max_bytes
        self._nbytes = 0
        self._cutter: Cutter | None = None

    @property
    def is_big(self) -> bool:
        """Whether the pieces are too much to be handled in one go."""
        return self._nbytes > self._big

    def add(self, data: bytes) -> None:
        """Take in more. Raises Refused where the text is beyond all bounds."""
        self.came += len(data)
        if self.came > self._max_bytes:
            raise Refused(Reason.TOO_BIG, f"{self._what} is larger than {self._max_bytes} bytes.")
        self._keep(data if self._cutter is None else self._cutter.feed(data))
        if self._cutter is None and self.is_big:
            self._cutter = Cutter()
            for piece in self.taken():
                self._keep(self._cutter.feed(piece))

    def taken(self) -> list[bytes]:
        """The pieces, which are not kept any longer."""
        pieces, self.pieces, self._nbytes = self.pieces, [], 0
        return pieces

    def _keep(self, data: bytes) -> None:
        if data:
            self.pieces.append(data)
            self._nbytes += len(data)
