"""A session of any length goes at once for everybody who looks, and from the store a piece at a time."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.proxy.stores import SyncStore, new_turn

from rolloutfleet.wire import AskExport
from rolloutfleet_proxy.store import leases
from rolloutfleet_proxy.store.audit import audit
from rolloutfleet_proxy.store.database import PAGE
from rolloutfleet_proxy.store.remains import BYTES_AT_ONCE, TURNS_AT_ONCE, clear, clear_some, piece
from rolloutfleet_proxy.store.trajectories import close_session, close_turns, delete_session
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.turns import commit_turn
from rolloutfleet_proxy.store.weights import at_stake

TURNS = 3 * TURNS_AT_ONCE
MOST_LOGGED = (3 * TURNS_AT_ONCE + 50) * (PAGE + 24)
"""Bytes of log that freeing writes at once."""


def talk(store: SyncStore, sessions: list[int], *, turns: int = TURNS, tokens: int = 400) -> None:
    """Sessions in turns, so that their rows lie among each other."""
    store.run(
        lambda transaction: [
            commit_turn(
                transaction,
                new_turn(session, name=f"{session}-{number}", parent=number or None, output=range(tokens)),
            )
            for number in range(turns)
            for session in sessions
        ]
    )


def delete(store: SyncStore, session: int) -> None:
    store.run(lambda transaction: delete_session(transaction, session))


def sums(store: SyncStore) -> dict[str, Any]:
    found = store.read(audit)
    assert found["balanced"], found
    return found


def turns_left(store: SyncStore) -> int:
    [(turns,)] = store.rows("SELECT count(*) FROM turns")
    return int(turns)


@given(
    st.lists(st.integers(0, 2 * BYTES_AT_ONCE)),
    st.tuples(st.integers(0, TURNS_AT_ONCE), st.integers(0, BYTES_AT_ONCE)).map(
        lambda pair: pair if pair[0] else (0, 0)
    ),
)
def test_pieces_are_bounded_and_come_to_an_end(sizes: list[int], after: tuple[int, int]) -> None:
    left = sizes
    while left:
        turns, nbytes = piece(left, after=after)
        whole, all_bytes = after[0] + turns, after[1] + nbytes
        assert nbytes == sum(left[:turns]) and whole <= TURNS_AT_ONCE
        assert whole == 1 or all_bytes <= BYTES_AT_ONCE or turns == 0
        full = whole == TURNS_AT_ONCE or turns == len(left) or all_bytes + left[turns] > BYTES_AT_ONCE
        assert full and (turns or after[0]), "no smaller than need be, and never nothing in an operation of its own"
        left, after = left[turns:], (0, 0)


def test_the_rest_of_many_sessions_goes_in_as_few_pieces_as_one_long_ones(store: SyncStore) -> None:
    sessions = [session for _ in range(12) for session, _ in store.start()]
    talk(store, sessions, turns=20)

    def delete_all(transaction: Transaction) -> None:
        for session in sessions:
            delete_session(transaction, session)

    store.run(delete_all)
    left, pieces = turns_left(store), 0
    assert left == 240 - TURNS_AT_ONCE
    while store.run(clear_some):
        pieces += 1
    assert turns_left(store) == 0 and pieces == -(-left // TURNS_AT_ONCE)


def test_a_long_session_is_gone_at_once_and_its_turns_piece_by_piece(store: SyncStore) -> None:
    [(session, name), (other, _)] = [*store.start(), *store.start()]
    talk(store, [session, other])
    before = sums(store)
    delete(store, session)
    assert store.rows("SELECT name, reason FROM tombstones") == [(name, "deleted")]
    assert store.rows("SELECT id FROM sessions") == [(other,)]
    after = sums(store)
    assert after["turns"]["live"] == before["turns"]["live"] - TURNS
    assert after["turns"]["discarded"] == {"deleted": TURNS}
    left = turns_left(store)
    assert left == 2 * TURNS - TURNS_AT_ONCE
    while store.run(clear_some):
        store.reopen()
        assert left - TURNS_AT_ONCE <= turns_left(store) and sums(store) == after
        assert store.rows(_WITHOUT_PARENT) == []
        left = turns_left(store)
    assert left == TURNS and store.rows("SELECT * FROM freed_sessions") == []


def test_one_operation_deletes_no_more_than_a_piece_of_many_sessions(store: SyncStore) -> None:
    sessions = [session for session, _ in store.start(40)]
    talk(store, sessions, turns=10, tokens=4)
    for session in sessions[1:]:
        delete(store, session)
    assert turns_left(store) == 400, "the group waits for its last"
    assert sums(store)["turns"]["live"] == 10
    delete(store, sessions[0])
    assert turns_left(store) == 400 - TURNS_AT_ONCE and sums(store)["keys"] == 0
    store.wait(clear(store.writer))
    assert turns_left(store) == 0 and sums(store)["turns"]["discarded"] == {"deleted": 400}


@pytest.mark.parametrize("tokens", [20, 150, 400, 1000])
def test_what_is_written_at_once_is_bounded_however_the_rows_lie(store: SyncStore, tokens: int) -> None:
    sessions = [session for session, _ in store.start(4)]
    [(leased, _)] = store.start()
    talk(store, [leased], turns=1)
    store.run(lambda transaction: close_turns(transaction, leased, closed_by="reward"))
    store.run(lambda transaction: leases.grant(transaction, store.owner, AskExport()))
    talk(store, [*sessions, leased], tokens=tokens)
    steps = [lambda session=session: delete(store, session) for session in (*sessions, leased)]
    for step in steps:
        assert logged(store, step) < MOST_LOGGED
    more = True
    while more:
        done: list[bool] = []
        assert logged(store, lambda done=done: done.append(store.run(clear_some))) < MOST_LOGGED
        more = done[0]
    assert sums(store)["turns"]["leased"] == 1


_WITHOUT_PARENT = """
SELECT 1 FROM turns AS child WHERE parent IS NOT NULL AND NOT EXISTS
    (SELECT 1 FROM turns WHERE session = child.session AND number = child.parent)
