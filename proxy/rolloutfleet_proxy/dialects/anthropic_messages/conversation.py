"""`system` and `messages` -> messages in the canonical form (`domain.messages`). Pure.

- `system` becomes a system message: its blocks are texts of their own, so an empty line stands between them.
- Text blocks of a message are joined with nothing between them, as text parts are in chat completions.
- Each `tool_result` becomes a tool message, and what stands before and behind it in the same message a user's message.
- Of an assistant's message `thinking` becomes reasoning, and `tool_use` a tool call whose arguments are JSON text. Of
  several assistant's messages in a row the API makes one.
- `document` and `search_result` become text where they are text, a `tool_reference` the tool's name, a `compaction` its
  summary, an image what `images` says.

What is from elsewhere, and can't be rendered, is ignored and named: signatures, `redacted_thinking`, server tools'
calls and results, and that a declared tool is there from now on, or no more: all of them are in the prompt. A failed
tool's `is_error` is named as well: chat formats have no place for it, and the result's text says what went wrong.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

from rolloutfleet_proxy.dialects.anthropic_messages.notes import Notes
from rolloutfleet_proxy.dialects.depth import check_depth
from rolloutfleet_proxy.dialects.mistakes import kind_of, text_of
from rolloutfleet_proxy.domain.errors import InvalidParameter, MissingParameter, UnsupportedParameter
from rolloutfleet_proxy.domain.messages import Message, lacks_arguments

Block = dict[str, Any]

BILLING: Final = "x-anthropic-billing-header"
"""What Claude Code puts before its system prompt, with a hash that differs from session to session, and in some
versions from request to request."""
_BILLING_LINE: Final = re.compile(rf"{BILLING}:[^\n]*\n*")

_MESSAGE = frozenset(("role", "content"))
_TEXT = frozenset(("type", "text"))
_THINKING = frozenset(("type", "thinking", "signature"))
_TOOL_USE = frozenset(("type", "id", "name", "input"))
_TOOL_RESULT = frozenset(("type", "tool_use_id", "content"))
_IMAGE = frozenset(("type", "source"))
_DOCUMENT = frozenset(("type", "source", "title", "context"))
_SEARCH_RESULT = frozenset(("type", "source", "title", "content"))
_TOOL_REFERENCE = frozenset(("type", "tool_name"))

_COMPACTION = frozenset(("type", "content"))

_ELSEWHERE = frozenset(
    ("redacted_thinking", "server_tool_use", "mcp_tool_use", "mcp_tool_listing", "container_upload", "fallback")
)
"""Blocks of an assistant's message that only their maker understands, beside results of its tools."""

_dumps = json.JSONEncoder(ensure_ascii=False).encode


def conversation(system: str | list[Block] | None, messages: list[Block], notes: Notes) -> list[Message]:
    """Raises InvalidRequest that names the field at fault."""
    said: list[Message] = []
    prompt = _system(system, notes)
    if prompt:
        said.append({"role": "system", "content": prompt})
    spoken = None
    for index, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role == "assistant":
            spoken = spoken or _Spoken()
            _read_spoken(spoken, message, notes, at=f"messages[{index}]")
            continue
        if spoken is not None:
            said.append(spoken.message())
            spoken = None
        if type(content) is str and len(message) == 2 and (role == "user" or role == "system"):
            said.append({"role": role, "content": content})
        else:
            _add(said, message, notes, at=f"messages[{index}]")
    return said if spoken is None else [*said, spoken.message()]


def _system(system: str | list[Block] | None, notes: Notes) -> str:
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system or []
    texts = []
    for index, block in enumerate(blocks):
        at = f"system[{index}]"
        if block.get("type") != "text":
            raise _unsupported(block, at=at)
        text = _text(block, notes, at=at)
        billing = _BILLING_LINE.match(text)
        if billing is not None:
            notes.stripped[BILLING] = None
            text = text[billing.end() :]
        texts.append(text)
    return "\n\n".join(filter(None, texts))


def _add(said: list[Message], message: Block, notes: Notes, *, at: str) -> None:
    role = message.get("role")
    if role is None:
        raise MissingParameter(f"{at}.role")
    if role not in ("user", "system"):
        raise InvalidParameter(f"{at}.role", "A role is user, assistant or system.")
    blocks = _content(message, notes, at=at)
    if role == "user":
        said += _of_user(blocks, notes, at=f"{at}.content")
    else:
        said.append({"role": "system", "content": _texts(blocks, notes, at=f"{at}.content")})


def _content(message: Block, notes: Notes, *, at: str) -> list[Block]:
    content = message.get("content")
    if content is None:
        raise MissingParameter(f"{at}.content")
    notes.others(message, _MESSAGE, at=at)
    return _blocks(content, at=f"{at}.content")


def _blocks(content: Any, *, at: str) -> list[Block]:
    if type(content) is str:
        return [{"type": "text", "text": content}]
    if type(content) is not list:
        raise InvalidParameter(at, "Content is a string or a list of blocks.")
    for index, block in enumerate(content):
        kind_of(block, what="A content block", at=f"{at}[{index}]")
    return content


# A user's messages


def _of_user(blocks: list[Block], notes: Notes, *, at: str) -> list[Message]:
    said: list[Message] = []
    texts: list[str] = []
    for index, block in enumerate(blocks):
        where = f"{at}[{index}]"
        if block["type"] != "tool_result":
            texts.append(_rendered(block, notes, at=where))
            continue
        if texts:
            said.append({"role": "user", "content": "".join(texts)})
            texts = []
        said.append(_tool_result(block, notes, at=where))
    if texts or not said:
        said.append({"role": "user", "content": "".join(texts)})
    return said


