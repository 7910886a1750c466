"""Values of arguments that a format writes as bare text: read back by their schema wherever that tells them apart."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.proxy.tokens.kinds import KINDS, TEXTS, Kind, hoisted

from rolloutfleet_proxy.tokens.argument_values import DEEPEST, parameter_schema, value_of

NULLABLE = {"anyOf": [{"type": "string"}, {"type": "null"}]}
INTEGER_OR_STRING = {"type": ["integer", "string"]}
INTEGERS_OR_STRING = {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}]}
POINT_OR_STRING = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"x": {"type": "integer"}},
            "patternProperties": {"^s_": {"type": "string"}},
            "additionalProperties": False,
            "required": ["x"],
        },
        {"type": "string"},
    ]
}


def read(text: str, schema: Any, more: dict[str, Any] | None = None, *, python_words: bool = False) -> str:
    """The JSON text of a value whose parameter is declared so, with what else the tool's schema holds."""
    parameters = {"type": "object", "properties": {"v": schema}, **(more or {})}
    return value_of(text, parameter_schema(parameters, "v"), parameters, python_words=python_words)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string"}, "12"),
        ({"type": ["string"]}, "null"),
        (NULLABLE, "12345"),
        (NULLABLE, '{"a": 1}'),
        (NULLABLE, '"quoted"'),
        (NULLABLE, "    return 1"),
        ({"type": ["string", "null"]}, "true"),
        ({"enum": ["1", "2"]}, "2"),
        ({"enum": ["1", 2]}, "1"),
        ({"enum": [1, "true"]}, "true"),
        ({"const": "3"}, "3"),
        ({"oneOf": [{"const": "1"}, {"const": "2"}]}, "1"),
        ({"allOf": [{"type": "string"}, {"minLength": 1}]}, "5"),
        ({"allOf": [{}, INTEGER_OR_STRING, {"type": ["string", "null"]}]}, "5"),
        ({"$ref": "#/$defs/Name"}, "7"),
        ({"$ref": "#/definitions/a~1b~0%20c"}, "7"),
        ({"$ref": "#/properties/w/anyOf/1"}, "7"),
        ({"type": "string", "nullable": True}, "12"),
        ({"type": "string", "nullable": False}, "null"),
        ({"type": "string", "nullable": "yes"}, "null"),
        ({"type": "integer"}, "1.5"),
        ({"type": "integer"}, "null"),
        ({"type": "boolean"}, "1"),
        ({"type": "number"}, "NaN"),
        ({"type": "number"}, "-Infinity"),
        ({"type": "array"}, "[1, NaN]"),
        ({"type": "integer"}, "9" * 4_301),
        ({"type": "array"}, "[" * 100_000),
        ({"type": "array"}, "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1)),
        ({"type": "array"}, "[1, 2"),
        ({}, '"quoted"'),
        ({}, "True"),
        ({}, "12 apples"),
        ({}, ""),
        (False, "5"),
        (INTEGERS_OR_STRING, '["a"]'),
        ({"type": ["array", "string"], "prefixItems": [{"type": "null"}], "items": False}, "[null, 1]"),
        (POINT_OR_STRING, '{"y": 1}'),
        (POINT_OR_STRING, '{"x": 1, "y": 1}'),
        (POINT_OR_STRING, '{"x": 1, "s_y": 1}'),
    ],
)
def test_text_is_a_string_where_the_schema_allows_no_other_value(schema: Any, text: str) -> None:
    definitions = {"$defs": {"Name": {"type": "string"}}, "definitions": {"a/b~ c": {"type": "string"}}}
    properties = {"v": schema, "w": {"anyOf": [{"type": "integer"}, {"type": "string"}]}}
    assert json.loads(read(text, schema, {**definitions, "properties": properties})) == text


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (INTEGER_OR_STRING, "12"),
        (NULLABLE, "null"),
        ({"type": "string", "nullable": True}, "null"),
        ({"type": "string", "enum": ["a"], "nullable": True}, "null"),
        ({"type": "object", "nullable": True}, "null"),
        ({"type": "integer"}, "123456789012345678901234567890"),
        ({"type": "integer"}, "3.0"),
        ({"type": "number"}, "1.10"),
        ({"type": "number"}, "1e400"),
        ({"type": "boolean"}, "false"),
        ({"enum": ["2", 2]}, "2"),
        ({"const": 1.1}, "1.10"),
        ({"const": {"a": [1, True]}}, '{"a":[1.0,true]}'),
        ({"type": "object"}, '{"b":1, "a":{"c":1.10}}'),
        ({"type": "array", "items": {"type": "integer"}}, '["a"]'),
        ({"type": "integer", "minimum": 5}, "3"),
        (INTEGERS_OR_STRING, "[1]"),
        ({"type": ["array", "string"], "prefixItems": [{"type": "string"}], "items": {"type": "null"}}, '["a", null]'),
        (POINT_OR_STRING, '{"x": 1, "s_y": "z"}'),
        ({"type": "array"}, "[" * DEEPEST + "]" * DEEPEST),
        ({"type": "any"}, "1"),
        ({"type": []}, "1"),
        ({"enum": []}, "1"),
        ({"$ref": "https://example.org/a"}, "1"),
        ({"$ref": "#anchor"}, "1"),
        ({"$ref": "#/$defs/missing"}, "1"),
        ({"$ref": "#/$defs/Circle"}, "1"),
        ({"not": {"type": "string"}}, "1"),
        (True, "1"),
        ({}, "[1]"),
    ],
)
def test_text_is_json_as_written_where_the_schema_allows_its_value(schema: Any, text: str) -> None:
    circle = {"$ref": "#/$defs/Circle", "anyOf": [{"$ref": "#/$defs/Circle"}] * 2}
    assert read(f" {text}\n", schema, {"$defs": {"Circle": circle}}) == text


