"""Messages that a chat format wouldn't write as they stand: one rule for all formats.

System messages: where a format would refuse, move or drop them, those that lead are joined into one, and later ones are
written as a user's message in their own place. Developer messages are meant as well, where a format writes both alike.

What an assistant says beside its tool calls: where a format would drop it, it is written as an assistant's message of
its own, in front of the calls. Only what is rendered anew is concerned: a turn that is extended keeps its sampled
tokens, whatever they say.

Which a format does is found out when it is loaded (`support`). A rendering and a bridge are given the same, so they
agree. What is lost all the same is refused (`at_risk`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from rolloutfleet_proxy.domain.messages import Message

_REMINDER = "<system-reminder>\n{}\n</system-reminder>"
_SAID = frozenset(("content", "reasoning", "reasoning_content"))


@dataclass(frozen=True, slots=True)
class Support:
    """The messages that a chat format writes as they stand."""

    first: bool = True
    """A system message before all others."""
    leading: bool = True
    """Several of them."""
    later: bool = True
    """System messages behind others."""
    text_with_calls: bool = True
    """Text of an assistant beside its calls."""


def adapted(messages: Sequence[Message], support: Support, *, start: int) -> list[Message]:
    """The messages, `start` of the conversation's before them, as the format can hold them."""
    first = [] if start else list(takewhile(_is_system, messages))
    later = messages[len(first) :]
    if not support.first:
        first = [_as_user(message) for message in first]
    elif len(first) > 1 and not support.leading:
        first = [{**first[0], "content": "\n\n".join(message["content"] for message in first)}]
    if not support.later:
        later = [_as_user(message) for message in later]
    return [*first, *(later if support.text_with_calls else text_apart(later))]


def at_risk(messages: Sequence[Message], support: Support, *, start: int) -> Iterator[tuple[int, Message]]:
    """Messages that a format may have dropped nevertheless, by their place in the conversation."""
    for index, message in enumerate(messages, start):
        # The first message of a conversation is what every format has a place for, or refuses.
        later_system = index > 0 and _is_system(message)
        if later_system or (not support.text_with_calls and _has_text_with_calls(message)):
            yield index, message


def text_apart(messages: Sequence[Message]) -> list[Message]:
    """The messages, with what is said beside calls in front of them."""
    apart: list[Message] = []
    for message in messages:
        if _has_text_with_calls(message):
            apart.append({key: value for key, value in message.items() if key != "tool_calls"})
            message = {key: value for key, value in message.items() if key not in _SAID} | {"content": ""}
        apart.append(message)
    return apart


def _has_text_with_calls(message: Message) -> bool:
    content = message.get("content")
    return bool(
        message["role"] == "assistant" and message.get("tool_calls") and isinstance(content, str) and content.strip()
    )


def _is_system(message: Message) -> bool:
    return message["role"] in ("system", "developer")


def _as_user(message: Message) -> Message:
    return {"role": "user", "content": _REMINDER.format(message["content"])} if _is_system(message) else message
