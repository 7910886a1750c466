"""Sampled tokens with their log-probabilities, as the OpenAI APIs write them. Pure.

An answer may have tens of thousands of tokens, with twenty alternatives each. So what is the same of a token wherever
it stands is encoded once, and numbers are encoded all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Final

import msgspec

from rolloutfleet_proxy.dialects.base import TokenBytes
from rolloutfleet_proxy.domain.events import Tokens

_KEPT: Final = 1 << 14
"""Tokens of which that is kept, some 300 bytes each."""
_encode = msgspec.json.Encoder().encode


def token_logprobs(tokens: Tokens, token_bytes: TokenBytes, *, with_bytes: bool = True) -> list[msgspec.Raw]:
    """One entry a token, marks and the end token included. `with_bytes`: each says which bytes it stands for."""
    rows = [()] * len(tokens.ids) if tokens.alternatives is None else tokens.alternatives
    ids = [token_id for row in rows for _, token_id in row]
    logprobs = [logprob for row in rows for logprob, _ in row]
    others = iter(_entries(ids, logprobs, token_bytes, with_bytes=with_bytes))
    lists = (b"},".join(islice(others, len(row))) + b"}" if row else b"" for row in rows)
    entries = _entries(tokens.ids, tokens.logprobs, token_bytes, with_bytes=with_bytes)
    return [msgspec.Raw(b'%b,"top_logprobs":[%b]}' % pair) for pair in zip(entries, lists, strict=True)]


def _entries(
    ids: Sequence[int], logprobs: Sequence[float], token_bytes: TokenBytes, *, with_bytes: bool
) -> list[bytes]:
    """Entries without their end."""
    numbers = _encode(list(logprobs))[1:-1].split(b",") if ids else []
    around = zip(map(_around, map(token_bytes, ids)), numbers, strict=True)
    if with_bytes:
        return [before + number + behind for (before, behind), number in around]
    return [before + number for (before, _), number in around]


@lru_cache(_KEPT)
def _around(text: bytes) -> tuple[bytes, bytes]:
    """The parts of an entry before and behind its log-probability."""
    name = _encode(text.decode("utf-8", "replace"))
    return b'{"token":%b,"logprob":' % name, b',"bytes":%b' % _encode(list(text))
