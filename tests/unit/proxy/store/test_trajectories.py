"""Closing and deleting: which turns become a trajectory, what is discarded, and when rows are freed."""

from typing import Any, NamedTuple

import pytest
from tests.unit.proxy.stores import SyncStore

from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.domain.ledger import ACKNOWLEDGED, DISCARDED, LEASED
from rolloutfleet_proxy.domain.lineage import Lineage
from rolloutfleet_proxy.domain.matching import Matching
from rolloutfleet_proxy.domain.trajectory import BY_REWARD, VOID, Kin, fate, orphans
from rolloutfleet_proxy.http.errors import status_of
from rolloutfleet_proxy.store import tombstones
from rolloutfleet_proxy.store.audit import audit
from rolloutfleet_proxy.store.sessions import load_figures
from rolloutfleet_proxy.store.trajectories import (
    close_session,
    close_turns,
    closed_before,
    delete_session,
    move_trajectory,
    settle,
)


class Ended(NamedTuple):
    trajectory_id: str | None
    freed: tuple[str, ...] = ()


def close(store: SyncStore, session: int) -> Ended:
    trajectory_id = store.run(lambda transaction: close_session(transaction, session))
    return Ended(trajectory_id, tuple(store.freed))


def delete(store: SyncStore, session: int) -> Ended:
    store.run(lambda transaction: delete_session(transaction, session))
    return Ended(None, tuple(store.freed))


def turns(store: SyncStore, session: int) -> list[tuple[Any, ...]]:
    return store.rows("SELECT number, trajectory, state FROM turns WHERE session = ? ORDER BY number", session)


def sums(store: SyncStore) -> dict[str, Any]:
    found = store.read(audit)
    assert found["balanced"], found
    return found


def kin(
    number: int, parent: int | None = None, *, request: bytes = b"r", lineage: str = "main", wanted: bool = False
) -> Kin:
    return Kin(number=number, parent=parent, request=request, reasonings=(), lineage=lineage, wanted=wanted)


def test_a_close_takes_all_that_is_open(store: SyncStore) -> None:
    [(session, name)] = store.start()
    store.commit(session, name="a")
    store.commit(session, name="b", parent=1)
    store.run(lambda transaction: close_turns(transaction, session, closed_by=BY_REWARD, reward_turn=2))
    store.commit(session, name="c", parent=2)

    assert close(store, session) == Ended(f"{name}-trajectory-2")
    assert turns(store, session) == [(1, 1, "live"), (2, 1, "live"), (3, 2, "live")]
    assert sums(store)["turns"]["live"] == 3
    assert store.read(lambda connection: load_figures(connection, session))["trajectories"] == 2


def test_a_second_close_answers_as_the_first(store: SyncStore) -> None:
    [(session, _)] = store.start()
    store.commit(session, name="a")
    first = close(store, session)
    assert first.trajectory_id is not None
    assert close(store, session) == first


def test_a_second_close_finds_nothing_after_a_reward_closed_everything(store: SyncStore) -> None:
    [(session, _)] = store.start()
    store.commit(session, name="a")
    store.run(lambda transaction: close_turns(transaction, session, closed_by=BY_REWARD))
    assert close(store, session) == close(store, session) == Ended(None)


def test_an_empty_session_is_freed_when_closed_and_still_answers(store: SyncStore) -> None:
    [(session, name)] = store.start()
    assert close(store, session) == Ended(None, (name,))
    assert store.rows("SELECT * FROM sessions") == []
    assert store.rows("SELECT name, reason FROM tombstones") == [(name, "empty")]
    assert sums(store)["sessions"]["discarded"] == {"empty": 1}
    assert store.read(lambda connection: closed_before(connection, name)) == (True, None)
    with pytest.raises(DomainError) as refused:
        close(store, session)
    assert status_of(refused.value) == 410


def test_a_delete_discards_what_is_open_and_what_is_ready(store: SyncStore) -> None:
    [(session, name)] = store.start()
    store.commit(session, name="a")
    store.run(lambda transaction: close_turns(transaction, session, closed_by=BY_REWARD))
    store.commit(session, name="b")
    assert delete(store, session) == Ended(None, (name,))
    found = sums(store)
    assert found["turns"]["discarded"] == {"deleted": 2}
    assert found["sessions"]["discarded"] == {"deleted": 1}
    assert store.rows("SELECT * FROM turns") == []
    assert store.read(lambda connection: closed_before(connection, name)) == (False, None)


def test_a_second_delete_is_gone_and_so_is_a_close_after_it(store: SyncStore) -> None:
    (session, _), _ = store.start(2)
    delete(store, session)
    for act in (delete, close):
        with pytest.raises(DomainError) as refused:
            act(store, session)
        assert status_of(refused.value) == 410


def test_a_delete_leaves_what_is_leased(store: SyncStore) -> None:
    [(session, _)] = store.start()
    store.commit(session, name="a")
    close(store, session)

    def lease(transaction: Any) -> None:
        move_trajectory(transaction, session, 1, LEASED, lease="l")
        settle(transaction, session)

    store.run(lease)
    assert delete(store, session) == Ended(None)
    assert sums(store)["turns"]["leased"] == sums(store)["sessions"]["leased"] == 1


def test_rows_stay_until_the_whole_group_is_resolved(store: SyncStore) -> None:
    (one, first), (two, second) = store.start(2)
    assert close(store, one).freed == ()
    assert store.rows("SELECT count(*) FROM sessions") == [(2,)]
    assert set(delete(store, two).freed) == {first, second}
    assert dict(store.rows("SELECT name, reason FROM tombstones")) == {first: "empty", second: "deleted"}


