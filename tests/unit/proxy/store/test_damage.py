"""What a disk changes of rows: nobody gets it, and what it is of is named."""

import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.proxy.exports.test_rows_and_forms import as_json, leased, reward
from tests.unit.proxy.stores import SyncStore, alter, refusing_reads

from rolloutfleet_proxy.domain.errors import DamageFound, TurnDamaged
from rolloutfleet_proxy.store import checksums, filling
from rolloutfleet_proxy.store.audit import audit
from rolloutfleet_proxy.store.checksums import CHANGING, GUARDED, TEXT, TOKENS, checksum
from rolloutfleet_proxy.store.conversations import check_turn
from rolloutfleet_proxy.store.damage import damaged_rows, damaged_turns, is_sound
from rolloutfleet_proxy.store.database import PAGE
from rolloutfleet_proxy.store.dumps import load_dumped_turn
from rolloutfleet_proxy.store.leases import Grant, acknowledge, withhold
from rolloutfleet_proxy.store.trajectories import close_session, delete_session
from rolloutfleet_proxy.store.turns import hide, load_answers, load_followed, load_ids, load_turn, load_turns

COLUMNS = sorted({*TOKENS, *TEXT, *CHANGING})


def exported(store: SyncStore, **asked: Any) -> Grant:
    """What a trainer gets who asks."""
    granted = leased(store, **asked)
    damaged = {member for member in granted.members if not store.read(partial(is_sound, member=member))}
    return store.run(partial(withhold, granted=granted, damaged=damaged)) if damaged else granted


def ended(store: SyncStore, *, turns: int = 3, **asked: Any) -> tuple[int, str]:
    """A session that has been closed, with turns one behind the other."""
    [started] = store.start(**asked)
    for number in range(turns):
        store.commit(started[0], name=f"{started[1]}-{number}", parent=number or None)
    store.run(partial(close_session, session=started[0]))
    return started


def change(store: SyncStore, session: int, column: str, *, number: int = 2, table: str = "turns") -> None:
    """Change a value of a row as little as its type lets be changed."""
    key = "number" if table != "sessions" else "id"
    [(declared,)] = store.rows("SELECT type FROM pragma_table_info(?) WHERE name = ?", table, column)
    null = {"TEXT": "'x'", "BLOB": "x'20'"}.get(declared, "1")
    changed = (
        f"CASE typeof({column}) WHEN 'integer' THEN {column} + 1000 WHEN 'real' THEN {column} * 2 + 1 WHEN 'text'"
        f" THEN {column} || ' ' WHEN 'null' THEN {null} ELSE CAST({column} || x'20' AS BLOB) END"
    )
    of = "session = ? AND" if table != "sessions" else "? AND"
    alter(store.folder, f"UPDATE {table} SET {column} = {changed} WHERE {of} {key} = ?", session, number)


@pytest.mark.parametrize("column", COLUMNS)
def test_a_session_of_a_turn_that_changed_is_named_and_withheld_and_the_others_are_not(
    store: SyncStore, column: str
) -> None:
    bad, name = ended(store)
    _, other = ended(store)
    change(store, bad, column)
    granted = exported(store)
    assert dict(granted.statuses) == {name: "damaged", other: "leased"}
    assert [each["session_id"] for each in as_json(store, granted)["trajectories"]] == [other]
    assert store.rows("SELECT state FROM trajectories WHERE session = ?", bad) == [("damaged",)]
    assert exported(store, session_ids=[name]).statuses == [(name, "damaged")]
    assert column in ("session", "trajectory", "state") or store.read(audit)["balanced"]


@pytest.mark.parametrize(
    ("table", "column"),
    [
        (table, column)
        for table in ("sessions", "trajectories")
        for column in GUARDED[table].columns
        if column not in ("name", "group_name", "state", "lease", "waits_until")  # by which it is found
    ],
)
def test_a_session_whose_own_rows_changed_is_withheld_whatever_is_written_to_them(
    store: SyncStore, table: str, column: str
) -> None:
    session, name = ended(store)
    change(store, session, column, table=table, number=session if table == "sessions" else 1)
    assert exported(store, session_ids=[name]).statuses == [(name, "damaged")]


def test_everything_of_an_undamaged_store_is_sound(store: SyncStore) -> None:
    session, name = ended(store)
    reward(store, session, 0.5)
    store.run(partial(hide, session=session, number=1))
    granted = exported(store)
    assert granted.statuses == [(name, "leased")]
    assert not list(store.read(damaged_rows))
    store.run(partial(acknowledge, lease=str(granted.lease)))
    assert store.rows("SELECT count(*) FROM turn_checksums") == [(0,)]


