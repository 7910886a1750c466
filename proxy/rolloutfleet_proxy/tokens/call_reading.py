"""The text between the marks of a tool call, read as the calls that were written there. Pure.

A call is read only where nothing of what was written is lost with it: an argument without its end, one that comes
twice, or a key that no call has, make the block text. Words beside the call in its block are handed on.

Texts are those of `reply_text`: a mark is one character.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, Literal, NamedTuple

from rolloutfleet_proxy.tokens.argument_values import parameter_schema, refuse_constant, value_of

_CALLABLE_NAME: Final = re.compile(r"[^\s<>{}\"\ud800-\udfff]{1,256}")
"""Names of functions that a reply may call."""
_STRINGS: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+("|\Z)?', re.DOTALL)
"""Strings of JSON; the first group is a quotation mark where one has ended."""
_MEMBER_NAME: Final = re.compile(r'[\s,]*("[^"\\]*(?:\\.[^"\\]*)*")\s*:\s*')
_FENCE: Final = re.compile(r"```(?:json)?([\s\S]*)```")
_KIMI_ID: Final = re.compile(r"([^\s:]+)(:[0-9]{1,9})?")
_MARK: Final = re.compile("[\ud800-\udfff]")
_BETWEEN_TAGS: Final = re.compile(r"\n|(?<=>)(?=<)|(?<=[\ud800-\udfff])(?=[\ud800-\udfff])")
_BEGIN: Final = 4
"""Letters of a tag that may be a misspelled one."""

Parameters = Mapping[str, Any]
"""The schemas of the declared tools' arguments, by name."""
Plain = Callable[[str], str]
"""`reply_text.Alphabet.plain`."""


# Own is the format's own: marks, and white space beside them.
Kind = Literal["reasoning", "content", "call", "own"]


@dataclass(frozen=True, slots=True)
class WrittenCall:
    name: str
    arguments: str
    """A JSON object, its values as they were written."""
    id: str | None = None
    """Where the format writes one."""


class Piece(NamedTuple):
    kind: Kind
    text: str
    call: WrittenCall | None = None
    """The call that is complete here. A call's pieces lie apart where words stand in it."""


def beside_calls(text: str) -> list[Piece]:
    """Text in a block that is no part of a call: words are content."""
    return [Piece("content" if text.strip() else "own", text)] if text else []


class CallReader(ABC):
    """Reads the blocks of a chat format."""

    quotes: ClassVar[bool] = True
    """Whether strings are quoted, so that an end mark in one is surely none."""
    is_held: ClassVar[bool] = True
    """True where a grammar can hold a reply to such calls."""
    function: tuple[str, str]
    """Texts around a function's name."""
    end: str
    """What is written behind the arguments."""

    @abstractmethod
    def read(self, body: str, declared: Parameters, plain: Plain) -> list[Piece]:
        """The body's pieces. Raises ValueError or RecursionError where it is no call."""

    def is_open(self, text: str, *, within: bool) -> bool:
        """True where an end mark behind a text of a block stands in an argument; `within`: the text begins in one."""
        return any(string[1] != '"' for string in _STRINGS.finditer(f'"{text}' if within else text))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name comes twice")
    return found


_DECODER: Final = json.JSONDecoder(parse_constant=refuse_constant, object_pairs_hook=_once)


def json_object(text: str) -> dict[str, str]:
    """The members of a JSON object as they were written. Raises ValueError or RecursionError for anything else, also
    where a name comes twice."""
    text = text.strip()
    if not isinstance(_DECODER.decode(text), dict):
        raise ValueError("not an object")
    found: dict[str, str] = {}
    at = 1
    while name := _MEMBER_NAME.match(text, at):
        _, at = _DECODER.raw_decode(text, name.end())
        found[_DECODER.raw_decode(name[1])[0]] = text[name.end() : at]
    return found


def _in_json(text: str) -> str:
    """JSON as it was written; any other text as a string."""
    with suppress(ValueError, RecursionError):
        _DECODER.decode(text)
        return text
    return json.dumps(text, ensure_ascii=False)


def arguments_of(text: str) -> str:
    """A call's arguments: the JSON object as it was written, or the one in a JSON string; nothing is `{}`.

    Raises ValueError or RecursionError for anything else.
    """
    text = text.strip()
    if text.startswith('"'):
        text = json.loads(text).strip() or "{}"
    elif text in ("", "null"):
        text = "{}"
    json_object(text)
    return text


def call_of(name: Any, arguments: str, call_id: str | None = None) -> WrittenCall:
    """A call. Raises ValueError for a name that no function has."""
    if not isinstance(name, str) or not _CALLABLE_NAME.fullmatch(name):
        raise ValueError("not a function's name")
    if not arguments.isascii() and _MARK.search(arguments):
        # JSON escapes can name half a character, which no UTF-8 answer can carry.
        arguments = json.dumps(json.loads(arguments))
    return WrittenCall(name, arguments, call_id)


