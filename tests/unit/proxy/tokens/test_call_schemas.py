"""A tool's parameters as a grammar takes them: never less than was declared, and of what every engine compiles."""

import json
from typing import Any

import pytest

from rolloutfleet_proxy.tokens.tool_schemas import ANY_OBJECT, EACH, LONGEST, arguments_schemas

MOST: int = LONGEST // EACH
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Node"}, "mode": {"enum": ["a", "b"]}, "size": {"type": "integer"}},
    "required": ["root"],
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1, "description": "its name"},
                "child": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
            },
            "required": ["name"],
        }
    },
}


def relaxed(parameters: Any) -> dict[str, Any]:
    (schema,) = arguments_schemas([parameters])
    return schema


def test_types_and_properties_are_kept_and_a_schema_within_itself_is_any_value() -> None:
    node = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "child": {"anyOf": [{}, {"type": "null"}]}},
        "required": ["name"],
        "additionalProperties": False,
    }
    assert relaxed(TREE) == {
        "type": "object",
        "properties": {"root": node, "mode": {"enum": ["a", "b"]}, "size": {"type": "integer"}},
        "required": ["root"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("declared", "kept"),
    [
        ({"type": "string", "pattern": "^(?!a).*$", "format": "uri", "maxLength": 3}, {"type": "string"}),
        ({"type": "integer", "minimum": 5, "maximum": 1}, {"type": "integer"}),
        ({"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"type": "string", "nullable": True}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"enum": ["a"], "nullable": True}, {"anyOf": [{"enum": ["a"]}, {"type": "null"}]}),
        ({"type": "string", "nullable": False}, {"type": "string"}),
        ({"type": ["string", {}]}, {}),
        ({"type": "float"}, {}),
        ({"allOf": [{"type": "string"}, {"minLength": 2}]}, {"type": "string"}),
        ({"allOf": [{"type": "string"}, {"enum": ["a"]}]}, {"enum": ["a"]}),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, {}),
        (
            {"allOf": [{"properties": {"b": {"type": "null"}}, "required": ["b"]}], "properties": {"a": {}}},
            {
                "type": "object",
                "properties": {"b": {"type": "null"}, "a": {}},
                "required": ["b"],
                "additionalProperties": False,
            },
        ),
        ({"allOf": 1}, {}),
        ({"type": "string", "enum": ["3", None]}, {"enum": ["3"]}),
        ({"not": {}}, {}),
        (False, {}),
        ({"enum": []}, {}),
        ({"const": 1}, {"enum": [1]}),
        ({"oneOf": [{"type": "string"}, {"type": "number"}]}, {"anyOf": [{"type": "string"}, {"type": "number"}]}),
        ({"$ref": "https://example.org/a"}, {}),
        ({"$ref": "#/properties/other"}, {}),
        (
            {"type": "array", "items": {"type": "number"}, "minItems": 1000},
            {"type": "array", "items": {"type": "number"}},
        ),
        (
            {"type": "object", "additionalProperties": {"type": "string"}},
            {"type": "object", "additionalProperties": {"type": "string"}},
        ),
        (
            {"type": "object", "additionalProperties": {"type": "string"}, "patternProperties": {"a": {}}},
            {"type": "object"},
        ),
    ],
)
def test_what_an_engine_could_refuse_is_left_out(declared: Any, kept: dict[str, Any]) -> None:
    assert relaxed({"type": "object", "properties": {"a": declared}})["properties"]["a"] == kept


def test_properties_that_are_not_declared_are_allowed_where_the_schema_asks_for_them() -> None:
    for more, allowed in (
        ({}, False),
        ({"additionalProperties": True}, True),
        ({"additionalProperties": {"type": "integer", "minimum": 1}}, {"type": "integer"}),
        ({"additionalProperties": {"type": "integer"}, "patternProperties": {"a": {}}}, True),
        ({"patternProperties": {"a": {}}}, True),
    ):
        assert relaxed({"properties": {"a": {}}, **more})["additionalProperties"] == allowed


def test_a_required_property_that_is_not_declared_is_not_asked_for() -> None:
    assert relaxed({"properties": {"a": {}}, "required": ["a", "b"]})["required"] == ["a"]


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object"}, {"type": "string"}, {"$ref": "#"}])
def test_parameters_that_say_nothing_are_any_object(parameters: Any) -> None:
    assert relaxed(parameters) == ANY_OBJECT


def test_parameters_behind_a_reference_and_of_any_name_are_kept() -> None:
    arguments = {"properties": {"a": {"type": "string"}}}
    schema = relaxed({"$ref": "#/$defs/Arguments", "$defs": {"Arguments": arguments}})
    assert schema["properties"] == {"a": {"type": "string"}} and schema["additionalProperties"] is False
    assert relaxed({"additionalProperties": {"type": "integer"}})["additionalProperties"] == {"type": "integer"}


def test_definitions_that_lead_round_in_a_circle_are_cut() -> None:
    circle = {"A": {"$ref": "#/$defs/B"}, "B": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}}
    schema = relaxed({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": circle})
    assert schema["properties"] == {"a": {"anyOf": [{}, {"type": "null"}]}}


def test_references_that_lead_on_and_on_come_to_an_end() -> None:
    chain = {f"D{n}": {"properties": {"next": {"$ref": f"#/$defs/D{n + 1}"}}} for n in range(1_500)}
    schema = relaxed({"properties": {"a": {"$ref": "#/$defs/D0"}}, "$defs": chain})
    assert schema["properties"]["a"]["properties"]["next"]["type"] == "object"


def test_references_lead_anywhere_in_a_tools_parameters() -> None:
    address = {"type": "object", "properties": {"street": {"type": "string"}}}
    references = {"to": {"$ref": "#/properties/from"}, "last": {"$ref": "#/properties/all/items"}}
    schema = relaxed({"properties": {"from": address, "all": {"type": "array", "items": address}, **references}})
    assert schema["properties"]["to"] == schema["properties"]["last"] == schema["properties"]["from"]


def test_what_is_too_large_is_any_object_and_leaves_the_others_their_own() -> None:
    small = {"properties": {"a": {"type": "string"}}}
    wide: dict[str, Any] = {"properties": {f"p{number}": {} for number in range(MOST + 1)}}
    long = {"properties": {"a": {"enum": ["x" * LONGEST]}}}
    null = {"properties": {"a": {"enum": ["\x00"]}}}
    schemas = arguments_schemas([wide, small, long, small, null])
    assert [schema == ANY_OBJECT for schema in schemas] == [True, False, True, False, True]
    assert len(json.dumps(arguments_schemas([small] * 10_000))) < 2 * LONGEST + 10_000 * 20


def test_definitions_count_for_each_argument_that_refers_to_them() -> None:
    """Some formats write each argument by itself, with all that it refers to."""
    names = [f"name {number}" for number in range(1000)]

    def tool(arguments: int) -> dict[str, Any]:
        properties = {f"p{number}": {"$ref": "#/$defs/Name"} for number in range(arguments)}
        return {"properties": properties, "$defs": {"Name": {"enum": names}}}

    assert [schema == ANY_OBJECT for schema in arguments_schemas([tool(2), tool(100), tool(2)])] == [False, True, False]


def test_each_type_of_several_counts_as_a_part() -> None:
    def tool(kind: Any) -> dict[str, Any]:
        return {"properties": {f"p{number}": {"type": kind} for number in range(MOST // 2 + 1)}}

    assert arguments_schemas([tool("string")]) != [ANY_OBJECT]
    assert arguments_schemas([tool(["string", "null"])]) == [ANY_OBJECT]
