"""Arguments that a format writes one by one: their grammar is bounded, whatever a tool declares."""

import json
from typing import Any

import pytest
from tests.unit.proxy.tokens.growing import GROWING, PARAMETERS, REFERENCE, declared

from rolloutfleet_proxy.tokens.call_schemas import ANY_OBJECT, LONGEST, arguments_schemas

WRITTEN = 4 * LONGEST
"""Letters of all forms at the most, with what their marks take."""


@pytest.mark.parametrize("parameters", GROWING.values(), ids=GROWING)
def test_what_multiplies_is_bounded(parameters: dict[str, Any]) -> None:
    (schema,) = arguments_schemas([parameters])
    assert len(json.dumps(PARAMETERS.forms(schema))) < WRITTEN


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