@dataclass(frozen=True)
class JsonCalls(CallReader):
    """`{"name": …, "arguments": {…}}`, or its arguments under any of the other `keys`.

    An `exact` object has no more members than these but `type`, and names a declared function.
    """

    keys: tuple[str, ...] = ("arguments", "parameters")
    exact: bool = False

    function: tuple[str, str] = ('{"name": "', '", "arguments": ')
    end: str = "}"

    def read(self, body: str, declared: Parameters, plain: Plain) -> list[Piece]:
        return [Piece("call", body, self.call(plain(body), declared))]

    def call(self, body: str, declared: Parameters, *, head: str = "") -> WrittenCall:
        """`head` is the function's name, where that is written before the object."""
        members = json_object(body)
        keys = [key for key in self.keys if key in members]
        others = members.keys() - {"name", *keys}
        name = json.loads(members["name"]) if "name" in members else head
        if self.exact and (len(keys) != 1 or others - {"type"} or not isinstance(name, str) or name not in declared):
            raise ValueError("an answer in JSON")
        if head not in ("", name) or len(keys) > 1 or any(not keys or members[each][0] in "{[" for each in others):
            raise ValueError("two names, or arguments under several keys or a wrong one")
        return call_of(name, arguments_of(members[keys[0]] if keys else ""))


@dataclass(frozen=True)
class NamedJson(CallReader):
    """A head that names the function, a mark, and JSON. `split` gives name, arguments and id of these two, by the
    declared functions."""

    mark: str
    split: Callable[[str, str, Parameters], tuple[str, str, str | None]]
    function: tuple[str, str]
    end: str = ""

    def read(self, body: str, declared: Parameters, plain: Plain) -> list[Piece]:
        head, mark, rest = body.partition(self.mark)
        if not mark or _MARK.search(head):
            raise ValueError("no name before arguments")
        name, arguments, call_id = self.split(plain(head).strip(), plain(rest).strip(), declared)
        return [Piece("call", body, call_of(name, arguments_of(arguments), call_id))]


def deepseek_parts(head: str, rest: str, _declared: Parameters) -> tuple[str, str, str | None]:
    """`function`, and the name before its arguments in a fence; or as V3.1 writes it, the name and the arguments."""
    is_v31 = rest.startswith("{")
    if is_v31 == (head == "function"):
        raise ValueError("neither of these")
    if is_v31:
        return head, rest, None
    name, _, arguments = rest.partition("\n")
    fenced = _FENCE.fullmatch(arguments.strip())
    return name.strip(), fenced[1] if fenced else arguments, None


