"""Leases: what is leased, to whom, until when, and what an acknowledgement counts."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.proxy.stores import SyncStore

from rolloutfleet.wire import AskExport
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.domain.idempotency import keyed_call
from rolloutfleet_proxy.domain.trajectory import BY_REWARD
from rolloutfleet_proxy.http.errors import status_of
from rolloutfleet_proxy.store import leases
from rolloutfleet_proxy.store.audit import audit
from rolloutfleet_proxy.store.leases import Grant, acknowledge, expire, grant, release, renew
from rolloutfleet_proxy.store.trajectories import close_session, close_turns, delete_session


def ask(store: SyncStore, *, key: str | None = None, **asked: Any) -> Grant:
    export = AskExport(**asked)
    call = keyed_call(key, scope="export", body=export.model_dump_json().encode())
    return store.run(lambda transaction: grant(transaction, store.owner, export, call))


def ack(store: SyncStore, lease: str | None, ids: list[str] | None = None) -> list[str]:
    assert lease is not None
    return store.run(lambda transaction: acknowledge(transaction, lease, ids))


def give_back(store: SyncStore, lease: str | None, ids: list[str] | None = None) -> list[str]:
    assert lease is not None
    return store.run(lambda transaction: release(transaction, lease, ids))


def extend(store: SyncStore, lease: str | None, seconds: float) -> None:
    assert lease is not None
    store.run(lambda transaction: renew(transaction, lease, seconds=seconds))


def ready(store: SyncStore, session: int, *, turns: int = 1) -> None:
    """Give a session one more trajectory."""
    for _ in range(turns):
        count = store.rows("SELECT turns FROM sessions WHERE id = ?", session)[0][0]
        store.commit(session, name=f"turn-{session}-{count + 1}")
    store.run(lambda transaction: close_turns(transaction, session, closed_by=BY_REWARD))


def close(store: SyncStore, session: int) -> None:
    store.run(lambda transaction: close_session(transaction, session))


def delete(store: SyncStore, session: int) -> None:
    store.run(lambda transaction: delete_session(transaction, session))


def group_of(store: SyncStore, session: int) -> str:
    return str(store.rows("SELECT group_name FROM sessions WHERE id = ?", session)[0][0])


def names(granted: Grant) -> list[str]:
    return [member.trajectory_id for member in granted.members]


def sums(store: SyncStore) -> dict[str, Any]:
    found = store.read(audit)
    assert found["balanced"], found
    return found


def refused(act: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(DomainError) as error:
        act()
    return status_of(error.value), error.value.code


# What is leased


def test_every_asked_session_has_a_status(store: SyncStore) -> None:
    [(held, held_name)] = store.start()
    ready(store, held)
    ask(store, session_ids=[held_name])
    [(whole, whole_name)] = store.start()
    ready(store, whole)
    [(_, fresh_name)] = store.start()
    [(empty, empty_name)] = store.start()
    close(store, empty)
    (deleted, deleted_name), _ = store.start(2)
    delete(store, deleted)

    asked = [empty_name, "nonsense", whole_name, fresh_name, held_name, deleted_name]
    granted = ask(store, session_ids=asked)
    assert granted.statuses == [
        (empty_name, "gone"),
        ("nonsense", "unknown"),
        (whole_name, "leased"),
        (fresh_name, "not_ready"),
        (held_name, "leased_elsewhere"),
        (deleted_name, "gone"),
    ]
    assert names(granted) == [f"{whole_name}-trajectory-1"]
    assert sums(store)["turns"]["leased"] == 2
    assert sums(store)["sessions"]["leased"] == 2


def test_nothing_to_lease_is_no_lease(store: SyncStore) -> None:
    [(_, name)] = store.start()
    for granted in (ask(store), ask(store, session_ids=[name]), ask(store, key="k", max_trajectories=3)):
        assert (granted.lease, granted.expires_in, granted.members) == (None, None, [])
    assert store.rows("SELECT * FROM leases") == store.rows("SELECT * FROM idempotency") == []


def test_named_sessions_are_leased_whatever_their_group(store: SyncStore) -> None:
    (one, first), _ = store.start(2)
    ready(store, one)
    assert names(ask(store, session_ids=[first])) == [f"{first}-trajectory-1"]


def test_a_group_is_leased_by_name(store: SyncStore) -> None:
    (one, first), (_, second) = store.start(2)
    group = group_of(store, one)
    ready(store, one)
    granted = ask(store, group_id=group)
    assert granted.statuses == [(first, "leased"), (second, "not_ready")]
    assert refused(lambda: ask(store, group_id="g0-nothing")) == (404, "group_unknown")


def test_a_group_whose_rows_are_gone(store: SyncStore) -> None:
    (one, first), (two, second) = store.start(2)
    group = group_of(store, one)
    delete(store, one)
    delete(store, two)
    assert sorted(ask(store, group_id=group).statuses) == sorted([(first, "gone"), (second, "gone")])


def test_a_number_takes_whole_groups_oldest_first(store: SyncStore) -> None:
    groups = [store.start(3) for _ in range(3)]
    for group in reversed(groups):
        for session, _ in group:
            store.advance(1)
            ready(store, session)
    granted = ask(store, max_trajectories=7)
    assert {member.session for member in granted.members} == {session for group in groups[1:] for session, _ in group}
    assert granted.statuses == [(name, "leased") for group in groups[1:] for _, name in group]
    assert len(ask(store, max_trajectories=1).members) == 3, "a group larger than the number would starve"
    assert ask(store).members == []


def test_a_number_waits_for_every_member(store: SyncStore) -> None:
    (one, _), (two, second), (three, third) = store.start(3)
    ready(store, one)
    assert ask(store).members == []
    ready(store, two)
    close(store, three)
    granted = ask(store)
    assert len(granted.members) == 2
    assert (third, "gone") in granted.statuses

    ack(store, granted.lease)
    ready(store, one)
    assert ask(store).members == [], "the second has no new trajectory yet"
    ready(store, two)
    close(store, two)
    assert {member.number for member in ask(store).members} == {2}
    assert second


def test_a_number_leaves_a_group_alone_of_which_something_is_leased(store: SyncStore) -> None:
    (one, first), (two, _) = store.start(2)
    ready(store, one)
    ready(store, two)
    granted = ask(store, session_ids=[first])
    assert ask(store).members == []
    give_back(store, granted.lease)
    assert len(ask(store).members) == 2


def test_a_number_leaves_it_alone_though_all_of_it_have_ended(store: SyncStore) -> None:
    (one, first), (two, _) = store.start(2)
    for session in (one, two):
        ready(store, session)
        close(store, session)
    granted = ask(store, session_ids=[first])
    assert len(granted.members) == 1 and ask(store).members == []
    give_back(store, granted.lease)
    assert len(ask(store).members) == 2


# How it ends


def test_an_acknowledgement_counts_once_and_frees(store: SyncStore) -> None:
    [(session, name)] = store.start()
    ready(store, session, turns=2)
    close(store, session)
    granted = ask(store)
    first = ack(store, granted.lease)
    assert first == [f"{name}-trajectory-1"]
    assert store.freed == [name]
    assert sums(store)["turns"]["acknowledged"] == 2
    assert sums(store)["sessions"]["acknowledged"] == 1
    assert store.rows("SELECT * FROM turns") == []
    store.reopen()
    again = ack(store, granted.lease)
    assert again == first
    assert sums(store)["turns"]["acknowledged"] == 2


def test_parts_can_be_acknowledged_and_each_part_again(store: SyncStore) -> None:
    (one, first), (two, second) = store.start(2)
    ready(store, one)
    ready(store, two)
    lease = ask(store).lease
    parts = [f"{first}-trajectory-1"], [f"{second}-trajectory-1"]
    assert ack(store, lease, parts[1]) == parts[1]
    assert sums(store)["turns"] == sums(store)["turns"] | {"leased": 1, "acknowledged": 1}
    assert ack(store, lease, parts[0]) == parts[0]
    assert ack(store, lease, parts[1]) == parts[1]
    assert ack(store, lease) == [*parts[0], *parts[1]]
    assert ack(store, lease, []) == []


def test_what_is_not_of_the_lease_is_refused_whole(store: SyncStore) -> None:
    [(session, name)] = store.start()
    ready(store, session)
    lease = ask(store).lease
    ids = [f"{name}-trajectory-1", f"{name}-trajectory-2"]
    assert refused(lambda: ack(store, lease, ids)) == (404, "trajectory_unknown")
    assert sums(store)["turns"]["acknowledged"] == 0
    assert refused(lambda: ack(store, "l0-none")) == (404, "lease_unknown")
    assert refused(lambda: give_back(store, "l0-none")) == (404, "lease_unknown")
    assert refused(lambda: extend(store, "l0-none", 1.0)) == (404, "lease_unknown")


@pytest.mark.parametrize("ends", ["release", "expire"])
def test_given_back_it_can_be_had_again_with_the_same_ids(store: SyncStore, ends: str) -> None:
    [(session, _)] = store.start()
    ready(store, session)
    first = ask(store, lease_seconds=10)
    if ends == "release":
        assert give_back(store, first.lease) == give_back(store, first.lease)
    else:
        store.advance(9.5)
        assert ask(store).members == []
        store.advance(1)
    second = ask(store)
    assert names(second) == names(first)
    assert second.lease != first.lease
    assert sums(store)["turns"]["leased"] == 1


def test_a_late_acknowledgement_counts_while_nobody_else_has_it(store: SyncStore) -> None:
    [(session, _)] = store.start()
    ready(store, session)
    first = ask(store, lease_seconds=10)
    store.advance(11)
    second = ask(store)
    assert refused(lambda: ack(store, first.lease)) == (409, "already_leased")
    give_back(store, second.lease)
    assert ack(store, first.lease) == names(first)
    assert refused(lambda: ack(store, second.lease)) == (409, "already_leased")
    close(store, session)
    assert store.rows("SELECT * FROM sessions") == []
    assert refused(lambda: ack(store, second.lease)) == (409, "already_leased")
    assert sums(store)["turns"]["acknowledged"] == 1


def test_a_late_acknowledgement_is_all_or_nothing(store: SyncStore) -> None:
    (one, first), (two, _) = store.start(2)
    ready(store, one)
    ready(store, two)
    lease = ask(store)
    give_back(store, lease.lease)
    ask(store, session_ids=[first])
    assert refused(lambda: ack(store, lease.lease)) == (409, "already_leased")
    assert sums(store)["turns"]["acknowledged"] == 0
    assert ack(store, lease.lease, names(lease)[1:]) == names(lease)[1:]


def test_a_lease_counts_served_seconds_only(store: SyncStore) -> None:
    [(session, _)] = store.start()
    ready(store, session)
    first = ask(store, lease_seconds=10)
    store.advance(8)
    extend(store, first.lease, 10)
    store.advance(8)
    assert ask(store).members == []
    store.reopen()
    assert ask(store).members == []
    store.advance(3)
    store.run(expire)
    assert sums(store)["turns"]["live"] == 1
    assert refused(lambda: extend(store, first.lease, 10)) == (409, "lease_expired")
    assert refused(lambda: give_back(store, first.lease)) == (409, "lease_expired")


def test_a_deleted_session_is_left_to_its_lease(store: SyncStore) -> None:
    sessions = [store.start()[0] for _ in range(3)]
    granted = []
    for session, name in sessions:
        ready(store, session)
        granted.append(ask(store, session_ids=[name], lease_seconds=10))
        delete(store, session)
    assert sums(store)["sessions"]["leased"] == 3
    ack(store, granted[0].lease)
    assert store.freed == [sessions[0][1]]
    give_back(store, granted[1].lease)
    assert store.freed == [sessions[1][1]]
    store.advance(11)
    store.run(expire)
    assert store.freed == [sessions[2][1]]
    found = sums(store)["turns"]
    assert (found["acknowledged"], found["discarded"]) == (1, {"deleted": 2})
    assert refused(lambda: ack(store, granted[2].lease)) == (409, "lease_expired")


def test_parts_can_be_released(store: SyncStore) -> None:
    (one, _), (two, _) = store.start(2)
    ready(store, one)
    ready(store, two)
    granted = ask(store)
    assert give_back(store, granted.lease, names(granted)[:1]) == names(granted)[:1]
    assert sums(store)["turns"]["leased"] == 1
    assert ack(store, granted.lease, names(granted)[1:]) == names(granted)[1:]
    assert ack(store, granted.lease) == names(granted)


def test_an_acknowledged_lease_has_nothing_to_release_or_renew(store: SyncStore) -> None:
    [(session, _)] = store.start()
    ready(store, session)
    lease = ask(store).lease
    ack(store, lease)
    assert refused(lambda: give_back(store, lease)) == (409, "lease_expired")
    assert refused(lambda: extend(store, lease, 1.0)) == (409, "lease_expired")


# The same export again


def test_the_same_call_gets_the_same_lease(store: SyncStore) -> None:
    [(session, _)] = store.start()
    ready(store, session)
    first = ask(store, key="k", lease_seconds=10)
    store.advance(4)
    again = ask(store, key="k", lease_seconds=10)
    assert (again.lease, names(again), again.statuses) == (first.lease, names(first), first.statuses)
    assert again.expires_in == pytest.approx(6)
    assert again.asked == first.asked
    store.reopen()
    assert ask(store, key="k", lease_seconds=10).lease == first.lease
    assert refused(lambda: ask(store, key="k", lease_seconds=11)) == (422, "idempotency_key_reused")


@pytest.mark.parametrize("ends", ["release", "expire"])
def test_the_same_call_leases_again_what_was_given_back(store: SyncStore, ends: str) -> None:
    [(session, _)] = store.start()
    ready(store, session)
    first = ask(store, key="k", lease_seconds=10)
    give_back(store, first.lease) if ends == "release" else store.advance(11)
    again = ask(store, key="k", lease_seconds=10)
    assert (again.lease, names(again), again.expires_in) == (first.lease, names(first), 10)
    assert sums(store)["turns"]["leased"] == 1
    give_back(store, again.lease)
    ask(store)
    assert refused(lambda: ask(store, key="k", lease_seconds=10)) == (409, "already_leased")


def test_the_same_call_leaves_out_what_was_acknowledged(store: SyncStore) -> None:
    (one, _), (two, _) = store.start(2)
    ready(store, one)
    ready(store, two)
    first = ask(store, key="k")
    ack(store, first.lease, names(first)[:1])
    assert names(ask(store, key="k")) == names(first)[1:]
    ack(store, first.lease)
    assert refused(lambda: ask(store, key="k")) == (409, "lease_expired")


def test_ended_leases_are_forgotten_after_a_time(store: SyncStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "ENDED_LEASES", 2)
    granted = []
    for _ in range(4):
        [(session, _)] = store.start()
        ready(store, session)
        granted.append(ask(store).lease)
        if len(granted) != 2:
            ack(store, granted[-1])
    kept = [name for (name,) in store.rows("SELECT name FROM leases ORDER BY id")]
    assert kept == granted[1:], "open ones stay, whatever their age"
    assert store.rows("SELECT count(*) FROM leased") == [(3,)]

    monkeypatch.setattr(leases, "ENDED_LEASES", 100)
    store.advance(leases.ENDED_LEASE_AGE + 1)
    [(session, _)] = store.start()
    ready(store, session)
    last = ask(store).lease
    assert dict(store.rows("SELECT name, state FROM leases")) == {granted[1]: "expired", last: "open"}
