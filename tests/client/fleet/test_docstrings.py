"""What an editor or a notebook shows of `Fleet` says what the call does."""

import inspect
import re
from collections.abc import Iterator

import pytest

import rolloutfleet.fleet
from rolloutfleet.fleet import (
    AsyncExport,
    AsyncFleet,
    AsyncGroup,
    AsyncSession,
    AsyncWeightUpdate,
    Export,
    Fleet,
    Group,
    Session,
)
from rolloutfleet.fleet.sync_fleet import WeightUpdate

PAIRS = [
    (Fleet, AsyncFleet),
    (Session, AsyncSession),
    (Group, AsyncGroup),
    (Export, AsyncExport),
    (WeightUpdate, AsyncWeightUpdate),
]
OTHERWISE = {"turns", "sessions"}
"""They bring a list where the other brings an iterator, and say so."""


def public(kind: type) -> Iterator[tuple[str, str | None]]:
    """(name, docstring) of methods and properties."""
    for name, member in vars(kind).items():
        if not name.startswith("_") and (inspect.isroutine(member) or isinstance(member, property | classmethod)):
            yield name, inspect.getdoc(member)


@pytest.mark.parametrize(
    "kind",
    [each for each in vars(rolloutfleet.fleet).values() if inspect.isclass(each)],
    ids=lambda kind: kind.__name__,
)
def test_no_docstring_sends_its_reader_elsewhere(kind: type) -> None:
    said = [("", inspect.getdoc(kind)), *public(kind)]
    assert [name for name, text in said if text is None and not issubclass(kind, Exception)] == []
    assert [name for name, text in said if re.search(r"\bAs \w+\.\w+", text or "")] == []


@pytest.mark.parametrize(("blocking", "other"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_clients_say_the_same_of_the_same_call(blocking: type, other: type) -> None:
    there = dict(public(other))
    here = {name: text for name, text in public(blocking) if name in there and name not in OTHERWISE}
    assert here == {name: (there[name] or "").replace("async with", "with") for name in here}
