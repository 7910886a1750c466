"""The calls and results of a conversation, in the form that every chat format can write.

- A call's arguments are a JSON object: none, blanks and null are `{}`, and a call with any other text is refused.
  Formats would write what is no JSON, or the call without it.
- Results that follow each other stand in the order of their calls, where the format writes no ids: by their places
  alone the model knows which is which.
- An id that comes again names the newest call before it. Formats that look up a call by its id take one of them for
  all, so such calls get ids of their own where these are not written.
- Kimi is told a call's function by its id alone, `functions.NAME:N`, N counted over the conversation (its
  `docs/tool_call_guidance.md`). A call of another maker gets such an id.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

from rolloutfleet_proxy.domain.messages import Calls, Message, call_ids, in_order, lacks_arguments
from rolloutfleet_proxy.tokens.quirks import Unrenderable
from rolloutfleet_proxy.tokens.strict_json import json_value


class Ids(Enum):
    """What a format does with the ids of calls."""

    UNWRITTEN = auto()
    WRITTEN = auto()
    FUNCTIONS = auto()
    """Written, and all that is written of a call's function."""


def with_calls_told(messages: Sequence[Message], ids: Ids, *, start: int = 0) -> list[Message]:
    """The messages, those from `start` on as they will be written. Raises Unrenderable for a call's arguments there."""
    known = call_ids(messages[:start])
    # Where each id is one call's, those before stay as they are, and need not be gone through.
    first = 0 if ids is Ids.FUNCTIONS or len(set(known)) < len(known) else start
    calls = Calls(known if first else ())
    names = {call_id: call_id for call_id in calls.ids if call_id is not None}
    told, new = list(messages[:first]), messages[first:]
    for index, message in enumerate(new if ids is not Ids.UNWRITTEN else in_order(new, calls), first):
        form = message
        if made := message.get("tool_calls"):
            form = {**message, "tool_calls": [*made]}
            for number, call in enumerate(made):
                call_id = _id_of(call, ids, len(calls.ids) + number, names)
                if index >= start:
                    call = _with_object(call, f"messages[{index}].tool_calls[{number}].function.arguments")
                form["tool_calls"][number] = call if call_id is None else {**call, "id": call_id}
                if call.get("id"):
                    names[call["id"]] = call_id or call["id"]
            calls.add(call_ids([message]))
        elif (answered := message.get("tool_call_id")) and names.get(answered, answered) != answered:
            form = {**message, "tool_call_id": names[answered]}
        told.append(form)
    return told


def _id_of(call: dict[str, Any], ids: Ids, count: int, known: dict[str, str]) -> str | None:
    """Another id for a call that `count` come before; None where it keeps its own."""
    call_id, function = call.get("id") or "", call["function"]["name"]
    if ids is Ids.FUNCTIONS:
        name = call_id.partition(":")[0]  # as `renderers` reads it
        return None if function == name.partition(".")[2] or function == name else f"functions.{function}:{count}"
    return f"{call_id}.{count}" if ids is Ids.UNWRITTEN and call_id in known else None


def _with_object(call: dict[str, Any], at: str) -> dict[str, Any]:
    arguments = call["function"].get("arguments")
    if lacks_arguments(arguments):
        return {**call, "function": {**call["function"], "arguments": "{}"}}
    try:
        value = json_value(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Unrenderable("the arguments of a call must be a JSON object: mend them, or leave the call out", param=at)
    return call