def test_const_and_enum_tell_true_from_one() -> None:
    assert read("1", {"enum": ["1", True]}) == '"1"'
    assert read("true", {"const": 1}) == '"true"'


@pytest.mark.parametrize(("word", "value"), [("True", "true"), ("False", "false"), ("None", "null")])
def test_pythons_words_are_read_where_the_format_writes_them(word: str, value: str) -> None:
    schema = {"type": ["boolean", "null"]}
    assert read(word, schema) == json.dumps(word)
    assert read(word, schema, python_words=True) == value
    assert read(value, schema, python_words=True) == value
    assert read(word, {"type": ["integer", "string"]}, python_words=True) == json.dumps(word)


@pytest.mark.parametrize(
    ("parameters", "schema"),
    [
        ({"properties": {"v": {"type": "string"}}, "additionalProperties": {"type": "null"}}, {"type": "string"}),
        ({"additionalProperties": {"type": "string"}}, {"type": "string"}),
        ({"properties": {"w": {}}, "additionalProperties": {"type": "string"}}, {"type": "string"}),
        ({"patternProperties": {"^v": {"type": "string"}, "w$": {}}}, {"type": "string"}),
        ({"patternProperties": {"(?=v)": {"type": "string"}, "(": {"type": "null"}}}, {}),
        (
            {"properties": {"v": {"type": "string"}}, "patternProperties": {".": {"minLength": 1}}},
            {"allOf": [{"type": "string"}, {"minLength": 1}]},
        ),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"v": {"type": "string"}}}}}, {"type": "string"}),
        ({"allOf": [{"properties": {"w": {}}}, {"properties": {"v": {"type": "string"}}}]}, {"type": "string"}),
        (
            {"anyOf": [{"properties": {"v": {"type": "null"}}}, {"properties": {"v": {"type": "string"}}}, {}]},
            {"anyOf": [{"type": "null"}, {"type": "string"}]},
        ),
        ({"oneOf": [{"properties": {"v": False}}, {"additionalProperties": {}}]}, {"anyOf": [False]}),
        ({"properties": {"w": {}}, "additionalProperties": False}, {}),
        ({"properties": {"v": {}}}, {}),
        ({"properties": [], "allOf": 3, "$ref": 3}, {}),
        ({"$ref": "#", "allOf": [{"$ref": "#"}] * 2}, {}),
        (None, {}),
        (True, {}),
    ],
)
def test_schema_of_a_parameter_is_found_wherever_it_is_declared(parameters: Any, schema: Any) -> None:
    assert parameter_schema(parameters, "v") == schema


@pytest.mark.parametrize("text", ["12", "[[1]]", '{"a": {"a": 1}}'])
def test_references_that_multiply_come_to_an_end(text: str) -> None:
    doubled: dict[str, Any] = {f"D{n}": {"anyOf": [{"$ref": f"#/$defs/D{n + 1}"}] * 2} for n in range(60)}
    doubled["D60"] = {"type": "null"}
    inner = {"items": {"$ref": "#/$defs/D0"}, "additionalProperties": {"$ref": "#/$defs/D0"}}
    patterns: dict[str, Any] = {f"{n}" + "\\w{1000}": {} for n in range(200)}
    choices = [{"type": "string"}, {**inner, "patternProperties": patterns}, {"$ref": "#/$defs/D0"}]
    assert json.loads(read(text, {"anyOf": choices}, {"$defs": doubled})) in (text, json.loads(text))


def other_reading(text: str) -> Any:
    """The value of a text that is JSON and no string; else the text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, str) or "NaN" in text or "Infinity" in text else value


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_written_argument_is_read_back_but_where_a_string_reads_as_another_allowed_value(data: st.DataObject) -> None:
    kind = data.draw(KINDS)
    value = data.draw(kind.values)
    definitions: dict[str, Any] = {}
    schema = hoisted(kind.schema, definitions)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    got = read(text, schema, {"$defs": definitions})
    other = other_reading(text)
    if isinstance(value, str) and (isinstance(other, str) or not kind.suits(other)):
        assert json.loads(got) == value
    else:
        assert got == text.strip()


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=20) | TEXTS, KINDS)
def test_any_text_has_a_value(text: str, kind: Kind) -> None:
    definitions: dict[str, Any] = {}
    schema = hoisted(kind.schema, definitions)
    got = read(text, schema, {"$defs": definitions})
    assert json.loads(got) == text or got == text.strip(" \t\n\r")
