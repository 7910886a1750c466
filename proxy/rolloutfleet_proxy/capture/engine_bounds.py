"""Bounds of what an engine compiles, or searches for, for one turn: grammars and stop patterns. Pure.

An engine compiles a request's grammar, and searches for its patterns between two steps of all its requests, so one that
takes minutes or gigabytes stops everybody. The bounds are of the turn: a count that its tokens can't reach is no bound
to it, one that it would have to reach and can't makes the request impossible.

Counts (`minItems`, `maxLength`, `{m,n}`) are taken as what they come to written out: xgrammar 0.2.7 counts, and took
10^9 of them in 10 ms, but llguidance 1.9 writes items out (10^6 of them: 0.5 s, 150 MB). A grammar of
`MAX_GRAMMAR_BYTES` took xgrammar 2.5 s at the most, for a vocabulary of 150,000; one of twice that, 6 s.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from rolloutfleet_proxy.domain.errors import InvalidParameter

MAX_GRAMMAR_BYTES: Final = 64 << 10
MAX_WRITTEN_OUT: Final = 1_000_000
"""Parts of a grammar whose counts are written out."""
MAX_SEARCH_STEPS: Final = 1 << 22
"""Of one search for a stop pattern in the text that it may have to look at: some 10 ms, at worst 150."""

_LOWER: Final = ("minLength", "minItems", "minProperties", "minContains")
_UPPER: Final = ("maxLength", "maxItems", "maxProperties", "maxContains")
_NAMED: Final = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
)
"""Keywords of a JSON schema that hold schemas by name."""
_DATA: Final = frozenset(("const", "default", "enum", "example", "examples"))
"""Those that hold no schema. Any other may hold one that a reference names."""
_ITEMS: Final = frozenset(("items", "additionalItems", "unevaluatedItems", "contains"))
"""Those of an array, whose counts are theirs."""
_REPEATED: Final = re.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}")
_HUGE: Final = 10**9
_DIGITS: Final = 9

Json = Any
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def bounded(
    sampling: Mapping[str, Any], *, tokens: int, longest_token: int, called: Callable[[str], str]
) -> dict[str, Any]:
    """The sampling parameters of a turn of so many tokens, of so many letters at the most, less the counts that it
    can't reach. `called` gives the request's name of a parameter. Raises InvalidParameter."""
    within, turn = dict(sampling), _Turn(tokens, longest_token)
    for name, bound in _BOUNDS.items():
        if name in within:
            within[name] = bound(within[name], turn, called(name))
    return within


class _Turn:
    """Bounds of a reply."""

    def __init__(self, tokens: int, longest_token: int) -> None:
        self.tokens = tokens
        self.longest_token = longest_token
        self.characters = tokens * longest_token

    def check_reached(self, least: int, *, at: str) -> None:
        if least > self.characters:
            raise InvalidParameter(at, f"A reply of at most {self.tokens} tokens can't have {_shown(least)} of them.")


def _shown(count: float) -> str:
    return f"{count:,.0f}" if count < _HUGE else f"{count:.0e}"


def _check_bytes(text: str, *, at: str) -> None:
    size = len(text.encode(errors="surrogatepass"))
    if size > MAX_GRAMMAR_BYTES:
        raise InvalidParameter(at, f"As a grammar it has {size} bytes, and at most {MAX_GRAMMAR_BYTES} are compiled.")


def _check_written_out(parts: float, *, at: str) -> None:
    if parts > MAX_WRITTEN_OUT:
        raise InvalidParameter(
            at,
            f"Its counts come to {_shown(parts)} parts, and at most {MAX_WRITTEN_OUT:,} are compiled: lower them, or "
            "leave out those that the answer need not keep to.",
        )


# JSON schemas


def _json(text: str, turn: _Turn, at: str, *, walk: Callable[[Json, _Turn, str], tuple[Json, float]]) -> str:
    """The very text where nothing of it is left out."""
    _check_bytes(text, at=at)
    given = _decode(text)
    within, _ = walk(given, turn, at)
    return text if within == given else _encode(within).decode()


def _schema(schema: Json, turn: _Turn, at: str) -> tuple[Json, float]:
    """(the schema, the parts that it comes to). A reference is one part: what it refers to is a rule of its own."""
    if not isinstance(schema, dict):
        return schema, 1
    within: dict[str, Json] = {}
    least, most = 1, 1
    items = others = 0.0
    for key, value in schema.items():
        place = f"{at}.{key}"
        if key in _LOWER and (count := _count(value)) is not None:
            turn.check_reached(count, at=place)
            least = max(least, count)
        elif key in _UPPER and (count := _count(value)) is not None:
            if count >= turn.characters:
                continue
            most = max(most, count)
        elif key == "pattern" and isinstance(value, str):
            others += _written_out(value, turn, place)
        else:
            value, parts = _held(key, value, turn, place)
            if key in _ITEMS:
                items += parts
            else:
                others += parts
        within[key] = value
    parts = max(least, most) * max(items, 1) + others
    _check_written_out(parts, at=at)
    return within, parts


def _held(key: str, value: Json, turn: _Turn, at: str) -> tuple[Json, float]:
    """(a keyword's value, the parts of the schemas in it)."""
    if key in _NAMED and isinstance(value, dict):
        named = {name: _schema(each, turn, f"{at}.{name}") for name, each in value.items()}
        names = (_written_out(name, turn, f"{at}.{name}") for name in value if key == "patternProperties")
        return {name: each for name, (each, _) in named.items()}, sum(parts for _, parts in named.values()) + sum(names)
    if key in _DATA:
        return value, 0
    if isinstance(value, list):
        listed = [_held(key, each, turn, f"{at}[{place}]") for place, each in enumerate(value)]
        return [each for each, _ in listed], sum(parts for _, parts in listed)
    if key == "$ref" and isinstance(value, str):
        _check_reference(value, at=at)
    return _schema(value, turn, at) if isinstance(value, dict) else (value, 0)


def _check_reference(reference: str, *, at: str) -> None:
    """Refuse a reference into a value, such as one of `enum`: what stands there is not bounded as a schema."""
    is_name = False
    for step in unquote(reference).split("/")[1:]:
        if step in _DATA and not is_name:
            raise InvalidParameter(at, f"It refers to a value, within {step!r}, and not to a schema.")
        is_name = step in _NAMED and not is_name


def _count(value: Json) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(min(max(value, 0), _HUGE * _HUGE))


# Texts: regular expressions and EBNF


def _expression(text: str, turn: _Turn, at: str, *, quotes: bool = False) -> str:
    _check_bytes(text, at=at)
    _written_out(text, turn, at, quotes=quotes)
    return text


def _written_out(text: str, turn: _Turn, at: str, *, quotes: bool = False) -> float:
    """The parts that an expression comes to, its counts written out. `quotes`: it is EBNF, where texts stand in quotes
    and names are one part.

    What is no right expression has some number of parts as well; the engine says what is wrong with it.
    """
    groups: list[float] = []
    parts, last = 0.0, 0.0
    place = 0
    while place < len(text):
        repeated = _REPEATED.match(text, place) if text[place] == "{" else None
        if repeated is not None:
            least, most = _times(repeated[1]), _times(repeated[2])
            turn.check_reached(least, at=at)
            parts += last * (max(least, most, 1) - 1)
            _check_written_out(parts, at=at)
            place, last = repeated.end(), 0.0
            continue
        if text[place] == "(":
            groups += [parts]
            parts, last, place = 0.0, 0.0, place + 1
            continue
        if text[place] == ")" and groups:
            last, place = max(parts, 1.0), place + 1
            parts = groups.pop() + last
            continue
        if text[place] in "*+?|":
            place += 1
            continue
        if quotes and text[place].isspace():
            place += 1
            continue
        place, last = _atom(text, place, quotes=quotes), 1.0
        parts += last
    parts += sum(groups)
    _check_written_out(parts, at=at)
    return max(parts, 1.0)


def _times(digits: str) -> int:
    return 0 if not digits else _HUGE if len(digits.lstrip("0")) > _DIGITS else int(digits)


_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_CLASS: Final = re.compile(r"\[\^?(?:\\.|[^\]\\])*\]?", re.DOTALL)
_QUOTED: Final = re.compile(r'"(?:\\.|[^"\\])*"?', re.DOTALL)
_COMMENT: Final = re.compile(r"#[^\n]*")


def _atom(text: str, place: int, *, quotes: bool) -> int:
    """The end of the one that begins here."""
    patterns = {"[": _CLASS} | ({'"': _QUOTED, "#": _COMMENT} if quotes else {})
    pattern = patterns.get(text[place], _NAME if quotes else None)
    found = None if pattern is None else pattern.match(text, place)
    if found is not None:
        return found.end()
    return place + (2 if text[place] == "\\" else 1)


# Structural tags


def _form(form: Json, turn: _Turn, at: str) -> tuple[Json, float]:
    """(a part of a structural tag, the parts that it comes to): the forms of xgrammar, and SGLang's `structures`."""
    if isinstance(form, list):
        listed = [_form(each, turn, f"{at}[{place}]") for place, each in enumerate(form)]
        return [each for each, _ in listed], sum(parts for _, parts in listed)
    if not isinstance(form, dict):
        return form, 1
    within: dict[str, Json] = {}
    parts = 1.0
    for key, value in form.items():
        place = f"{at}.{key}"
        if key in ("json_schema", "schema"):
            within[key], more = _schema(value, turn, place)
        elif key in ("pattern", "grammar") and isinstance(value, str):
            within[key], more = value, _written_out(value, turn, place, quotes=key == "grammar")
        else:
            within[key], more = _form(value, turn, place)
        parts += more
    if form.get("type") == "repeat":
        least, most = (_count(form.get(name)) or 0 for name in ("min", "max"))
        turn.check_reached(least, at=f"{at}.min")
        parts *= max(least, most, 1)
    _check_written_out(parts, at=at)
    return within, parts


# Stop patterns


def _stop_patterns(patterns: list[str], turn: _Turn, at: str) -> list[str]:
    for index, pattern in enumerate(patterns):
        _check_search(pattern, turn, at=at if len(patterns) == 1 else f"{at}[{index}]")
    return patterns


def _check_search(pattern: str, turn: _Turn, *, at: str) -> None:
    """SGLang searches the newest tokens, one more than the pattern has characters; all where it has no longest."""
    parsed = _parser.parse(pattern)
    longest = parsed.getwidth()[1]
    endless = longest >= int(_constants.MAXREPEAT)
    text = min(turn.tokens, turn.tokens if endless else longest + 1) * turn.longest_token
    steps = text * (_ways(parsed, endless=text) + (0 if endless else longest))
    if _endless(parsed) > 1:
        raise InvalidParameter(
            at, "It has several repetitions without an end, and may have one: give the others an end, as in [^x]{0,20}."
        )
    if steps > MAX_SEARCH_STEPS:
        raise InvalidParameter(
            at,
            f"To search for it in the text of {turn.tokens} tokens may take {_shown(steps)} steps, and at most "
            f"{MAX_SEARCH_STEPS:,} don't hold up the engine: give repetitions an end, as in [^x]{{0,20}}, leave out "
            "references to groups, and repeat no repetitions or alternatives.",
        )


def _endless(pattern: Any) -> int:
    """Number of repetitions without an end in a pattern."""
    if isinstance(pattern, tuple) and len(pattern) == 3 and pattern[1] is _constants.MAXREPEAT:
        return 1 + _endless(pattern[2])
    if isinstance(pattern, tuple | list | _parser.SubPattern):
        return sum(map(_endless, pattern))
    return 0


def _ways(pattern: Iterable[tuple[Any, Any]], *, endless: int) -> float:
    """In how many ways a pattern can be tried at one place, at the most; a repetition without an end in `endless`."""
    return math.prod(_ways_of(kind, value, endless=endless) for kind, value in pattern)


def _ways_of(kind: Any, value: Any, *, endless: int) -> float:
    if kind in (_constants.GROUPREF, _constants.GROUPREF_EXISTS):
        return math.inf
    if kind is _constants.BRANCH:
        return sum(_ways(branch, endless=endless) for branch in value[1])
    if kind in (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT):
        least, most, inner = value
        longest = least + endless if most == _constants.MAXREPEAT else most
        within = _ways(inner, endless=endless)
        if within == 1:
            return float(longest - least + 1)
        return within**longest if longest * math.log2(within) < 64 else math.inf
    if kind in (_constants.SUBPATTERN, _constants.ASSERT, _constants.ASSERT_NOT):
        return _ways(value[-1], endless=endless)
    return _ways(value, endless=endless) if kind is _constants.ATOMIC_GROUP else 1


_BOUNDS: Final[Mapping[str, Callable[[Any, _Turn, str], Any]]] = {
    "json_schema": partial(_json, walk=_schema),
    "regex": _expression,
    "ebnf": partial(_expression, quotes=True),
    "structural_tag": partial(_json, walk=_form),
    "stop_regex": _stop_patterns,
}
"""By SGLang's names of the parameters."""
