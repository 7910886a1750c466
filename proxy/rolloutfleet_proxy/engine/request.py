"""What is sent to an engine for one round of a generation: the JSON of SGLang's `/generate`, and its headers."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from rolloutfleet_proxy.engine.evidence import Expected

ROUTING_KEY_HEADER = "X-SMG-Routing-Key"
PASSED_ON = ("x-request-id", "x-correlation-id", "traceparent", "tracestate")
"""What a caller's request may say to the gateway: of headers nothing else goes upstream, no key above all."""

_encode = msgspec.json.Encoder().encode


class GenerateRequest(Struct, frozen=True, kw_only=True):
    """One round at an engine.

    `prompt_json` is the prompt's ids as a JSON array (`ids_json`). `sampling` has SGLang's names and lacks
    `max_new_tokens`. `with_logprobs` is for streams: whether chunks carry log-probabilities.
    """

    rid: str
    routing_key: str
    prompt_json: bytes
    prompt_tokens: int
    max_new_tokens: int
    sampling: Mapping[str, Any] = {}
    vocab_size: int | None = None
    top_logprobs: int = 0
    extra_key: str | None = None
    """Prompts of another key share no prefix cache with this one."""
    with_logprobs: bool = False
    headers: Mapping[str, str] = {}

    def body(self, *, stream: bool) -> tuple[bytes, ...]:
        """The JSON of `/generate` in pieces, of which the prompt is one: joined they would be another copy of it for as
        long as the engine takes."""
        before = b"".join(
            (
                b'{"rid":',
                _encode(self.rid),
                b',"stream":true' if stream else b"",
                b"" if self.extra_key is None else b',"extra_key":' + _encode(self.extra_key),
                b',"return_logprob":true,"top_logprobs_num":%d,"sampling_params":' % self.top_logprobs,
                _encode({**self.sampling, "max_new_tokens": self.max_new_tokens}),
                b',"input_ids":',
            )
        )
        return before, self.prompt_json, b"}"

    def expected(self) -> Expected:
        return Expected(
            prompt_tokens=self.prompt_tokens,
            max_new_tokens=self.max_new_tokens,
            vocab_size=self.vocab_size,
            top_logprobs=self.top_logprobs,
        )


def ids_json(ids: Sequence[int]) -> bytes:
    """Token ids as a JSON array."""
    # msgspec's own bytes keep room that was not needed, up to half as much again, for as long as the prompt is kept.
    return bytes(memoryview(_encode(ids.tolist() if isinstance(ids, array) else ids)))


def extended_json(prompt_json: bytes, ids: Sequence[int]) -> bytes:
    """The JSON array of a prompt with more ids behind it."""
    more = ids_json(ids)
    if len(more) == len(b"[]"):
        return prompt_json
    if len(prompt_json) == len(b"[]"):
        return more
    return b"".join((memoryview(prompt_json)[:-1], b",", memoryview(more)[1:]))  # a long prompt is copied once


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """Of a request's headers (names in lower case) those that go upstream; a value that can't is left out."""
    values = ((name, headers.get(name, "")) for name in PASSED_ON)
    return {name: value for name, value in values if value and value.isascii() and value.isprintable()}
