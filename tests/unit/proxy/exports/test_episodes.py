"""A reward given without naming a turn is the whole episode's: who gets it, and from when on it stays as it is."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.unit.proxy.exports.test_rows_and_forms import as_json, leased, reward
from tests.unit.proxy.stores import SyncStore

from rolloutfleet_proxy.domain.lineage import Lineage
from rolloutfleet_proxy.store import dumps
from rolloutfleet_proxy.store.database import FILE
from rolloutfleet_proxy.store.leases import release
from rolloutfleet_proxy.store.trajectories import close_session

SUBAGENT = Lineage("helper", "subagent")


def run_of_an_agent(store: SyncStore, **asked: Any) -> int:
    """A main loop whose history was compacted after one turn, a sub-agent of two turns, and the reward."""
    [(session, _)] = store.start()
    store.commit(session, name="before")
    store.commit(session, name="helper", lineage=SUBAGENT)
    store.commit(session, name="helper again", parent=2, lineage=SUBAGENT)
    store.commit(session, name="after")
    store.commit(session, name="end", parent=4)
    reward(store, session, 0.5, **asked)
    return session


def close(store: SyncStore, session: int) -> None:
    store.run(lambda transaction: close_session(transaction, session))


def returns(store: SyncStore, **asked: Any) -> list[list[float | None]]:
    """Of the rows of each trajectory."""
    return [[row["reward"] for row in each["rows"]] for each in as_json(store, leased(store, **asked))["trajectories"]]


@pytest.mark.parametrize(("style", "rows"), [("concat", 3), ("individual", 5)])
def test_every_row_without_a_reward_of_its_own_gets_it(store: SyncStore, style: str, rows: int) -> None:
    run_of_an_agent(store)
    assert returns(store, style=style) == [[0.5] * rows]


def test_it_is_the_return_of_the_main_row(store: SyncStore) -> None:
    session = run_of_an_agent(store)
    reward(store, session, 0.25, turn_id="after")
    close(store, session)
    assert returns(store, discount=0.5) == [[0.25 + 0.5 * 0.5] * 3]


def test_a_row_with_a_reward_of_its_own_keeps_that(store: SyncStore) -> None:
    session = run_of_an_agent(store)
    reward(store, session, -1.0, turn_id="helper")
    assert returns(store) == [[0.5, -1.0, 0.5]]


def test_with_the_credit_of_the_branch_nobody_else_gets_it(store: SyncStore) -> None:
    run_of_an_agent(store)
    assert returns(store, credit="branch") == [[None, None, 0.5]]


def test_a_reward_of_a_named_turn_is_its_branchs_alone(store: SyncStore) -> None:
    session = run_of_an_agent(store, turn_id="end")
    close(store, session)
    assert returns(store) == [[None, None, 0.5]]


def test_a_reward_given_again_for_a_named_turn_is_the_episodes_no_more(store: SyncStore) -> None:
    session = run_of_an_agent(store)
    reward(store, session, 0.5, turn_id="end")
    assert returns(store) == [[None, None, 0.5]]


def test_later_trajectories_get_the_last_one_before_them_and_earlier_ones_none(store: SyncStore) -> None:
    [(session, _)] = store.start()
    for number, given in enumerate((None, 1.0, 2.0, None), start=1):
        store.commit(session, name=f"turn-{number}")
        if given is None and number == 1:
            reward(store, session, 9.0, turn_id="turn-1", close=True)
            store.commit(session, name="unrewarded")
        elif given is not None:
            reward(store, session, given)
    close(store, session)
    assert returns(store) == [[9.0], [1.0, 1.0], [2.0], [2.0]]


def test_once_leased_it_stays_the_episodes(store: SyncStore) -> None:
    session = run_of_an_agent(store)
    granted = leased(store)
    store.run(lambda transaction: release(transaction, str(granted.lease)))
    reward(store, session, 0.5, turn_id="end")
    assert returns(store) == [[0.5] * 3]


def test_dumps_say_which_rewards_are_the_episodes(store: SyncStore) -> None:
    session = run_of_an_agent(store)
    owner = store.owner

    def head(connection: sqlite3.Connection) -> list[int] | None:
        return dumps.load_head(connection, session, 1, owner=owner, reason="x", dumped_at=1.0).session.episode_turns

    assert store.read(head) == [5]
    reward(store, session, 0.5, turn_id="end")
    assert store.read(head) == []


def test_a_store_of_an_earlier_version_has_those_that_closed_a_trajectory_and_its_leases_stay(tmp_path: Path) -> None:
    store = SyncStore(tmp_path)
    run_of_an_agent(store)
    granted = leased(store)
    store.reopen(after_version=8)
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        [request] = connection.execute("SELECT request FROM leases").fetchone()
    assert json.loads(request)["credit"] == "branch"
    store.run(lambda transaction: release(transaction, str(granted.lease)))
    assert returns(store) == [[0.5] * 3]
    store.close()
