"""When two chat messages are the same, and digests that say so in 16 bytes.

An agent sends its whole conversation with every call, and its framework rebuilds the messages each time: fields appear
as null, not at all or newly, tool-call arguments are parsed and dumped again, reasoning is dropped. What the proxy
compares is therefore a canonical form of what the chat format writes of a message:

- a field that the format writes nowhere (`provider_specific_fields`, `annotations`, `reasoning_details` ...) doesn't
  count. What counts beside role, content and tool calls is in `Rules`;
- absent, null, empty string and empty list are the same;
- white space around an assistant's content doesn't count: frameworks add some, or take it away, when they hand a
  message back, and a turn that is extended keeps what was sampled;
- content given as a list of text parts is the same as the texts joined with nothing between them.
  Every format of `render` joins them so, and `render` hands the joined text on, which makes it true for all;
- of a tool call its function's name and arguments count. Arguments compare as JSON, whether they come as text or as an
  object: the order of keys doesn't matter, and 1.0 is 1. None, empty text, blanks and null are `{}`. Text that isn't
  JSON compares as text;
- a tool call's id doesn't count, only which call a tool message answers: ids that were all given new names are the same
  (`call_ids`, `renamed`);
- results that follow each other have the order of the calls that they answer (`in_order`);
- reasoning is digested apart, without the white space around it: a request may leave it out, but not change it
  (`tree.Tree.matches`).

What is equal here is only likely to be the same prompt. Tokens decide (`render`): where a turn is extended without
rendering it anew, nothing else may be left out here that the format would write.

Text content is digested as it is, behind the JSON of the other fields: as JSON it would have to be escaped first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import and_
from typing import Any, Final

import msgspec

from rolloutfleet_proxy.digests import digest16

Message = dict[str, Any]
"""An OpenAI chat message, as parsed JSON."""
Write = Callable[[list[Message]], str | None]
"""The text that a chat format makes of messages; None where it refuses them."""

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Degrees of reasoning, as the APIs of OpenAI and Anthropic call them."""

_MAX_EXACT_FLOAT = 2.0**53
_canonical_json = msgspec.json.Encoder(order="deterministic").encode
_decode_json = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class TemplateArgs:
    """What a chat template takes beside the messages."""

    tools: list[Any] | None = None
    """None where the model is told of no tools."""
    kwargs: Mapping[str, Any] | None = None
    """`chat_template_kwargs`, with `reasoning_effort` among them."""
    clock: float | None = None
    """The time for templates and formats that ask for it, in seconds since the epoch; None: the time it is. It makes no
    other conversation."""


NO_ARGS = TemplateArgs()


@dataclass(frozen=True, slots=True)
class Rules:
    """By which rules digests were made; those made by others can't be compared."""

    written: frozenset[tuple[str, str]] = frozenset()
    """(role, field) of what a chat format writes beside role, content, reasoning and tool calls."""

    @property
    def name(self) -> str:
        """Says them all, and the version of this module, so that stored digests say what they are of."""
        return " ".join([_VERSION, *(f"{role}.{field}" for role, field in sorted(self.written))])

    @classmethod
    def named(cls, name: str) -> Rules:
        """The rules of that name, as this version has them."""
        # Up to version 3 they also said, behind a dash, which white space a format drops.
        written = (each.split(".", 1) for each in name.split(" ")[1:] if not each.startswith("-"))
        return cls(frozenset((role, field) for role, field in written))


PLAIN_RULES = Rules()
_VERSION = "4"
"""1, which had no name, counted every field that a message had; to 2, a call without arguments was another than
one with `{}`, and results in another order were others; to 3, white space around content counted where the format
writes it."""


class Calls:
    """The tool calls of a conversation so far: which one a tool message's id names."""

    def __init__(self, ids: Sequence[str | None] = ()) -> None:
        self.ids: list[str | None] = []
        self._places: dict[str, int] = {}
        self.add(ids)

    def add(self, ids: Sequence[str | None]) -> None:
        for call_id in ids:
            if call_id is not None:
                self._places[call_id] = len(self.ids)
            self.ids.append(call_id)

    def place(self, message: Mapping[str, Any]) -> int | None:
        """Place among all calls of the one that a message answers, of two with one id the later; None where it doesn't
        answer any of them."""
        call_id = message.get("tool_call_id")
        return self._places.get(call_id) if type(call_id) is str else None


