"""A call's events as the Anthropic API's answer: a message, or a stream of events. Pure.

All of it follows from the turn, so an answer given again is the same to the byte. The message's `id` is the turn's id,
which a reward may name. `thinking` has an empty signature: it comes back as it is.

A stream's blocks are those of the whole message: thinking and text in the order in which they came, then one `tool_use`
for each call. From the first call on nothing leaves before the commit, neither the end of the text before it, as
clients act on a `tool_use` once it is complete.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from rolloutfleet_proxy.dialects.anthropic_messages.errors import error_event
from rolloutfleet_proxy.dialects.anthropic_messages.request import MessagesRequest
from rolloutfleet_proxy.dialects.base import Encoder
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.domain.events import Committed, Delta, Reasoning, Started, ToolCall
from rolloutfleet_proxy.domain.turn import REASONING, Turn

PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
MESSAGE_STOP: Final = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
THINKING: Final = "thinking"
TEXT: Final = "text"

_EMPTY: Final = {THINKING: {"type": THINKING, THINKING: "", "signature": ""}, TEXT: {"type": TEXT, TEXT: ""}}
"""What a block begins as, by what it holds."""

_encode = msgspec.json.Encoder().encode


class MessagesEncoder(Encoder):
    """Writes one caller's message, or stream of events."""

    def __init__(self, request: MessagesRequest, *, model: str) -> None:
        super().__init__(request, model=model)
        self._started = False
        self._blocks = 0
        """Begun so far."""
        self._open: str | None = None
        """What the block holds that has not ended."""
        self._sent = 0
        """Characters of thinking and text."""
        self._holds = False
        """A call came: what follows waits for the commit."""

    def started(self, event: Started) -> bytes:
        usage = _usage(event.prompt_tokens, 0, 0)
        message = self._message(event.turn_id, [], stop_reason=None, stop_sequence=None, usage=usage)
        self._opening = _event("message_start", {"message": message})
        self._started = True
        return b""

    def delta(self, event: Delta) -> bytes:
        if isinstance(event, ToolCall):
            self._holds = True
        if self._holds or isinstance(event, ToolCall) or not event.text:
            return b""
        return self._opened() + self._part(THINKING if isinstance(event, Reasoning) else TEXT, event.text)

    def committed(self, event: Committed) -> bytes:
        """What waited for the commit, and the end."""
        turn = event.turn
        rest, before = b"", 0
        for kind, text in _said(turn):
            unsent = text[max(0, self._sent - before) :]
            before += len(text)
            rest += self._part(kind, unsent) if unsent else b""
        rest += b"".join(map(self._tool_use, turn.output.get("tool_calls") or ()))
        delta = {"stop_reason": _stop_reason(turn), "stop_sequence": turn.extras.stop_sequence}
        end = _event("message_delta", {"delta": delta, "usage": _usage_of(turn)})
        return self._opened() + rest + self._ended() + end + MESSAGE_STOP

    def failed(self, error: DomainError) -> bytes:
        return error_event(error)

    def silence(self) -> bytes:
        """Nothing before the prompt is made: what is wrong with it has a status of its own until then."""
        return self._opened() + PING if self._started else b""

    def whole(self, event: Committed) -> bytes:
        turn = event.turn
        blocks: list[dict[str, Any]] = [{**_EMPTY[kind], kind: text} for kind, text in _said(turn)]
        for call in turn.output.get("tool_calls") or ():
            blocks.append({**_tool_use_form(call), "input": msgspec.Raw(_input(call).encode())})
        return _encode(
            self._message(
                turn.name,
                blocks,
                stop_reason=_stop_reason(turn),
                stop_sequence=turn.extras.stop_sequence,
                usage=_usage_of(turn),
            )
        )

    def _message(self, turn_id: str, blocks: list[dict[str, Any]], **ending: Any) -> dict[str, Any]:
        return {
            "id": turn_id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": blocks,
            **ending,
        }

    def _part(self, kind: str, text: str) -> bytes:
        """Some of a block that holds text, and its beginning where another was open."""
        beginning = b"" if self._open == kind else self._ended() + self._begun(_EMPTY[kind])
        self._open = kind
        self._sent += len(text)
        return beginning + self._delta({"type": f"{kind}_delta", kind: text})

    def _tool_use(self, call: dict[str, Any]) -> bytes:
        beginning = self._ended() + self._begun({**_tool_use_form(call), "input": {}})
        self._open = "tool_use"
        return beginning + self._delta({"type": "input_json_delta", "partial_json": _input(call)})

    def _begun(self, block: dict[str, Any]) -> bytes:
        self._blocks += 1
        return _event("content_block_start", {"index": self._blocks - 1, "content_block": block})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", {"index": self._blocks - 1, "delta": delta})

    def _ended(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return _event("content_block_stop", {"index": self._blocks - 1})


def _said(turn: Turn) -> list[tuple[str, str]]:
    """The message's blocks of text, each as what it holds and that."""
    return [(THINKING if field == REASONING else TEXT, text) for field, text in turn.said()]


def _tool_use_form(call: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call["id"], "name": call["function"]["name"]}


def _input(call: dict[str, Any]) -> str:
    """A call's arguments as JSON. Models write `NaN` and `Infinity` too, which JSON has not: they are null here."""
    arguments: str = call["function"]["arguments"]
    if "NaN" not in arguments and "Infinity" not in arguments:
        return arguments
    without = json.loads(arguments, parse_constant=lambda constant: None)
    return arguments if without == json.loads(arguments) else json.dumps(without)


def _stop_reason(turn: Turn) -> str:
    if turn.finish_reason == "length":
        return "max_tokens"
    if turn.finish_reason == "tool_calls":
        return "tool_use"
    return "end_turn" if turn.extras.stop_sequence is None else "stop_sequence"


def _usage_of(turn: Turn) -> dict[str, int]:
    return _usage(turn.prompt_tokens, turn.extras.cached_tokens or 0, len(turn.output_ids))


def _usage(prompt: int, cached: int, output: int) -> dict[str, int]:
    """The prompt's tokens are those that were in the engine's cache, and the others."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }


def _event(name: str, data: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + _encode({"type": name, **data}) + b"\n\n"
