"""The parts of a conversation that a chat format writes, found out by having it write some when it is loaded.

Each of its messages is a word of its own: they are written as they stand where all are in the text, in their order.

White space around an assistant's content doesn't count, where messages are compared, if the format doesn't write it.
Frameworks put a line break before the content, or take one away, when they hand a message with its reasoning back. Many
templates drop such spaces themselves: some always, some where they write the reasoning before it. Of a message with
reasoning those places count where the format writes that reasoning. Elsewhere it takes the reasoning away, which a turn
that is extended keeps as well.

Tools, the calls of a conversation and their results are dropped where something else in their place makes the same
prompt. Where a format did so, that is tried again with each request that is rendered from its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from rolloutfleet_proxy.domain.messages import Message, Outer, Space, TemplateArgs, Write
from rolloutfleet_proxy.tokens.adapted_messages import Support

Prompts = Callable[[Sequence[Message], TemplateArgs], Any]
"""The prompt of messages; None where the format refuses them."""
_WORDS: Final = tuple(f"w{number}rd" for number in range(31, 38))
_SAID, _THOUGHT = "w41rd w42rd", "w43rd"
_USER: Message = {"role": "user", "content": "w44rd"}
_ANSWER: Message = {"role": "assistant", "content": "w45rd"}
_MORE: Message = {"role": "user", "content": "w46rd"}
_ONE, _OTHER = "functions.w51rd:0", "functions.w51rd:1"
_TOOL = {"name": "w51rd", "description": "w52rd", "parameters": {"type": "object", "properties": {}}}
_ARGS = TemplateArgs([{"type": "function", "function": _TOOL}])
_SPACES: Final[tuple[tuple[Space, str], ...]] = (("spaces", " \t\n\u2003"), ("lines", "\n\n"))


def _calling(content: str, *call_ids: str) -> list[Message]:
    """An assistant's message with a call of each id, and the results."""
    function = {"name": "w51rd", "arguments": '{"w53rd": 1}'}
    calls = [{"id": each, "type": "function", "function": function} for each in call_ids]
    results = [{"role": "tool", "tool_call_id": each, "name": "w51rd", "content": "w58rd"} for each in call_ids]
    return [{"role": "assistant", "content": content, "tool_calls": calls}, *results]


def support_of(write: Write, *, kinds: Sequence[str] = ("system",)) -> Support:
    """The messages that a format can hold, system messages in each of these roles."""

    def holds(*roles: str) -> bool:
        said = list(zip(roles, _WORDS, strict=False))
        return all(
            _in_order(write, [{"role": kind if role == "system" else role, "content": word} for role, word in said])
            for kind in kinds
        )

    called = [_USER, *_calling(_SAID, _ONE), _ANSWER, _MORE]
    plain = [_USER, {"role": "assistant", "content": _SAID}, _ANSWER, _MORE]
    return Support(
        first=holds("system", "user"),
        leading=holds("system", "system", "user"),
        later=holds("system", "user", "system", "assistant", "system", "user", "system"),
        # Of a format that doesn't write the plain ones, such a conversation shows nothing.
        text_with_calls=_in_order(write, called) or not _in_order(write, plain),
    )


def _in_order(write: Write, messages: Sequence[Message]) -> bool:
    """Whether what is said in messages, results of tools left out, is written in its order."""
    text = write(list(messages)) or ""
    places = [text.find(each["content"]) for each in messages if each["role"] != "tool"]
    return -1 not in places and places == sorted(places)


def writes_ids(write: Write) -> bool:
    """Whether the ids of calls are in a prompt."""
    return write([_USER, *_calling("", _ONE)]) != write([_USER, *_calling("", _OTHER)])


def trimmed_whitespace(write: Write, *, reasoned: bool) -> Outer:
    """What a format leaves out around the content of messages that carry reasoning, or of those that don't."""
    said: Message = {"role": "assistant", "content": _SAID}
    call, result = _calling(_SAID, _ONE)
    places = [(said, [_MORE]), (said, [_MORE, _ANSWER, _MORE]), (call, [result]), (call, [result, _MORE])]
    thought = {"reasoning_content": _THOUGHT} if reasoned else {}

    def written(message: Message, following: list[Message], content: str) -> str | None:
        return write([_USER, {**message, **thought, "content": content}, *following])

    found = [(place, text) for place in places if (text := written(*place, _SAID)) is not None]
    counted = [(place, text) for place, text in found if _THOUGHT in text] or found

    def drops(content: str) -> bool:
        return bool(counted) and all(written(*place, content) == text for place, text in counted)

    return Outer(
        start=next((kind for kind, space in _SPACES if drops(f"{space}{_SAID}")), "kept"),
        end=next((kind for kind, space in _SPACES if drops(f"{_SAID}{space}")), "kept"),
    )


def drops_some(prompt: Prompts) -> bool:
    """Whether a format drops something of a conversation with tools, or refuses that."""
    if dropped(prompt, [_USER, *_calling("", _ONE)], _ARGS):
        return True
    several = [_USER, *_calling("", _ONE, _OTHER)]
    return prompt(several, _ARGS) is not None and dropped(prompt, several, _ARGS) is not None


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
