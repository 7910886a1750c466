"""The calls that a reply may make, as its grammar is told (`reply_grammar`). Pure."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from rolloutfleet_proxy.tokens.schemas import Schema

MOST_FUNCTIONS: Final = 256
"""A reply isn't held to a choice of more."""


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
