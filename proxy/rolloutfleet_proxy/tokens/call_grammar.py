"""The calls that a reply may make, and the parts that its grammar is put together from (`reply_grammar`). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from rolloutfleet_proxy.tokens.schemas import Schema

Form = dict[str, Any]
"""One of xgrammar's formats."""

MOST_FUNCTIONS: Final = 256
"""A reply isn't held to a choice of more."""
MOST_SPACES: Final = 8
"""White space in a row within the arguments: a model that is forced to call may write it without end."""


class Function(Struct, frozen=True):
    name: str
    arguments: Schema
    """As `call_schemas` has it."""


class Wanted(Struct, frozen=True, kw_only=True):
    """The calls that a reply may make."""

    functions: tuple[Function, ...]
    required: bool
    """At least one call."""
    single: bool = False
    """At most one."""


def text(value: str) -> Form:
    return {"type": "const_string", "value": value}


def token(token_id: int) -> Form:
    return {"type": "token", "token": token_id}


def json_value(schema: Schema) -> Form:
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MOST_SPACES}


def sequence(parts: Sequence[Form]) -> Form:
    """The parts one behind the other, texts that meet as one."""
    flat: list[Form] = []
    for part in parts:
        for each in part["elements"] if part["type"] == "sequence" else [part]:
            if flat and each["type"] == flat[-1]["type"] == "const_string":
                flat[-1] = text(flat[-1]["value"] + each["value"])
            else:
                flat.append(each)
    return flat[0] if len(flat) == 1 else {"type": "sequence", "elements": flat}


def optional(form: Form) -> Form:
    return {"type": "optional", "content": form}


def either(forms: Sequence[Form]) -> Form:
    return forms[0] if len(forms) == 1 else {"type": "or", "elements": list(forms)}
