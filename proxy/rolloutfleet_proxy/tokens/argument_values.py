"""The value of an argument that a chat format writes as bare text. Pure.

Such a format writes strings as they are and all else as JSON, so `12` may be a number or a string. The rule:

1. The text is taken as JSON only where it is JSON, its value is no string, and the parameter's schema allows that
   value. Else the argument is the text itself, with its white space and quotation marks.
2. A parameter of which nothing is declared may be anything.
3. JSON is kept as it was written, but for the white space around it: `1.10`, integers of any length and the order of
   keys stay.
4. NaN and Infinity are no JSON (RFC 8259), nor is what Python can't read or agents can't send back: numbers of over
   4,300 digits, and more than `DEEPEST` levels of objects and arrays.

A schema allows a value where `type`, `enum`, `const`, `anyOf`, `oneOf` (as `anyOf`), `allOf` and `$ref` do. What is
inside an object or an array, and the bounds of a number, count only where the schema allows the text as a string too:
there they tell which of the two was meant. A list with a wrong item stays a list where no string may be. All other
keywords, types that JSON Schema doesn't know, and references that lead nowhere allow everything.

Schemas are those of https://json-schema.org/draft/2020-12; references are JSON pointers (RFC 6901) into the whole of
the tool's `parameters`.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote

from pydantic_core import SchemaError, SchemaValidator, core_schema

DEEPEST: Final = 63
"""Levels of a value that is taken as JSON: with the object of all arguments, as many as a history may hold."""

PYTHON_WORDS: Final = {"True": "true", "False": "false", "None": "null"}
"""Python's spelling of JSON's words, which some templates write."""

_BLANKS: Final = " \t\n\r"

_MOST_STEPS: Final = 20_000
"""Schemas that are looked at for one argument. References multiply, and past this a schema allows everything."""
_MOST_LEVELS: Final = 100
"""Schemas that lead to each other: references may lead round in a circle."""
_MOST_PATTERNS: Final = 8
"""Patterns that are compiled for one argument. One takes 0.2 ms, and a hostile one 200; others match nothing."""

_TYPES: Final[dict[Any, Callable[[Any], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": lambda value: _is_number(value),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
}
_BOUNDS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}


def value_of(text: str, schema: Any, parameters: Any, *, python_words: bool = False) -> str:
    """The JSON text of an argument's value.

    `text` is what stands between the format's own marks and line breaks. `schema` is the parameter's (of
    `parameter_schema`), and `parameters` the tool's, which its references lead into. `python_words`: the format's
    template writes `True`, `False` and `None`, which are read beside JSON's own words.
    """
    string = json.dumps(text, ensure_ascii=False)
    if isinstance(schema, dict) and schema.get("type") in ("string", ["string"]):
        return string
    written = text.strip(_BLANKS)
    if python_words:
        written = PYTHON_WORDS.get(written, written)
    try:
        value = json.loads(written, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return string
    if isinstance(value, str) or _is_too_deep(value) or not _allows(schema, value, parameters):
        return string
    if _allows(schema, text, parameters) and not _allows(schema, value, parameters, inside=True):
        return string
    return written


def parameter_schema(parameters: Any, name: str) -> Any:
    """The schema of one parameter, by that of a tool's arguments; `{}` where nothing is declared of it.

    `properties` and `patternProperties` declare it, also those that `$ref`, `allOf`, `anyOf` and `oneOf` lead to. Where
    none does, `additionalProperties` count in their place. If these are forbidden, the model wrote what nobody
    declared: that is taken for what it looks like.
    """
    for declaring in (_named, _additional):
        found = _Schemas(parameters).declared(parameters, name, declaring)
        if found is not None:
            return found
    return {}


def _named(schema: dict[str, Any], name: str, matches: Callable[[str, str], bool]) -> list[Any]:
    properties, patterns = _mapping(schema, "properties"), _mapping(schema, "patternProperties")
    named = [properties[name]] if name in properties else []
    return named + [each for pattern, each in patterns.items() if matches(pattern, name)]


def _additional(schema: dict[str, Any], name: str, matches: Callable[[str, str], bool]) -> list[Any]:
    others = schema.get("additionalProperties")
    return [others] if isinstance(others, dict) else []


def _allows(schema: Any, value: Any, parameters: Any, *, inside: bool = False) -> bool:
    return _Schemas(parameters).allow(schema, value, inside=inside)


class _Schemas:
    """Schemas within one root, as far as there is room to look at them."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._room = _MOST_STEPS
        self._patterns: dict[str, SchemaValidator | None] = {}

    def allow(self, schema: Any, value: Any, *, inside: bool, level: int = 0) -> bool:
        """`inside`: items, properties and the bounds of numbers count."""
        if not isinstance(schema, dict):
            return schema is not False
        if not self._take(level):
            return True

        def allowed(each: Any, of: Any = value) -> bool:
            return self.allow(each, of, inside=inside, level=level + 1)

        return (
            ("$ref" not in schema or allowed(self._referred(schema["$ref"])))
            and ("type" not in schema or _is_of(schema["type"], value))
            and ("const" not in schema or _is_same(schema["const"], value))
            and (not _list(schema, "enum") or any(_is_same(each, value) for each in schema["enum"]))
            and all(map(allowed, _list(schema, "allOf")))
            and all(any(map(allowed, _list(schema, key))) for key in ("anyOf", "oneOf") if _list(schema, key))
            and (not inside or self._allow_inside(schema, value, allowed))
        )

    def _allow_inside(self, schema: dict[str, Any], value: Any, allowed: Callable[[Any, Any], bool]) -> bool:
        if isinstance(value, dict):
            return all(name in value for name in _list(schema, "required")) and all(
                allowed(each, inner)
                for name, inner in value.items()
                for each in _named(schema, name, self._matches) or [schema.get("additionalProperties", True)]
            )
        if isinstance(value, list):
            first = _list(schema, "prefixItems")
            rest = schema.get("items", True)
            return all(map(allowed, first, value)) and all(allowed(rest, item) for item in value[len(first) :])
        return not _is_number(value) or all(
            within(value, schema[key]) for key, within in _BOUNDS.items() if _is_number(schema.get(key))
        )

    def declared(self, schema: Any, name: str, declaring: Callable[..., list[Any]], level: int = 0) -> Any:
        """What `declaring` finds of a parameter, joined; None where that is nothing."""
        if not isinstance(schema, dict) or not self._take(level):
            return None

        def found(schemas: list[Any]) -> list[Any]:
            each = [self.declared(each, name, declaring, level + 1) for each in schemas]
            return [one for one in each if one is not None]

        both = declaring(schema, name, self._matches) + found(_list(schema, "allOf"))
        if "$ref" in schema:
            both += found([self._referred(schema["$ref"])])
        for key in ("anyOf", "oneOf"):
            choices = found(_list(schema, key))
            both += [{"anyOf": choices}] if choices else []
        return None if not both else both[0] if len(both) == 1 else {"allOf": both}

    def _take(self, level: int) -> bool:
        self._room -= 1
        return self._room >= 0 and level < _MOST_LEVELS

    def _referred(self, reference: Any) -> Any:
        """True, which allows everything, where a reference leads to nothing."""
        if not isinstance(reference, str) or reference[:2] not in ("#", "#/"):
            return True
        found = self._root
        for step in unquote(reference).split("/")[1:]:
            inner = dict(zip(map(str, range(len(found))), found, strict=True)) if isinstance(found, list) else found
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(inner, dict) or key not in inner:
                return True
            found = inner[key]
        return found

    def _matches(self, pattern: str, name: str) -> bool:
        if pattern not in self._patterns and len(self._patterns) < _MOST_PATTERNS:
            self._patterns[pattern] = _compiled(pattern)
        compiled = self._patterns.get(pattern)
        return compiled is not None and compiled.isinstance_python(name)


def _compiled(pattern: str) -> SchemaValidator | None:
    """What searches for a pattern, as JSON Schema does; None where that can't be read. Python's `re` won't do: a
    pattern may take it for ever."""
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern))
    except SchemaError:
        return None


def _mapping(schema: dict[str, Any], key: str) -> dict[str, Any]:
    given = schema.get(key)
    return given if isinstance(given, dict) else {}


def _list(schema: dict[str, Any], key: str) -> list[Any]:
    given = schema.get(key)
    return given if isinstance(given, list) else []


def _is_of(types: Any, value: Any) -> bool:
    kinds = types if isinstance(types, list) else [types]
    return not kinds or any(not isinstance(kind, str) or kind not in _TYPES or _TYPES[kind](value) for kind in kinds)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_same(one: Any, other: Any) -> bool:
    """Equal as JSON, where 1 is 1.0 but not true."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return any(isinstance(each, dict | list) for each in level)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
