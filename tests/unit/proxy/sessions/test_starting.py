"""A session just made is the one that its row says."""

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rolloutfleet.wire import SessionLimits, StartSessions
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.sessions.registry import Session, SessionRegistry, load
from rolloutfleet_proxy.store.database import Database, open_database
from rolloutfleet_proxy.store.sessions import replace_keys, start
from rolloutfleet_proxy.store.store import Reader
from rolloutfleet_proxy.store.writer import ServedClock, Writer

OWNER = Owner(3, "0123456789ab")
ASKED = StartSessions(
    group_size=3,
    task_id="task é",
    metadata={"a": [1, None]},
    limits=SessionLimits(turns=4),
    agent_may=["reward", "close"],
    stale_after=7.5,
    await_reward=9.5,
    train=False,
)
PLAIN = StartSessions()


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return open_database(tmp_path / "store")


@pytest.fixture
async def writer(database: Database) -> AsyncIterator[Writer]:
    writer = Writer(database, ServedClock(database))
    yield writer
    await writer.close()


@pytest.mark.parametrize("asked", [ASKED, PLAIN])
async def test_what_memory_holds_of_a_new_session_is_what_the_store_gives(
    database: Database, writer: Writer, asked: StartSessions
) -> None:
    _, started = await writer.run(lambda transaction: start(transaction, OWNER, asked))
    connection = database.connect(read_only=True)
    for each in started:
        assert each.record is not None
        made = Session.of(each.record)
        loaded = load(connection, name=each.name)
        assert isinstance(loaded, Session)
        for field in dataclasses.fields(Session):
            if field.name not in ("tree", "calls"):
                assert getattr(made, field.name) == getattr(loaded, field.name), field.name


async def test_a_new_session_is_found_without_a_read(database: Database, writer: Writer) -> None:
    _, [started, *_] = await writer.run(lambda transaction: start(transaction, OWNER, ASKED))
    reader = Reader(database)
    sessions = SessionRegistry(reader, cache_bytes=1 << 20)
    assert started.record is not None
    session = sessions.started(started.record)
    reader.close()  # whoever reads fails
    assert await sessions.with_key(started.key) is await sessions.named(started.name) is session


async def test_a_key_that_was_replaced_opens_nothing_and_the_new_one_the_same_session(
    database: Database, writer: Writer
) -> None:
    _, [started, *_] = await writer.run(lambda transaction: start(transaction, OWNER, ASKED))
    reader = Reader(database)
    sessions = SessionRegistry(reader, cache_bytes=1 << 20)
    assert started.record is not None
    session = sessions.started(started.record)
    [again] = await writer.run(lambda transaction: replace_keys(transaction, OWNER, [started.name]))
    sessions.change_key(again.name, again.key)
    assert await sessions.with_key(started.key) is None
    assert await sessions.with_key(again.key) is session
    reader.close()
