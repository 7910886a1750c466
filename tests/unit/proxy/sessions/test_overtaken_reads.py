"""A session is read from the store while commits change it: what was read never brings back what was before them."""

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.proxy.stores import new_turn
from tests.waiting import comes_true

from rolloutfleet.wire import StartSessions
from rolloutfleet_proxy.domain.session import CLOSED, OPEN, Gone, Started
from rolloutfleet_proxy.domain.turn import Brief
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.sessions.registry import Session, SessionRegistry, load
from rolloutfleet_proxy.store.database import Database, open_database
from rolloutfleet_proxy.store.sessions import replace_keys, start
from rolloutfleet_proxy.store.store import Reader
from rolloutfleet_proxy.store.trajectories import close_session, delete_session
from rolloutfleet_proxy.store.turns import commit_turn
from rolloutfleet_proxy.store.writer import ServedClock, Writer

OWNER = Owner(0, "0123456789ab")
ROUNDS = 60


class SlowReader(Reader):
    """A reader whose answers arrive when they are let go: a session of 1,500 turns takes that long by itself."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.read: list[asyncio.Event] = []
        """One for each answer that waits, oldest first."""
        self.slow = True

    async def run(self, query: Callable[[Any], Any]) -> Any:
        found = await super().run(query)
        if self.slow:
            self.read.append(arrives := asyncio.Event())
            await arrives.wait()
        return found

    async def until_read(self, answers: int = 1) -> None:
        await comes_true(lambda: len(self.read) >= answers)

    def let_go(self) -> None:
        """Answers that wait arrive, and later ones at once."""
        self.slow = False
        for arrives in self.read:
            arrives.set()
        self.read.clear()


@dataclass
class House:
    database: Database
    writer: Writer
    reader: SlowReader
    sessions: SessionRegistry
    started: list[Started] = field(default_factory=list)

    async def start(self) -> Started:
        asked = StartSessions()
        _, [started] = await self.writer.run(lambda transaction: start(transaction, OWNER, asked))
        return Started(started.name, started.key)  # memory holds nothing of it

    async def replace_key(self, name: str) -> str:
        [again] = await self.writer.run(lambda transaction: replace_keys(transaction, OWNER, [name]))
        self.sessions.change_key(again.name, again.key)
        return again.key

    async def commit(self, session: Session) -> None:
        new = new_turn(session.id, name=f"turn {session.turns + 1} of {session.name}")
        made = await self.writer.run(partial(commit_turn, turn=new))
        session.add(new.node(made.number), Brief.of(new), new.new_tokens)
        self.sessions.committed(session)

    async def close(self, session: Session) -> None:
        _, freed = await self.writer.free(partial(close_session, session=session.id))
        session.state = CLOSED
        self.sessions.committed(session)
        for name in freed:
            self.sessions.forget(name)

    async def free(self, row: int, name: str) -> None:
        await self.writer.run(partial(delete_session, session=row))
        self.sessions.forget(name)

    def stored(self, name: str) -> Session | Gone | None:
        connection = self.database.connect(read_only=True)
        try:
            return load(connection, name=name)
        finally:
            connection.close()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    database = open_database(tmp_path / "store")
    writer, reader = Writer(database, ServedClock(database)), SlowReader(database)
    # Nothing is cached: memory holds what somebody uses, as it does of old sessions in a large fleet.
    yield House(database, writer, reader, SessionRegistry(reader, cache_bytes=0))
    await writer.close()
    reader.close()


@pytest.mark.parametrize("by", ["key", "name"])
async def test_a_key_revoked_while_its_session_was_read_opens_nothing(house: House, by: str) -> None:
    started = await house.start()
    finding = house.sessions.with_key(started.key) if by == "key" else house.sessions.named(started.name)
    reading = asyncio.create_task(finding)
    await house.reader.until_read()
    key = await house.replace_key(started.name)
    house.reader.let_go()
    found = await reading
    assert found is None if by == "key" else isinstance(found, Session)
    assert await house.sessions.with_key(started.key) is None
    opened = await house.sessions.with_key(key)
    assert isinstance(opened, Session) and opened.name == started.name
    assert await house.sessions.with_key(started.key) is None


async def test_a_key_revoked_twice_while_its_session_was_read_leaves_the_last_one(house: House) -> None:
    started = await house.start()
    reading = asyncio.create_task(house.sessions.named(started.name))
    await house.reader.until_read()
    between = await house.replace_key(started.name)
    last = await house.replace_key(started.name)
    house.reader.let_go()
    held = await reading
    assert [await house.sessions.with_key(key) for key in (started.key, between)] == [None, None]
    assert await house.sessions.with_key(last) is held is not None


@pytest.mark.parametrize("by", ["key", "name"])
async def test_a_session_freed_while_it_was_read_is_gone(house: House, by: str) -> None:
    started = await house.start()
    stored = house.stored(started.name)
    assert isinstance(stored, Session)
    finding = house.sessions.with_key(started.key) if by == "key" else house.sessions.named(started.name)
    reading = asyncio.create_task(finding)
    await house.reader.until_read()
    await house.free(stored.id, started.name)
    house.reader.let_go()
    assert isinstance(await reading, Gone)
    assert isinstance(await house.sessions.named(started.name), Gone)
    assert isinstance(await house.sessions.with_key(started.key), Gone)
    assert house.sessions.in_memory(lambda session: True) == []


@pytest.mark.parametrize("change", ["commit", "close"])
async def test_what_another_caller_did_while_a_session_was_read_is_not_undone(house: House, change: str) -> None:
    """That caller has gone when the slow read arrives, and memory let go of what it held."""
    started = await house.start()
    slow = asyncio.create_task(house.sessions.named(started.name))
    await house.reader.until_read()
    house.reader.slow = False
    held: Any = await house.sessions.named(started.name)
    await house.commit(held)
    if change == "close":
        await house.close(held)
    del held
    gc.collect()
    house.reader.let_go()
    found = await slow
    assert isinstance(found, Session)
    assert (found.turns, found.state) == (1, CLOSED if change == "close" else OPEN)


async def test_a_session_that_a_recovery_ends_while_it_is_read_has_ended(house: House) -> None:
    """A recovery ends sessions by their names; memory holds nothing of most of them."""
    started = await house.start()
    house.reader.slow = False
    session: Any = await house.sessions.named(started.name)
    row = session.id
    await house.commit(session)
    del session
    gc.collect()
    house.reader.slow = True
    reading = asyncio.create_task(house.sessions.named(started.name))
    await house.reader.until_read()
    await house.writer.run(partial(close_session, session=row))
    assert house.sessions.changed(started.name) is None
    house.reader.let_go()
    found = await reading
    assert isinstance(found, Session) and found.state == CLOSED


async def test_one_that_was_forgotten_does_not_come_back_by_its_last_user(house: House) -> None:
    house.sessions = SessionRegistry(house.reader, cache_bytes=1 << 20)
    house.reader.slow = False
    started = await house.start()
    held: Any = await house.sessions.named(started.name)
    await house.free(held.id, started.name)
    house.sessions.used(held)
    assert house.sessions.cached_bytes == 0
    assert isinstance(await house.sessions.named(started.name), Gone)


@pytest.mark.parametrize("seed", range(8))
async def test_memory_and_store_agree_whatever_overtakes_what(house: House, seed: int) -> None:
    rng = random.Random(seed)
    started = [await house.start() for _ in range(3)]
    keys = {each.name: [each.key] for each in started}
    rows = {each.name: stored.id for each in started if isinstance(stored := house.stored(each.name), Session)}
    finding: list[asyncio.Task[Any]] = []
    for _ in range(ROUNDS):
        name = rng.choice(list(keys))
        act = rng.choice(["by name", "by key", "by key", "arrive", "replace", "replace", "commit", "close", "free"])
        if act.startswith("by"):
            found = house.sessions.named(name) if act == "by name" else house.sessions.with_key(rng.choice(keys[name]))
            finding.append(asyncio.create_task(found))
            await asyncio.sleep(rng.choice([0, 0.002]))
        elif act == "arrive" and house.reader.read:
            house.reader.read.pop(rng.randrange(len(house.reader.read))).set()
            await asyncio.sleep(0)
        elif act == "replace" and isinstance(house.stored(name), Session):
            keys[name].append(await house.replace_key(name))
        elif act in ("commit", "close", "free") and rng.random() < 0.4:
            await _change(house, name, act, rows[name])
    house.reader.let_go()
    await asyncio.gather(*finding)
    finding.clear()
    for name, all_keys in keys.items():
        stored = house.stored(name)
        for key in all_keys[:-1]:
            assert await house.sessions.with_key(key) is None
        by_key, by_name = await house.sessions.with_key(all_keys[-1]), await house.sessions.named(name)
        if isinstance(stored, Session):
            assert isinstance(by_key, Session) and isinstance(by_name, Session)
            assert (by_name.state, by_name.turns, by_name.key_hash) == (stored.state, stored.turns, stored.key_hash)
            assert (by_key.state, by_key.turns) == (stored.state, stored.turns)
        else:
            assert by_key == by_name == stored


async def _change(house: House, name: str, act: str, row: int) -> None:
    """By a caller whose own read is quick, as that of a session that somebody holds is."""
    house.reader.slow = False
    held = await house.sessions.named(name)
    house.reader.slow = True
    if not isinstance(held, Session):
        return
    if act == "free":
        await house.free(row, name)
    elif held.state != CLOSED:
        await (house.commit(held) if act == "commit" else house.close(held))
