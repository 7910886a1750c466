"""White space around an assistant's content that a chat format doesn't write, where messages are compared.

Frameworks put a line break before the content, or take one away, when they hand a message with its reasoning back. Many
templates drop such spaces themselves: some always, some where they write the reasoning before it. Which a format does
is found out by having it write conversations with and without them.

Of a message with reasoning those places count where the format writes that reasoning. Elsewhere it takes the reasoning
away, which a turn that is extended keeps as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from rolloutfleet_proxy.domain.messages import Message, Outer, Write

_SAID, _THOUGHT = "w41rd w42rd", "w43rd"
_USER: Message = {"role": "user", "content": "w44rd"}
_CALL = {"id": "functions.find:0", "type": "function", "function": {"name": "find", "arguments": '{"q": "x"}'}}
_CALLING: Message = {"tool_calls": [_CALL]}
_FOUND: Message = {"role": "tool", "tool_call_id": "functions.find:0", "name": "find", "content": "w45rd"}
_PLACES: tuple[tuple[Message, list[Message]], ...] = (
    ({}, [_USER]),
    ({}, [_USER, {"role": "assistant", "content": "w46rd"}, _USER]),
    (_CALLING, [_FOUND]),
    (_CALLING, [_FOUND, _USER]),
)
"""What an assistant's message has beside its content, and what follows it."""
_SPACES: tuple[tuple[Literal["spaces", "lines"], str], ...] = (("spaces", " \t\n\u2003"), ("lines", "\n\n"))


def trimmed_whitespace(write: Write, *, reasoned: bool) -> Outer:
    """What a format leaves out around the content of messages that carry reasoning, or of those that don't."""
    places = _written_places(write, {"reasoning_content": _THOUGHT} if reasoned else {})
    return Outer(
        start=next((kind for kind, space in _SPACES if _is_dropped(write, places, f"{space}{_SAID}")), "kept"),
        end=next((kind for kind, space in _SPACES if _is_dropped(write, places, f"{_SAID}{space}")), "kept"),
    )


def _written_places(write: Write, thought: Message) -> list[tuple[Callable[[str], list[Message]], str]]:
    """Conversations with a message of any content, and what is written with the plain one: those with its reasoning,
    where the format writes reasoning at all."""
    found: list[tuple[Callable[[str], list[Message]], str]] = []
    for beside, following in _PLACES:
        conversation = _saying({**thought, **beside}, following)
        text = write(conversation(_SAID))
        if text is not None:
            found.append((conversation, text))
    reasoning = [(conversation, text) for conversation, text in found if _THOUGHT in text]
    return reasoning or found


def _saying(beside: Message, following: Sequence[Message]) -> Callable[[str], list[Message]]:
    def conversation(content: str) -> list[Message]:
        said: dict[str, Any] = {"role": "assistant", "content": content, **beside}
        return [_USER, said, *following]

    return conversation


def _is_dropped(write: Write, places: Sequence[tuple[Callable[[str], list[Message]], str]], content: str) -> bool:
    return bool(places) and all(write(conversation(content)) == text for conversation, text in places)