def test_an_open_session_keeps_the_rows_of_what_was_acknowledged(store: SyncStore) -> None:
    [(session, name)] = store.start()
    store.commit(session, name="a")

    def acknowledge(transaction: Any) -> None:
        close_turns(transaction, session, closed_by=BY_REWARD)
        move_trajectory(transaction, session, 1, LEASED, lease="l")
        move_trajectory(transaction, session, 1, ACKNOWLEDGED, lease="l")
        settle(transaction, session)

    store.run(acknowledge)
    assert store.freed == []
    assert sums(store)["turns"]["acknowledged"] == 1
    assert sums(store)["sessions"]["live"] == 1
    assert close(store, session) == Ended(None, (name,))
    assert sums(store)["sessions"]["acknowledged"] == 1


def test_a_discarded_trajectory_is_counted_by_its_reason(store: SyncStore) -> None:
    [(session, name)] = store.start()
    store.commit(session, name="a")
    close(store, session)

    def discard(transaction: Any) -> None:
        move_trajectory(transaction, session, 1, DISCARDED, reason="newer")
        settle(transaction, session)

    store.run(discard)
    assert store.freed == [name]
    assert sums(store)["turns"]["discarded"] == sums(store)["sessions"]["discarded"] == {"newer": 1}


def test_orphans_are_counted_and_left_out(store: SyncStore) -> None:
    [(session, _)] = store.start()
    store.commit(session, name="root")
    store.commit(session, name="lost", parent=1, asks="same", delivered=False)
    store.commit(session, name="again", parent=1, asks="same")
    close(store, session)
    assert turns(store, session) == [(1, 1, "live"), (2, 1, VOID), (3, 1, "live")]
    assert sums(store)["turns"]["discarded"] == {"orphan": 1}
    assert store.rows("SELECT turns FROM trajectories") == [(2,)]


def test_what_makes_an_orphan() -> None:
    assert orphans([kin(1), kin(2)]) == {1}
    assert orphans([kin(1), kin(2), kin(3)]) == {1, 2}
    assert orphans([kin(1, wanted=True), kin(2)]) == set(), "somebody got it"
    assert orphans([kin(1), kin(2), kin(3, parent=1, request=b"s")]) == set(), "it was extended"
    assert orphans([kin(1, request=b"q"), kin(2)]) == set(), "it was asked something else"
    assert orphans([kin(1, lineage="subagent:a"), kin(2)]) == set(), "another agent asked the same"
    assert orphans([kin(1, wanted=True), kin(2)]) == set(), "no later sibling"
    assert orphans([kin(3, parent=1), kin(4, parent=2)]) == set(), "no sibling"
    assert orphans([]) == set()


def test_a_rewarded_turn_is_no_orphan(store: SyncStore) -> None:
    [(session, _)] = store.start()
    store.commit(session, name="lost", asks="same", delivered=False)
    store.commit(session, name="again", asks="same")
    store.run(lambda transaction: transaction.execute("UPDATE turns SET reward = 1.0 WHERE number = 1"))
    close(store, session)
    assert sums(store)["turns"]["discarded"] == {}


def test_other_reasoning_was_another_request(store: SyncStore) -> None:
    [(session, _)] = store.start()
    for name, thought in (("lost", b"a" * 16), ("again", b"b" * 16)):
        store.commit(session, name=name, asks="same", delivered=False, matching=Matching("2", ((0, thought),)))
    close(store, session)
    assert sums(store)["turns"]["discarded"] == {}


def test_another_lineages_request_was_another_request(store: SyncStore) -> None:
    [(session, _)] = store.start()
    agent = Lineage("a", "subagent", "main")
    store.commit(session, name="agent's", asks="same", delivered=False, lineage=agent)
    store.commit(session, name="main's", asks="same", delivered=False)
    close(store, session)
    assert sums(store)["turns"]["discarded"] == {}


@pytest.mark.parametrize(
    ("state", "turns", "held", "expected"),
    [
        ("open", 0, [], ("live", "")),
        ("open", 2, [("acknowledged", None)], ("live", "")),
        ("open", 2, [("leased", None)], ("leased", "")),
        ("closed", 0, [], ("discarded", "empty")),
        ("closed", 2, [("ready", None), ("acknowledged", None)], ("live", "")),
        ("closed", 2, [("discarded", "newer"), ("acknowledged", None)], ("acknowledged", "")),
        ("closed", 2, [("discarded", "newer"), ("discarded", "old")], ("discarded", "newer")),
        ("deleted", 2, [("leased", None)], ("leased", "")),
        ("deleted", 2, [("acknowledged", None), ("discarded", "deleted")], ("acknowledged", "")),
        ("deleted", 2, [], ("discarded", "deleted")),
        ("deleted", 0, [], ("discarded", "deleted")),
    ],
)
def test_fates(state: str, turns: int, held: list[tuple[str, str | None]], expected: tuple[str, str]) -> None:
    assert fate(state=state, turns=turns, trajectories=held) == expected


def test_tombstones_are_bounded_in_number_and_age(store: SyncStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tombstones, "TOMBSTONES", 3)
    names = []
    for _ in range(5):
        [(session, name)] = store.start()
        close(store, session)
        names.append(name)
    assert [name for (name,) in store.rows("SELECT name FROM tombstones ORDER BY id")] == names[-3:]
    store.advance(tombstones.TOMBSTONE_AGE + 1)
    [(session, name)] = store.start()
    close(store, session)
    assert store.rows("SELECT name FROM tombstones") == [(name,)]


def test_ids_of_sessions_are_never_given_twice(store: SyncStore) -> None:
    [(first, _)] = store.start()
    close(store, first)
    [(second, _)] = store.start()
    assert second != first
