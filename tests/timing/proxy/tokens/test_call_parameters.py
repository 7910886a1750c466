"""How long the forms of a tool's arguments take to make, whatever it declares."""

import time
from typing import Any

import pytest
from tests.unit.proxy.tokens.growing import GROWING, PARAMETERS

from rolloutfleet_proxy.tokens.tool_schemas import arguments_schemas


@pytest.mark.parametrize("parameters", GROWING.values(), ids=GROWING)
def test_what_multiplies_takes_no_long_time(parameters: dict[str, Any]) -> None:
    (schema,) = arguments_schemas([parameters])
    begun = time.process_time()
    PARAMETERS.forms(schema)
    assert time.process_time() - begun < 1.0


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
