"""A trainer that goes back to an older checkpoint: what is of weights that no longer are (design.md, versions)."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rolloutfleet.wire import AskExport
from rolloutfleet_proxy.exports.leases import grant, release
from rolloutfleet_proxy.sessions.trajectories import close_session, close_turns, move_trajectory
from rolloutfleet_proxy.store.audit import audit
from rolloutfleet_proxy.store.transaction import DISCARDED, Transaction
from rolloutfleet_proxy.testing import SyncStore
from rolloutfleet_proxy.turns import lineage
from rolloutfleet_proxy.turns.lineage import Counts
from rolloutfleet_proxy.weights import recovery
from rolloutfleet_proxy.weights.state import Recovery, Versions, WeightState
from rolloutfleet_proxy.weights.weights import Weights


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SyncStore]:
    opened = SyncStore(tmp_path)
    yield opened
    assert opened.read(audit)["balanced"]
    opened.close()


def recover(store: SyncStore, run: int, version: int, newer: str) -> tuple[str, ...]:
    return store.run(lambda transaction: recovery.apply(transaction, Recovery(run, version, newer)))


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
    return store.run(lambda transaction: lineage.counts(transaction, run))


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


def test_a_later_run_at_the_same_version_is_another_lineage(store: SyncStore) -> None:
    [(session, _)] = store.start()
    recover(store, 1, 5, "drop")
    closed(store, session, 6, run=1)
    recover(store, 2, 6, "drop")
    assert trajectories(store) == [(1, "ready", None)]


def test_a_session_that_loses_its_last_trajectory_is_freed(store: SyncStore) -> None:
    [(session, name)] = store.start()
    store.commit(session, name="t", version=9)
    store.run(lambda transaction: close_session(transaction, session))
    assert recover(store, 1, 5, "drop") == (name,)
    assert store.rows("SELECT 1 FROM sessions") == []
    assert store.read(audit)["sessions"]["discarded"] == {"recovered": 1}


def test_a_group_that_is_freed_whole_is_settled_once(store: SyncStore) -> None:
    group = store.start(2)
    for session, name in group:
        store.commit(session, name=name, version=9)
        store.run(partial(close_session, session=session))
    assert set(recover(store, 1, 5, "drop")) == {name for _, name in group}


def test_what_closes_later_is_judged_then(store: SyncStore) -> None:
    """A call in flight at the recovery commits after it, with the run that it began in."""
    [(session, _)] = store.start()
    recover(store, 1, 5, "drop")
    late, fine = closed(store, session, 6, 5, run=0), closed(store, session, 5, 6, run=1)

    def judged(transaction: Transaction) -> None:
        assert lineage.mark(transaction, session, fine) is None
        mark = lineage.mark(transaction, session, late)
        assert mark is not None
        assert mark.drop
        assert lineage.mark(transaction, session, late) == mark, "judged again, it is not counted again"
        if store.rows("SELECT state FROM trajectories WHERE number = ?", late) == [("ready",)]:
            move_trajectory(transaction, session, late, DISCARDED, reason=lineage.RECOVERED)
            lineage.count_dropped(transaction, session, late, mark)

    store.run(judged)
    assert trajectories(store) == [(late, "discarded", "newer"), (fine, "ready", None)]
    assert counts(store, 1) == Counts(1, 1, 1, 1)


def test_a_proxy_that_missed_recoveries_catches_up_on_all_of_them(store: SyncStore) -> None:
    [(session, _)] = store.start()
    for version in (2, 4, 6):
        closed(store, session, version)
    missed = Versions(run=2, version=7, recoveries=(Recovery(1, 5, "keep"), Recovery(2, 3, "drop")))
    freed: list[tuple[str, ...]] = []

    async def catch_up() -> Weights:
        weights = await Weights.open(store.writer, max_hold=1.0)
        weights.on_freed = freed.append
        await weights.adopt([WeightState(versions=missed)])
        assert await weights.recovery_counts(1) == Counts(1, 1, 0, 0)
        return await Weights.open(store.writer, max_hold=1.0)

    assert store._runner.run(catch_up()).state.versions == missed
    assert trajectories(store) == [(1, "ready", None), (2, "discarded", "older_run"), (3, "discarded", "newer")]
    assert freed == [()]


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
    assert store.run(lambda transaction: close_session(transaction, session)).freed == (name,)
