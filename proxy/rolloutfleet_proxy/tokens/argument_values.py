"""The value of an argument that a chat format writes as bare text. Pure.

Such a format writes strings as they are and all else as JSON, so `12` may be a number or a string. The rule:

1. The text is taken as JSON only where it is JSON, its value is no string, and the parameter's schema allows that
   value. Else the argument is the text itself, with its white space and quotation marks.
2. A parameter of which nothing is declared may be anything.
3. JSON is kept as it was written, but for the white space around it: `1.10`, integers of any length and the order of
   keys stay.
4. NaN and Infinity are no JSON (RFC 8259), nor is what Python can't read or agents can't send back: numbers of over
   4,300 digits, and more than `DEEPEST` levels of objects and arrays.

A schema allows a value where `type`, `enum`, `const`, `anyOf`, `oneOf` (as `anyOf`), `allOf` and `$ref` do, and null
where OpenAPI's `nullable` does. What is inside an object or an array counts only where the schema allows the text as a
string too: there it tells which of the two was meant. A list with a wrong item stays a list where no string may be. All
other keywords, types that JSON Schema doesn't know, and references that lead nowhere allow everything.
"""

import json
from collections.abc import Callable
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from pydantic_core import SchemaError, SchemaValidator, core_schema

from rolloutfleet_proxy.tokens.tool_schemas import TYPES, Schema, given, parts_of

DEEPEST: Final = 63
"""Levels of a value that is taken as JSON: with the object of all arguments, as many as a history may hold."""

PYTHON_WORDS: Final = {"True": "true", "False": "false", "None": "null"}

_MOST_STEPS: Final = 20_000
"""Schemas that are looked at for one argument. References multiply, and past this a schema allows everything."""
_MOST_LEVELS: Final = 100
"""Schemas that lead to each other: references may lead round in a circle."""
_MOST_PATTERNS: Final = 8
"""Patterns of one schema that are compiled. One takes 0.2 ms, and a hostile one 200; others match nothing."""

_KINDS: Final = {str: "string", bool: "boolean", int: "number", float: "number", dict: "object", list: "array"}


def json_value(text: str) -> Any:
    """The value of JSON text. Raises json.JSONDecodeError for all else: for NaN and Infinity, which Python's `json`
    reads, too, and for what it has other errors for (deep nesting, a number of over 4,300 digits)."""
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise json.JSONDecodeError(str(error), "", 0) from error


def refuse_constant(name: str) -> None:
    """For `parse_constant`. Raises ValueError."""
    raise ValueError(f"{name} is not JSON")


def value_of(text: str, schema: Any, parameters: Any, *, python_words: bool = False) -> str:
    """The JSON text of an argument's value.

    `text` is what stands between the format's own marks and line breaks. `schema` is the parameter's (of
    `parameter_schema`), and `parameters` the tool's, which its references lead into. `python_words`: the format's
    template writes `True`, `False` and `None`, which are read beside JSON's own words.
    """
    string = json.dumps(text, ensure_ascii=False)
    if isinstance(schema, dict) and schema.get("type") in ("string", ["string"]) and not schema.get("nullable"):
        return string
    written = text.strip(" \t\n\r")
    if python_words:
        written = PYTHON_WORDS.get(written, written)
    try:
        value = json_value(written)
    except ValueError:
        return string
    schemas = _Schemas(parameters)
    if isinstance(value, str) or not _has_levels(value, DEEPEST) or not schemas.allow(schema, value):
        return string
    if schemas.allow(schema, text) and not schemas.allow(schema, value, inside=True):
        return string
    return written


def parameter_schema(parameters: Any, name: str) -> Any:
    """The schema of one parameter, by that of a tool's arguments; `{}` where nothing is declared of it.

    `properties` and `patternProperties` declare it, also those that `$ref`, `allOf`, `anyOf` and `oneOf` lead to. Where
    none does, `additionalProperties` count in their place. If these are forbidden, the model wrote what nobody
    declared: that is taken for what it looks like.
    """
    found = (_Schemas(parameters).declared(parameters, name, declaring) for declaring in (_named, _additional))
    return next((schema for schema in found if schema is not None), {})


