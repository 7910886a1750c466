"""Schemas, each with values that suit it, and with a judge of others that knows what it was made of."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st


@dataclass(frozen=True)
class Kind:
    """A schema, values that suit it, and whether one does: told by what it was made of, not by reading it."""

    schema: Any
    values: st.SearchStrategy[Any]
    suits: Callable[[Any], bool]


LIKE_JSON = ["1", " 2", "-0.5", "1e3", "true", "True", "None", "null", '"a"', "[]", "[1]", '["1"]', "{}", '{"a": 1}']
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=5) | st.sampled_from(LIKE_JSON)
NUMBERS = st.integers(-3, 3) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)


def is_integer(value: Any) -> bool:
    return type(value) is int or (type(value) is float and value.is_integer())


LEAVES = [
    Kind({"type": "string"}, TEXTS, lambda value: type(value) is str),
    Kind({"type": "null"}, st.none(), lambda value: value is None),
    Kind({"type": "boolean"}, st.booleans(), lambda value: type(value) is bool),
    Kind({"type": "integer"}, st.integers(-3, 3) | st.integers(), is_integer),
    Kind({"type": "number"}, NUMBERS, lambda value: type(value) in (int, float)),
    Kind({"type": ["integer", "string"]}, TEXTS | st.integers(), lambda value: type(value) is str or is_integer(value)),
    Kind({"type": "object"}, st.dictionaries(TEXTS, NUMBERS, max_size=2), lambda value: type(value) is dict),
]


def is_equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def enumeration(values: list[Any]) -> Kind:
    schema = {"enum": values} if len(values) > 1 else {"const": values[0]}
    return Kind(schema, st.sampled_from(values), lambda value: any(is_equal(value, each) for each in values))


def alternatives(kinds: list[Kind]) -> Kind:
    values = st.one_of([kind.values for kind in kinds])
    return Kind({"anyOf": [kind.schema for kind in kinds]}, values, lambda value: any(k.suits(value) for k in kinds))


def array(kind: Kind) -> Kind:
    def suits(value: Any) -> bool:
        return type(value) is list and all(map(kind.suits, value))

    return Kind({"type": "array", "items": kind.schema}, st.lists(kind.values, max_size=2), suits)


def an_object(kind: Kind) -> Kind:
    def suits(value: Any) -> bool:
        return type(value) is dict and set(value) == {"a"} and kind.suits(value["a"])

    schema = {"type": "object", "properties": {"a": kind.schema}, "required": ["a"], "additionalProperties": False}
    return Kind(schema, st.fixed_dictionaries({"a": kind.values}), suits)


def nullable(kind: Kind) -> Kind:
    """As OpenAPI 3.0 has it."""
    schema = {**kind.schema, "nullable": True}
    return Kind(schema, kind.values | st.none(), lambda value: value is None or kind.suits(value))


def wrapped(kind: Kind) -> Kind:
    return replace(kind, schema={"allOf": [{}, kind.schema]})


def referred(kind: Kind) -> Kind:
    """`$def` is put into place by `hoisted`."""
    return replace(kind, schema={"$def": kind.schema})


def hoisted(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [hoisted(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$def" not in schema:
        return {key: each if key in ("enum", "const") else hoisted(each, definitions) for key, each in schema.items()}
    name = f"D{len(definitions)}"
    definitions[name] = None
    definitions[name] = hoisted(schema["$def"], definitions)
    return {"$ref": f"#/$defs/{name}"}


KINDS = st.recursive(
    st.sampled_from([*LEAVES, *(nullable(each) for each in LEAVES)])
    | st.lists(TEXTS | st.none() | st.booleans() | st.integers(-3, 3), min_size=1, max_size=3).map(enumeration),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(alternatives),
        *(inner.map(each) for each in (array, an_object, wrapped, referred)),
    ),
    max_leaves=5,
)
