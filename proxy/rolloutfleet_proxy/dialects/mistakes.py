"""A body that has the wrong types or is out of bounds, in our words: its field, and what to write there. Pure.

The decoder says it as ``Expected `int` >= 1 - at `$.max_tokens` ``; none of its words are passed on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from rolloutfleet_proxy.domain.errors import (
    DomainError,
    InvalidJson,
    InvalidParameter,
    MissingParameter,
    UnsupportedParameter,
)

_LONGEST_PATH: Final = 200
_WHERE = re.compile(r"^(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]*)`$", re.DOTALL)
_TYPE = re.compile(r"^Expected `(?P<types>[^`]*)`, got `(?P<given>[^`]*)`$")
_BOUND = re.compile(r"^Expected `(?P<type>[^`]*)` (?P<length>of length )?(?P<sign>[<>]=?) (?P<bound>\S+)$")

_KINDS = {
    "str": "text",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_GIVEN = {**_KINDS, "float": "a number with a decimal point"}
_SIGNS = {
    ">=": "greater than or equal to",
    ">": "greater than",
    "<=": "less than or equal to",
    "<": "less than",
}
_PARTS = {"str": "characters", "array": "entries", "object": "entries"}


def kind_of(value: Any, *, what: str, at: str) -> str:
    """The `type` of an object, such as `what` is ("A tool"). Raises InvalidParameter and MissingParameter."""
    if type(value) is not dict:
        raise InvalidParameter(at, f"{what} is an object.")
    kind = value.get("type")
    if kind is None:
        raise MissingParameter(f"{at}.type")
    if type(kind) is not str:
        raise InvalidParameter(f"{at}.type", f"{what}'s type is a string.")
    return kind


def text_of(holder: Mapping[str, Any], field: str, *, at: str, rule: str | None = None, empty: bool = False) -> str:
    """The text that the object at `at` must have as its field, of at least one character unless it may be `empty`.

    Raises MissingParameter, and InvalidParameter, which says the `rule`.
    """
    value = holder.get(field)
    if value is None:
        raise MissingParameter(f"{at}.{field}")
    if type(value) is not str or not (value or empty):
        raise InvalidParameter(f"{at}.{field}", rule or f"{field} is a string.")
    return value


def refused(error: Exception, *, instead: Mapping[str, str]) -> DomainError:
    """The error for what the decoder of requests says. `instead` has what to write into fields in which no other value
    can be honoured."""
    found = _WHERE.match(str(error))
    assert found is not None
    what, path = found["what"], (found["path"] or "")[:_LONGEST_PATH]
    lacking = _MISSING.match(what)
    if lacking is not None:
        return MissingParameter(f"{path}.{lacking['field']}" if path else lacking["field"])
    if not path:
        return InvalidJson(f"The body {_must(what)}.")
    # Of an entry of an object the decoder tells no name.
    field, _, within = path.partition("[...]")
    if what.startswith(("Invalid enum value", "Expected `null`")):
        return UnsupportedParameter(path, instead.get(path.partition("[")[0], "leave it out."))
    subject = f"A name in {field}" if found["key"] else f"A value in {field}" if path != field or within else field
    return InvalidParameter(field, f"{subject} {_must(what)}.")


def _must(what: str) -> str:
    """`must be a whole number, not text`"""
    wrong_type = _TYPE.match(what)
    if wrong_type is not None:
        kinds = [_KINDS.get(kind, kind) for kind in wrong_type["types"].split(" | ") if kind != "null"]
        return f"must be {_either(kinds)}, not {_GIVEN.get(wrong_type['given'], 'this')}"
    beyond = _BOUND.match(what)
    if beyond is None:
        return "must be a number of 64 bits" if "out of range" in what else "must be of another form"
    bound = beyond["bound"].removesuffix(".0")
    if not beyond["length"]:
        return f"must be {_SIGNS[beyond['sign']]} {bound}"
    if beyond["sign"] == ">=":
        return "must not be empty" if bound == "1" else f"must have at least {bound} {_PARTS[beyond['type']]}"
    return f"must have at most {bound} {_PARTS[beyond['type']]}"


def _either(kinds: list[str]) -> str:
    return kinds[0] if len(kinds) == 1 else f"{', '.join(kinds[:-1])} or {kinds[-1]}"
