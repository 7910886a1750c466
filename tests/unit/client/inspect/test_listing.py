"""The list of a fleet's sessions: what its proxies said last, told to tabs the more seldom the longer it is."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.inspect.sites import site, whole

from rolloutfleet.fleet import AsyncFleet, NotEverywhere, Unreachable, Whereabouts
from rolloutfleet.inspect import app
from rolloutfleet.inspect.listing import LINES_A_SECOND, Listing
from rolloutfleet.inspect.looking import Looking
from rolloutfleet.wire import SessionStatus


class Answering(AsyncFleet):
    """A fleet that lists what it is told to."""

    lists: list[SessionStatus]
    failure: Exception | None = None

    async def sessions(self, **_: Any) -> AsyncIterator[SessionStatus]:
        for status in self.lists:
            yield status
        if self.failure is not None:
            raise self.failure


def status(number: int, *, ordinal: int = 0, turns: int = 0) -> SessionStatus:
    name = f"s{ordinal}-0123456789ab-{number:016x}"
    return SessionStatus(
        session_id=name, group_id="g", ordinal=ordinal, state="open", created_at=float(number), turns=turns
    )


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def kept() -> AsyncIterator[tuple[Answering, Listing, Clock, list[None]]]:
    clock, told = Clock(), list[None]()
    async with Answering(Whereabouts(urls=("http://127.0.0.1:9",), admin_key="key")) as fleet:
        fleet.lists = []
        yield fleet, Listing(fleet, Looking(clock), lambda: told.append(None), clock), clock, told


Kept = tuple[Answering, Listing, Clock, list[None]]


async def test_the_newest_are_first_and_what_stays_the_same_is_the_same(kept: Kept) -> None:
    fleet, listing, _, _ = kept
    fleet.lists = [status(2), status(1), status(3)]
    await listing.refresh()
    before = listing.lines()
    assert [line["created_at"] for line in before] == [3.0, 2.0, 1.0] and listing.complete
    fleet.lists = [status(1, turns=1), status(2), status(3)]
    await listing.refresh()
    after = listing.lines()
    assert [one is other for one, other in zip(before, after, strict=True)] == [True, True, False]
    await listing.refresh()
    assert listing.lines() is after


async def test_what_a_proxy_had_stays_while_it_does_not_answer(kept: Kept) -> None:
    fleet, listing, _, _ = kept
    fleet.lists = [status(1), status(2, ordinal=1), status(3, ordinal=1)]
    await listing.refresh()
    fleet.lists, fleet.failure = [status(4)], NotEverywhere("GET /sessions", {1: "it is down"})
    await listing.refresh()
    assert [line["created_at"] for line in listing.lines()] == [4.0, 3.0, 2.0]
    assert listing.failed == {1: "it is down"} and listing.trouble is None
    fleet.failure = Unreachable("nobody answers")
    await listing.refresh()
    assert len(listing.lines()) == 3 and listing.trouble == "nobody answers"
    fleet.lists, fleet.failure = [status(2, ordinal=1)], None
    await listing.refresh()
    assert len(listing.lines()) == 1 and (listing.failed, listing.trouble) == ({}, None)


async def test_tabs_are_told_of_another_list_and_of_a_long_one_not_so_often(kept: Kept) -> None:
    fleet, listing, clock, told = kept
    fleet.lists = [status(number) for number in range(LINES_A_SECOND)]
    await listing.refresh()
    listing._tell()
    assert told == []
    clock.now = 1.0
    listing._tell()
    listing._tell()
    assert len(told) == 1
    await listing.refresh()
    clock.now = 9.0
    listing._tell()
    assert len(told) == 1


async def test_only_lines_that_changed_are_made_json_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    encoded = app.encoded

    def noted(document: Any) -> bytes:
        made.append(document)
        return encoded(document)

    monkeypatch.setattr(app, "encoded", noted)
    async with site(whole(tmp_path)) as page:
        answers = app.Site(page.source, page.tabs)
        lines = [{"key": "a", "turns": 1}, {"key": "b", "turns": 1}]
        assert json.loads(answers._listed(lines, complete=True)) == {"sessions": lines, "complete": True}
        other = [lines[0], {"key": "b", "turns": 2}]
        assert json.loads(answers._listed(other, complete=False)) == {"sessions": other, "complete": False}
        assert made == [*lines, other[1]]
        assert json.loads(answers._listed([], complete=True)) == {"sessions": [], "complete": True}
