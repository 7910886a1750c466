"""Things by what they have in common. Pure."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")
Name = TypeVar("Name", bound=Hashable)


def grouped(things: Iterable[T], name_of: Callable[[T], Name]) -> dict[Name, list[T]]:
    """Those of each name, in their order."""
    found: dict[Name, list[T]] = {}
    for thing in things:
        found.setdefault(name_of(thing), []).append(thing)
    return found
