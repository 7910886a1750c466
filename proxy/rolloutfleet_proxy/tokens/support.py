"""The parts of a conversation that a chat format writes, found out by having it write some when it is loaded.

Each of its messages is a word of its own: they are written as they stand where all are in the text, in their order.

Tools, the calls of a conversation and their results are dropped where something else in their place makes the same
prompt. Where a format did so, that is tried again with each request that is rendered from its start.

A format refuses a whole conversation, in words that name no field of the request. So a request that was refused is
written again in parts (`place_of_fault`): without its template arguments, its tools, messages and fields of them, until
it is known which of them makes the difference. Lists are halved, so a refusal costs some 40 renders at the most; of a
long conversation, which would hold up the prompts of others meanwhile, only `messages` is named.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from rolloutfleet_proxy.domain.messages import NO_ARGS, Message, TemplateArgs, Write
from rolloutfleet_proxy.tokens.history import Ids, Support

Prompts = Callable[[Sequence[Message], TemplateArgs], Any]
"""The prompt of messages; None where the format refuses them."""
_WORDS: Final = tuple(f"w{number}rd" for number in range(31, 38))
_SAID = "w41rd w42rd"
_USER: Message = {"role": "user", "content": "w44rd"}
_ANSWER: Message = {"role": "assistant", "content": "w45rd"}
_MORE: Message = {"role": "user", "content": "w46rd"}
_ONE, _OTHER = "functions.w51rd:0", "functions.w51rd:1"
_TOOL = {"name": "w51rd", "description": "w52rd", "parameters": {"type": "object", "properties": {}}}
TOLD: Final = TemplateArgs([{"type": "function", "function": _TOOL}])
"""A tool that a format is tried with."""

CanWrite = Callable[[Sequence[Message], TemplateArgs], bool]

LONGEST_SEARCHED: Final = 100_000
"""Letters of a conversation and its tools."""
_FIELDS_TRIED: Final = 16
_FRAME: Final = frozenset({"role", "content", "tool_calls", "tool_call_id"})
"""Fields that give a message its place in a conversation."""
WHAT_TO_WRITE = {
    "parameters": "the parameters of a function must be a JSON schema of an object, its descriptions text",
    "description": "the description of a function must be text",
}
"""Fields of a function that a format may refuse."""


def _calling(content: str, *call_ids: str) -> list[Message]:
    """An assistant's message with a call of each id, and the results."""
    function = {"name": "w51rd", "arguments": '{"w53rd": 1}'}
    calls = [{"id": each, "type": "function", "function": function} for each in call_ids]
    results = [{"role": "tool", "tool_call_id": each, "name": "w51rd", "content": "w58rd"} for each in call_ids]
    return [{"role": "assistant", "content": content, "tool_calls": calls}, *results]


def support_of(prompt: Prompts) -> Support:
    """The messages that a format can hold, with tools or without. `prompt` is text."""
    told = [NO_ARGS] if prompt([_USER], TOLD) is None else [NO_ARGS, TOLD]

    def holds(*roles: str) -> bool:
        said = [{"role": role, "content": word} for role, word in zip(roles, _WORDS, strict=False)]
        return all(_in_order(prompt, said, args) for args in told)

    called = [_USER, *_calling(_SAID, _ONE), _ANSWER, _MORE]
    plain = [_USER, {"role": "assistant", "content": _SAID}, _ANSWER, _MORE]
    return Support(
        first=holds("system", "user"),
        leading=holds("system", "system", "user"),
        later=holds("system", "user", "system", "assistant", "system", "user", "system"),
        # Of a format that doesn't write the plain ones, such a conversation shows nothing.
        text_with_calls=_in_order(prompt, called) or not _in_order(prompt, plain),
    )


def _in_order(prompt: Prompts, messages: Sequence[Message], args: TemplateArgs = NO_ARGS) -> bool:
    """Whether what is said in messages, results of tools left out, is written in its order."""
    text = prompt(messages, args) or ""
    places = [text.find(each["content"]) for each in messages if each["role"] != "tool"]
    return -1 not in places and places == sorted(places)


