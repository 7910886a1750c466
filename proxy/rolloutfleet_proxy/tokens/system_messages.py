"""System messages that do not stand first: one rule for all chat formats.

Where a format writes them in their own place, they are handed on as they are. Where it would refuse, move or drop them,
those that lead are joined into one, and later ones are written as a user's message in their own place. Which a format
does is found out by having it write a conversation. A rendering and a bridge are given the same, so they agree.

Developer messages are meant as well, where a format writes both alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from unicodedata import normalize

from rolloutfleet_proxy.domain.messages import Message, Write

_SYSTEM = ("system", "developer")
_REMINDER = "<system-reminder>\n{}\n</system-reminder>"
_WORDS = tuple(f"w{number}rd" for number in range(31, 38))


@dataclass(frozen=True, slots=True)
class SystemMessageSupport:
    """Where a chat format writes system messages as they stand."""

    first: bool = True
    leading: bool = True
    """Several before all others."""
    later: bool = True


def support_of(write: Write, *, kinds: Sequence[str] = ("system",)) -> SystemMessageSupport:
    """What a format can hold, in each of these roles."""

    def holds(*roles: str) -> bool:
        return all(written([kind if role == "system" else role for role in roles]) for kind in kinds)

    def written(roles: list[str]) -> bool:
        words = _WORDS[: len(roles)]
        text = write([{"role": role, "content": word} for role, word in zip(roles, words, strict=True)])
        found = [-1 if text is None else text.find(word) for word in words]
        return -1 not in found and found == sorted(found)

    return SystemMessageSupport(
        first=holds("system", "user"),
        leading=holds("system", "system", "user"),
        later=holds("system", "user", "system", "assistant", "system", "user", "system"),
    )


def adapted(messages: Sequence[Message], support: SystemMessageSupport, *, start: int) -> list[Message]:
    """The messages, `start` of the conversation's before them, as the format can hold them."""
    lead = _leading(messages) if start == 0 else 0
    first = list(messages[:lead])
    if not support.first:
        first = [_as_user(message) for message in first]
    elif lead > 1 and not support.leading:
        first = [{**messages[0], "content": "\n\n".join(message["content"] for message in first)}]
    later = messages[lead:]
    return [*first, *(later if support.later else map(_as_user, later))]


def unheard(messages: Sequence[Message], text: str) -> int | None:
    """Index of a system message, the first message left out, that says what is not in a prompt's text; None where there
    is none."""
    prompt = normalize("NFC", text)  # as many tokenizers do
    for index, message in enumerate(messages):
        if index and message["role"] in _SYSTEM and normalize("NFC", message["content"]).strip() not in prompt:
            return index
    return None


def speaks_later(messages: Sequence[Message]) -> bool:
    """Whether there is a system message behind the first message."""
    return any(message["role"] in _SYSTEM for message in messages[1:])


def _leading(messages: Sequence[Message]) -> int:
    return next((index for index, each in enumerate(messages) if each["role"] not in _SYSTEM), len(messages))


def _as_user(message: Message) -> Message:
    if message["role"] not in _SYSTEM:
        return message
    return {"role": "user", "content": _REMINDER.format(message["content"])}
