"""The store: what was answered is on disk, what was refused left nothing, and one process owns the folder."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.unit.proxy.stores import SyncStore

from rolloutfleet_proxy.domain.errors import DiskFull
from rolloutfleet_proxy.domain.ledger import CREATED, DISCARDED, LIVE, TURNS
from rolloutfleet_proxy.domain.session import SessionRecord
from rolloutfleet_proxy.store import schema
from rolloutfleet_proxy.store.audit import audit, ledger
from rolloutfleet_proxy.store.database import (
    FILE,
    LOCK,
    Belonging,
    Database,
    StoreOfAnotherFleet,
    StoreUnusable,
    open_database,
)
from rolloutfleet_proxy.store.sessions import find
from rolloutfleet_proxy.store.store import Reader, Store
from rolloutfleet_proxy.store.trajectories import delete_session
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.writer import COMPANY, SPACING, ServedClock, StoreClosed, Writer, patience


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return open_database(tmp_path / "store")


@pytest.fixture
async def writer(database: Database) -> AsyncIterator[Writer]:
    writer = Writer(database, ServedClock(database))
    yield writer
    await writer.close()


def note(name: str, value: object) -> Callable[[Transaction], None]:
    def operation(transaction: Transaction) -> None:
        transaction.set_fact(name, value)

    return operation


def facts(database: Database) -> dict[str, object]:
    return dict(database.connect(read_only=True).execute("SELECT name, value FROM facts").fetchall())


async def test_a_closed_store_leaves_nothing_open(database: Database) -> None:
    """SQLite removes the log with the last connection, which a garbage collector would close at any time later."""
    store = Store.over(database)
    await store.write(note("colour", "red"))
    assert (await store.read(lambda connection: connection.execute("SELECT 1").fetchone())) == (1,)
    await store.close()
    database.close()
    assert {path.name for path in database.folder.iterdir()} == {FILE, LOCK}


async def test_what_run_returned_from_is_on_disk(database: Database, writer: Writer) -> None:
    await writer.run(note("colour", "red"))
    assert facts(database)["colour"] == "red"


async def test_operations_run_in_the_order_they_were_given(writer: Writer) -> None:
    order: list[int] = []
    await asyncio.gather(*(writer.run(lambda _, n=n: order.append(n)) for n in range(500)))  # type: ignore[misc]
    assert order == list(range(500))


def test_a_commit_waits_for_company_only_while_there_is_some() -> None:
    assert patience(last_group=1, since=0.0, waiting=0) == 0.0
    assert patience(last_group=2, since=0.0, waiting=1) == SPACING
    assert patience(last_group=2, since=SPACING / 2, waiting=1) == SPACING / 2
    assert patience(last_group=2, since=1.0, waiting=1) == 0.0
    assert patience(last_group=200, since=0.0, waiting=COMPANY) == 0.0


async def test_operations_of_many_share_commits(writer: Writer) -> None:
    seen: list[float] = []

    async def agent() -> None:
        for _ in range(20):
            await writer.run(lambda transaction: seen.append(transaction.served))

    await asyncio.gather(*(agent() for _ in range(COMPANY)))
    groups = len(set(seen))
    assert len(seen) == 20 * COMPANY
    assert groups <= 40


async def test_an_operation_that_raises_is_undone_and_its_group_stands(database: Database, writer: Writer) -> None:
    def fails(transaction: Transaction) -> None:
        transaction.set_fact("bad", 1)
        transaction.count(TURNS, CREATED)
        raise ValueError("no")

    before, failed, after = await asyncio.gather(
        writer.run(note("before", 1)), writer.run(fails), writer.run(note("after", 1)), return_exceptions=True
    )

    assert before is None and after is None and isinstance(failed, ValueError)
    found = facts(database)
    assert {"before", "after"} <= found.keys() and "bad" not in found
    assert audit(database.connect())["turns"]["created"] == 0


async def test_counters_change_with_the_rows_and_audit_says_when_they_disagree(
    database: Database, writer: Writer
) -> None:
    def came(transaction: Transaction) -> None:
        transaction.count(TURNS, CREATED, 3)
        transaction.count(TURNS, DISCARDED, 3, reason="deleted")

    await writer.run(came)
    sums = audit(database.connect())
    assert sums["turns"]["created"] == 3 and sums["turns"]["discarded"] == {"deleted": 3} and sums["balanced"]

    await writer.run(lambda transaction: transaction.move(TURNS, DISCARDED, LIVE))
    assert not audit(database.connect())["balanced"]


def test_the_ledger_says_what_the_audit_says_and_reads_no_rows_that_grow(tmp_path: Path) -> None:
    """/metrics needs no key."""
    store = SyncStore(tmp_path)
    for session, _ in store.start(3):
        store.commit(session, name=f"turn-{session}")
    statements: list[str] = []
    store.connection.set_trace_callback(statements.append)
    sums = ledger(store.connection)
    store.connection.set_trace_callback(None)
    assert sums == {name: value for name, value in audit(store.connection).items() if name in sums}
    assert sums["keys"] == 3 and sums["turns"]["live"] == 3
    plans = [row[3] for sql in statements for row in store.rows(f"EXPLAIN QUERY PLAN {sql}")]
    assert plans and all("SEARCH facts" in plan or "SEARCH ledger" in plan for plan in plans)
    store.close()


def test_an_older_store_counts_its_keys_and_shards_when_it_is_opened(tmp_path: Path) -> None:
    store = SyncStore(tmp_path)
    store.start(2)
    store.close()
    connection = sqlite3.connect(tmp_path / FILE)
    for trigger in ("key_kept", "key_freed", "shard_counted", "shard_uncounted"):
        connection.execute(f"DROP TRIGGER {trigger}")
    connection.execute("DELETE FROM facts WHERE name IN ('keys', 'shards')")
    connection.commit()
    connection.close()

    store = SyncStore(tmp_path)
    (session, _), *_ = store.start(2)
    assert ledger(store.connection)["keys"] == 4 == audit(store.connection)["keys"]
    store.run(lambda transaction: delete_session(transaction, session))
    store.run(lambda transaction: delete_session(transaction, session + 1))
    assert ledger(store.connection)["keys"] == 2 == audit(store.connection)["keys"]
    store.close()


async def test_a_full_store_refuses_keeps_what_was_there_and_goes_on_when_there_is_room(
    database: Database, writer: Writer
) -> None:
    await writer.run(note("kept", "x" * 1000))
    pages: list[int] = []

    def fill(transaction: Transaction) -> None:
        pages.append(transaction.row("PRAGMA page_count")[0])  # type: ignore[index]
        transaction.execute(f"PRAGMA max_page_count = {pages[0] + 2}")

    await writer.run(fill)
    results = await asyncio.gather(
        writer.run(note("big", "y" * 500_000)), writer.run(note("small", "z")), return_exceptions=True
    )
    assert isinstance(results[0], DiskFull)
    assert results[1] is None, "what fits is written, though its group held something that did not"

    await writer.run(lambda transaction: transaction.execute(f"PRAGMA max_page_count = {pages[0] + 1000}") and None)
    await writer.run(note("big", "y" * 500_000))
    found = facts(database)
    assert found["kept"] == "x" * 1000 and found["small"] == "z" and len(str(found["big"])) == 500_000


async def test_a_closed_store_takes_nothing_more(database: Database) -> None:
    writer = Writer(database, ServedClock(database))
    await writer.close()
    with pytest.raises(StoreClosed):
        await writer.run(note("late", 1))


async def test_a_reader_sees_one_snapshot(database: Database, writer: Writer) -> None:
    reader = Reader(database)
    seen: list[object] = []

    def twice(connection: sqlite3.Connection) -> None:
        query = "SELECT value FROM facts WHERE name = 'n'"
        seen.append(connection.execute(query).fetchone())
        asyncio.run_coroutine_threadsafe(writer.run(note("n", 2)), loop).result()
        seen.append(connection.execute(query).fetchone())

    loop = asyncio.get_running_loop()
    await writer.run(note("n", 1))
    await reader.run(twice)
    reader.close()
    assert seen == [(1,), (1,)]


def test_a_newer_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    open_database(tmp_path).close()
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute(f"PRAGMA user_version = {schema.LATEST + 1}")
    connection.close()
    with pytest.raises(StoreUnusable, match="newer rolloutfleet-proxy"):
        open_database(tmp_path)
    assert sqlite3.connect(tmp_path / FILE).execute("PRAGMA user_version").fetchone() == (schema.LATEST + 1,)


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(StoreUnusable, match="can't be opened as a store"):
        open_database(tmp_path)


def test_a_store_keeps_its_id(tmp_path: Path) -> None:
    first = open_database(tmp_path / "a")
    first.close()
    assert open_database(tmp_path / "a").store_id == first.store_id
    assert open_database(tmp_path / "b").store_id != first.store_id


def test_a_session_keeps_the_time_of_its_start(store: SyncStore) -> None:
    """Its prompts tell it (`capture.prompting`)."""
    [(_, name)] = store.start()
    store.advance(86_400.0)
    store.reopen()
    record = store.read(lambda connection: find(connection, name=name))
    assert isinstance(record, SessionRecord) and record.created_at == 1e9


async def test_served_seconds_go_on_after_a_restart_and_skip_the_time_between(tmp_path: Path) -> None:
    now = [1000.0]
    database = open_database(tmp_path)
    clock = ServedClock(database, monotonic=lambda: now[0])
    writer = Writer(database, clock)
    now[0] += 50
    await writer.run(note("x", 1))
    await writer.close()
    now[0] += 1_000_000
    again = ServedClock(database, monotonic=lambda: now[0])
    assert again.now() == 50
    now[0] += 7
    assert again.now() == 57


async def test_a_write_that_waited_for_the_store_is_of_the_time_when_it_had_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    database = open_database(tmp_path)
    writer = Writer(database, ServedClock(database, monotonic=lambda: now[0]))
    begin = writer._begin

    def late(*jobs: object) -> None:
        now[0] += 12.0
        begin(*jobs)  # type: ignore[arg-type]

    monkeypatch.setattr(writer, "_begin", late)
    assert await writer.run(lambda transaction: transaction.served) == 12.0
    await writer.close()
    database.close()


async def test_served_seconds_leave_out_what_a_process_stood_still_for(tmp_path: Path) -> None:
    now = [1000.0]
    clock = ServedClock(open_database(tmp_path), monotonic=lambda: now[0], longest_step=5.0)
    seen = []
    for passed in (1.0, 4.0, 75.0, 0.5, 5.0):
        now[0] += passed
        seen.append(clock.now())
        await clock.tick()
        assert clock.now() == seen[-1]
    assert seen == [1.0, 5.0, 10.0, 10.5, 15.5]


def test_a_store_of_another_fleet_is_opened_only_where_it_is_adopted(tmp_path: Path) -> None:
    def opened(belonging: Belonging | None) -> str:
        database = open_database(tmp_path, belonging)
        database.close()
        return database.store_id

    first = opened(None)
    assert opened(Belonging("uid-1")) == first, "a store without a stamp takes the first one"
    assert opened(Belonging("uid-1", adopt="uid-0")) == first
    with pytest.raises(StoreOfAnotherFleet, match=r"uid uid-1.*storage\.adopt"):
        opened(Belonging("uid-2"))
    with pytest.raises(StoreOfAnotherFleet):
        opened(Belonging("uid-2", adopt="uid-0"))
    assert opened(Belonging("uid-1")) == first, "a refused opening changes nothing"
    assert opened(Belonging("uid-2", adopt="uid-1")) == first
    assert opened(Belonging("uid-2")) == first, "it is the new fleet's from then on"
    with pytest.raises(StoreOfAnotherFleet):
        opened(Belonging("uid-1"))
    assert opened(None) == first, "without a fleet's uid nothing is looked at"
