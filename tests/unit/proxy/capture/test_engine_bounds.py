"""What an engine is given to compile and to search for: no more than a turn can come to."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet_proxy.capture.engine_bounds import (
    MAX_GRAMMAR_BYTES,
    MAX_WRITTEN_OUT,
    bounded,
)
from rolloutfleet_proxy.domain.errors import InvalidParameter

TOKENS = 100
LONGEST_TOKEN = 256
REACH = TOKENS * LONGEST_TOKEN
FIELDS = {"json_schema": "response_format.json_schema.schema"}


def within(tokens: int = TOKENS, /, **sampling: Any) -> dict[str, Any]:
    return bounded(sampling, tokens=tokens, longest_token=LONGEST_TOKEN, called=lambda name: FIELDS.get(name, name))


def schema_within(schema: Any, *, tokens: int = TOKENS) -> Any:
    return json.loads(within(tokens, json_schema=json.dumps(schema))["json_schema"])


def refused(tokens: int = TOKENS, /, **sampling: Any) -> tuple[str, str]:
    """(path, message) of the 400."""
    with pytest.raises(InvalidParameter) as refusal:
        within(tokens, **sampling)
    return str(refusal.value.param), refusal.value.message


def test_sampling_without_a_grammar_is_as_it_was() -> None:
    assert within(temperature=0.5, stop=["x"]) == {"temperature": 0.5, "stop": ["x"]}


@pytest.mark.parametrize("keyword", ["maxLength", "maxItems", "maxProperties", "maxContains"])
def test_an_upper_bound_that_the_turn_cannot_reach_is_left_out(keyword: str) -> None:
    for most, kept in ((REACH - 1, True), (REACH, False), (10**9, False), (1e30, False)):
        schema = {"type": "object", "properties": {"x": {"type": "string", keyword: most, "minLength": 2}}}
        assert (keyword in schema_within(schema)["properties"]["x"]) == kept
    assert schema_within({keyword: "many"}) == {keyword: "many"}, "the engine says what is wrong with it"


@pytest.mark.parametrize("keyword", ["minLength", "minItems", "minProperties", "minContains"])
def test_a_lower_bound_beyond_the_turn_is_refused_with_its_path(keyword: str) -> None:
    def schema(least: float) -> Any:
        return {"$defs": {"d": {"anyOf": [{"type": "null"}, {keyword: least}]}}, "type": "object"}

    assert schema_within(schema(REACH)) == schema(REACH)
    for least in (REACH + 1, 1e9, 10**400):
        path, message = refused(json_schema=json.dumps(schema(least)))
        assert path == f"{FIELDS['json_schema']}.$defs.d.anyOf[1].{keyword}"
        assert "A reply of at most 100 tokens can't have " in message


def test_names_of_properties_are_no_keywords() -> None:
    schema = {
        "properties": {"minItems": {"type": "integer"}, "maxLength": {"enum": [10**9]}},
        "const": {"minItems": 1e9},
    }
    assert schema_within(schema) == schema


@pytest.mark.parametrize(
    "held",
    [
        {"dependencies": {"a": {"minItems": 1e9}}},
        {"patternProperties": {"^a{1000000000}$": {}}},
        {"$ref": "#/x", "x": {"minItems": 1e9}},
        {"$ref": "#/x/1/y", "x": [True, {"y": {"minItems": 1e9}}]},
    ],
    ids=["dependencies", "names that are patterns", "a reference", "a reference into a list"],
)
def test_a_count_is_bounded_wherever_a_schema_may_stand(held: Any) -> None:
    path, message = refused(json_schema=json.dumps(held))
    assert path.startswith(FIELDS["json_schema"]) and "can't have 1e+09 of them" in message


def test_names_that_are_patterns_multiply_their_counts() -> None:
    schema = {"patternProperties": {"^(a{2000}){2000}$": True}}
    path, message = refused(json_schema=json.dumps(schema))
    assert path == f"{FIELDS['json_schema']}.patternProperties.^(a{{2000}}){{2000}}$" and "parts" in message


@pytest.mark.parametrize(
    "pointer", ["#/const", "#/properties/x/enum/0", "#/properties/properties/default", "#/%63onst", "#/default/const"]
)
def test_a_reference_to_a_value_is_refused(pointer: str) -> None:
    path, message = refused(json_schema=json.dumps({"anyOf": [{"$ref": pointer}]}))
    assert path == f"{FIELDS['json_schema']}.anyOf[0].$ref" and "refers to a value" in message


@pytest.mark.parametrize("pointer", ["#", "#/$defs/const", "#/properties/enum", "#/properties/properties", "#/x/y"])
def test_a_reference_to_a_schema_goes_as_it_came(pointer: str) -> None:
    assert schema_within({"$ref": pointer}) == {"$ref": pointer}


def nested(levels: int, count: int) -> Any:
    schema: Any = {"type": "boolean"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema, "maxItems": count}
    return schema


def test_counts_that_multiply_are_refused_where_they_come_to_too_much() -> None:
    assert schema_within(nested(3, 90), tokens=1000) == nested(3, 90)
    path, message = refused(1000, json_schema=json.dumps(nested(4, 90)))
    assert path == FIELDS["json_schema"] and "65,610,000 parts" in message
    listed = {"anyOf": [nested(2, 900), nested(2, 900)]}
    assert refused(1000, json_schema=json.dumps(listed))[0] == FIELDS["json_schema"]


@pytest.mark.parametrize(
    ("kind", "text", "too_much"),
    [
        ("regex", "[a-z]{%d}", 10**6 + 1),
        ("regex", "(?:[a-z]{1000}x){%d}", 1000),
        ("regex", "(a|b{500}){0,%d}", 2000),
        ("regex", r"[\]{}]\({%d}", 10**6),
        ("regex", "((((x{10}){10}){10}){10}){%d}", 101),
        ("ebnf", "root ::= [a-z]{%d}", 10**6),
        ("ebnf", 'root ::= "{9999999}" # {9999999}\nother ::= (root "x"){%d}', 10**6),
    ],
)
def test_counts_of_an_expression_are_refused_where_they_come_to_too_much(kind: str, text: str, too_much: int) -> None:
    tokens = 10**5
    assert within(tokens, **{kind: text % 9}) == {kind: text % 9}
    assert refused(tokens, **{kind: text % too_much})[0] == kind
    path, message = refused(**{kind: text % 10**9})
    assert path == kind and ("can't have" in message or "parts" in message)


@pytest.mark.parametrize("text", ["a{2,", "a{,}", "(((", ")))", "[", "a{1,2}{3}", "\\", '"', "a|*", "{5}", "x{}"])
def test_text_that_is_no_expression_is_left_to_the_engine(text: str) -> None:
    assert within(regex=text) == {"regex": text}
    assert within(ebnf=text) == {"ebnf": text}


@pytest.mark.parametrize("kind", ["json_schema", "regex", "ebnf", "structural_tag"])
def test_a_grammar_has_so_many_bytes_and_no_more(kind: str) -> None:
    def text(size: int) -> str:
        if kind in ("regex", "ebnf"):
            return "x" * size
        return json.dumps({"const": "x" * (size - 13)})

    assert len(text(MAX_GRAMMAR_BYTES)) == MAX_GRAMMAR_BYTES
    assert within(**{kind: text(MAX_GRAMMAR_BYTES)})
    path, message = refused(**{kind: text(MAX_GRAMMAR_BYTES + 1)})
    assert path == FIELDS.get(kind, kind) and "65537 bytes, and at most 65536" in message


def test_a_structural_tag_is_bounded_in_all_its_parts() -> None:
    def tag(form: Any) -> str:
        return json.dumps({"type": "structural_tag", "format": form})

    def schema(value: Any) -> Any:
        return {"type": "json_schema", "json_schema": value}

    def several(count: int, content: Any) -> Any:
        return {"type": "sequence", "elements": [{"type": "repeat", "min": 0, "max": count, "content": content}]}

    many = schema({"type": "array", "maxItems": 10**9, "minItems": 1})
    kept = json.loads(within(structural_tag=tag(several(5, many)))["structural_tag"])
    assert kept["format"]["elements"][0]["content"] == schema({"type": "array", "minItems": 1})
    for form, path in (
        (several(5, schema({"minItems": 1e9})), ".elements[0].content.json_schema.minItems"),
        (several(2000, several(2000, {"type": "any_text"})), ".elements[0]"),
        ({"type": "repeat", "min": 10**9, "max": -1, "content": {}}, ".min"),
        ({"type": "regex", "pattern": "x{20000}" * 51}, ".pattern"),
        ({"type": "grammar", "grammar": 'root ::= "x"{2000000}'}, ".grammar"),
    ):
        assert refused(structural_tag=tag(form))[0] == f"structural_tag.format{path}"
    structures = {
        "type": "structural_tag",
        "triggers": ["<"],
        "structures": [{"begin": "<", "schema": {"minItems": 1e9}}],
    }
    assert refused(structural_tag=json.dumps(structures))[0] == "structural_tag.structures[0].schema.minItems"


schemas = st.recursive(
    st.sampled_from([{"type": "string", "maxLength": 9}, {"type": "integer"}, True, {"pattern": "a{3}"}]),
    lambda inner: st.one_of(
        st.builds(lambda items, most: {"items": items, "maxItems": most}, inner, st.integers(0, 50)),
        st.builds(lambda named: {"properties": named}, st.dictionaries(st.text(max_size=9), inner, max_size=3)),
        st.builds(lambda listed: {"anyOf": listed}, st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=8,
)


@given(schemas)
def test_a_schema_within_the_bounds_goes_as_it_came(schema: Any) -> None:
    if isinstance(schema, dict):
        text = json.dumps(schema)
        try:
            assert within(10**6, json_schema=text) == {"json_schema": text}
        except InvalidParameter as refusal:
            assert f"at most {MAX_WRITTEN_OUT:,}" in refusal.message


def test_many_parts_take_no_time() -> None:
    text = json.dumps({"anyOf": [{"maxItems": 1}] * 3_700})
    assert len(text) < MAX_GRAMMAR_BYTES and within(json_schema=text)
    for heavy in ("(" * MAX_GRAMMAR_BYTES, "x{1}" * (MAX_GRAMMAR_BYTES // 4), "{" * MAX_GRAMMAR_BYTES):
        assert within(10**6, regex=heavy)


# Stop patterns


@pytest.mark.parametrize(
    "pattern", ["</answer>", r"\s{0,20}</answer>$", "(?:and|or)", r"\d{1,3}\.", "[.!?]$", "", "x{3}", r"(?=end)\w\b"]
)
def test_a_pattern_with_an_end_may_be_searched_for(pattern: str) -> None:
    assert within(10**6, stop_regex=[pattern]) == {"stop_regex": [pattern]}


@pytest.mark.parametrize(
    "pattern",
    [
        "[^Q]*[^Q]*.{0,50}Q",
        "(a+)+b",
        r"(.)\1*",
        "(a|aa){0,60}b",
        "a{0,250}a{0,250}b",
        ".*.*",
        r"</answer>\s*$",
        "(?:a{0,20}){0,20}b",
        "(a|a)*b",
        "(?:a|b|ab){40}",
        "(a)\\1",
        "(?:(?:a{1,9}){1,9}){1,9}",
    ],
)
def test_a_pattern_that_could_hold_up_the_engine_is_refused(pattern: str) -> None:
    path, message = refused(4096, stop_regex=["fine", pattern])
    assert path == "stop_regex[1]" and "[^x]{0,20}" in message
    assert refused(4096, stop_regex=[pattern])[0] == "stop_regex"


def test_a_repetition_without_an_end_may_stand_where_the_text_is_short() -> None:
    assert within(7, stop_regex=["a+b"])
    assert refused(8, stop_regex=["a+b"])


@pytest.mark.parametrize("pattern", ["a*b*c", "(a*)(?:x|b+)", "(?:a+,)*b", "(?=a*)b*?c", "a*+b*"])
def test_a_second_repetition_without_an_end_is_refused_however_short_the_text_is(pattern: str) -> None:
    path, message = refused(1, stop_regex=["fine", pattern])
    assert path == "stop_regex[1]" and "several repetitions without an end" in message
