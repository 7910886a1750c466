"""What of tools a chat format drops without a word: their descriptions, the calls of a conversation, or the results.

A format writes a thing where something else in its place makes another prompt. That is tried when the format is loaded,
and where something was dropped, with each request that is rendered from its start, which is refused then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rolloutfleet_proxy.domain.messages import Message, TemplateArgs

Prompts = Callable[[Sequence[Message], TemplateArgs], Any]
"""The prompt of messages; None where the format refuses them."""

_TOOL = {"name": "w51rd", "description": "w52rd", "parameters": {"type": "object", "properties": {}}}
_ARGS = TemplateArgs([{"type": "function", "function": _TOOL}])


def _conversation(*call_ids: str) -> list[Message]:
    function = {"name": "w51rd", "arguments": '{"w53rd": 1}'}
    return [
        {"role": "user", "content": "w54rd"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": each, "type": "function", "function": function} for each in call_ids],
        },
        *({"role": "tool", "tool_call_id": each, "content": "w58rd"} for each in call_ids),
    ]


_ONE, _OTHER = "functions.w51rd:0", "functions.w51rd:1"


def drops_some(prompt: Prompts) -> bool:
    """Whether a format drops something of a conversation with tools, or refuses that."""
    if dropped(prompt, _conversation(_ONE), _ARGS):
        return True
    several = _conversation(_ONE, _OTHER)
    return prompt(several, _ARGS) is not None and dropped(prompt, several, _ARGS) is not None


def writes_ids(prompt: Prompts) -> bool:
    """Whether the ids of calls are in a prompt."""
    return bool(prompt(_conversation(_ONE), _ARGS) != prompt(_conversation(_OTHER), _ARGS))


def dropped(prompt: Prompts, messages: Sequence[Message], args: TemplateArgs) -> str | None:
    """The path of what is not in the prompt of messages; None where all is. The last call of the first message with
    some stands for all calls, and the last result for all results."""
    whole = prompt(messages, args)
    if args.tools and prompt(messages, replace(args, tools=None)) == whole:
        return "tools"
    others = (
        (f"messages[{index}].{field}", [*messages[:index], other, *messages[index + 1 :]])
        for index, field, other in _changed(messages)
    )
    return next((path for path, changed in others if prompt(changed, args) == whole), None)


def _changed(messages: Sequence[Message]) -> Iterator[tuple[int, str, Message]]:
    """Messages that say something else in one field, by their place."""
    for index in [index for index, each in enumerate(messages) if each.get("tool_calls")][:1]:
        *others, last = messages[index]["tool_calls"]
        for changed in ({"name": "w56rd"}, {"arguments": '{"w57rd": 2}'}):
            call = {**last, "function": {**last["function"], **changed}}
            yield index, "tool_calls", {**messages[index], "tool_calls": [*others, call]}
    for index in [index for index, each in enumerate(messages) if each.get("tool_call_id")][-1:]:
        yield index, "content", {**messages[index], "content": "w55rd"}
