"""Rewards: which turn, which trajectory, and until when they change."""

from typing import Any

import pytest
from tests.unit.proxy.stores import SyncStore

from rolloutfleet.wire import GiveReward, Rewarded
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.domain.ledger import LEASED
from rolloutfleet_proxy.domain.lineage import Lineage
from rolloutfleet_proxy.domain.trajectory import READY
from rolloutfleet_proxy.http.errors import status_of
from rolloutfleet_proxy.store.audit import audit
from rolloutfleet_proxy.store.rewards import give_reward
from rolloutfleet_proxy.store.trajectories import close_session, delete_session, move_trajectory


@pytest.fixture
def session(store: SyncStore) -> int:
    [(session, _)] = store.start()
    return session


def reward(store: SyncStore, session: int, value: float, **asked: Any) -> Rewarded:
    return store.run(lambda transaction: give_reward(transaction, session, GiveReward(reward=value, **asked)))


def refused(store: SyncStore, session: int, value: float, **asked: Any) -> tuple[int, str]:
    before = store.rows("SELECT * FROM turns"), store.rows("SELECT * FROM trajectories"), store.read(audit)
    with pytest.raises(DomainError) as error:
        reward(store, session, value, **asked)
    after = store.rows("SELECT * FROM turns"), store.rows("SELECT * FROM trajectories"), store.read(audit)
    assert before == after
    return status_of(error.value), error.value.code


def rewards(store: SyncStore) -> dict[str, float | None]:
    return dict(store.rows("SELECT name, reward FROM turns"))


def lease(store: SyncStore, session: int, state: str = LEASED) -> None:
    store.run(lambda transaction: move_trajectory(transaction, session, 1, state, lease="l"))


def test_without_a_turn_named_the_newest_gets_it_and_all_open_ones_close(store: SyncStore, session: int) -> None:
    store.commit(session, name="a")
    store.commit(session, name="b", parent=1)
    given = reward(store, session, 0.5)
    assert given.turn_id == "b"
    assert given.trajectory_id == f"{given.session_id}-trajectory-1"
    assert rewards(store) == {"a": None, "b": 0.5}
    assert store.rows("SELECT closed_by, reward_turn, turns FROM trajectories") == [("reward", 2, 2)]


def test_without_a_turn_named_the_main_loops_newest_gets_it(store: SyncStore, session: int) -> None:
    store.commit(session, name="a")
    store.commit(session, name="b", parent=1)
    store.commit(session, name="agent's", lineage=Lineage("a1", "subagent", "main"))
    store.commit(session, name="summary", parent=2, lineage=Lineage(None, "compaction", "main"))
    given = reward(store, session, 0.5)
    assert given.turn_id == "b"
    assert store.rows("SELECT closed_by, reward_turn, turns FROM trajectories") == [("reward", 2, 4)]
    store.commit(session, name="c")
    store.commit(session, name="late", lineage=Lineage("a1", "subagent", "main"))
    assert reward(store, session, 1.0).turn_id == "c"
    assert rewards(store) == {"a": None, "b": 0.5, "agent's": None, "summary": None, "c": 1.0, "late": None}


def test_where_the_main_loop_has_no_turn_the_newest_of_all_gets_it(store: SyncStore, session: int) -> None:
    for name in ("a", "b"):
        store.commit(session, name=name, lineage=Lineage(name, "other"))
    assert reward(store, session, 0.5).turn_id == "b"


def test_a_named_turn_gets_it_and_nothing_closes(store: SyncStore, session: int) -> None:
    store.commit(session, name="a")
    store.commit(session, name="b", parent=1)
    assert reward(store, session, 0.5, turn_id="a").trajectory_id is None
    assert rewards(store) == {"a": 0.5, "b": None}
    assert reward(store, session, 0.25, turn_id="a", close=True).trajectory_id is not None


def test_closing_can_be_turned_off(store: SyncStore, session: int) -> None:
    store.commit(session, name="a")
    assert reward(store, session, 0.5, close=False).trajectory_id is None
    assert store.rows("SELECT * FROM trajectories") == []


def test_again_without_a_new_turn_it_is_the_same_trajectory(store: SyncStore, session: int) -> None:
    store.commit(session, name="a")
    first = reward(store, session, 0.5)
    assert reward(store, session, 0.5) == first
    second = reward(store, session, 0.75)
    assert second.trajectory_id == first.trajectory_id
    assert rewards(store) == {"a": 0.75}
    assert store.rows("SELECT count(*) FROM trajectories") == [(1,)]


def test_a_turn_after_the_reward_goes_into_the_next_trajectory(store: SyncStore, session: int) -> None:
    store.commit(session, name="a")
    reward(store, session, 0.5)
    store.commit(session, name="b", parent=1)
    second = reward(store, session, 1.0)
    assert second.turn_id == "b"
    assert second.trajectory_id == f"{second.session_id}-trajectory-2"


def test_a_first_lease_freezes_also_after_a_release(store: SyncStore, session: int) -> None:
    store.commit(session, name="a")
    store.commit(session, name="b", parent=1)
    first = reward(store, session, 0.5)
    lease(store, session)
    assert refused(store, session, 0.75) == (409, "reward_frozen")
    assert refused(store, session, 0.75, turn_id="a") == (409, "reward_frozen")
    lease(store, session, READY)
    assert refused(store, session, 0.75) == (409, "reward_frozen")
    assert reward(store, session, 0.5) == first, "the same value again is a retry"


def test_a_frozen_trajectory_does_not_keep_a_new_turn_from_its_reward(store: SyncStore, session: int) -> None:
    store.commit(session, name="a")
    reward(store, session, 0.5)
    lease(store, session)
    store.commit(session, name="b", parent=1)
    assert reward(store, session, 1.0).turn_id == "b"


def test_a_closed_session_takes_rewards_until_the_first_lease(store: SyncStore, session: int) -> None:
    store.commit(session, name="a")
    closed = store.run(lambda transaction: close_session(transaction, session))
    assert reward(store, session, 0.5).trajectory_id == closed
    lease(store, session)
    assert refused(store, session, 1.0) == (409, "reward_frozen")


def test_what_is_refused(store: SyncStore, session: int) -> None:
    assert refused(store, session, 1.0) == (400, "no_turn")
    assert refused(store, session, 1.0, turn_id="a") == (404, "turn_unknown")
    store.commit(session, name="a")
    assert refused(store, session, 1.0, turn_id="b") == (404, "turn_unknown")
    [(other, _)] = store.start()
    assert refused(store, other, 1.0, turn_id="a") == (404, "turn_unknown")
    reward(store, session, 1.0)
    lease(store, session)
    store.run(lambda transaction: delete_session(transaction, session))
    assert refused(store, session, 1.0) == (410, "session_deleted")
    assert refused(store, 999, 1.0) == (410, "session_closed")


def test_a_discarded_turn_takes_no_reward(store: SyncStore, session: int) -> None:
    store.commit(session, name="lost", asks="same", delivered=False)
    store.commit(session, name="again", asks="same")
    reward(store, session, 1.0)
    assert refused(store, session, 1.0, turn_id="lost") == (409, "reward_frozen")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e31, True, "1", None])
def test_only_finite_numbers_are_rewards(bad: Any) -> None:
    with pytest.raises(ValueError):
        GiveReward.model_validate({"reward": bad})


def test_rewards_stay_after_a_restart(store: SyncStore, session: int) -> None:
    store.commit(session, name="a")
    first = reward(store, session, 0.1)
    store.reopen()
    assert rewards(store) == {"a": 0.1}
    assert reward(store, session, 0.1) == first
