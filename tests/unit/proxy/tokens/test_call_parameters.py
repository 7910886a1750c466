"""Arguments that a format writes one by one: their grammar is bounded, whatever a tool declares."""

import json
import time
from typing import Any

import pytest

from rolloutfleet_proxy.tokens.call_grammar import Form, sequence, text
from rolloutfleet_proxy.tokens.call_parameters import Parameters
from rolloutfleet_proxy.tokens.call_schemas import ANY_OBJECT, LONGEST, arguments_schemas

MANY = 100
WRITTEN = 4 * LONGEST
"""Letters of all forms at the most, with what their marks take."""


def named(name: Form) -> Form:
    return sequence([text("<"), name, text(">")])


PARAMETERS = Parameters(named=named, end=text("</>"), kept_out=("</>",))


def declared(value: Any, **definitions: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"v": value}, "$defs": definitions}


REFERENCE = {"$ref": "#/$defs/D"}
LISTS = [{"type": "array", "items": REFERENCE}] * MANY
GROWING = {
    "references to lists of references": declared({"anyOf": [REFERENCE] * MANY}, D={"anyOf": LISTS}),
    "references to alternatives": declared({"anyOf": [REFERENCE] * MANY}, D={"anyOf": [{"type": "null"}] * MANY}),
    "references to enumerations": declared({"anyOf": [REFERENCE] * MANY}, D={"enum": [str(n) for n in range(MANY)]}),
    "alternatives of alternatives": declared({"anyOf": [{"anyOf": [REFERENCE] * 10}] * 10}, D={"anyOf": LISTS}),
    "arguments that refer": {
        "properties": {f"p{n}": {"anyOf": [REFERENCE] * 10} for n in range(MANY)},
        "$defs": {"D": {"anyOf": LISTS[:10]}},
    },
}


@pytest.mark.parametrize("parameters", GROWING.values(), ids=GROWING)
def test_what_multiplies_is_bounded(parameters: dict[str, Any]) -> None:
    (schema,) = arguments_schemas([parameters])
    begun = time.process_time()
    forms = PARAMETERS.forms(schema)
    assert time.process_time() - begun < 1.0
    assert len(json.dumps(forms)) < WRITTEN


def test_too_much_for_its_schema_is_any_object() -> None:
    (schema,) = arguments_schemas([GROWING["references to lists of references"]])
    assert PARAMETERS.forms(schema) == PARAMETERS.forms(ANY_OBJECT)


def test_a_definition_that_many_arguments_refer_to_keeps_its_form() -> None:
    address = {"type": "object", "properties": {name: {"type": "string"} for name in ("street", "town", "land")}}
    properties = {f"p{n}": {"anyOf": [REFERENCE, {"type": "null"}]} for n in range(20)}
    (schema,) = arguments_schemas([{"properties": properties, "$defs": {"D": address}}])
    assert json.dumps(PARAMETERS.forms(schema)).count("street") >= 20


@pytest.mark.parametrize("mark", ["[", '{"a":'])
def test_a_value_that_is_nested_too_deeply_to_be_read_is_written_as_json(mark: str) -> None:
    value = mark * 30_000
    (schema,) = arguments_schemas([declared({"enum": [value]})])
    assert json.dumps(json.dumps(value))[1:-1] in json.dumps(PARAMETERS.forms(schema))


def test_many_definitions_names_and_tools_take_no_longer_than_they_are_long() -> None:
    many = 100_000
    parameters = {
        "properties": {"v": {}},
        "required": [f"r{n}" for n in range(many)],
        "$defs": {f"a/{n}": {} for n in range(many)} | {f"d{n}": {} for n in range(1_900)},
    }
    begun = time.process_time()
    arguments_schemas([parameters])
    assert time.process_time() - begun < 1.0
