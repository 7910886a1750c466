"""Sampled tokens with their log-probabilities, as the OpenAI APIs write them. Pure."""

from __future__ import annotations

from msgspec import Struct

from rolloutfleet_proxy.dialects.base import TokenBytes
from rolloutfleet_proxy.domain.events import Tokens


class TopLogprob(Struct, frozen=True, gc=False):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob, frozen=True, gc=True):
    top_logprobs: list[TopLogprob]


def token_logprobs(tokens: Tokens, token_bytes: TokenBytes) -> list[TokenLogprob]:
    """One entry a token, marks and the end token included."""
    rows = tokens.alternatives if tokens.alternatives is not None else [()] * len(tokens.ids)
    return [
        TokenLogprob(
            token=text.decode("utf-8", "replace"),
            logprob=logprob,
            bytes=list(text),
            top_logprobs=[_alternative(*pair, token_bytes) for pair in row],
        )
        for text, logprob, row in zip(map(token_bytes, tokens.ids), tokens.logprobs, rows, strict=True)
    ]


def _alternative(logprob: float, token_id: int, token_bytes: TokenBytes) -> TopLogprob:
    text = token_bytes(token_id)
    return TopLogprob(token=text.decode("utf-8", "replace"), logprob=logprob, bytes=list(text))