def test_a_turn_that_changed_is_given_to_nobody(store: SyncStore) -> None:
    session, _ = ended(store)
    change(store, session, "output_ids", number=1)
    for read in (
        partial(load_turn, session=session, number=1),
        partial(load_turns, session=session),
        partial(load_ids, session=session, number=3),
        partial(load_followed, session=session, number=2),
        partial(load_answers, session=session, numbers=[1], most=1000),
        partial(load_dumped_turn, session=session, number=1, context=False),
        partial(check_turn, session=session, number=1),
    ):
        with pytest.raises(TurnDamaged, match="Turn 1 "):
            store.read(read)
    assert load_turn(store.connection, session, 2)


def test_a_turn_that_extends_a_changed_one_is_as_good_as_damaged(store: SyncStore) -> None:
    session, _ = ended(store)
    change(store, session, "prompt_ids", number=2)
    assert store.read(partial(damaged_turns, session=session, numbers=[1, 2, 3])) == [2, 3]


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_INTERRUPT])
def test_read_that_fails_is_no_damage_when_a_later_one_may_succeed(store: SyncStore, code: int) -> None:
    session, _ = ended(store)
    [member] = leased(store).members
    refusing = refusing_reads(code)
    with pytest.raises(sqlite3.OperationalError, match="refused"):
        damaged_turns(refusing, session, [1, 2, 3])
    with pytest.raises(sqlite3.OperationalError, match="refused"):
        is_sound(refusing, member)


def test_a_group_with_a_damaged_member_goes_on_without_it(store: SyncStore) -> None:
    (first, name), (second, other) = store.start(2)
    for session in (first, second):
        store.commit(session, name=f"of-{session}")
        store.run(partial(close_session, session=session))
    change(store, first, "logprobs", number=1)
    granted = exported(store)
    assert dict(granted.statuses) == {name: "damaged", other: "leased"}
    store.run(partial(acknowledge, lease=str(granted.lease)))
    assert store.freed == [] and store.read(audit)["turns"]["live"] == 1
    store.run(partial(delete_session, session=first))
    assert sorted(store.freed) == sorted([name, other]) and store.read(audit)["balanced"]


def test_rows_of_any_table_are_held_against_their_checksums(store: SyncStore) -> None:
    ended(store)
    alter(store.folder, "UPDATE facts SET value = value + 1 WHERE name = 'keys'")
    alter(store.folder, "UPDATE ledger SET n = n + 1 WHERE kind = 'turns' AND term = 'live'")
    found = list(store.read(damaged_rows))
    assert [each.partition(":")[0] for each in found] == ["facts", "ledger"]
    assert "keys" in found[0] and "turns, live" in found[1]


def test_turns_of_an_earlier_version_get_their_checksums_a_few_at_a_time(store: SyncStore) -> None:
    session, name = ended(store, turns=checksums._TURNS_AT_ONCE + 3)
    store.reopen(after_version=10)
    assert store.rows("SELECT count(*) FROM turn_checksums") == [(0,)]
    assert exported(store).statuses == [(name, "leased")]
    store.run(checksums.fill_some)
    assert store.rows("SELECT count(*), min(turn) FROM turn_checksums") == [(checksums._TURNS_AT_ONCE, 4)]
    store.wait(filling.fill(store.store))
    assert store.rows("SELECT count(*) FROM turn_checksums") == [(checksums._TURNS_AT_ONCE + 3,)]
    assert store.rows("SELECT value FROM facts WHERE name = ?", checksums.NOT_YET) == []
    change(store, session, "extras", number=1)
    with pytest.raises(TurnDamaged):
        load_turn(store.connection, session, 1)


def test_a_page_that_sqlite_can_not_read_is_damage_to_whoever_reads_or_writes_it(store: SyncStore) -> None:
    ended(store)
    [(page,)] = store.rows("SELECT rootpage FROM sqlite_schema WHERE name = 'leases'")

    def overwrite(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek((page - 1) * PAGE)
            file.write(b"\xff" * 16)

    store.reopen(meanwhile=overwrite)
    with pytest.raises(DamageFound, match="malformed"):
        store.run(lambda transaction: transaction.rows("SELECT * FROM leases"))
    with pytest.raises(DamageFound, match="malformed"):
        store.wait(store.store.read(lambda connection: connection.execute("SELECT * FROM leases").fetchall()))
    assert any(each.startswith("leases can't be read") for each in store.read(damaged_rows))


def test_a_checksum_tells_any_value_from_any_other() -> None:
    rows: list[tuple[Any, ...]] = [
        (1,),
        (1.0,),
        ("1",),
        (b"1",),
        (None,),
        (1, 1),
        (1, None),
        (b"", b"1"),
        (b"1", b""),
        ("\ud7ff",),
    ]
    assert len({checksum(*row) for row in rows}) == len(rows)
    # Of msgpack and CRC-32, whatever library has them: they are in files that outlive it.
    assert checksum(1, "a", None, b"xy", 0.5) == 1110276466
