"""Entries of log-probabilities are JSON that says what was sampled, whatever bytes tokens stand for."""

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet_proxy.dialects.token_logprobs import token_logprobs
from rolloutfleet_proxy.domain.events import Tokens

TEXTS = [b"", b"a", b"\n", b'"quoted\\', b"\xe2\x82", b"\x00", "é,[]{}".encode(), b"<|end|>"]
IDS = st.integers(0, len(TEXTS) - 1)
LOGPROBS = st.floats(-1e3, 0)
SAMPLED = st.tuples(IDS, LOGPROBS, st.lists(st.tuples(LOGPROBS, IDS), max_size=3))


def entry(token_id: int, logprob: float, *, with_bytes: bool) -> dict[str, Any]:
    text = TEXTS[token_id]
    bare = {"token": text.decode("utf-8", "replace"), "logprob": logprob}
    return {**bare, "bytes": list(text)} if with_bytes else bare


@given(sampled=st.lists(SAMPLED), with_bytes=st.booleans(), has_alternatives=st.booleans())
def test_entries_say_what_was_sampled(
    *, sampled: list[tuple[int, float, list[tuple[float, int]]]], with_bytes: bool, has_alternatives: bool
) -> None:
    rows = [row for *_, row in sampled] if has_alternatives else None
    tokens = Tokens([token_id for token_id, *_ in sampled], [logprob for _, logprob, _ in sampled], rows)
    said = msgspec.json.encode(token_logprobs(tokens, TEXTS.__getitem__, with_bytes=with_bytes))
    assert json.loads(said) == [
        {
            **entry(token_id, logprob, with_bytes=with_bytes),
            "top_logprobs": [
                entry(other, value, with_bytes=with_bytes) for value, other in (row if has_alternatives else [])
            ],
        }
        for token_id, logprob, row in sampled
    ]
