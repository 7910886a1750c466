"""How deep a free-form value of a body may be nested: a tool's schema, template arguments, call arguments. Pure."""

from typing import Any, Final

from rolloutfleet_proxy.domain.errors import DomainError, InvalidParameter

MAX_DEPTH: Final = 64
"""Levels of objects and arrays."""


def check_depth(value: Any, *, at: str) -> None:
    """Level by level, so that a hostile value costs neither stack nor more than its size."""
    level = [value] if type(value) in (dict, list) else []
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise too_deep(at)
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]


def too_deep(at: str) -> DomainError:
    return InvalidParameter(at, f"It is nested deeper than {MAX_DEPTH} levels.")
