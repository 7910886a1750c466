"""Which part of a request a chat format has no form for.

A format refuses a whole conversation, in words that name no field of the request. So a request that was refused is
written again in parts: without its template arguments, its tools, messages and fields of them, until it is known which
of them makes the difference. Lists are halved, so a refusal costs some 40 renders at the most; of a long conversation,
which would hold up the prompts of others meanwhile, only `messages` is named.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Final

from rolloutfleet_proxy.domain.messages import NO_ARGS, Message, TemplateArgs

Writes = Callable[[Sequence[Message], TemplateArgs], bool]
"""Whether a format can write these."""

LONGEST_SEARCHED: Final = 100_000
"""Letters of a conversation and its tools."""
_FIELDS_TRIED: Final = 16
_FRAME: Final = frozenset({"role", "content", "tool_calls", "tool_call_id"})
_PLAIN: tuple[Message, ...] = ({"role": "user", "content": "?"},)
_WHAT_TO_WRITE = {
    "parameters": "the parameters of a function must be a JSON schema of an object",
    "description": "the description of a function must be text",
}


def what_to_write(place: str) -> str:
    """In the field that a path ends in."""
    return _WHAT_TO_WRITE.get(place.rpartition(".")[2], "change it or leave it out")


def place_of_fault(writes: Writes, messages: Sequence[Message], args: TemplateArgs) -> str:
    """The path of what is refused (`messages[3].tool_calls`); `messages` where no single message is at fault."""
    if len(str(messages)) + len(str(args.tools)) > LONGEST_SEARCHED:
        return "messages"
    if writes(_PLAIN, NO_ARGS):
        if args.kwargs and not writes(_PLAIN, TemplateArgs(kwargs=args.kwargs)):
            names = list(args.kwargs)
            return f"chat_template_kwargs.{names[0]}" if len(names) == 1 else "chat_template_kwargs"
        if args.tools and not writes(_PLAIN, TemplateArgs(args.tools)):
            return _in_tools(writes, args.tools)
    return _in_messages(writes, messages, args)


def _in_messages(writes: Writes, messages: Sequence[Message], args: TemplateArgs) -> str:
    bare = list(map(_bare, messages))

    def written(count: int) -> bool:
        return writes([*messages[:count], *bare[count:]], args)

    if written(0):
        index = _first_refused(len(messages), written)
        return f"messages[{index}]" + _in_message(writes, messages[: index + 1], bare[index + 1 :], args)
    # The order of messages may be at fault, or a message whole. What is cut off may have been needed as well.
    index = _first_refused(len(messages), lambda count: writes(messages[:count], args))
    before, after = messages[:index], messages[index + 1 :]
    field = _in_message(writes, messages[: index + 1], after, args)
    return f"messages[{index}]{field}" if field or writes([*before, *after], args) else "messages"


def _bare(message: Message) -> Message:
    """What gives a message its place in a conversation, and no more."""
    return {name: value for name, value in message.items() if name in _FRAME}


def _in_tools(writes: Writes, tools: list[Any]) -> str:
    index = _first_refused(len(tools), lambda count: writes(_PLAIN, TemplateArgs(tools[:count])))
    tool = tools[index]
    for field in ("parameters", "description"):
        function = {name: value for name, value in tool["function"].items() if name != field}
        if field in tool["function"] and writes(_PLAIN, TemplateArgs([{**tool, "function": function}])):
            return f"tools[{index}].function.{field}"
    return f"tools[{index}]"


def _in_message(writes: Writes, messages: Sequence[Message], after: Sequence[Message], args: TemplateArgs) -> str:
    """The path in the last of `messages`; empty for the whole of it."""
    *before, message = messages
    for field in [name for name in message if name not in ("role", "content")][:_FIELDS_TRIED]:
        if writes([*before, {name: value for name, value in message.items() if name != field}, *after], args):
            return f".{field}"
    return ""


def _first_refused(count: int, written: Callable[[int], bool]) -> int:
    """Index of one that is refused though those before it are written, where all together are refused."""
    return bisect_left(range(count - 1), True, key=lambda index: not written(index + 1))