def _named(schema: Schema, name: str) -> list[Any]:
    properties, patterns = given(schema, "properties", dict), given(schema, "patternProperties", dict)
    named = [properties[name]] if name in properties else []
    return named + [each for pattern, each in islice(patterns.items(), _MOST_PATTERNS) if _matches(pattern, name)]


def _additional(schema: Schema, name: str) -> list[Any]:
    others = given(schema, "additionalProperties", dict)
    return [others] if others else []


def _alternatives(schema: Schema) -> list[list[Any]]:
    """Lists of schemas; a value has to suit one of each."""
    return [choices for key in ("anyOf", "oneOf") if (choices := given(schema, key, list))]


class _Schemas:
    """Schemas within one root, as far as there is room to look at them."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._room = _MOST_STEPS

    def allow(self, schema: Any, value: Any, *, inside: bool = False, level: int = 0) -> bool:
        """`inside`: items and properties count."""

        def allowed(each: Any, of: Any = value) -> bool:
            return self.allow(each, of, inside=inside, level=level + 1)

        return schema is not False and all(
            _is_of(part.get("type", []), value)
            and ("const" not in part or _is_same(part["const"], value))
            and (not given(part, "enum", list) or any(_is_same(each, value) for each in part["enum"]))
            and all(any(map(allowed, choices)) for choices in _alternatives(part))
            and (not inside or _is_allowed_inside(part, value, allowed))
            for part in self._parts(schema, level)
            if value is not None or part.get("nullable") is not True
        )

    def declared(self, schema: Any, name: str, declaring: Callable[[Schema, str], list[Any]], level: int = 0) -> Any:
        """All that `declaring` finds of a parameter, joined; None where that is nothing."""
        found: list[Any] = []
        for part in self._parts(schema, level):
            found += declaring(part, name)
            for choices in _alternatives(part):
                each = (self.declared(choice, name, declaring, level + 1) for choice in choices)
                if declared := [one for one in each if one is not None]:
                    found.append({"anyOf": declared})
        return {"allOf": found} if len(found) > 1 else found[0] if found else None

    def _parts(self, schema: Any, level: int) -> list[Schema]:
        parts = parts_of(schema, self._root)
        self._room -= 1 + len(parts)
        return parts if self._room >= 0 and level < _MOST_LEVELS else []


def _is_allowed_inside(schema: Schema, value: Any, allowed: Callable[[Any, Any], bool]) -> bool:
    if isinstance(value, list):
        first = len(given(schema, "prefixItems", list))
        return all(allowed(schema.get("items"), item) for item in value[first:])
    return not isinstance(value, dict) or (
        all(name in value for name in given(schema, "required", list))
        and all(
            allowed(each, inner)
            for name, inner in value.items()
            for each in _named(schema, name) or [schema.get("additionalProperties")]
        )
    )


@lru_cache(maxsize=1024)
def _matches(pattern: str, name: str) -> bool:
    """True of a name with the pattern in it; none has one that can't be read. Python's `re` won't do: a pattern may
    take it for ever."""
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern)).isinstance_python(name)
    except SchemaError:
        return False


def _is_of(types: Any, value: Any) -> bool:
    kind = _KINDS.get(type(value), "null")
    kinds = (kind, "integer") if kind == "number" and value % 1 == 0 else (kind,)
    allowed = types if isinstance(types, list) else [types]
    return not allowed or any(each in kinds or each not in TYPES for each in allowed)


def _is_same(one: Any, other: Any) -> bool:
    """Equal as JSON, where 1 is 1.0 but not true; within arrays and objects it may be true."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _has_levels(value: Any, most: int) -> bool:
    """True of a value with no more than `most` levels of objects and arrays."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return inner is None or (most > 0 and all(_has_levels(each, most - 1) for each in inner))
