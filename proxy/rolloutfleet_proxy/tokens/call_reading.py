"""The text between the marks of a tool call, read as the calls that were written there. Pure.

A call is read only where nothing of what was written is lost with it: an argument without its end, one that comes
twice, or a key that no call has, make the block text. Words beside the call in its block are handed on.

Texts are those of `reply_text`: a mark is one character.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Final, Self

from rolloutfleet_proxy.tokens.argument_values import parameter_schema, value_of
from rolloutfleet_proxy.tokens.reply_pieces import Kind, Piece, WrittenCall, beside_calls
from rolloutfleet_proxy.tokens.strict_json import refuse_constant

_CALLABLE_NAME: Final = re.compile(r"[^\s<>{}\"]{1,256}")
"""Names of functions that a reply may call."""
_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*+("|\Z)?', re.DOTALL)
"""Strings of JSON; the first group is a quotation mark where one has ended."""
_FENCE: Final = re.compile(r"```(?:json)?([\s\S]*)```")
_KIMI_ID: Final = re.compile(r"\S+:[0-9]{1,9}")
_MARK: Final = re.compile("[\ud800-\udfff]")
_BETWEEN_TAGS: Final = re.compile(r"\n|(?<=>)(?=<)|(?<=[\ud800-\udfff])(?=[\ud800-\udfff])")
_BEGIN: Final = 4
"""Letters of a tag that may be a misspelled one."""
_EMPTY: Final = ("", "null", '""')

Parameters = Mapping[str, Any]
"""The schemas of the declared tools' arguments, by name."""
Plain = Callable[[str], str]
"""`reply_text.Alphabet.plain`."""
Written = Callable[[str], str]
"""`reply_text.Alphabet.written`."""


class CallReader(ABC):
    """Reads the blocks of a chat format."""

    quotes: ClassVar[bool] = True
    """Whether strings are quoted, so that an end mark in one is surely none."""
    function: tuple[str, str] | None
    """What is written around a function's name; None where calls are only read."""
    end: str
    """What is written behind the arguments."""

    @abstractmethod
    def read(self, body: str, declared: Parameters, plain: Plain) -> list[Piece] | None:
        """The body's pieces; None where it is no call."""

    def is_open(self, body: str) -> bool:
        """Whether an end mark behind this stands within an argument."""
        return any(string[1] != '"' for string in _STRINGS.finditer(body))

    def within(self, written: Written) -> Self:
        """The same, its marks as a vocabulary has them."""
        return self


class _OneCall(CallReader):
    """A block is one call, and nothing beside it."""

    @abstractmethod
    def call(self, body: str, declared: Parameters, plain: Plain) -> WrittenCall | None: ...

    def read(self, body: str, declared: Parameters, plain: Plain) -> list[Piece] | None:
        call = self.call(body, declared, plain)
        return None if call is None else [Piece(Kind.CALL, body, call)]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name comes twice")
    return found


_DECODER: Final = json.JSONDecoder(parse_constant=refuse_constant, object_pairs_hook=_once)