@dataclass(frozen=True, slots=True)
class Conversation:
    """The digests of a request: `chains[i]` after its first i messages, `reasonings[i]` of message i."""

    chains: list[bytes]
    reasonings: list[bytes | None]
    call_ids: list[str | None]
    """Of all its tool calls, in order."""


def reasoning_digest(message: Mapping[str, Any]) -> bytes | None:
    """16 bytes over a message's reasoning (`reasoning_content`, else `reasoning`); None where it has none."""
    reasoning = reasoning_of(message)
    if not reasoning:
        return None
    encoded = _utf8(reasoning) if isinstance(reasoning, str) else _encode(reasoning)
    return digest16(encoded)


def reasoning_of(message: Mapping[str, Any]) -> Any:
    """A message's reasoning without the white space around it; empty or None where it has none."""
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return reasoning.strip() if isinstance(reasoning, str) else reasoning


def conversation(messages: Sequence[Message], args: TemplateArgs, rules: Rules = PLAIN_RULES) -> Conversation:
    """Digest a request. Other tools or other template arguments make another conversation from its start."""
    chain = beginning(args)
    chains, calls = [chain], Calls()
    for message in in_order(messages, calls):
        chain = append(chain, message, rules, calls)
        chains.append(chain)
    return Conversation(chains, [reasoning_digest(message) for message in messages], calls.ids)


def beginning(args: TemplateArgs) -> bytes:
    """The chain before the first message."""
    return digest16(_encode({"tools": args.tools or [], "template": args.kwargs or {}}))


def append(chain: bytes, message: Mapping[str, Any], rules: Rules = PLAIN_RULES, calls: Calls | None = None) -> bytes:
    """The chain after one more message. `calls` are those before it, and get its own; an answer needs none."""
    if calls is None:
        return digest16(chain, *_canonical_bytes(message, rules, None))
    extended = digest16(chain, *_canonical_bytes(message, rules, calls.place(message)))
    calls.add(call_ids([message]))
    return extended


