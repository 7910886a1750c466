"""Trajectories that wait for a reward: nobody gets them before it, or before their time is up."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.proxy.lifecycle.imports import Store
from tests.unit.proxy.store.test_leases import ack, ask, close, give_back, group_of, names, sums
from tests.unit.proxy.stores import SyncStore

from rolloutfleet.wire import GiveReward
from rolloutfleet_proxy.domain.ledger import DISCARDED
from rolloutfleet_proxy.domain.lineage import Lineage
from rolloutfleet_proxy.domain.recovery import RECOVERED
from rolloutfleet_proxy.store.damage import damaged_rows
from rolloutfleet_proxy.store.groups import load_group
from rolloutfleet_proxy.store.rewards import give_reward
from rolloutfleet_proxy.store.trajectories import move_trajectory

PATIENCE = 100.0
SUBAGENT = Lineage("a1", "subagent", "main")


def reward(store: SyncStore, session: int, **asked: Any) -> None:
    store.run(lambda transaction: give_reward(transaction, session, GiveReward(reward=1.0, **asked)))


def ended(store: SyncStore, count: int = 1, **asked: Any) -> list[tuple[int, str]]:
    """A group of sessions with a turn each that have ended, and wait for their rewards."""
    started = store.start(count, await_reward=PATIENCE, **asked)
    for session, name in started:
        store.commit(session, name=f"{name}-1")
        close(store, session)
    return started


def statuses(store: SyncStore, *asked: str) -> list[str]:
    granted = ask(store, session_ids=list(asked))
    if granted.lease is not None:
        give_back(store, granted.lease)
    return [status for _, status in granted.statuses]


@pytest.mark.parametrize("named", [True, False], ids=["its turn", "the episode"])
def test_a_trajectory_is_leased_once_it_is_rewarded(store: SyncStore, named: bool) -> None:
    [(session, name)] = ended(store)
    store.advance(PATIENCE - 1)
    for asked in ({"session_ids": [name]}, {"group_id": group_of(store, session)}, {}):
        granted = ask(store, **asked)
        assert granted.lease is None and granted.statuses == ([(name, "not_ready")] if asked else [])
    reward(store, session, **({"turn_id": f"{name}-1"} if named else {}))
    assert names(ask(store)) == [f"{name}-trajectory-1"]
    assert sums(store)["turns"]["leased"] == 1


def test_its_time_counts_from_when_it_was_closed_and_not_while_the_proxy_is_down(store: SyncStore) -> None:
    [(session, name)] = store.start(await_reward=PATIENCE)
    store.commit(session, name="a")
    store.advance(10 * PATIENCE)
    close(store, session)
    store.advance(PATIENCE - 1)
    store.reopen(meanwhile=lambda file: store.advance(10 * PATIENCE))
    assert statuses(store, name) == ["not_ready"]
    store.advance(1)
    assert names(ask(store)) == [f"{name}-trajectory-1"]


def test_a_reward_that_closes_a_trajectory_leaves_nothing_to_wait_for(store: SyncStore) -> None:
    [(session, name)] = store.start(await_reward=PATIENCE)
    store.commit(session, name="a")
    reward(store, session)
    store.commit(session, name="b", parent=1)
    close(store, session)
    assert len(names(ask(store, session_ids=[name]))) == 2, "the episode's reward is the later turn's, too"


def test_the_reward_of_an_earlier_turn_alone_is_no_later_trajectorys(store: SyncStore) -> None:
    [(session, name)] = store.start(await_reward=PATIENCE)
    store.commit(session, name="a")
    reward(store, session, turn_id="a", close=True)
    store.commit(session, name="b", parent=1)
    close(store, session)
    granted = ask(store, session_ids=[name])
    assert names(granted) == [f"{name}-trajectory-1"], "its own is there"
    give_back(store, granted.lease)
    assert ask(store).lease is None, "a group comes whole"
    reward(store, session, turn_id="a")
    assert ask(store).lease is None
    reward(store, session, turn_id="b")
    assert len(names(ask(store))) == 2


def test_the_episodes_reward_ends_the_wait_of_later_trajectories(store: SyncStore) -> None:
    [(session, _)] = store.start(await_reward=PATIENCE)
    store.commit(session, name="a")
    reward(store, session, turn_id="a", close=True)
    store.commit(session, name="b", parent=1, lineage=SUBAGENT)
    close(store, session)
    assert ask(store).lease is None
    reward(store, session)
    assert len(names(ask(store))) == 2


def test_a_group_waits_for_the_rewards_of_all_its_members(store: SyncStore) -> None:
    (one, first), (two, second) = ended(store, 2)
    reward(store, one)
    assert ask(store).lease is None
    assert statuses(store, first, second) == ["leased", "not_ready"]
    reward(store, two)
    granted = ask(store)
    assert len(granted.members) == 2
    ack(store, granted.lease)
    assert sums(store)["sessions"]["acknowledged"] == 2


def test_a_leased_trajectory_waits_no_more(store: SyncStore) -> None:
    [(_, name)] = ended(store)
    store.advance(PATIENCE)
    assert statuses(store, name) == ["leased"]
    assert names(ask(store)) == [f"{name}-trajectory-1"]


@pytest.mark.parametrize("rewarded_after", [None, 10.0])
def test_a_trainer_has_as_long_as_ever_to_claim_it_from_the_end_of_its_wait(
    store: SyncStore, rewarded_after: float | None
) -> None:
    [(session, _)] = ended(store)
    if rewarded_after is not None:
        store.advance(rewarded_after)
        reward(store, session)
    [member] = store.read(lambda connection: load_group(connection, group_of(store, session))).members
    assert member.ended == (PATIENCE if rewarded_after is None else rewarded_after)


def test_a_trajectory_discarded_while_it_waited_holds_up_nothing(store: SyncStore) -> None:
    [(session, _)] = ended(store)
    store.run(lambda transaction: move_trajectory(transaction, session, 1, DISCARDED, reason=RECOVERED))
    [member] = store.read(lambda connection: load_group(connection, group_of(store, session))).members
    assert member.ended == 0.0


def test_an_open_session_that_waits_goes_stale_as_any_other(store: SyncStore) -> None:
    [(session, _)] = store.start(await_reward=PATIENCE)
    store.commit(session, name="a")
    reward(store, session, turn_id="a", close=True)
    store.commit(session, name="b", parent=1)
    [member] = store.read(lambda connection: load_group(connection, group_of(store, session))).members
    assert (member.touched, member.ended) == (0.0, None)


def test_an_imported_trajectory_waits_anew_unless_it_was_rewarded(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", tmp_path / "dumps")
    [(session, name)], [(other, other_name)] = ended(store), ended(store)
    reward(store, other)
    store.advance(PATIENCE)
    store.import_dumps([*store.dump(session), *store.dump(other)])
    assert statuses(store, name, other_name) == ["not_ready", "leased"]
    store.advance(PATIENCE)
    assert statuses(store, name, other_name) == ["leased", "leased"]
    store.sums()
    store.close()


def test_sessions_of_an_older_store_wait_for_nothing_and_its_rows_are_sound(store: SyncStore) -> None:
    [(session, name)], [(damaged, _)] = store.start(), store.start()
    store.commit(session, name="a")
    close(store, session)
    store.reopen(after_version=11)
    assert not list(store.read(damaged_rows))
    assert statuses(store, name) == ["leased"]
    close(store, damaged)
    assert not list(store.read(damaged_rows))
