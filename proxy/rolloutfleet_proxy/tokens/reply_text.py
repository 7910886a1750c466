"""A reply's tokens as text in which each mark of its chat format is one character that no text can hold.

Marks are tokens, and spelled out with ordinary ones they are none. Written as lone surrogates, which nothing that is
decoded from UTF-8 contains, both can be looked for in one text, with regular expressions.
"""

import codecs
from collections.abc import Iterable, Sequence

from rolloutfleet_proxy.tokens.vocabulary import Packed, Vocabulary

_FIRST = 0xD800
_FEW = 32
"""Tokens up to which they are looked at one by one."""
_decoder = codecs.getincrementaldecoder("utf-8")


class Alphabet:
    """The marks of a chat format in one vocabulary."""

    def __init__(
        self, vocabulary: Vocabulary, marks: Iterable[str], ends: Sequence[int], dropped: Iterable[int]
    ) -> None:
        """`ends` are the ids that end a reply, `dropped` those that are no part of its text."""
        self.vocabulary = vocabulary
        self.ends = frozenset(ends)
        self._marks: dict[str, str] = {}
        self.chars: dict[int, str] = dict.fromkeys(dropped, "")
        for number, mark in enumerate(sorted(set(marks), key=len, reverse=True)):
            if (token_id := vocabulary.convert_tokens_to_ids(mark)) is not None:
                self._marks[mark] = self.chars[token_id] = chr(_FIRST + number)
        self.chars |= dict.fromkeys(self.ends, "")
        self._texts = {ord(char): mark for mark, char in self._marks.items()}

    def written(self, literal: str) -> str:
        """A text of a format's description, its marks as the characters that they are here."""
        for mark, char in self._marks.items():
            literal = literal.replace(mark, char)
        return literal

    def holding(self, literal: str) -> list[str]:
        """The texts that say it: with marks as letters, as tokens, or as a token that it is a part of, or begins or
        ends in."""
        found = [literal, self.written(literal)]
        for mark, char in self._marks.items():
            found += [char] if literal in mark else []
            for shared in range(1, min(len(mark), len(literal))):
                found += [char + self.written(literal[shared:])] if mark.endswith(literal[:shared]) else []
                found += [self.written(literal[:-shared]) + char] if mark.startswith(literal[-shared:]) else []
        return found

    def text(self, ids: Sequence[int]) -> str:
        """Of any ids."""
        reading = ReplyText(self, whole=True)
        return reading.feed(ids) + reading.finish()

    def plain(self, text: str) -> str:
        """The text with its marks written out."""
        return text if text.isascii() else text.translate(self._texts)


class ReplyText:
    """Fed with a reply's ids as they come. A character leaves whole; bytes that are not UTF-8 are U+FFFD."""

    def __init__(self, alphabet: Alphabet, *, whole: bool = False) -> None:
        """`whole`: behind the tokens that end a reply as well, of which the text has nothing."""
        self._alphabet = alphabet
        self._ends = frozenset[int]() if whole else alphabet.ends
        self._vocabulary = alphabet.vocabulary
        self._decoder = _decoder("replace")
        self._ended = False
        self._waiting: list[int] = []
        """All ids, where a token's text depends on its neighbours."""
        self._strips = alphabet.vocabulary.strips_first_space

    def feed(self, ids: Sequence[int]) -> str:
        """The text of ids that follow those fed before, up to the first that ends a reply."""
        if self._ended:
            return ""
        if not self._vocabulary.decodes_by_bytes:
            self._waiting += ids
            return ""
        if len(ids) < _FEW and self._alphabet.chars.keys().isdisjoint(ids):
            text = self._decoder.decode(b"".join(map(self._vocabulary.token_bytes, ids)))
        else:
            text = "".join(self._pieces(ids))
        if self._strips and text:
            self._strips, text = False, text.removeprefix(" ")
        return text

    def finish(self) -> str:
        """What was held back."""
        held = "".join(self._pieces(self._waiting)) if self._waiting else ""
        return held if self._ended else held + self._decoder.decode(b"", final=True)

    def _pieces(self, ids: Sequence[int]) -> Iterable[str]:
        chars = self._alphabet.chars
        for item in self._vocabulary.packed(ids):
            char = None if isinstance(item, Packed) else chars.get(item)
            if char is None:
                yield self._decoder.decode(self._vocabulary.token_bytes(item))
                continue
            yield self._decoder.decode(b"", final=True)
            self._decoder.reset()
            if item in self._ends:
                self._ended = True
                return
            yield char
