"""Arguments that a format writes one by one: what their grammar takes, and its bounds, whatever a tool declares."""

import json
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from tests.unit.proxy.tokens.growing import GROWING, PARAMETERS, REFERENCE, declared, spelled
from tests.unit.proxy.tokens.kinds import KINDS, LIKE_JSON, TEXTS, hoisted

from rolloutfleet_engine.structural_tags import lark_of
from rolloutfleet_proxy.tokens.argument_values import PYTHON_WORDS, parameter_schema, value_of
from rolloutfleet_proxy.tokens.reply_grammar import Parameters, sequence
from rolloutfleet_proxy.tokens.tool_schemas import ANY_OBJECT, LONGEST, arguments_schemas

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


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"enum": ["1", "true", '"a"', "[" * 30_000]}, ["1", "true", '"a"', "[" * 30_000]),
        ({"enum": ["2", 2, None, "x"]}, ["2", "null", "x"]),
        ({"type": "string", "enum": ["3", None]}, ["3"]),
        ({"anyOf": [{"const": "4"}, {"const": 5}]}, ["4", "5"]),
    ],
)
def test_listed_values_are_written_without_quotes(schema: Any, values: list[str]) -> None:
    (relaxed,) = arguments_schemas([declared(schema)])
    assert texts(PARAMETERS.forms(relaxed)) == [f"<v>{value}</>" for value in values]


def texts(form: Any) -> list[str]:
    """The texts that a form of texts, alternatives and what may be left out has."""
    if isinstance(form, list):
        return [text for each in form for text in texts(each)]
    match form["type"]:
        case "const_string":
            return [form["value"]]
        case "sequence":
            return ["".join(parts) for parts in product(*map(texts, form["elements"]))]
    return texts(form.get("elements") or form["content"])


class Grammar:
    """The engine's grammar of one argument, which has to be there."""

    def __init__(self, parameters: dict[str, Any], written: Parameters = PARAMETERS) -> None:
        (schema,) = arguments_schemas([{**parameters, "required": ["v"]}])
        tag = json.dumps({"type": "structural_tag", "format": sequence(written.forms(schema))})
        self._matcher = LLMatcher(BYTES, LLMatcher.grammar_from_lark(lark_of(tag, {})), log_level=0)
        assert not self._matcher.is_error(), self._matcher.get_error()

    def takes(self, text: str) -> bool:
        ids = list(f"<v>{text}</>".encode())
        self._matcher.reset()
        return (
            self._matcher.validate_tokens(ids) == len(ids)
            and self._matcher.consume_tokens(ids)
            and self._matcher.is_accepting()
        )


BYTES = LLTokenizer("byte")


@pytest.mark.parametrize("python_words", [False, True])
@pytest.mark.parametrize(
    ("schema", "taken"),
    [
        ({"type": "boolean"}, {"true": "True", "false": "False"}),
        ({"type": ["integer", "null"]}, {"null": "None"}),
        ({"enum": ["false", True, None]}, {"true": "True", "null": "None"}),
    ],
)
def test_pythons_words_are_taken_beside_jsons_where_the_format_writes_them(
    schema: Any, taken: dict[str, str], python_words: bool
) -> None:
    grammar = Grammar(declared(schema), spelled(python_words=python_words))
    assert all(map(grammar.takes, taken))
    words = {word for word in PYTHON_WORDS if grammar.takes(word)}
    assert words == (set(taken.values()) if python_words else set())


@settings(max_examples=100, deadline=None)
@given(st.data(), st.booleans())
def test_grammar_takes_declared_values_as_written_and_no_text_that_is_read_as_another(
    data: st.DataObject, python_words: bool
) -> None:
    kind = data.draw(KINDS)
    definitions: dict[str, Any] = {}
    parameters = declared(hoisted(kind.schema, definitions), **definitions)
    assume("\\u0000" not in json.dumps(parameters))  # it is kept from engines
    grammar = Grammar(parameters, spelled(python_words=python_words))
    value = data.draw(kind.values)
    assert grammar.takes(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    if python_words and (value is None or isinstance(value, bool)):
        assert grammar.takes(str(value))
    for text in (*data.draw(st.lists(TEXTS)), *LIKE_JSON):
        read = json.loads(value_of(text, parameter_schema(parameters, "v"), parameters, python_words=python_words))
        assert not grammar.takes(text) or kind.suits(read)