def call_ids(messages: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """The ids of the tool calls that messages make, in order; None of one without."""
    return [
        call_id if type(call_id := call.get("id")) is str and call_id else None
        for message in messages
        if type(calls := message.get("tool_calls")) is list
        for call in calls
        if type(call) is dict
    ]


def in_order(messages: Sequence[Message], calls: Calls) -> Iterable[Message]:
    """The messages, with results that follow each other in the order of the calls that they answer; as they came where
    one of them answers none. `calls` are those before, and whoever iterates adds those of each message."""
    are_results = [message.get("role") == "tool" for message in messages]
    return _with_results_sorted(messages, calls) if any(map(and_, are_results, are_results[1:])) else messages


def _with_results_sorted(messages: Sequence[Message], calls: Calls) -> Iterator[Message]:
    """Yield the messages, runs of results sorted by their calls; lazily, as `calls` grow meanwhile."""
    for is_result, run in groupby(messages, lambda message: message.get("role") == "tool"):
        if not is_result:
            yield from run
            continue
        results = list(run)
        places = [place for result in results if (place := calls.place(result)) is not None]
        if len(places) == len(results):
            results = [results[index] for index in sorted(range(len(places)), key=places.__getitem__)]
        yield from results


def lacks_arguments(arguments: Any) -> bool:
    """True of a call's arguments that are nothing, blanks or null, all of which mean `{}`."""
    return arguments is None or (type(arguments) is str and arguments.strip() in ("", "null"))


def renamed(messages: list[Message], known: Sequence[str | None]) -> list[Message]:
    """The messages with the ids by which their first tool calls are known; the very same list where they have them.

    The calls that follow keep their ids.
    """
    calls = Calls()
    changed: list[Message] = []
    for message in messages:
        place = calls.place(message)
        own = call_ids([message])
        first = len(calls.ids)
        calls.add(own)
        form = message
        if place is not None and place < len(known) and known[place] not in (None, message["tool_call_id"]):
            form = {**message, "tool_call_id": known[place]}
        ours = known[first : first + len(own)]
        if any(mine is not None and mine != theirs for mine, theirs in zip(ours, own, strict=False)):
            form = {**form, "tool_calls": _with_ids(form["tool_calls"], ours)}
        changed.append(form)
    return messages if all(form is message for form, message in zip(changed, messages, strict=True)) else changed


def _with_ids(calls: Sequence[Any], ids: Sequence[str | None]) -> list[Any]:
    left = iter(ids)
    named = []
    for call in calls:
        call_id = next(left, None) if type(call) is dict else None
        named.append(call if call_id is None else {**call, "id": call_id})
    return named


def joined_text(content: Any) -> str | None:
    """The text of a content list that holds text parts only, whatever else they say; None for any other content."""
    if not isinstance(content, list):
        return None
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            return None
        texts.append(part["text"])
    return "".join(texts)


def canonical(message: Mapping[str, Any], rules: Rules, place: int | None) -> dict[str, Any]:
    """What counts of a message beside its reasoning, by field. `place` is that of the call that it answers."""
    role, content = message.get("role"), message.get("content")
    form: dict[str, Any] = {"role": role}
    tool_calls = message.get("tool_calls")
    if not _is_empty(tool_calls):
        form["tool_calls"] = [_canonical_call(call) for call in tool_calls] if type(tool_calls) is list else tool_calls
    text = joined_text(content)
    content = content if text is None else text
    if role == "assistant" and isinstance(content, str):
        content = content.strip()
    if not _is_empty(content):
        form["content"] = content
    call_id = message.get("tool_call_id")
    if place is not None:
        form["tool_call_id"] = place
    elif not _is_empty(call_id):
        form["tool_call_id"] = ["unknown", call_id]
    for written_by, field in rules.written:
        if written_by == role and not _is_empty(value := message.get(field)):
            form[field] = value
    return form


def _canonical_bytes(message: Mapping[str, Any], rules: Rules, place: int | None) -> tuple[bytes, bytes]:
    """The canonical form without its content where that is text, as JSON, and that text. The JSON ends in a NUL, which
    JSON doesn't hold: where it ends is no question of what follows."""
    role, content = message.get("role"), message.get("content")
    if len(message) == 2 and type(role) is str and role in _PLAIN and type(content) is str and content:
        return _PLAIN[role], _utf8(content.strip() if role == "assistant" else content)
    form = canonical(message, rules, place)
    text = form.pop("content") if type(form.get("content")) is str else ""
    return _encode(form) + b"\0", _utf8(text)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _canonical_call(call: Any) -> Any:
    function = call.get("function") if type(call) is dict else None
    if type(function) is not dict:
        return call
    arguments = function.get("arguments")
    return {
        "name": function.get("name"),
        "arguments": ["json", {}] if lacks_arguments(arguments) else _canonical_arguments(arguments),
    }


def _canonical_arguments(arguments: Any) -> list[Any]:
    """Marked as JSON or text: text that isn't JSON never equals a JSON string of the same letters."""
    value = arguments
    try:
        if isinstance(arguments, str):
            value = _decode_json(arguments)
        return ["json", _canonical_numbers(value)]
    except (ValueError, RecursionError):
        return ["text" if isinstance(arguments, str) else "json", arguments]


def _canonical_numbers(value: Any) -> Any:
    """JSON has one kind of number: 1.0 and 1 are the same."""
    if type(value) is float:
        return int(value) if value.is_integer() and abs(value) <= _MAX_EXACT_FLOAT else value
    if type(value) is dict:
        return {key: _canonical_numbers(item) for key, item in value.items()}
    if type(value) is list:
        return [_canonical_numbers(item) for item in value]
    return value


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or value == []


def _encode(form: Any) -> bytes:
    try:
        return _canonical_json(form)
    except UnicodeEncodeError:
        # A lone surrogate, which no strict JSON parser lets in, has no UTF-8 form; escaped it still compares.
        return json.dumps(form, sort_keys=True, separators=(",", ":")).encode()


_PLAIN = {role: _encode({"role": role}) + b"\0" for role in ("system", "developer", "user", "assistant")}
"""What comes before the text of a message that has nothing else."""
