"""A trainer that goes back to an older checkpoint: what is of weights that no longer are."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.unit.proxy.services import Told, open_weights
from tests.unit.proxy.stores import SyncStore

from rolloutfleet.wire import AskExport, LeftOpen
from rolloutfleet_proxy.domain.errors import Stale
from rolloutfleet_proxy.domain.ledger import DISCARDED
from rolloutfleet_proxy.domain.recovery import RECOVERED, Counts
from rolloutfleet_proxy.domain.weights import Recovery, Versions, WeightState
from rolloutfleet_proxy.services.weights import WeightService
from rolloutfleet_proxy.store import recoveries
from rolloutfleet_proxy.store.audit import audit
from rolloutfleet_proxy.store.leases import grant, release
from rolloutfleet_proxy.store.trajectories import close_session, close_turns, move_trajectory
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.weights import Applied, AtStake, apply, at_stake


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SyncStore]:
    opened = SyncStore(tmp_path)
    yield opened
    assert opened.read(audit)["balanced"]
    opened.close()


def recover(store: SyncStore, run: int, version: int, newer: str, left_open: LeftOpen = "keep") -> Applied:
    ended = store.run(lambda transaction: apply(transaction, Recovery(run, version, newer, left_open)))
    return Applied(tuple(ended), tuple(store.freed))


def closed(store: SyncStore, session: int, *versions: int, run: int = 0) -> int:
    """Commit a turn of these versions and close it; returns its trajectory."""
    name = f"{session}-{len(store.rows('SELECT 1 FROM turns'))}"
    store.commit(session, name=name, output=range(3, 3 + len(versions)), versions=[(v, 1) for v in versions], run=run)
    number = store.run(lambda transaction: close_turns(transaction, session, closed_by="reward"))
    assert number is not None
    return number


def trajectories(store: SyncStore) -> list[tuple[object, ...]]:
    return store.rows("SELECT number, state, marked FROM trajectories ORDER BY session, number")


def counts(store: SyncStore, run: int) -> Counts:
    return store.run(lambda transaction: recoveries.counts(transaction, run))


def test_what_is_newer_is_dropped_and_the_rest_stays(store: SyncStore) -> None:
    [(session, _)] = store.start()
    for versions in ((5,), (6,), (4, 5, 6), (3,)):
        closed(store, session, *versions)
    recover(store, 1, 5, "drop")
    assert trajectories(store) == [
        (1, "ready", None),
        (2, "discarded", "newer"),
        (3, "discarded", "newer"),
        (4, "ready", None),
    ]
    assert store.read(audit)["turns"]["discarded"] == {"recovered": 2}
    assert counts(store, 1) == Counts(2, 2, 2, 2)


def test_what_is_newer_is_kept_and_marked_if_told_so(store: SyncStore) -> None:
    [(session, _)] = store.start()
    closed(store, session, 6)
    recover(store, 1, 5, "keep")
    assert trajectories(store) == [(1, "ready", "newer")]
    assert counts(store, 1) == Counts(1, 1, 0, 0)


def test_what_is_leased_is_marked_and_left_to_its_lease(store: SyncStore) -> None:
    [(session, name)] = store.start()
    closed(store, session, 6)
    store.run(lambda transaction: grant(transaction, store.owner, AskExport(session_ids=[name])))
    recover(store, 1, 5, "drop")
    assert trajectories(store) == [(1, "leased", "newer")]
    assert counts(store, 1) == Counts(1, 1, 0, 0)


def test_of_an_older_run_what_an_earlier_recovery_kept_goes_with_the_next(store: SyncStore) -> None:
    [(session, _)] = store.start()
    closed(store, session, 4)
    closed(store, session, 6)
    recover(store, 1, 5, "keep")
    closed(store, session, 5, run=1)
    closed(store, session, 7, run=1)
    recover(store, 2, 3, "drop")
    assert trajectories(store) == [
        (1, "discarded", "older_run"),
        (2, "discarded", "newer"),
        (3, "discarded", "newer"),
        (4, "discarded", "newer"),
    ]
    assert counts(store, 2) == Counts(3, 3, 4, 4)


def test_a_later_run_at_the_same_version_is_not_abandoned(store: SyncStore) -> None:
    [(session, _)] = store.start()
    recover(store, 1, 5, "drop")
    closed(store, session, 6, run=1)
    recover(store, 2, 6, "drop")
    assert trajectories(store) == [(1, "ready", None)]


def test_a_session_that_loses_its_last_trajectory_is_freed(store: SyncStore) -> None:
    [(session, name)] = store.start()
    store.commit(session, name="t", version=9)
    store.run(lambda transaction: close_session(transaction, session))
    assert recover(store, 1, 5, "drop") == Applied(freed=(name,))
    assert store.rows("SELECT 1 FROM sessions") == []
    assert store.read(audit)["sessions"]["discarded"] == {"recovered": 1}


def test_a_group_that_is_freed_whole_is_settled_once(store: SyncStore) -> None:
    group = store.start(2)
    for session, name in group:
        store.commit(session, name=name, version=9)
        store.run(partial(close_session, session=session))
    assert set(recover(store, 1, 5, "drop").freed) == {name for _, name in group}


def test_what_closes_later_is_judged_then(store: SyncStore) -> None:
    """A call in flight at the recovery commits after it, with the run that it began in."""
    [(session, _)] = store.start()
    recover(store, 1, 5, "drop")
    late, fine = closed(store, session, 6, 5, run=0), closed(store, session, 5, 6, run=1)

    def judged(transaction: Transaction) -> None:
        assert recoveries.mark(transaction, session, fine) is None
        mark = recoveries.mark(transaction, session, late)
        assert mark is not None
        assert mark.drop
        assert recoveries.mark(transaction, session, late) == mark, "judged again, it is not counted again"
        if store.rows("SELECT state FROM trajectories WHERE number = ?", late) == [("ready",)]:
            move_trajectory(transaction, session, late, DISCARDED, reason=RECOVERED)
            recoveries.count_dropped(transaction, session, late, mark)

    store.run(judged)
    assert trajectories(store) == [(late, "discarded", "newer"), (fine, "ready", None)]
    assert counts(store, 1) == Counts(1, 1, 1, 1)


def test_a_proxy_that_missed_recoveries_catches_up_on_all_of_them(store: SyncStore) -> None:
    [(session, _)] = store.start()
    for version in (2, 4, 6):
        closed(store, session, version)
    missed = Versions(run=2, version=7, recoveries=(Recovery(1, 5, "keep"), Recovery(2, 3, "drop")))
    told = Told()

    async def catch_up() -> WeightService:
        weights = await open_weights(store.writer, max_hold=1.0, told=told)
        await weights.adopt([WeightState(versions=missed)])
        assert await weights.recovery_counts(1) == Counts(1, 1, 0, 0)
        return await open_weights(store.writer, max_hold=1.0)

    assert store._runner.run(catch_up()).gate.state.versions == missed
    assert trajectories(store) == [(1, "ready", None), (2, "discarded", "older_run"), (3, "discarded", "newer")]
    assert told == [Applied()]


def test_what_is_closed_after_a_recovery_is_judged_by_it(store: SyncStore) -> None:
    [(session, _)] = store.start()
    recover(store, 1, 5, "drop")
    closed(store, session, 6, run=0)
    closed(store, session, 5, 6, run=1)
    assert trajectories(store) == [(1, "discarded", "newer"), (2, "ready", None)]
    assert counts(store, 1) == Counts(1, 1, 1, 1)


def test_what_was_leased_at_a_recovery_is_judged_when_it_is_given_back(store: SyncStore) -> None:
    [(session, name)] = store.start()
    closed(store, session, 6)
    granted = store.run(lambda transaction: grant(transaction, store.owner, AskExport(session_ids=[name])))
    recover(store, 1, 5, "drop")
    assert granted.lease is not None
    lease = granted.lease
    store.run(lambda transaction: release(transaction, lease))
    assert trajectories(store) == [(1, "discarded", "newer")]
    assert counts(store, 1) == Counts(1, 1, 1, 1)


def test_a_session_closed_with_nothing_that_a_recovery_leaves_is_freed(store: SyncStore) -> None:
    [(session, name)] = store.start()
    recover(store, 1, 5, "drop")
    store.commit(session, name="x", version=9)
    store.run(lambda transaction: close_session(transaction, session))
    assert store.freed == [name]


def states(store: SyncStore) -> list[tuple[object, ...]]:
    return store.rows("SELECT name, state FROM sessions ORDER BY id")


def test_what_is_at_stake_is_counted_as_ready_leased_and_open(store: SyncStore) -> None:
    [(session, name)] = store.start()
    closed(store, session, 6)
    store.run(lambda transaction: grant(transaction, store.owner, AskExport(session_ids=[name])))
    closed(store, session, 4, 6)
    closed(store, session, 6)
    closed(store, session, 5)
    for turn in ("x", "y"):
        store.commit(session, name=turn, version=7)
    [(other, _)] = store.start()
    store.commit(other, name="z", version=5)
    counted = store.run(lambda transaction: at_stake(transaction, run=1, version=5))
    assert counted == AtStake(ready=2, leased=1, open=1)
    assert counted.trajectories == 4
    assert store.run(lambda transaction: at_stake(transaction, run=1, version=7)) == AtStake()


@pytest.mark.parametrize("newer", ["drop", "keep"])
def test_sessions_left_open_are_kept_unless_told_otherwise(store: SyncStore, newer: str) -> None:
    [(session, name)] = store.start()
    store.commit(session, name="x", version=6)
    assert recover(store, 1, 5, newer) == Applied()
    assert states(store) == [(name, "open")]
    assert counts(store, 1).ended_sessions == 0


def test_sessions_left_open_are_closed_and_leave_what_the_recovery_leaves(store: SyncStore) -> None:
    [(old, old_name)], [(new, new_name)] = store.start(), store.start()
    store.commit(old, name="x", version=5)
    store.commit(new, name="y", version=6)
    [(_, empty)] = store.start()
    done = recover(store, 1, 5, "drop", "close")
    assert done.ended == ((old_name, "closed"), (new_name, "closed"), (empty, "closed"))
    assert set(done.freed) == {new_name, empty}
    assert states(store) == [(old_name, "closed")]
    assert trajectories(store) == [(1, "ready", None)]
    assert counts(store, 1) == Counts(1, 1, 1, 1, ended_sessions=3)


def test_sessions_left_open_are_deleted_but_for_what_is_leased(store: SyncStore) -> None:
    [(session, name)] = store.start()
    closed(store, session, 4)
    store.run(lambda transaction: grant(transaction, store.owner, AskExport(session_ids=[name])))
    closed(store, session, 4)
    store.commit(session, name="x", version=4)
    assert recover(store, 1, 5, "drop", "delete").ended == ((name, "deleted"),)
    assert trajectories(store) == [(1, "leased", None), (2, "discarded", None)]
    assert store.read(audit)["turns"]["discarded"] == {"deleted": 2}


def test_a_repeated_recovery_ends_no_session_of_the_new_run_and_a_restart_changes_nothing(store: SyncStore) -> None:
    store.start()
    asked = Recovery(1, 5, "drop", "close")

    async def recovered() -> WeightService:
        weights = await open_weights(store.writer, max_hold=1.0)
        await weights.recover(asked)
        return weights

    store.wait(recovered())
    [(_, young)] = store.start()
    weights = store.wait(recovered())
    assert states(store) == [(young, "open")]
    assert weights.gate.state.as_json()["open"] == {"1": "close"}
    with pytest.raises(Stale):
        store.wait(weights.recover(Recovery(1, 5, "drop", "delete")))


def test_a_proxy_that_missed_a_recovery_ends_what_was_left_open_when_it_hears_of_it(store: SyncStore) -> None:
    [(session, name)] = store.start()
    store.commit(session, name="x", version=4)
    heard = WeightState(versions=Versions(run=1, version=5, recoveries=(Recovery(1, 5, "drop", "close"),)))
    told = Told()

    async def catch_up() -> None:
        weights = await open_weights(store.writer, max_hold=1.0, told=told)
        await weights.adopt([WeightState.from_json(heard.as_json())])

    store.wait(catch_up())
    assert told == [Applied(ended=((name, "closed"),))]
    assert states(store) == [(name, "closed")]