"""


def logged(store: SyncStore, step: Any) -> int:
    with contextlib.closing(store.database.connect()) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    step()
    return (store.folder / "store.sqlite3-wal").stat().st_size


def test_what_is_leased_of_a_deleted_session_is_acknowledged_and_then_all_of_it_goes(store: SyncStore) -> None:
    [(session, _)] = store.start()
    talk(store, [session], turns=2)
    store.run(lambda transaction: close_turns(transaction, session, closed_by="reward"))
    talk(store, [session])
    lease = store.run(lambda transaction: leases.grant(transaction, store.owner, AskExport())).lease
    assert lease is not None
    delete(store, session)
    held = sums(store)["turns"]
    assert (held["live"], held["leased"], held["discarded"]) == (0, 2, {"deleted": TURNS})
    store.run(lambda transaction: leases.acknowledge(transaction, lease))
    assert sums(store)["turns"]["acknowledged"] == 2 and sums(store)["keys"] == 0
    store.run(lambda transaction: leases.acknowledge(transaction, lease))
    store.wait(clear(store.writer))
    assert turns_left(store) == 0 and sums(store)["turns"]["acknowledged"] == 2


def test_what_is_left_counts_for_no_recovery(store: SyncStore) -> None:
    [(session, _)] = store.start()
    store.run(
        lambda transaction: [
            commit_turn(transaction, new_turn(session, name=str(number), version=9)) for number in range(TURNS)
        ]
    )
    assert store.run(lambda transaction: at_stake(transaction, run=1, version=3)).open == 1
    delete(store, session)
    assert turns_left(store)
    assert store.run(lambda transaction: at_stake(transaction, run=1, version=3)).trajectories == 0


def test_a_closed_session_goes_likewise(store: SyncStore) -> None:
    [(session, _)] = store.start()
    talk(store, [session])
    store.run(lambda transaction: close_session(transaction, session))
    delete(store, session)
    assert sums(store)["turns"]["discarded"] == {"deleted": TURNS} and turns_left(store) == TURNS - TURNS_AT_ONCE
