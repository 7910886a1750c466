"""What happens to a call, as typed events: every caller that waits for it encodes them in its own API's form.

    Started, then Text, Reasoning and ToolCall as they come, then Committed or Failed

A call that nobody streams has no deltas: `Started` and its end alone. Nothing but `Committed` says that a call went
well, and it holds a turn that only the store makes, from a commit or from a row.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.domain.turn import REASONING, Turn

Alternatives: TypeAlias = Sequence[Sequence[tuple[float, int]]]
"""For each token, the likeliest ones as (log-probability, id)."""


class Tokens(Struct, frozen=True):
    """Sampled tokens in order, with a log-probability each."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    alternatives: Alternatives | None = None


class Started(Struct, frozen=True):
    """The prompt is made. It wakes nobody: what an encoder writes for it leaves with what comes next, a delta or what a
    silence sends, or at once to a caller that joins later.

    A stream's first byte takes the status 200 along. What fails before is answered with its own status, what fails
    after that is an event of the stream (`Failed`).
    """

    turn_id: str
    created_at: float
    """Seconds since the epoch."""
    prompt_tokens: int
    tokens: Tokens | None = None
    """All that was sampled, where a committed turn is given as a stream: its deltas carry none then."""


class Text(Struct, frozen=True):
    """Some of the answer's text; empty where tokens came whose text is held back."""

    text: str
    tokens: Tokens | None = None
    """Those that came with this delta, where they were asked for."""


class Reasoning(Struct, frozen=True):
    """Some of the model's reasoning."""

    text: str
    tokens: Tokens | None = None


class ToolCall(Struct, frozen=True):
    """A whole tool call; `arguments` are the text that the model wrote."""

    index: int
    id: str
    name: str
    arguments: str
    tokens: Tokens | None = None


class Committed(Struct, frozen=True):
    """The turn is on disk."""

    turn: Turn
    prompt_ids: array[int] | None = None
    """Of its whole prompt, as they are stored; None where they were not read, as nobody asked for them."""


class Failed(Struct, frozen=True):
    """The call ended without a turn."""

    error: DomainError


Delta: TypeAlias = Text | Reasoning | ToolCall
Event: TypeAlias = Started | Delta | Committed | Failed

_EVENT_BYTES = 200
_TOKEN_BYTES = 64


def size_of(event: Event) -> int:
    """About how many bytes an event takes in memory; the turn of `Committed` is counted elsewhere."""
    if isinstance(event, Committed | Failed | Started):
        return _EVENT_BYTES
    tokens = 0 if event.tokens is None else len(event.tokens.ids)
    text = len(event.arguments) if isinstance(event, ToolCall) else len(event.text)
    return _EVENT_BYTES + _TOKEN_BYTES * tokens + text


def events_of(turn: Turn, prompt_ids: array[int] | None = None, *, begun: bool = False) -> Iterator[Event]:
    """The events of a committed turn, for a caller that streams what was made whole, or long ago.

    Where its stream has `begun`, with a `Started` that had no tokens, its first delta has them.
    """
    tokens = Tokens(turn.output_ids, turn.logprobs, turn.extras.top_logprobs)
    deltas = _deltas_of(turn)
    if begun:
        yield replace(next(deltas, Text("")), tokens=tokens)
    else:
        yield Started(turn.name, turn.created_at, turn.prompt_tokens, tokens)
    yield from deltas
    yield Committed(turn, prompt_ids)


def _deltas_of(turn: Turn) -> Iterator[Delta]:
    for field, text in turn.said():
        yield Reasoning(text) if field == REASONING else Text(text)
    for index, call in enumerate(turn.output.get("tool_calls") or ()):
        yield ToolCall(index, call["id"], call["function"]["name"], call["function"]["arguments"])
