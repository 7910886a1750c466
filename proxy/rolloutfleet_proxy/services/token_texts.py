"""The text of each token of a turn, to be looked at."""

import codecs
from collections.abc import Callable, Sequence
from typing import Final

LONGEST_SPLIT: Final = 8
"""Tokens over which a character is split at the most; what looks like one over more is no character."""
_decoder = codecs.getincrementaldecoder("utf-8")


def token_texts(ids: Sequence[int], token_bytes: Callable[[int], bytes], *, ends: bool) -> list[str | None]:
    """The texts, in order. Where a character is split over several, the text of all is the first one's.

    Unless something `ends` with the last token, tokens at the end that hold only a part of a character are left out.
    Bytes that are not UTF-8 become U+FFFD.
    """
    decoder, found, text, split = _decoder("replace"), list[str | None](), "", 0
    for token_id in ids:
        text, split = text + decoder.decode(token_bytes(token_id)), split + 1
        if not decoder.getstate()[0]:
            found += [text, *[None] * (split - 1)]
            text, split = "", 0
    if split and (ends or split > LONGEST_SPLIT):
        found += [text + decoder.decode(b"", final=True), *[None] * (split - 1)]
    return found
