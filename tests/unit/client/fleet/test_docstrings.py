"""What an editor, a notebook or a type checker shows of `Fleet` says what the call does, takes and returns."""

import inspect
import pickle
import re
from collections.abc import AsyncIterator, Iterator
from types import GenericAlias
from typing import Any, assert_type, get_args, get_origin

import pytest

import rolloutfleet.fleet
from rolloutfleet.fleet import (
    AsyncEvents,
    AsyncExport,
    AsyncFleet,
    AsyncGroup,
    AsyncRollout,
    AsyncSession,
    AsyncWeightUpdate,
    Events,
    Export,
    Fleet,
    Group,
    Rollout,
    Session,
)
from rolloutfleet.fleet.sync_fleet import WeightUpdate
from rolloutfleet.wire import Rewarded, Turn, Weights

PAIRS = [
    (Fleet, AsyncFleet),
    (Session, AsyncSession),
    (Group, AsyncGroup),
    (Events, AsyncEvents),
    (Export, AsyncExport),
    (Rollout, AsyncRollout),
    (WeightUpdate, AsyncWeightUpdate),
]


def public(kind: type) -> Iterator[tuple[str, str | None]]:
    """(name, docstring) of methods and properties, inherited ones of ours included."""
    ours = [base for base in reversed(kind.__mro__) if base.__module__.startswith("rolloutfleet")]
    for name, member in {name: member for base in ours for name, member in vars(base).items()}.items():
        if not name.startswith("_") and (inspect.isroutine(member) or isinstance(member, property | classmethod)):
            yield name, inspect.getdoc(member)


TWINS: dict[Any, Any] = {other: blocking for blocking, other in PAIRS}


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
    here = {name: text for name, text in public(blocking) if name in there}
    assert here == {name: (there[name] or "").replace("async with", "with") for name in here}


def twin_of(returned: Any) -> Any:
    """What a blocking call returns in the place of this."""
    if get_origin(returned) is AsyncIterator:
        return GenericAlias(list, get_args(returned))
    return TWINS.get(returned, returned)


@pytest.mark.parametrize(("blocking", "other"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_clients_take_the_same_and_each_returns_its_own(blocking: type, other: type) -> None:
    names = [name for name, _ in public(other) if inspect.isfunction(getattr(other, name))]
    for name in names:
        here, there = (inspect.signature(getattr(kind, name)) for kind in (blocking, other))
        assert list(here.parameters.values()) == list(there.parameters.values()), name
        assert here.return_annotation == twin_of(there.return_annotation), name
        assert not inspect.iscoroutinefunction(getattr(blocking, name)), name
        assert pickle.loads(pickle.dumps(getattr(blocking, name))) is getattr(blocking, name)


def test_each_call_of_one_client_is_one_of_the_other() -> None:
    for blocking, other in PAIRS:
        assert {name for name, _ in public(other)} <= {name for name, _ in public(blocking)}, other


def known_to_a_type_checker(fleet: Fleet, session: Session, export: Export) -> None:
    """Never called: `mypy` judges it."""
    assert_type(fleet.start_session("task", timeout=1.0), Session)
    assert_type(fleet.start_group(2), Group)
    assert_type(fleet.weights(), Weights)
    assert_type(fleet.turns(session), list[Turn])
    assert_type(session.reward(1.0), Rewarded)
    assert_type(fleet.export(count=3), Export)
    assert_type([each.trajectory_id for each in export], list[str])
    with fleet.weight_update(3) as update:
        assert_type(update.epoch, int | None)
    fleet.reward(session, "much")  # type: ignore[arg-type]
    fleet.recover(1, newer="none")  # type: ignore[arg-type]
