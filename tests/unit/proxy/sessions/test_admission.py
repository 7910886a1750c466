"""Room is taken before it is used: whoever comes at the same time finds what is left."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from rolloutfleet.spec_for_proxies import LimitsSpec
from rolloutfleet.wire import StartSessions
from rolloutfleet_proxy.domain.errors import DiskFull
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.sessions.admission import Admission, Places
from rolloutfleet_proxy.store.database import Database, open_database
from rolloutfleet_proxy.store.sessions import count_open, start
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.writer import ServedClock, Writer

OWNER = Owner(0, "0123456789ab")
MOST = 10


class NoRoom(Exception):
    """The start was refused."""


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return open_database(tmp_path / "store")


@pytest.fixture
async def writer(database: Database) -> AsyncIterator[Writer]:
    writer = Writer(database, ServedClock(database))
    yield writer
    await writer.close()


@pytest.fixture
def admission(database: Database) -> Admission:
    return Admission(LimitsSpec(sessions=MOST), database, sessions_open=0)


def made(transaction: Transaction, *, places: Places, fails: bool) -> None:
    if not places.take():
        raise NoRoom
    asked = StartSessions(group_size=2)
    start(transaction, OWNER, asked)
    if fails:
        raise ValueError("a mistake after the room was taken")


async def test_starts_at_once_never_pass_the_limit_and_leave_no_place_free(
    database: Database, writer: Writer, admission: Admission
) -> None:
    async def one(*, fails: bool) -> None:
        with admission.places(2) as places:
            await writer.run(partial(made, places=places, fails=fails))

    for fails in (True, False):  # the places of those that fail are there for those that come later
        outcomes = await asyncio.gather(*(one(fails=fails) for _ in range(60)), return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {ValueError if fails else type(None), NoRoom}
    connection = database.connect(read_only=True)
    assert count_open(connection) == admission.sessions_open == MOST
    connection.close()
    assert not admission.has_room(1)
    admission.sessions_open -= 1
    assert admission.has_room(1) and not admission.has_room(2)


def test_a_place_that_is_asked_for_again_is_taken_once(admission: Admission) -> None:
    """A group of operations that the disk refuses is written again, one by one."""
    with admission.places(MOST) as places:
        assert places.take() and places.take()
        with admission.places(1) as another:
            assert not another.take()
    assert admission.sessions_open == MOST


def test_who_took_no_place_counts_nothing(admission: Admission) -> None:
    with admission.places(4):
        pass
    assert admission.sessions_open == 0 and admission.has_room(MOST)


def test_bytes_on_their_way_count_until_they_are_counted_as_held(database: Database) -> None:
    held = 1000
    limits = LimitsSpec(bytes=1_000_000)
    admission = Admission(limits, database, sessions_open=0, shard_bytes=lambda: held)
    with admission.bytes_on_their_way(600_000) as first:
        with admission.bytes_on_their_way(600_000) as second, admission.bytes_on_their_way(100_000) as third:
            assert (first, second, third) == (True, False, True)
        assert not admission.has_bytes(600_000)
        held += 600_000
    assert admission.has_bytes(100_000) and not admission.has_bytes(600_000)
    held -= 600_000
    assert admission.has_bytes(600_000)


def test_a_disk_without_room_refuses_generations_until_there_is_some(
    admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 0
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=1 << 40, free=free))
    with pytest.raises(DiskFull, match="0 bytes left"):
        admission.check_disk()
    assert admission.is_full() and admission.room().full
    free = 1 << 30
    admission.check_disk()
    free = 0
    assert not admission.is_full(), "it has just looked"
    admission.note_full()
    assert admission.is_full()
