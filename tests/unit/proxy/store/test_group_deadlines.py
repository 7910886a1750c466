"""Groups that end without all of their members: not before enough have ended and the time is over."""

from functools import partial
from typing import Any

from tests.unit.proxy.store.test_leases import ack, ask, close, delete, group_of, names, ready, sums
from tests.unit.proxy.store.test_replacing import replace
from tests.unit.proxy.stores import SyncStore

from rolloutfleet_proxy.domain.errors import GroupClosed, SessionClosed
from rolloutfleet_proxy.domain.session import Gone, SessionRecord
from rolloutfleet_proxy.refusals import ended, gone
from rolloutfleet_proxy.store.sessions import find
from rolloutfleet_proxy.store.trajectories import close_late, load_late_groups

DEADLINE = 100.0


def start(store: SyncStore, count: int, quorum: int, **asked: Any) -> list[tuple[int, str]]:
    return store.start(count, group={"quorum": quorum, "deadline": DEADLINE}, **asked)


def tick(store: SyncStore) -> list[str]:
    """The sessions that are closed, by name."""
    groups = store.read(partial(load_late_groups, served=store.store.clock.now()))
    return [name for group in groups for name in store.run(partial(close_late, group=group))]


def refusal(store: SyncStore, name: str) -> type[Exception]:
    """What a call of a session that has ended is answered."""
    found = store.read(lambda connection: find(connection, name=name))
    if isinstance(found, Gone):
        return type(gone(found))
    assert isinstance(found, SessionRecord) and found.state != "open"
    return type(ended(found))


def test_a_group_ends_once_its_quorum_has_and_its_deadline_is_over(store: SyncStore) -> None:
    (one, _), (two, _), (slow, name), (empty, other) = start(store, 4, quorum=2)
    for session in (one, two, slow):
        ready(store, session)
    store.commit(slow, name="open")
    close(store, one)
    store.advance(DEADLINE)
    assert tick(store) == [], "the quorum has not ended"
    delete(store, two)
    assert tick(store) == [name, other]
    assert (
        store.rows("SELECT state, outcome, outcome_reason FROM sessions WHERE id IN (?, ?)", slow, empty)
        == [("closed", "aborted", "group_deadline")] * 2
    )
    assert tick(store) == []
    granted = ask(store)
    assert [status for _, status in granted.statuses] == ["leased", "gone", "leased", "gone"]
    assert names(granted)[1:] == [f"{name}-trajectory-1", f"{name}-trajectory-2"]
    assert sums(store)["turns"]["leased"] == 3


def test_a_deadline_counts_what_the_proxy_has_served_and_survives_a_restart(store: SyncStore) -> None:
    (one, _), (_, name) = start(store, 2, quorum=1)
    close(store, one)
    store.advance(DEADLINE - 1)
    store.reopen(meanwhile=lambda file: store.advance(DEADLINE))
    assert tick(store) == []
    store.advance(1)
    assert tick(store) == [name]


def test_a_session_that_the_deadline_closed_is_told_from_others_also_when_it_is_gone(store: SyncStore) -> None:
    (one, first), (two, second) = start(store, 2, quorum=1)
    for session in (one, two):
        ready(store, session)
    close(store, one)
    store.advance(DEADLINE)
    tick(store)
    assert (refusal(store, first), refusal(store, second)) == (SessionClosed, GroupClosed)
    ack(store, ask(store, group_id=group_of(store, one)).lease)
    assert store.rows("SELECT * FROM sessions") == []
    assert (refusal(store, first), refusal(store, second)) == (SessionClosed, GroupClosed)


def test_a_group_without_a_deadline_waits_for_all(store: SyncStore) -> None:
    (one, _), _ = store.start(2)
    close(store, one)
    store.advance(1e9)
    assert tick(store) == []


def test_a_session_that_replaced_another_has_the_deadline_of_its_group(store: SyncStore) -> None:
    (one, _), (_, name) = start(store, 2, quorum=1)
    _, heir = replace(store, name)
    close(store, one)
    store.advance(DEADLINE)
    assert tick(store) == [heir]


def test_deadlines_are_found_without_a_look_at_every_session(store: SyncStore) -> None:
    plan = store.rows("EXPLAIN QUERY PLAN SELECT 1 FROM sessions WHERE state = 'open' AND deadline <= 1.0")
    assert "sessions_by_deadline" in plan[0][-1]
