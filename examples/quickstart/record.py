"""What the agents themselves saw: their own record of every answer that was a success."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer with status 2xx, read to its end."""

    session_id: str
    turn_id: str
    """The answer's `id`."""
    finish_reason: str
    content: str
    reasoning: str
    tool_calls: tuple[tuple[str, str], ...]
    """Name and arguments of each."""
    completion_tokens: int
    logprobs: tuple[float, ...] | None
    """One for each token; None where the agent did not ask for them."""
    follows_up: bool
    """True for all but a session's first call."""
    appends: bool
    """True where the agent only ever appends to its messages."""
    streamed: bool


@dataclass(slots=True)
class Record:
    answers: list[Answer] = field(default_factory=list)
    attempts_that_failed: int = 0

    def of_session(self, session_id: str) -> list[Answer]:
        return [answer for answer in self.answers if answer.session_id == session_id]


def text_of(message: dict[str, Any]) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    """Content, reasoning and tool calls of a message, in a form that compares."""
    calls = tuple(
        (str(call["function"]["name"]), str(call["function"]["arguments"])) for call in message.get("tool_calls") or ()
    )
    return message.get("content") or "", message.get("reasoning_content") or "", calls
