"""JSON schemas in plainer words: what references lead to, and what `allOf` comes to."""

from typing import Any

import pytest

from rolloutfleet_proxy.tokens.tool_schemas import merged, referred

ROOT: dict[str, Any] = {"$defs": {"a/b~ c": {"type": "null"}}, "anyOf": [{"type": "string"}], "title": "T"}


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("#", ROOT),
        ("#/$defs/a~1b~0%20c", {"type": "null"}),
        ("#/anyOf/0", {"type": "string"}),
        ("#/anyOf/1", None),
        ("#/anyOf/" + "9" * 5_000, None),
        ("#/title/T", None),
        ("#/$defs/no", None),
        ("#anchor", None),
        ("https://example.org/a", None),
        (3, None),
    ],
)
def test_reference_leads_into_the_root_or_to_nothing(reference: Any, target: Any) -> None:
    assert referred(ROOT, reference) == target


@pytest.mark.parametrize(
    ("schema", "whole"),
    [
        ({"allOf": [{"type": "string", "title": None}, {"minLength": 1}]}, {"type": "string", "minLength": 1}),
        ({"title": "A", "allOf": [{"title": "B"}, True]}, {"title": "A"}),
        (
            {"properties": {"a": {}}, "required": ["a"], "allOf": [{"properties": {"b": {}}, "required": ["b"]}]},
            {"properties": {"a": {}, "b": {}}, "required": ["a", "b"]},
        ),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, {"allOf": [{"type": "string"}, {"type": "null"}]}),
        ({"$ref": "#/anyOf/0", "title": "A"}, {"type": "string", "title": "A"}),
        ({"const": None, "items": None}, {"const": None}),
    ],
)
def test_parts_are_one_schema_where_they_do_not_contradict_each_other(schema: Any, whole: Any) -> None:
    assert merged(schema, ROOT) == whole


def test_references_stay_without_a_root() -> None:
    assert merged({"allOf": [{"$ref": "#"}]}) == {"$ref": "#"}