def kimi_parts(head: str, rest: str, declared: Parameters) -> tuple[str, str, str | None]:
    """`functions.NAME:INDEX`, which is the call's id as well; the first and the last part may be missing."""
    if not (found := _KIMI_ID.fullmatch(head)):
        raise ValueError("words beside a function's name")
    name = found[1] if found[1] in declared else found[1].partition(".")[2]
    return name or found[1], rest, head if found[2] else None


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
    def _tags(self) -> re.Pattern[str]:
        """What an argument or a function begins and ends with."""
        before, between, behind = self.argument
        line = "\n?" if between.endswith("\n") else ""
        key = rf"(?:(?P<key>[^<\n\ud800-\udfff]*?){_tag(between)}{line})?"
        parts = [f"(?P<open>{_tag(before)}{key})", f"(?P<close>{_tag(behind)})"]
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
    def _name(self) -> re.Pattern[str]:
        before, behind = map(_tag, self.function)
        if self.end:
            return re.compile(rf"{before}(?P<name>[^<>\"]+?){behind}")
        ends = [*([behind] if behind else []), f"(?={_tag(self.argument[0])})", r"\Z"]
        return re.compile(rf"(?P<name>[\s\S]*?)(?:{'|'.join(ends)})")

    def read(self, body: str, declared: Parameters, plain: Plain) -> list[Piece]:
        pieces: list[Piece] = []
        at = 0
        while found := self._name.search(body, at) if self.end or not pieces else None:
            pieces += beside_calls(body[at : found.start()])
            pieces.append(Piece("call", found.group()))
            name = plain(found["name"]).strip()
            arguments, at = self._arguments(body, found.end(), declared.get(name) or {}, pieces, plain)
            if not self.end and name not in declared and not arguments and at == len(body):
                raise ValueError("a word in a block")
            pieces.append(Piece("call", "", call_of(name, _joined(arguments))))
        pieces += beside_calls(body[at:])
        is_lost = any(piece.kind == "content" and self._tags.search(piece.text) for piece in pieces)
        if is_lost or not any(piece.call for piece in pieces):
            raise ValueError("tags beside calls, or no call")
        return pieces

    def _arguments(
        self, body: str, at: int, parameters: Any, pieces: list[Piece], plain: Plain
    ) -> tuple[dict[str, str], int]:
        """The arguments that begin here, as JSON, and where the call ends. Raises ValueError where words stand in their
        place, or one is not whole."""
        written: dict[str, str] = {}
        before = len(pieces)
        while (tag := self._tags.search(body, at)) and tag.lastgroup != "function":
            pieces += beside_calls(body[at : tag.start()])
            if not written and any(piece.kind == "content" for piece in pieces[before:]):
                raise ValueError("words before arguments")
            if tag.lastgroup == "end":
                pieces.append(Piece("call", tag.group()))
                return written, tag.end()
            close = self._close(body, tag.end())
            value = body[tag.end() : close.start()]
            if self.end and re.search(rf"{_tag(self.end)}\s*{self._name.pattern}", value):
                raise ValueError("an argument without its end")
            if self.argument[2].startswith("\n"):
                value = value.removesuffix("\n")
            name, value = self._argument((tag["key"] or "").strip(), plain(value), parameters)
            if not name or name[0] in "\"'" or name in written:
                raise ValueError("no key, or one in quotation marks or that comes twice")
            written[name] = value
            pieces.append(Piece("call", body[tag.start() : close.end()]))
            at = close.end()
        return written, at

    def _argument(self, key: str, text: str, parameters: Any) -> tuple[str, str]:
        """Its name, and its value as JSON."""
        schema = parameter_schema(parameters, key)
        return key, value_of(text, schema, parameters, python_words=self.python_words)

    def _close(self, body: str, at: int) -> re.Match[str]:
        """The end of a value that begins here: arguments that it holds are whole, and of ends in a row it is the last.
        Raises ValueError where there is none, or where an argument seems to begin between these."""
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
            raise ValueError("an argument without its end")
        return closes[-1]

    def is_open(self, text: str, *, within: bool) -> bool:
        tags = [tag.lastgroup for tag in self._tags.finditer(text) if tag.lastgroup in ("open", "close")]
        return tags[-1] == "open" if tags else within


def _joined(written: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {value}" for name, value in written.items()) + "}"


def _tag(literal: str) -> str:
    """A pattern of the tags in a text that a template writes, with any white space between them."""
    return r"\s*".join(re.escape(part) for part in _BETWEEN_TAGS.split(literal) if part)


class DsmlCalls(SpelledCalls):
    """DeepSeek V4's, which says of each argument whether it is a string."""

    is_held: ClassVar = False

    def _argument(self, key: str, text: str, parameters: Any) -> tuple[str, str]:
        name, _, is_string = key.partition('" string="')
        if is_string not in ("true", "false"):
            raise ValueError("neither a string nor another value")
        return name, _in_json(text) if is_string == "false" else json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True)
class GemmaCalls(CallReader):
    """Gemma 4's: JSON whose keys have no quotation marks, and whose strings have a mark of its own for one."""

    quote: str

    is_held: ClassVar = False

    @cached_property
    def _parts(self) -> re.Pattern[str]:
        quote, word = re.escape(self.quote), r"[^\s,{}\[\]][^,{}\[\]"
        string = rf"{quote}(?P<string>[\s\S]*?){quote}"
        key, bare = (rf"(?<=[{before}])(?!\s*{quote})\s*" for before in ("{,", r":\[,"))
        quoted = rf'(?P<mark>"?)(?!")(?P<key>{word}":]*+)(?P=mark)\s*+:'
        return re.compile(rf"{string}|{key}{quoted}|{bare}(?P<bare>{word}]*)")

    def read(self, body: str, declared: Parameters, plain: Plain) -> list[Piece]:
        def written(part: re.Match[str]) -> str:
            kind = part.lastgroup or ""
            text = plain(part[kind]) if kind == "string" else plain(part[kind]).strip()
            if kind == "bare":
                return _in_json(text)
            return json.dumps(text, ensure_ascii=False) + (":" if kind == "key" else "")

        name, brace, arguments = body.strip().partition("{")
        if not brace or not name.startswith("call:"):
            raise ValueError("not a call")
        arguments = arguments_of(self._parts.sub(written, brace + arguments))
        return [Piece("call", body, call_of(plain(name).removeprefix("call:").strip(), arguments))]

    def is_open(self, text: str, *, within: bool) -> bool:
        return (text.count(self.quote) + within) % 2 == 1