def _tool_result(block: Block, notes: Notes, *, at: str) -> Message:
    notes.others(block, _TOOL_RESULT, at=at)
    call_id = text_of(block, "tool_use_id", at=at, rule="tool_use_id is the id of the tool_use that this answers.")
    content = block.get("content")
    blocks = [] if content is None else _blocks(content, at=f"{at}.content")
    return {"role": "tool", "tool_call_id": call_id, "content": _texts(blocks, notes, at=f"{at}.content")}


def _texts(blocks: list[Block], notes: Notes, *, at: str) -> str:
    return "".join(_rendered(block, notes, at=f"{at}[{index}]") for index, block in enumerate(blocks))


def _rendered(block: Block, notes: Notes, *, at: str) -> str:
    """The text that stands in the prompt for a block that a user, a system or a tool says."""
    kind = block["type"]
    if kind == "text":
        return _text(block, notes, at=at)
    if kind == "image":
        return _image(block, notes, at=at)
    if kind == "document":
        return _document(block, notes, at=at)
    if kind == "search_result":
        return _search_result(block, notes, at=at)
    if kind == "tool_reference":
        notes.others(block, _TOOL_REFERENCE, at=at)
        return text_of(block, "tool_name", at=at, empty=True)
    if kind == "tool_removal" or (kind == "tool_addition" and _is_of_a_declared_tool(block)):
        notes.ignored.append(f"{at}.{kind}")
        return ""
    raise _unsupported(block, at=at)


def _is_of_a_declared_tool(addition: Block) -> bool:
    """Of one that is defined in the block itself the model would never know."""
    tool = addition.get("tool")
    return type(tool) is dict and str(tool.get("type")).endswith("_reference")


def _text(block: Block, notes: Notes, *, at: str) -> str:
    notes.others(block, _TEXT, at=at)
    return text_of(block, "text", at=at, empty=True)


def _image(block: Block, notes: Notes, *, at: str) -> str:
    text = notes.images.text(block, "source", dict, at=at)
    notes.others(block, _IMAGE, at=at)
    return text


def _document(block: Block, notes: Notes, *, at: str) -> str:
    notes.others(block, _DOCUMENT, at=at)
    source = block.get("source")
    if type(source) is not dict:
        raise InvalidParameter(f"{at}.source", "A document's source is an object.")
    kind = source.get("type")
    if kind == "text":
        text = text_of(source, "data", at=f"{at}.source", empty=True)
    elif kind == "content":
        inner = _blocks(source.get("content"), at=f"{at}.source.content")
        text = _texts(inner, notes, at=f"{at}.source.content")
    else:
        raise UnsupportedParameter(f"{at}.source.type", "only documents of type text and content can be rendered.")
    return _titled(block, ("title", "context"), text, at=at)


def _search_result(block: Block, notes: Notes, *, at: str) -> str:
    notes.others(block, _SEARCH_RESULT, at=at)
    text = _texts(_blocks(block.get("content"), at=f"{at}.content"), notes, at=f"{at}.content")
    return _titled(block, ("title", "source"), text, at=at)


def _titled(block: Block, fields: tuple[str, ...], text: str, *, at: str) -> str:
    heads = [text_of(block, field, at=at, empty=True) for field in fields if block.get(field) is not None]
    return "\n".join([*heads, text])


# An assistant's messages


@dataclass(slots=True)
class _Spoken:
    """What the assistant says in a row, gathered: joined one by one, many messages would take time as their square."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def message(self) -> Message:
        message: Message = {"role": "assistant", "content": "".join(self.texts) or (None if self.calls else "")}
        reasoning = "".join(self.thoughts)
        if reasoning:
            message["reasoning_content"] = reasoning
        if self.calls:
            message["tool_calls"] = self.calls
        return message


def _read_spoken(spoken: _Spoken, message: Block, notes: Notes, *, at: str) -> None:
    for index, block in enumerate(_content(message, notes, at=at)):
        where, kind = f"{at}.content[{index}]", block["type"]
        if kind == "text":
            spoken.texts.append(_text(block, notes, at=where))
        elif kind == "thinking":
            spoken.thoughts.append(_thinking(block, notes, at=where))
        elif kind == "compaction":
            notes.others(block, _COMPACTION, at=where)
            spoken.texts.append("" if block.get("content") is None else text_of(block, "content", at=where, empty=True))
        elif kind == "tool_use":
            spoken.calls.append(_tool_use(block, notes, at=where))
        elif kind in _ELSEWHERE or kind.endswith("_tool_result"):
            notes.ignored.append(f"{where}.{kind}")
        else:
            raise _unsupported(block, at=where)


def _thinking(block: Block, notes: Notes, *, at: str) -> str:
    """Its signature is its maker's; ours are empty."""
    notes.others(block, _THINKING, at=at)
    if block.get("signature"):
        notes.ignored.append(f"{at}.signature")
    return text_of(block, "thinking", at=at, empty=True)


def _tool_use(block: Block, notes: Notes, *, at: str) -> dict[str, Any]:
    notes.others(block, _TOOL_USE, at=at)
    call_id, name, given = block.get("id"), block.get("name"), block.get("input")
    if type(call_id) is not str or not call_id:
        raise InvalidParameter(f"{at}.id", "A tool_use has an id, a string.")
    if type(name) is not str or not name:
        raise InvalidParameter(f"{at}.name", "A tool_use has a name, a string.")
    if lacks_arguments(given):
        given = {}
    if type(given) is not dict:
        raise InvalidParameter(f"{at}.input", "A tool_use's input is an object.")
    check_depth(given, at=f"{at}.input")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": _dumps(given)}}


def _unsupported(block: Block, *, at: str) -> UnsupportedParameter:
    return UnsupportedParameter(f"{at}.type", f"blocks of type {str(block.get('type'))[:40]!r} can't be rendered here.")
