"""Replies that are laid down beforehand, so that real agents' programs do what a test or an example wants. Pure.

A cue is a text in a message of the user. The cue that was given last holds: its first reply is the answer to it, its
second the answer after that one, and so on. So a conversation that was summarised, and a sub-agent's, which begins with
what it is told, have cues of their own. Whoever gets no cue, or has had all replies to it, gets words and no calls: a
program would carry out the calls that the engine makes up.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec


class ToolCall(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any]


class CuedReply(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One answer. `reasoning` is left out where the prompt rules it out.

    `{{name}}` within a string of a call's arguments stands for what a tool has last called so: an id that nobody knows
    beforehand.
    """

    reasoning: str = ""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()


class Cue(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    cue: str
    """What a message of the user holds, to the letter."""
    replies: tuple[CuedReply, ...]

    def __post_init__(self) -> None:
        if not self.cue:
            raise ValueError("cue: an empty one would be in every message")


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One message of a prompt; results of tools have the role `tool`."""

    role: str
    text: str


def read_cues(file: Path) -> tuple[Cue, ...]:
    """The JSON list in `file`. Raises ValueError, which names what is wrong and where, and OSError."""
    try:
        return parse_cues(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error


def parse_cues(encoded: bytes) -> tuple[Cue, ...]:
    """A JSON list. Raises ValueError, which names what is wrong and where."""
    try:
        return msgspec.json.decode(encoded, type=tuple[Cue, ...])
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def reply_to(messages: Sequence[Message], cues: Sequence[Cue]) -> CuedReply | None:
    """What is laid down for a prompt of these messages. Of several cues in one message the first in `cues` holds."""
    answers = 0
    for message in reversed(messages):
        answers += message.role == "assistant"
        if message.role != "user":
            continue
        for cue in cues:
            if cue.cue in message.text:
                return _filled(cue.replies[answers], messages) if answers < len(cue.replies) else None
    return None


def _filled(reply: CuedReply, messages: Sequence[Message]) -> CuedReply:
    results = "".join(message.text for message in messages if message.role == "tool")
    calls = (msgspec.structs.replace(call, arguments=_fill(call.arguments, results)) for call in reply.calls)
    return msgspec.structs.replace(reply, calls=tuple(calls))


def _fill(value: Any, results: str) -> Any:
    if isinstance(value, dict):
        return {name: _fill(each, results) for name, each in value.items()}
    if isinstance(value, list):
        return [_fill(each, results) for each in value]
    if isinstance(value, str):
        return _PLACE.sub(lambda place: _last_called(place[1], results), value)
    return value


def _last_called(name: str, results: str) -> str:
    """The last string of that name in JSON objects among results of tools; empty where there is none."""
    found = re.findall(rf'"{re.escape(name)}": *("(?:[^"\\]|\\.)*")', results)
    return str(json.loads(found[-1])) if found else ""


_PLACE = re.compile(r"\{\{(\w+)\}\}")
