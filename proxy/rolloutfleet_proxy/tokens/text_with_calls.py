"""What an assistant says beside its tool calls: one rule for all chat formats.

Where a format writes both in one message, they are handed on as they are. Where it would drop what was said, that is
written as an assistant's message of its own, in front of the calls. Where it is lost all the same, the message is
refused. Which a format does is found out by having it write a conversation.

Only what is rendered anew is concerned: a turn that is extended keeps its sampled tokens, whatever they say.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from rolloutfleet_proxy.domain.messages import Message, Write

_WORDS = ("w41rd", "w42rd", "w43rd", "w44rd", "w45rd")
_CALL = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}


class TextWithCalls(Enum):
    """Where a format writes what is said beside calls."""

    TOGETHER = auto()
    APART = auto()
    """Only where it is a message of its own."""
    NOWHERE = auto()


def text_with_calls(write: Write) -> TextWithCalls:
    """What a format can hold."""
    asked, said, found, answered, more = _WORDS
    conversation: list[Message] = [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": said, "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": _CALL["id"], "name": "f", "content": found},
        {"role": "assistant", "content": answered},
        {"role": "user", "content": more},
    ]

    def holds(messages: list[Message], *words: str) -> bool:
        text = write(messages)
        places = [-1 if text is None else text.find(word) for word in words]
        return -1 not in places and places == sorted(places)

    words = (asked, said, answered, more)
    plain = [{"role": each["role"], "content": each["content"]} for each in conversation if each["role"] != "tool"]
    if holds(conversation, *words) or not holds(plain, *words):
        return TextWithCalls.TOGETHER  # or a format of which such a conversation shows nothing
    return TextWithCalls.APART if holds(text_apart(conversation), *words) else TextWithCalls.NOWHERE


def text_apart(messages: Sequence[Message]) -> list[Message]:
    """The messages, with what is said beside calls in front of them."""
    apart: list[Message] = []
    for message in messages:
        if has_text_with_calls(message):
            apart.append({key: value for key, value in message.items() if key != "tool_calls"})
            message = {key: value for key, value in message.items() if key not in _SAID} | {"content": ""}
        apart.append(message)
    return apart


def has_text_with_calls(message: Message) -> bool:
    """Whether it is an assistant's, with tool calls and text beside them."""
    content = message.get("content")
    return bool(
        message["role"] == "assistant" and message.get("tool_calls") and isinstance(content, str) and content.strip()
    )


_SAID = frozenset(("content", "reasoning", "reasoning_content"))