def json_object(text: str) -> dict[str, str] | None:
    """The members of a JSON object as they were written; None of anything else, also of one with a name twice."""
    text = text.strip()
    try:
        if not isinstance(_DECODER.decode(text), dict):
            return None
    except (ValueError, RecursionError):
        return None
    found: dict[str, str] = {}
    at = _behind_space(text, 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        start = _behind_space(text, at)
        _, at = _DECODER.raw_decode(text, start)
        found[name] = text[start:at]
        at = _behind_space(text, at)
    return found


def _behind_space(text: str, at: int) -> int:
    """Where the next name or value of an object begins, or the object ends."""
    while text[at] in " \t\n\r,:":
        at += 1
    return at


def arguments_of(text: str | None) -> str | None:
    """A call's arguments: the JSON object as it was written, or the one in a JSON string; nothing is `{}`."""
    if text is None or text.strip() in _EMPTY:
        return "{}"
    if text.lstrip().startswith('"'):
        try:
            text = str(json.loads(text))
        except ValueError:
            return None
        if not text.strip():
            return "{}"
    return text.strip() if json_object(text) is not None else None


def call_of(name: Any, arguments: str | None, call_id: str | None = None) -> WrittenCall | None:
    """A call with a name that can be one, and with arguments."""
    is_name = isinstance(name, str) and _CALLABLE_NAME.fullmatch(name) and _is_unicode(name)
    if not is_name or arguments is None:
        return None
    return WrittenCall(name, arguments if _is_unicode(arguments) else json.dumps(json.loads(arguments)), call_id)


@dataclass(frozen=True)
class JsonCalls(_OneCall):
    """`{"name": …, "arguments": {…}}`, or its arguments under any of the other `keys`.

    An `exact` object has no more members than these but `type`, and names a declared function.
    """

    keys: tuple[str, ...] = ("arguments", "parameters")
    exact: bool = False

    function: tuple[str, str] = ('{"name": "', '", "arguments": ')
    end: str = "}"

    def call(self, body: str, declared: Parameters, plain: Plain = str, *, head: str = "") -> WrittenCall | None:
        """`head` is the function's name, where the object has none."""
        members = json_object(plain(body))
        if members is None:
            return None
        keys = [key for key in self.keys if key in members]
        others = members.keys() - {"name", *keys}
        name = json.loads(members["name"]) if "name" in members else head
        if self.exact and (len(keys) != 1 or others - {"type"} or not isinstance(name, str) or name not in declared):
            return None
        if len(keys) > 1 or (others and not keys):
            return None
        return call_of(name, arguments_of(members[keys[0]] if keys else None))


@dataclass(frozen=True)
class NamedJson(_OneCall):
    """A head that names the function, a mark, and JSON. `split` gives name, arguments and id of these two."""

    mark: str
    split: Callable[[str, str], tuple[str, str, str | None]]
    function: tuple[str, str]
    end: str = ""

    def call(self, body: str, declared: Parameters, plain: Plain) -> WrittenCall | None:
        head, mark, rest = body.partition(self.mark)
        if not mark or _MARK.search(head):
            return None
        name, arguments, call_id = self.split(plain(head).strip(), plain(rest).strip())
        return call_of(name, arguments_of(arguments), call_id)

    def is_open(self, body: str) -> bool:
        return super().is_open(body.partition(self.mark)[2])

    def within(self, written: Written) -> Self:
        return replace(self, mark=written(self.mark))


def deepseek_parts(head: str, rest: str) -> tuple[str, str, str | None]:
    """`function`, and the name before its arguments in a fence; or as V3.1 writes it, the name and the arguments."""
    is_v31 = rest.startswith("{")
    if is_v31 == (head == "function"):
        return "", "", None
    if is_v31:
        return head, rest, None
    name, _, arguments = rest.partition("\n")
    fenced = _FENCE.fullmatch(arguments.strip())
    return name.strip(), fenced[1] if fenced else arguments, None


def kimi_parts(head: str, rest: str) -> tuple[str, str, str | None]:
    """`functions.NAME:INDEX`, which is the call's id as well; the first and the last part may be missing."""
    name = head.partition(":")[0]
    return name.partition(".")[2] or name, rest, head if _KIMI_ID.fullmatch(head) and _is_unicode(head) else None


@dataclass(frozen=True)
class SpelledCalls(CallReader):
    """Arguments one by one, strings as they are.

    `function` stands around a function's name, `argument` before a key, between key and value, and behind the value,
    `end` behind a call. They are the texts that the format's template writes. White space between tags is free, and of
    that around a value the line break that the template writes is left out.
    """

    function: tuple[str, str]
    argument: tuple[str, str, str]
    end: str = ""
    python_words: bool = False

    quotes: ClassVar = False

    @cached_property
    def _key(self) -> re.Pattern[str]:
        before, between, _ = self.argument
        line = "\n?" if between.endswith("\n") else ""
        return re.compile(rf"{_tag(before)}(?P<key>[^<\n\ud800-\udfff]*?){_tag(between)}{line}")

    @cached_property
    def _tags(self) -> re.Pattern[str]:
        """What an argument or a function begins and ends with."""
        before, _, behind = self.argument
        parts = [f"(?P<open>{_tag(before)})", f"(?P<close>{_tag(behind)})"]
        if self.end:
            parts += [f"(?P<function>{_tag(self.function[0])})", f"(?P<end>{_tag(self.end)})"]
        return re.compile("|".join(parts))

    @cached_property
    def _opening(self) -> re.Pattern[str]:
        """The begin of an argument, just as the template writes it."""
        before, between, behind = self.argument
        line = r"(?<=\n)" if behind.endswith("\n") else ""
        return re.compile(rf"{line}{re.escape(before)}[^<\n\ud800-\udfff]*?{re.escape(between)}")

    @cached_property
    def _next_function(self) -> re.Pattern[str]:
        """The end of a call with another behind it."""
        before, behind = map(_tag, self.function)
        return re.compile(rf"{_tag(self.end)}\s*{before}[^<>\"\n]+{behind}")

    @cached_property
    def _name(self) -> re.Pattern[str]:
        before, behind = map(_tag, self.function)
        if self.end:
            return re.compile(rf"{before}(?P<name>[^<>\"]+?){behind}")
        ends = [*([behind] if behind else []), f"(?={_tag(self.argument[0])})", r"\Z"]
        return re.compile(rf"(?P<name>[\s\S]*?)(?:{'|'.join(ends)})")

    def read(self, body: str, declared: Parameters, plain: Plain) -> list[Piece] | None:
        pieces: list[Piece] = []
        at = 0
        while found := self._name.search(body, at) if self.end or not pieces else None:
            pieces += beside_calls(body[at : found.start()])
            pieces.append(Piece(Kind.CALL, found.group()))
            name = plain(found["name"]).strip()
            read = self._arguments(body, found.end(), declared.get(name) or {}, pieces, plain)
            if not self.end and name not in declared and read == ({}, len(body)):
                return None  # a word in a block
            call = None if read is None else call_of(name, _joined(read[0]))
            if read is None or call is None:
                return None
            at = read[1]
            pieces.append(Piece(Kind.CALL, "", call))
        pieces += beside_calls(body[at:])
        has_calls = any(piece.call for piece in pieces)
        is_lost = any(piece.kind is Kind.CONTENT and self._tags.search(piece.text) for piece in pieces)
        return pieces if has_calls and not is_lost else None

    def _arguments(
        self, body: str, at: int, parameters: Any, pieces: list[Piece], plain: Plain
    ) -> tuple[dict[str, str], int] | None:
        """The arguments that begin here, as JSON, and where the call ends; None where words stand in their place."""
        written: dict[str, str] = {}
        before = len(pieces)
        while tag := self._tags.search(body, at):
            if tag.lastgroup == "function":
                break
            pieces += beside_calls(body[at : tag.start()])
            if not written and any(piece.kind is Kind.CONTENT for piece in pieces[before:]):
                return None
            if tag.lastgroup == "end":
                pieces.append(Piece(Kind.CALL, tag.group()))
                return written, tag.end()
            key = self._key.match(body, tag.start())
            close = None if key is None else self._close(body, key.end())
            if key is None or close is None:
                return None
            name = key["key"].strip()
            if not name or name in written:
                return None
            value = body[key.end() : close.start()]
            if self.end and self._next_function.search(value):
                return None
            if self.argument[2].startswith("\n"):
                value = value.removesuffix("\n")
            schema = parameter_schema(parameters, name)
            written[name] = value_of(plain(value), schema, parameters, python_words=self.python_words)
            pieces.append(Piece(Kind.CALL, body[tag.start() : close.end()]))
            at = close.end()
        return written, at

    def _close(self, body: str, at: int) -> re.Match[str] | None:
        """The end of a value that begins here: arguments that it holds are whole, and of ends in a row it is the last.
        None where there is none, or where an argument seems to begin between these."""
        closes: list[re.Match[str]] = []
        depth = 1
        for tag in self._tags.finditer(body, at):
            if tag.lastgroup == "close":
                depth -= 1
                closes += [tag] if depth <= 0 else []
            elif closes:
                break
            elif tag.lastgroup == "open" and self._opening.match(body, tag.start()):
                depth += 1
        if not closes or self.argument[0][:_BEGIN] in body[closes[0].end() : closes[-1].start()]:
            return None
        return closes[-1]

    def is_open(self, body: str) -> bool:
        tags = [tag.lastgroup for tag in self._tags.finditer(body) if tag.lastgroup in ("open", "close")]
        return tags[-1:] == ["open"]

    def within(self, written: Written) -> Self:
        before, behind = map(written, self.function)
        key, between, close = map(written, self.argument)
        return replace(self, function=(before, behind), argument=(key, between, close), end=written(self.end))


def _joined(written: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {value}" for name, value in written.items()) + "}"


def _tag(literal: str) -> str:
    """A pattern of the tags in a text that a template writes, with any white space between them."""
    return r"\s*".join(re.escape(part) for part in _BETWEEN_TAGS.split(literal) if part)


def _is_unicode(text: str) -> bool:
    """JSON escapes can name half a character, which no UTF-8 answer can carry."""
    return text.isascii() or not _MARK.search(text)


_DSML_NAME: Final = re.compile(r'([^"]*)">\s*')
_DSML_PARAMETER: Final = re.compile(
    r'<\uff5cDSML\uff5cparameter name="([^"]*)" string="(true|false)">([\s\S]*?)</\uff5cDSML\uff5cparameter>\s*'
)


class DsmlCalls(_OneCall):
    """DeepSeek V4's, which says of each argument whether it is a string. A block begins with the function's name."""

    quotes = False
    function = None

    def call(self, body: str, declared: Parameters, plain: Plain) -> WrittenCall | None:
        head = _DSML_NAME.match(body)
        written: dict[str, str] = {}
        at = 0 if head is None else head.end()
        while parameter := _DSML_PARAMETER.match(body, at):
            name, is_string, text = parameter.groups()
            if name in written:
                return None
            value = plain(text)
            written[name] = value if is_string == "false" and _is_json(value) else json.dumps(value, ensure_ascii=False)
            at = parameter.end()
        return None if head is None or at < len(body) else call_of(head[1], _joined(written))

    def is_open(self, body: str) -> bool:
        return body.rfind("<\uff5cDSML\uff5cparameter") > body.rfind("</\uff5cDSML\uff5cparameter>")


def _is_json(text: str) -> bool:
    try:
        _DECODER.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


@dataclass(frozen=True)
class GemmaCalls(_OneCall):
    """Gemma 4's, with a notation of its own for arguments; `renderers` reads that."""

    quote: str = '<|"|>'

    function = None

    def call(self, body: str, declared: Parameters, plain: Plain) -> WrittenCall | None:
        from renderers.gemma4 import _ArgumentParser

        name, brace, arguments = plain(body).strip().partition("{")
        if not brace or not name.startswith("call:"):
            return None
        try:
            value = _ArgumentParser(brace + arguments).parse()
            written = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError):
            return None
        return call_of(name.removeprefix("call:").strip(), written)

    def is_open(self, body: str) -> bool:
        return body.count(self.quote) % 2 == 1

    def within(self, written: Written) -> Self:
        return replace(self, quote=written(self.quote))
