"""Reading a reply: output ids -> a message in OpenAI's form, whole or as it grows.

What a parser fails on stays as text: tokens that were made are never lost.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from renderers.base import ParsedToolCall, ToolCallParseStatus

from rolloutfleet_proxy.domain.messages import Message
from rolloutfleet_proxy.tokens.quirks import before_calls, readable, stripped
from rolloutfleet_proxy.tokens.vocabulary import Run, Vocabulary

log = logging.getLogger(__name__)

_FUNCTION_NAME = re.compile(r"[^\s<>{}\"]{1,256}")


@dataclass(frozen=True, slots=True)
class Scan:
    """What a reply says so far; `malformed` are tool calls, as text, that are not calls."""

    reasoning: str
    content: str
    tool_calls: list[dict[str, Any]]
    malformed: list[str]


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads one reply. The same turn (`seed`) gets the same tool call ids. Reads of a growing reply agree with each
    other but for what its last tokens leave open."""

    name: str
    renderer: Any
    vocabulary: Vocabulary
    tail: list[int]
    tools: list[Any] | None
    seed: bytes

    def scan(self, packed: list[int]) -> Scan:
        """What packed ids (`Vocabulary.packed`) say, if they were the whole reply."""
        packed = readable(self.name, packed, self.vocabulary)
        parsed = self.renderer.parse_response(packed, tools=self.tools, prompt_ids=self.tail or None)
        reasoning, content = stripped(
            self.name,
            reasoning=parsed.reasoning_content or "",
            content=parsed.content or "",
            closed=parsed.reasoning_complete is not False,
        )
        calls: list[dict[str, Any]] = []
        malformed: list[ParsedToolCall] = []
        for attempt in parsed.tool_calls:
            call = self._tool_call(attempt, calls)
            if call is None:
                malformed.append(attempt)
            else:
                calls.append(call)
        if calls and not malformed:
            content = before_calls(self.name, content)
        return Scan(reasoning, content, calls, self._texts_of(malformed, packed))

    def read(self, output_ids: Sequence[int], *, stop: str | None = None) -> Message:
        """The message that a whole reply is. What a parser fails on is text: tokens that were made are never lost.

        `stop` is the stop string that ended the generation: it and what follows it isn't part of the answer.
        """
        packed = self.vocabulary.packed(output_ids)
        if stop:
            packed = cut_at(packed, stop)
        try:
            scan = self.scan(packed)
        except Exception:
            log.warning("a reply that the chat format %s can't read stays as text", self.name, exc_info=True)
            scan = Scan("", self.vocabulary.decode(packed), [], [])
        content = "\n".join([scan.content, *scan.malformed] if scan.content else scan.malformed)
        message: Message = {"role": "assistant", "content": content or (None if scan.tool_calls else "")}
        if scan.reasoning:
            message["reasoning_content"] = scan.reasoning
        if scan.tool_calls:
            message["tool_calls"] = scan.tool_calls
        return message

    def _texts_of(self, attempts: list[ParsedToolCall], packed: list[int]) -> list[str]:
        """What the model wrote for each; several calls of one block share its text."""
        texts: dict[object, str] = {}
        for attempt in attempts:
            span = attempt.token_span
            text = attempt.raw if span is None else self.vocabulary.decode(packed[slice(*span)])
            texts.setdefault(span or text, text)
        return list(texts.values())

    def _tool_call(self, attempt: ParsedToolCall, before: list[dict[str, Any]]) -> dict[str, Any] | None:
        """OpenAI's form of a call; None where it isn't one.

        An undeclared tool's name or an argument that isn't of its declared type doesn't make a call malformed: the
        agent answers that. A call without its end, name or arguments is.
        """
        if attempt.status in _BROKEN or not isinstance(attempt.name, str):
            return None
        arguments = _arguments_text(attempt.arguments)
        if arguments is None or not _FUNCTION_NAME.fullmatch(attempt.name) or not _is_unicode(attempt.name):
            return None
        call_id = attempt.id
        if not call_id or not _is_unicode(call_id) or any(call["id"] == call_id for call in before):
            number = len(before).to_bytes(4, "big")
            call_id = "call_" + blake2b(self.seed + number, digest_size=12).hexdigest()
        return {"id": call_id, "type": "function", "function": {"name": attempt.name, "arguments": arguments}}


_BROKEN = frozenset(
    {
        ToolCallParseStatus.UNCLOSED_BLOCK,
        ToolCallParseStatus.MISSING_NAME,
        ToolCallParseStatus.MALFORMED_STRUCTURE,
    }
)


def _arguments_text(arguments: Any) -> str | None:
    if arguments is None:
        return "{}"
    text = arguments
    try:
        if isinstance(text, str):
            arguments = json.loads(text)
        elif isinstance(arguments, dict):
            text = json.dumps(arguments, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(arguments, dict):
        return None
    return text if _is_unicode(text) else json.dumps(arguments)


def _is_unicode(text: str) -> bool:
    """JSON escapes can name half a character, which no UTF-8 answer can carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def cut_at(packed: list[int], stop: str) -> list[int]:
    """The packed ids up to where the stop string begins, if it is in the text that they end with."""
    for position in range(len(packed) - 1, -1, -1):
        run = packed[position]
        if isinstance(run, Run):
            found = run.data.rfind(stop.encode())
            return packed if found < 0 else [*packed[:position], Run(run.data[:found])]
    return packed
