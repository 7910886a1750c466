"""The one grammar that a body asks for, in SGLang's words. Pure.

`regex`, `ebnf` and `structural_tag` are SGLang's own; `response_format` is the OpenAI API's, and holds a JSON schema
or, as SGLang's own chat route has it (`entrypoints/openai/protocol.py`, 0.5.23), a structural tag. One grammar holds a
turn, so they exclude each other.

A structural tag is JSON in either of two forms: `structures` with `triggers`, or a `format`, of which the engine alone
says what it may hold.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta as Rule

from rolloutfleet_proxy.dialects.depth import check_depth
from rolloutfleet_proxy.domain.errors import InvalidParameter, MissingParameter, UnsupportedParameter

MAX_STRUCTURES: Final = 1024

Tag = Annotated[str, Rule(min_length=1)] | dict[str, Any]

_ANY_OBJECT_SCHEMA = '{"type":"object"}'
_TAG = "structural_tag"


def of(
    *,
    regex: str | None,
    ebnf: str | None,
    structural_tag: str | dict[str, Any] | None,
    response_format: dict[str, Any] | None,
) -> dict[str, str]:
    """SGLang's sampling parameter for the grammar; empty without one. Raises InvalidParameter, for several too."""
    asked: dict[str, tuple[str, str]] = {}
    """The sampling parameter and its text, by the body's field."""
    if regex is not None:
        asked["regex"] = "regex", regex
    if ebnf is not None:
        asked["ebnf"] = "ebnf", ebnf
    if structural_tag is not None:
        asked[_TAG] = _TAG, _structural_tag(structural_tag, at=_TAG)
    found = None if response_format is None else _of_format(response_format)
    if found is not None:
        asked["response_format"] = found
    if len(asked) > 1:
        first, *_, last = asked
        raise InvalidParameter(last, f"{last} and {first} are two grammars, and one can hold a turn: keep one.")
    return dict(asked.values())


def _of_format(response_format: dict[str, Any]) -> tuple[str, str] | None:
    kind = response_format.get("type")
    if kind is None:
        raise MissingParameter("response_format.type")
    if kind == "text":
        return None
    if kind == "json_object":
        return "json_schema", _ANY_OBJECT_SCHEMA
    if kind == _TAG:
        return _TAG, _structural_tag(response_format, at="response_format")
    if kind != "json_schema":
        raise UnsupportedParameter(
            "response_format.type", "it is one of text, json_object, json_schema and structural_tag."
        )
    given = response_format.get("json_schema")
    if type(given) is not dict:
        raise InvalidParameter("response_format.json_schema", "It is an object with a schema.")
    schema = given.get("schema")
    if type(schema) is not dict:
        raise InvalidParameter("response_format.json_schema.schema", "It is a JSON schema.")
    check_depth(schema, at="response_format.json_schema.schema")
    return kind, msgspec.json.encode(schema).decode()


def _structural_tag(given: str | dict[str, Any], *, at: str) -> str:
    """Its JSON: the very text where it came as one."""
    tag = _read(given, at=at) if isinstance(given, str) else given
    check_depth(tag, at=at)
    if tag.get("type") != _TAG:
        raise InvalidParameter(f"{at}.type", f"It is {_TAG}.")
    if tag.get("structures") is not None:
        _check_structures(tag, at=at)
    elif tag.get("format") is None:
        raise MissingParameter(f"{at}.format")
    elif type(tag["format"]) is not dict:
        raise InvalidParameter(f"{at}.format", "It is an object.")
    return given if isinstance(given, str) else msgspec.json.encode(tag).decode()


def _read(given: str, *, at: str) -> dict[str, Any]:
    try:
        tag = msgspec.json.decode(given)
    except (ValueError, RecursionError):
        raise InvalidParameter(at, "It is not valid JSON.") from None
    if type(tag) is not dict:
        raise InvalidParameter(at, "It is a JSON object.")
    return tag


def _check_structures(tag: dict[str, Any], *, at: str) -> None:
    structures, triggers = tag["structures"], tag.get("triggers")
    if tag.get("format") is not None:
        raise InvalidParameter(f"{at}.structures", "A tag has structures and triggers, or a format: keep one.")
    if type(structures) is not list or not 1 <= len(structures) <= MAX_STRUCTURES:
        raise InvalidParameter(f"{at}.structures", f"It is a list of 1 to {MAX_STRUCTURES} structures.")
    if type(triggers) is not list or not 1 <= len(triggers) <= MAX_STRUCTURES:
        raise InvalidParameter(
            f"{at}.triggers", f"It is a list of 1 to {MAX_STRUCTURES} texts, at one of which each begins."
        )
    for index, trigger in enumerate(triggers):
        if type(trigger) is not str or not trigger:
            raise InvalidParameter(f"{at}.triggers[{index}]", "A trigger is a text.")
    for index, structure in enumerate(structures):
        _check_structure(structure, tuple(triggers), at=f"{at}.structures[{index}]")


def _check_structure(structure: Any, triggers: tuple[str, ...], *, at: str) -> None:
    if type(structure) is not dict:
        raise InvalidParameter(at, "A structure is an object.")
    for field in ("begin", "end"):
        if type(structure.get(field)) is not str:
            raise InvalidParameter(f"{at}.{field}", f"A structure's {field} is a text.")
    if not isinstance(structure.get("schema"), dict | None):
        raise InvalidParameter(f"{at}.schema", "A structure's schema is a JSON schema.")
    if not structure["begin"].startswith(triggers):
        raise InvalidParameter(f"{at}.begin", "A structure begins with one of the triggers.")
