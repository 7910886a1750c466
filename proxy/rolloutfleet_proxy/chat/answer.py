"""A committed turn as the OpenAI API's answer: a completion, or a stream of chunks. Pure.

All of it follows from the turn, so an answer given again is the same to the byte. The answer's `id` is the turn's id,
which a reward may name. `logprobs` has one entry a sampled token, those of marks and of the end token included, so
that their number is `completion_tokens`. A reply's reasoning stands in `reasoning_content`, as SGLang has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from rolloutfleet.wire import FinishReason
from rolloutfleet_proxy.chat.request import ChatRequest
from rolloutfleet_proxy.engines.evidence import Finish
from rolloutfleet_proxy.tokens.deltas import Delta
from rolloutfleet_proxy.turns.rows import Turn

CACHED_TOKENS: Final = "cached_tokens"
TOP_LOGPROBS: Final = "top_logprobs"
"""What an answer takes from a turn's `extras`: a number, and a list of [logprob, id] pairs for each token."""

DONE: Final = b"data: [DONE]\n\n"

TokenBytes = Callable[[int], bytes]
Alternatives = Sequence[Sequence[tuple[float, int]]]

_encode = msgspec.json.Encoder().encode


class TopLogprob(Struct, frozen=True, gc=False):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


def finish_reason(finish: Finish, *, has_tool_calls: bool) -> FinishReason:
    """The OpenAI API's word for how a turn ended: a stop behind tool calls is named for them."""
    if finish == "length":
        return "length"
    return "tool_calls" if has_tool_calls else "stop"


def usage(*, prompt_tokens: int, completion_tokens: int, cached_tokens: int | None) -> dict[str, Any]:
    """The `usage` object."""
    counts: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    if cached_tokens is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    return counts


class Answers:
    """Writes answers. They name the model as the request did, or else `model`; `token_bytes` gives the bytes that a
    token stands for."""

    def __init__(self, model: str, token_bytes: TokenBytes) -> None:
        self._model = model
        self._token_bytes = token_bytes

    def completion(self, turn: Turn, request: ChatRequest) -> bytes:
        """The body of an answer that is not streamed."""
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": None, **turn.output},
            "logprobs": self._turn_logprobs(turn) if request.logprobs else None,
            "finish_reason": turn.finish_reason,
        }
        return _encode(
            {
                "id": turn.name,
                "object": "chat.completion",
                "created": int(turn.created_at),
                "model": self._model_of(request),
                "choices": [choice],
                "usage": _turn_usage(turn),
            }
        )

    def stream(self, name: str, created: float, request: ChatRequest) -> AnswerStream:
        """The writer of a stream for the turn of this name; `created` in seconds since the epoch."""
        return AnswerStream(name, int(created), self._model_of(request), include_usage=request.include_usage)

    def whole_stream(self, turn: Turn, request: ChatRequest) -> bytes:
        """A committed turn as a stream, all at once: one chunk for the reasoning, the content and each tool call."""
        stream = self.stream(turn.name, turn.created_at, request)
        output = turn.output
        events = [stream.opening(self._turn_logprobs(turn) if request.logprobs else None)]
        for field in ("reasoning_content", "content"):
            if output.get(field):
                events.append(stream.chunk({field: output[field]}))
        for index, call in enumerate(output.get("tool_calls") or ()):
            events.append(stream.chunk({"tool_calls": [{"index": index, **call}]}))
        events.append(self.ending(stream, turn))
        return b"".join(events)

    def ending(self, stream: AnswerStream, turn: Turn) -> bytes:
        """What leaves only once the turn is committed: the finish reason, usage where asked for, and the end."""
        return stream.ending(turn.finish_reason, _turn_usage(turn))

    def logprobs(
        self, ids: Sequence[int], logprobs: Sequence[float], alternatives: Alternatives | None = None
    ) -> dict[str, Any]:
        """The `logprobs` object for tokens in order: of the whole answer, or of one chunk."""
        rows = alternatives if alternatives is not None else [()] * len(ids)
        content = [
            TokenLogprob(
                token=text.decode("utf-8", "replace"),
                logprob=logprob,
                bytes=list(text),
                top_logprobs=[self._alternative(*pair) for pair in row],
            )
            for text, logprob, row in zip(map(self._token_bytes, ids), logprobs, rows, strict=True)
        ]
        return {"content": content, "refusal": None}

    def _model_of(self, request: ChatRequest) -> str:
        return self._model if request.model is None else request.model

    def _alternative(self, logprob: float, token_id: int) -> TopLogprob:
        text = self._token_bytes(token_id)
        return TopLogprob(token=text.decode("utf-8", "replace"), logprob=logprob, bytes=list(text))

    def _turn_logprobs(self, turn: Turn) -> dict[str, Any]:
        return self.logprobs(turn.output_ids, turn.logprobs, turn.extras.get(TOP_LOGPROBS))


class AnswerStream:
    """Writes the server-sent events of one answer."""

    def __init__(self, name: str, created: int, model: str, *, include_usage: bool) -> None:
        head = {"id": name, "object": "chat.completion.chunk", "created": created, "model": model}
        # What every chunk begins with is encoded once.
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._include_usage = include_usage

    def opening(self, logprobs: dict[str, Any] | None = None) -> bytes:
        """The first chunk, which names the role."""
        return self.chunk({"role": "assistant", "content": ""}, logprobs)

    def deltas(self, deltas: Iterable[Delta], logprobs: dict[str, Any] | None = None) -> bytes:
        """A chunk for each delta. The log-probabilities go with the first; where there is none they have a chunk of
        their own, as text may be held back whose tokens are there."""
        events = []
        for delta in deltas:
            events.append(self.chunk(_delta_form(delta), logprobs))
            logprobs = None
        if logprobs is not None:
            events.append(self.chunk({}, logprobs))
        return b"".join(events)

    def chunk(self, delta: dict[str, Any], logprobs: dict[str, Any] | None = None) -> bytes:
        """One event with a delta in the API's form."""
        return self._event({"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": None})

    def ending(self, reason: str, usage: dict[str, Any]) -> bytes:
        """The finish reason, usage where it was asked for, and the end."""
        events = self._event({"index": 0, "delta": {}, "logprobs": None, "finish_reason": reason})
        if self._include_usage:
            events += self._head + b'],"usage":' + _encode(usage) + b"}\n\n"
        return events + DONE

    def _event(self, choice: dict[str, Any]) -> bytes:
        return self._head + _encode(choice) + self._tail


def _delta_form(delta: Delta) -> dict[str, Any]:
    if delta.reasoning is not None:
        return {"reasoning_content": delta.reasoning}
    if delta.tool_call is not None:
        call = delta.tool_call
        function = {"name": call.name, "arguments": call.arguments}
        return {"tool_calls": [{"index": call.index, "id": call.id, "type": "function", "function": function}]}
    return {"content": delta.content}


def _turn_usage(turn: Turn) -> dict[str, Any]:
    return usage(
        prompt_tokens=turn.prompt_tokens,
        completion_tokens=len(turn.output_ids),
        cached_tokens=turn.extras.get(CACHED_TOKENS),
    )