def ids_of(write: Write) -> Ids:
    """The form of calls' ids in a prompt: written, or not."""
    one, other = (write([_USER, *_calling("", each)]) for each in (_ONE, _OTHER))
    return "unwritten" if one == other else "written"


def drops_some(prompt: Prompts) -> bool:
    """Whether a format drops something of a conversation with tools, or refuses that."""
    one, several = [_USER, *_calling("", _ONE)], [_USER, *_calling("", _ONE, _OTHER)]
    asked = [one] if prompt(several, TOLD) is None else [one, several]
    return any(dropped(prompt, each, TOLD) for each in asked)


def dropped(prompt: Prompts, messages: Sequence[Message], args: TemplateArgs) -> str | None:
    """The path of what is not in the prompt of messages; None where all is. The last call of the first message with
    some stands for all calls, and the last result for all results."""
    whole = prompt(messages, args)
    if args.tools and prompt(messages, replace(args, tools=None)) == whole:
        return "tools"
    for index, field, other in _changed(messages):
        if prompt([*messages[:index], other, *messages[index + 1 :]], args) == whole:
            return f"messages[{index}].{field}"
    return None


def _changed(messages: Sequence[Message]) -> Iterator[tuple[int, str, Message]]:
    """Messages that say something else in one field, by their place."""
    for index in [index for index, each in enumerate(messages) if each.get("tool_calls")][:1]:
        *others, last = messages[index]["tool_calls"]
        for changed in ({"name": "w56rd"}, {"arguments": '{"w57rd": 2}'}):
            call = {**last, "function": {**last["function"], **changed}}
            yield index, "tool_calls", {**messages[index], "tool_calls": [*others, call]}
    for index in [index for index, each in enumerate(messages) if each.get("tool_call_id")][-1:]:
        yield index, "content", {**messages[index], "content": "w55rd"}


def place_of_fault(writes: CanWrite, messages: Sequence[Message], args: TemplateArgs) -> str:
    """The path of what is refused (`messages[3].tool_calls`); `messages` where no single message is at fault."""
    if len(str(messages)) + len(str(args.tools)) > LONGEST_SEARCHED:
        return "messages"

    def alone(**given: Any) -> bool:
        return writes([_USER], TemplateArgs(**given))

    if alone():
        kwargs, tools = args.kwargs or {}, args.tools or []
        if not alone(kwargs=kwargs):
            return "chat_template_kwargs" + _field(kwargs, kwargs, lambda others: alone(kwargs=others))
        if not alone(tools=tools):
            index = _first_refused(len(tools), lambda count: alone(tools=tools[:count]))
            tool = tools[index]
            function = _field(tool["function"], WHAT_TO_WRITE, lambda other: alone(tools=[{**tool, "function": other}]))
            return f"tools[{index}]" + (function and f".function{function}")
    return _in_messages(writes, messages, args)


def _in_messages(writes: CanWrite, messages: Sequence[Message], args: TemplateArgs) -> str:
    bare = [{name: value for name, value in message.items() if name in _FRAME} for message in messages]
    # Where not even these are written, the order of messages may be at fault, or a message whole. What is cut off may
    # have been needed as well.
    rest = bare if writes(bare, args) else []
    index = _first_refused(len(messages), lambda count: writes([*messages[:count], *rest[count:]], args))
    before, message, after = messages[:index], messages[index], (rest or messages)[index + 1 :]
    fields = [name for name in message if name not in ("role", "content")]
    field = _field(message, fields, lambda other: writes([*before, other, *after], args))
    return f"messages[{index}]{field}" if rest or field or writes([*before, *after], args) else "messages"


def _field(whole: Mapping[str, Any], fields: Iterable[str], writes: Callable[[dict[str, Any]], bool]) -> str:
    """The path of the field without which the whole is written; empty where it is none of these."""
    for field in islice(fields, _FIELDS_TRIED):
        if field in whole and writes({name: value for name, value in whole.items() if name != field}):
            return f".{field}"
    return ""


def _first_refused(count: int, written: Callable[[int], bool]) -> int:
    """Index of one that is refused though those before it are written, where all together are refused."""
    return bisect_left(range(count - 1), True, key=lambda index: not written(index + 1))
