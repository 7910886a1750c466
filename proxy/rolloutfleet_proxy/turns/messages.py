"""When two chat messages are the same, and digests that say so in 16 bytes.

An agent sends its whole conversation with every call, and its framework rebuilds the messages each time:
fields appear as null or not at all, tool-call arguments are parsed and dumped again, reasoning is dropped.
What the proxy compares is therefore a canonical form:

- absent, null, empty string and empty list are the same;
- content given as a list of plain text parts is the same as the texts joined with nothing between them.
  Every format of `render` joins them so, and `render` hands the joined text on, which makes it true for all;
- tool-call arguments compare as JSON, whether they come as text or as an object: the order of keys doesn't
  matter, and 1.0 is 1. Text that isn't JSON compares as text. A tool call's `index` (a streaming detail)
  doesn't count;
- `cache_control` (a billing hint of some providers, which agents move from message to message) doesn't count;
- reasoning is digested apart: a request may leave it out, but not change it (`tree.Tree.matches`);
- every other field takes part, known or not.

Text content is digested as it is, behind the JSON of the other fields: as JSON it would have to be escaped first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from rolloutfleet_proxy.digests import digest16

Message = dict[str, Any]
"""An OpenAI chat message, as parsed JSON."""

_IGNORED = frozenset({"reasoning", "reasoning_content", "cache_control"})
_PLAIN_PART_FIELDS = frozenset({"type", "text", "cache_control"})
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


NO_ARGS = TemplateArgs()


@dataclass(frozen=True, slots=True)
class Conversation:
    """The digests of a request: `chains[i]` after its first i messages, `reasonings[i]` of message i."""

    chains: list[bytes]
    reasonings: list[bytes | None]


def digest(message: Mapping[str, Any]) -> bytes:
    """16 bytes over a message's canonical form, its reasoning left out."""
    return digest16(*_canonical_bytes(message))


def reasoning_digest(message: Mapping[str, Any]) -> bytes | None:
    """16 bytes over a message's reasoning (`reasoning_content`, else `reasoning`); None where it has none."""
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if not reasoning:
        return None
    encoded = _utf8(reasoning) if isinstance(reasoning, str) else _encode(reasoning)
    return digest16(encoded)


def conversation(messages: Sequence[Mapping[str, Any]], args: TemplateArgs) -> Conversation:
    """Digest a request. Other tools or other template arguments make another conversation from its start."""
    chain = digest16(_encode({"tools": args.tools or [], "template": args.kwargs or {}}))
    chains = [chain]
    for message in messages:
        chain = append(chain, message)
        chains.append(chain)
    return Conversation(chains, [reasoning_digest(message) for message in messages])


def append(chain: bytes, message: Mapping[str, Any]) -> bytes:
    """The chain after one more message."""
    return digest16(chain, *_canonical_bytes(message))


def joined_text(content: Any) -> str | None:
    """The text of a content list that holds plain text parts only; None for any other content."""
    if not isinstance(content, list):
        return None
    texts = []
    for part in content:
        if (
            not isinstance(part, dict)
            or part.get("type") != "text"
            or not isinstance(part.get("text"), str)
            or not part.keys() <= _PLAIN_PART_FIELDS
        ):
            return None
        texts.append(part["text"])
    return "".join(texts)


def _canonical_bytes(message: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """The canonical form without its content where that is text, as JSON, and that text. The JSON ends in a NUL, which
    JSON doesn't hold: where it ends is no question of what follows."""
    role, content = message.get("role"), message.get("content")
    if len(message) == 2 and type(role) is str and role in _PLAIN and type(content) is str and content:
        return _PLAIN[role], _utf8(content)
    form = _canonical(message)
    text = form.pop("content") if type(form.get("content")) is str else ""
    return _encode(form) + b"\0", _utf8(text)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _canonical(message: Mapping[str, Any]) -> dict[str, Any]:
    form = {key: value for key, value in message.items() if key not in _IGNORED and not _is_empty(value)}
    content = form.get("content")
    if type(content) is list:
        text = joined_text(content)
        if text:
            form["content"] = text
        elif text is not None:
            del form["content"]
    tool_calls = form.get("tool_calls")
    if type(tool_calls) is list:
        form["tool_calls"] = [_canonical_tool_call(call) for call in tool_calls]
    return form


def _canonical_tool_call(call: Any) -> Any:
    if type(call) is not dict:
        return call
    form = {key: value for key, value in call.items() if key != "index" and not _is_empty(value)}
    function = form.get("function")
    if type(function) is dict:
        function = {key: value for key, value in function.items() if not _is_empty(value)}
        if "arguments" in function:
            function["arguments"] = _canonical_arguments(function["arguments"])
        form["function"] = function
    return form


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
