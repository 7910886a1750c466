"""A call's events as the OpenAI API's answer: a completion, or a stream of chunks. Pure.

All of it follows from the turn, so an answer given again is the same to the byte. The answer's `id` is the turn's id,
which a reward may name. `logprobs` has one entry a sampled token, those of marks and of the end token included, so
that their number is `completion_tokens`. A reply's reasoning stands in `reasoning_content`, as SGLang has it.

Where `return_token_ids` asks for them, the stored ids of prompt and output are there under the names of vLLM (top-level
`prompt_token_ids`, a choice's `token_ids`) and of SGLang (a choice's `prompt_token_ids` and `response_token_ids`). In a
stream all of them are in the chunk with the finish reason, which leaves after the commit.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rolloutfleet_proxy.dialects.base import Encoder, TokenBytes
from rolloutfleet_proxy.dialects.openai_chat.request import ChatRequest
from rolloutfleet_proxy.dialects.token_logprobs import token_logprobs
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.domain.events import Committed, Delta, Reasoning, Started, Text, Tokens
from rolloutfleet_proxy.domain.turn import Turn
from rolloutfleet_proxy.engine.request import ids_json
from rolloutfleet_proxy.http.errors import body_of

DONE: Final = b"data: [DONE]\n\n"
SILENCE: Final = b": waiting for the engine\n\n"

_encode = msgspec.json.Encoder().encode


def error_event(error: DomainError) -> bytes:
    """A stream's last event where it fails."""
    return b"data: " + body_of(error) + b"\n\n"


class ChatEncoder(Encoder):
    """Writes one caller's completion, or stream of chunks."""

    def __init__(self, request: ChatRequest, *, model: str, token_bytes: TokenBytes) -> None:
        super().__init__(request, model=model)
        self._request = request
        self._token_bytes = token_bytes
        self._head = b""
        self._tail = b'],"usage":null}\n\n' if request.include_usage else b"]}\n\n"

    def started(self, event: Started) -> bytes:
        """What every chunk begins with is encoded once; the first one, which names the role, waits for the next."""
        head = {
            "id": event.turn_id,
            "object": "chat.completion.chunk",
            "created": int(event.created_at),
            "model": self._model,
        }
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        self._opening = self._chunk({"role": "assistant", "content": ""}, event.tokens)
        return b""

    def delta(self, event: Delta) -> bytes:
        return self._opened() + self._chunk(_delta_form(event), event.tokens)

    def committed(self, event: Committed) -> bytes:
        """The finish reason, usage where it was asked for, and the end."""
        turn = event.turn
        of_answer, of_choice = self._token_ids(event)
        choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": turn.finish_reason, **of_choice}
        end = self._event(choice, **of_answer)
        if self._request.include_usage:
            end += self._head + b'],"usage":' + _encode(_usage(turn)) + b"}\n\n"
        return self._opened() + end + DONE

    def failed(self, error: DomainError) -> bytes:
        return error_event(error)

    def silence(self) -> bytes:
        return SILENCE

    def whole(self, event: Committed) -> bytes:
        turn = event.turn
        of_answer, of_choice = self._token_ids(event)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": None, **turn.output},
            "logprobs": self._logprobs(Tokens(turn.output_ids, turn.logprobs, turn.extras.top_logprobs)),
            "finish_reason": turn.finish_reason,
            **of_choice,
        }
        return _encode(
            {
                "id": turn.name,
                "object": "chat.completion",
                "created": int(turn.created_at),
                "model": self._model,
                "choices": [choice],
                "usage": _usage(turn),
                **of_answer,
            }
        )

    def _chunk(self, delta: dict[str, Any], tokens: Tokens | None) -> bytes:
        return self._event({"index": 0, "delta": delta, "logprobs": self._logprobs(tokens), "finish_reason": None})

    def _event(self, choice: dict[str, Any], **beside: Any) -> bytes:
        if not beside:
            return self._head + _encode(choice) + self._tail
        return self._head + _encode(choice) + b"]," + _encode(beside)[1:-1] + self._tail[1:]

    def _token_ids(self, event: Committed) -> tuple[dict[str, Any], dict[str, Any]]:
        """What answer and choice say of them; nothing unless they were asked for."""
        if not self._request.token_ids or event.prompt_ids is None:
            return {}, {}
        prompt, output = (msgspec.Raw(ids_json(ids)) for ids in (event.prompt_ids, event.turn.output_ids))
        beside = {"prompt_token_ids": prompt, "response_token_ids": output}
        return {"prompt_token_ids": prompt}, {"token_ids": output, **beside}

    def _logprobs(self, tokens: Tokens | None) -> dict[str, Any] | None:
        """The `logprobs` object, of the whole answer or of one chunk, where it was asked for."""
        if tokens is None or not self._request.logprobs:
            return None
        return {"content": token_logprobs(tokens, self._token_bytes), "refusal": None}


def _delta_form(delta: Delta) -> dict[str, Any]:
    if isinstance(delta, Text):
        return {"content": delta.text} if delta.text else {}
    if isinstance(delta, Reasoning):
        return {"reasoning_content": delta.text}
    function = {"name": delta.name, "arguments": delta.arguments}
    return {"tool_calls": [{"index": delta.index, "id": delta.id, "type": "function", "function": function}]}


def _usage(turn: Turn) -> dict[str, Any]:
    """The `usage` object."""
    counts: dict[str, Any] = {
        "prompt_tokens": turn.prompt_tokens,
        "completion_tokens": len(turn.output_ids),
        "total_tokens": turn.prompt_tokens + len(turn.output_ids),
    }
    if turn.extras.cached_tokens is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": turn.extras.cached_tokens}
    return counts
