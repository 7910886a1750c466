"""Schemas of tools, in every format."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.proxy.tokens.models.families import FAMILIES, VARIANTS, chat_format

from rolloutfleet_proxy.domain.messages import TemplateArgs
from rolloutfleet_proxy.tokens.render import ChatFormat
from rolloutfleet_proxy.tokens.tool_schemas import writable

FORMATS = [*FAMILIES, *VARIANTS]
TYPES = ("string", "integer", "number", "boolean", "null", "object", "array")


def of(parameters: Any, **function: Any) -> list[Any]:
    return [{"type": "function", "function": {"name": "probe_tool", "parameters": parameters, **function}}]


def with_property(schema: Any, **beside: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"alpha": schema}, **beside}


def told(model: ChatFormat, tools: list[Any]) -> str:
    return model.vocabulary.decode(model.prompt([{"role": "user", "content": "?"}], TemplateArgs(tools), []).ids)


NOTES: dict[str, st.SearchStrategy[Any]] = {
    "description": st.sampled_from([None, "", "Word."]),
    "title": st.just("T"),
    "default": st.sampled_from([None, 1, "x", [], {}]),
    "minLength": st.just(1),
    "pattern": st.just("^a"),
    "minimum": st.just(0),
    "format": st.just("date"),
    "const": st.sampled_from([None, 1, "x", {"a": [1]}]),
    "enum": st.sampled_from([[], ["a", None], [1, 2.5, True, {"a": 1}]]),
    "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), min_size=1, max_size=2, unique=True),
    "$ref": st.sampled_from(
        ["#", "#/$defs/D", "#/definitions/E", "#/$defs/no", "#/properties/b", "https://x.y/z", "#D"]
    ),
    "required": st.sampled_from([[], ["a"], None]),
    "additionalProperties": st.booleans(),
    "items": st.booleans(),
}


def holding(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(schemas, min_size=1, max_size=2)
    named = st.dictionaries(st.sampled_from(["a", "b", "type", "description", "properties"]), schemas, max_size=2)
    inner: dict[str, st.SearchStrategy[Any]] = {
        **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), several),
        **dict.fromkeys(("properties", "patternProperties", "$defs"), named | st.none()),
        **dict.fromkeys(("items", "additionalProperties", "not", "if", "then", "contains"), schemas),
    }
    return st.fixed_dictionaries({}, optional=NOTES | inner)


SCHEMAS = st.recursive(st.booleans() | st.fixed_dictionaries({}, optional=NOTES), holding, max_leaves=4)
DEFINITIONS = st.fixed_dictionaries({}, optional={"$defs": st.fixed_dictionaries({"D": SCHEMAS, "F": SCHEMAS})})


@settings(max_examples=300)
@given(SCHEMAS, SCHEMAS, DEFINITIONS, st.sampled_from(FORMATS))
def test_every_schema_is_written(models: Path, schema: Any, other: Any, defined: dict[str, Any], name: str) -> None:
    tools = of({**with_property(schema, definitions={"E": other}), **defined}, description=None)
    before = json.dumps(tools)
    text = told(chat_format(name, models), tools)
    assert "probe_tool" in text and "alpha" in text
    assert json.dumps(tools) == before


ROOTS = {
    "untyped": {"properties": {"alpha": {"type": "string"}}},
    "a reference": {"$ref": "#/$defs/D", "$defs": {"D": with_property({"type": "string"})}},
    "a reference to another": {
        "$ref": "#/$defs/C",
        "$defs": {"C": {"$ref": "#/$defs/D"}, "D": with_property({"type": "string"})},
    },
    "parts": {"allOf": [with_property(True), {"$ref": "#/$defs/D"}], "$defs": {"D": {"required": ["alpha"]}}},
    "alternatives": {"anyOf": [with_property({"type": "string"}), with_property({"type": "integer"})]},
    "patterns": {"type": "object", "patternProperties": {"^alpha": {"type": "string"}}},
    "a reference to itself": with_property({"$ref": "#"}),
    "nothing but itself": {"$ref": "#", "description": "alpha"} | {"oneOf": [with_property(True)]},
}


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("name", FORMATS)
def test_properties_behind_other_words_at_the_root_are_written(models: Path, name: str, root: str) -> None:
    assert "alpha" in told(chat_format(name, models), of(ROOTS[root], description="Word."))


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object"}, {"type": "object", "properties": None}])
@pytest.mark.parametrize("name", FORMATS)
def test_a_tool_without_parameters_is_written(models: Path, name: str, parameters: Any) -> None:
    model = chat_format(name, models)
    assert all("probe_tool" in told(model, of(parameters, **each)) for each in ({}, {"description": None}))


DEFINED = {"type": "object", "properties": {"k": {"type": "string", "enum": ["WREFERRED"]}}}
SAYING: dict[str, Any] = {
    "a reference": {"$ref": "#/$defs/D", "description": "WHOLE"},
    "a reference or null": {"anyOf": [{"$ref": "#/$defs/D"}, {"type": "null"}], "default": None},
    "items that are referred to": {"type": "array", "items": {"$ref": "#/$defs/D"}},
    "two that are referred to": {"anyOf": [{"$ref": "#/$defs/D"}, {"type": "array", "items": {"$ref": "#/$defs/D"}}]},
    "parts": {"allOf": [{"$ref": "#/$defs/D"}], "description": "WHOLE"},
    "values or null": {"anyOf": [{"type": "string", "enum": ["WANY"]}, {"type": "null"}]},
    "a format or null": {"anyOf": [{"type": "string", "format": "WFORMAT"}, {"type": "null"}]},
    "alternatives with descriptions": {"anyOf": [{"type": "string", "description": "WONE"}, {"type": "integer"}]},
    "one of": {"oneOf": [{"const": "WONE", "description": "WTOLD"}, {"type": "integer", "minimum": 4711}]},
    "a constant": {"const": "WCONST"},
    "a constant string": {"type": "string", "const": "WCONST"},
    "values without a type": {"enum": ["WVALUE", 1]},
    "values of two types": {"type": ["string", "null"], "enum": ["WVALUE", None]},
    "numbers": {"type": "integer", "enum": [4711, 4712]},
    "a pattern": {"type": "string", "pattern": "WPATTERN"},
    "a format": {"type": "string", "format": "WFORMAT"},
    "a bound": {"type": "integer", "minimum": 4711},
    "a default": {"type": "string", "default": "WDEFAULT"},
    "examples": {"type": "string", "examples": ["WEXAMPLE"]},
    "patterns of names": {"type": "object", "patternProperties": {"^WNAME": {"type": "string"}}},
    "other properties": {"type": "object", "additionalProperties": {"type": "string", "description": "WOTHER"}},
    "the first items": {"type": "array", "prefixItems": [{"const": "WFIRST"}]},
    "items with a pattern": {"type": "array", "items": {"type": "string", "pattern": "WPATTERN"}},
    "items with a description": {"type": "array", "items": {"type": "string", "description": "WITEM"}},
    "what it is not": {"not": {"const": "WNOT"}},
    "an object with alternatives": {"type": "object", "properties": {"b": {}}, "oneOf": [{"required": ["WNAME"]}]},
}


@pytest.mark.parametrize("saying", SAYING)
@pytest.mark.parametrize("name", FORMATS)
def test_all_that_a_schema_says_is_written(models: Path, name: str, saying: str) -> None:
    model, schema = chat_format(name, models), SAYING[saying]
    within = {"type": "object", "properties": {"beta": schema}, "required": ["beta"]}
    for each in (schema, within, {"type": "array", "items": within}):
        parameters = {**with_property(each), "$defs": {"D": DEFINED}}
        text = told(model, of(parameters, description="Word."))
        words = re.findall("W[A-Z]+|4711", json.dumps([schema, DEFINED] if "$ref" in json.dumps(schema) else schema))
        assert words and [word for word in words if word not in text] == [], text


@pytest.mark.parametrize("name", ["gpt-oss", "gemma4"])
def test_a_schema_stands_in_the_place_of_the_first_reference_to_it(models: Path, name: str) -> None:
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}}
    properties = {"a": {"$ref": "#/$defs/Node"}, "b": {"$ref": "#/$defs/Node"}}
    text = told(chat_format(name, models), of({"properties": properties, "$defs": {"Node": node}}))
    assert text.count("next?: " if name == "gpt-oss" else "next:{") == 1
    assert text.count('{"$defs": {"Node": {"type": "object", "properties": {"next":') == 1
    assert text.count('{"$ref": "#/$defs/Node"}\n' if name == "gpt-oss" else '<|"|>{"$ref": "#/$defs/Node"}<|"|>') == 1


KIMI: list[tuple[dict[str, Any], str]] = [
    (with_property({"const": "x"}), 'alpha?: "x"\n'),
    (with_property({"oneOf": [{"const": 1}, {"type": "string"}]}), "alpha?: 1 | string\n"),
    (with_property({"description": "Word."}), "// Word.\n  alpha?: any\n"),
    (with_property({"not": {"type": "string"}}), '// {"not": {"type": "string"}}\n  alpha?: any\n'),
    (with_property({"allOf": [{"type": "string"}, {"description": "Word."}]}), "// Word.\n  alpha?: string\n"),
    (
        with_property({"description": "Word.", "allOf": [{"type": "string"}, {"type": "integer"}]}),
        '// Word.\n  // {"allOf": [{"type": "string"}, {"type": "integer"}]}\n  alpha?: any\n',
    ),
    (
        with_property({"$ref": "#/definitions/E"}, definitions={"E": with_property(True)}),
        "alpha?: {\n    alpha?: any\n  }\n",
    ),
    (
        with_property({"$ref": "#/definitions/E"}, definitions={"E": True}),
        '// {"$ref": "#/definitions/E"}\n  alpha?: any\n',
    ),
    (with_property({"$ref": "https://x.y/z"}), '// {"$ref": "https://x.y/z"}\n  alpha?: any\n'),
    (
        with_property({"$ref": "#/definitions/E"}, definitions={"E": {"type": "string"}}, **{"$defs": {"E": True}}),
        "alpha?: string\n",
    ),
    (
        {"$defs": {"D": {"type": "object", "$defs": {"E": {"type": "string"}}}}}
        | with_property({"$ref": "#/$defs/D/$defs/E"}),
        "alpha?: string\n",
    ),
    (
        {"$defs": {"D": {"type": "object", "$defs": {"E": {"type": "string"}}}}} | with_property({"$ref": "#/$defs/D"}),
        "interface D {}\n",
    ),
    (with_property({"properties": {"b": True}, "required": ["b"]}), "alpha?: {\n    b: any\n  }\n"),
    (
        with_property({"type": "object", "properties": {"b": True}, "anyOf": [{"required": ["b"]}]}),
        '// {"anyOf": [{"required": ["b"]}]}\n  alpha?: {\n    b?: any\n  }\n',
    ),
]


@pytest.mark.parametrize(("parameters", "expected"), KIMI)
def test_schemas_that_kimi_refuses_are_said_in_its_types(
    models: Path, parameters: dict[str, Any], expected: str
) -> None:
    assert expected in told(chat_format("kimi-k2.5", models), of(parameters))


@pytest.mark.parametrize("name", ["kimi-k2.5", "gpt-oss", "gemma4", "nemotron-3", "qwen3"])
def test_schemas_that_a_format_can_write_are_handed_on_as_they_came(name: str) -> None:
    kinds = {each: {"type": each, "description": each} for each in TYPES}
    union: dict[str, Any] = {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/D"}], "default": None}
    literal = {"type": "string", "enum": ["x"]}
    more = {"additionalProperties": False, "$defs": {"D": literal}}
    if name in ("gpt-oss", "gemma4"):
        union, more = literal, {}
    nested = {"type": "array", "items": {"type": "object", "properties": {**kinds, "union": union, "any": {}}}}
    tools = of({**with_property(nested, required=["alpha"]), **more}, description="Word.")
    assert writable(name, tools) == tools


def test_definitions_that_lead_to_others_are_written_however_many(models: Path) -> None:
    following = {f"D{each}": {"$ref": f"#/definitions/D{each + 1}"} for each in range(1500)}
    chain = {name: {"type": "object", "properties": {"n": each}} for name, each in following.items()}
    parameters = with_property({"$ref": "#/definitions/D0"}, definitions=chain | {"D1500": {"type": "string"}})
    for name in ("kimi-k2.5", "gpt-oss", "gemma4"):
        assert '"D1500": {"type": "string"}' in told(chat_format(name, models), of(parameters))


def test_a_definition_that_holds_itself_is_written_once(models: Path) -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    parameters = {**with_property({"$ref": "#/$defs/Node"}), "$defs": {"Node": node}}
    text = told(chat_format("kimi-k2.5", models), of(parameters))
    assert len(re.findall("interface Node ", text)) == 1 and "next?: Node" in text
