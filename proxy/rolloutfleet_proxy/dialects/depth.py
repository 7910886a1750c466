"""How deep a free-form value of a body may be nested: a tool's schema, template arguments, call arguments. Pure."""

from typing import Any, Final

import msgspec

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


def check_json(text: str, *, at: str) -> None:
    """Text that is JSON, if a model wrote it well: the chat formats parse it, so it is held to the same depth."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    try:
        value = msgspec.json.decode(text)
    except RecursionError:
        raise too_deep(at) from None
    except ValueError:
        return
    check_depth(value, at=at)


def too_deep(at: str) -> DomainError:
    return InvalidParameter(at, f"It is nested deeper than {MAX_DEPTH} levels.")
