"""Messages that a chat format wouldn't write as they stand: in a form that every format can write.

- A call's arguments are a JSON object: none, blanks and null are `{}`, and a call with any other text is refused.
  Formats would write what is no JSON, or the call without it.
- Results that follow each other stand in the order of their calls, where the format writes no ids: by their places
  alone the model knows which is which.
- An id that comes again names the newest call before it. Formats that look up a call by its id take one of them for
  all, so such calls get ids of their own where these are not written.
- Kimi is told a call's function by its id alone, `functions.NAME:N`, N counted over the conversation (its
  `docs/tool_call_guidance.md`). A call of another maker gets such an id.
- System messages, where a format would refuse, move or drop them: those that lead are joined into one, and later ones
  are written as a user's message in their own place. Developer messages are meant as well, where a format writes both
  alike.
- What an assistant says beside its tool calls, where a format would drop it, is written as an assistant's message of
  its own, in front of the calls. Only what is rendered anew is concerned: a turn that is extended keeps its sampled
  tokens, whatever they say.

Which a format does is found out when it is loaded (`support`). A rendering and a bridge are given the same, so they
agree. What is lost all the same is refused (`at_risk`).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

from rolloutfleet_proxy.domain.messages import Calls, Message, call_ids, in_order, lacks_arguments
from rolloutfleet_proxy.tokens.argument_values import json_value
from rolloutfleet_proxy.tokens.quirks import Unrenderable

_REMINDER = "<system-reminder>\n{}\n</system-reminder>"
_SAID = frozenset(("content", "reasoning", "reasoning_content"))


Ids = Literal["unwritten", "written", "functions"]
"""What a format does with the ids of calls: it writes none, writes them, or writes no more of a call's function."""


def with_calls_told(messages: Sequence[Message], ids: Ids, *, start: int = 0) -> list[Message]:
    """The messages, those from `start` on as they will be written. Raises Unrenderable for a call's arguments there."""
    known = call_ids(messages[:start])
    # Where each id is one call's, those before stay as they are, and need not be gone through.
    first = 0 if ids == "functions" or len(set(known)) < len(known) else start
    calls = Calls(known if first else ())
    names = {call_id: call_id for call_id in calls.ids if call_id is not None}
    told, new = list(messages[:first]), messages[first:]
    for index, message in enumerate(new if ids != "unwritten" else in_order(new, calls), first):
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
    if ids == "functions":
        name = call_id.partition(":")[0]  # as `renderers` reads it
        return None if function == name.partition(".")[2] or function == name else f"functions.{function}:{count}"
    return f"{call_id}.{count}" if ids == "unwritten" and call_id in known else None


def _with_object(call: dict[str, Any], at: str) -> dict[str, Any]:
    arguments = call["function"].get("arguments")
    if lacks_arguments(arguments):
        return {**call, "function": {**call["function"], "arguments": "{}"}}
    with suppress(ValueError):
        value = json_value(arguments) if isinstance(arguments, str) else arguments
        if isinstance(value, dict):
            return call
    raise Unrenderable("the arguments of a call must be a JSON object: mend them, or leave the call out", param=at)


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


def adapted(messages: Sequence[Message], support: Support, *, start: int = 0) -> list[Message]:
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
        if (index > 0 and _is_system(message)) or (not support.text_with_calls and _has_text_with_calls(message)):
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
    says = isinstance(content, str) and content.strip()
    return bool(says and message["role"] == "assistant" and message.get("tool_calls"))


def _is_system(message: Message) -> bool:
    return message["role"] in ("system", "developer")


def _as_user(message: Message) -> Message:
    return {"role": "user", "content": _REMINDER.format(message["content"])} if _is_system(message) else message
