"""A list has the sessions that fulfil what is asked, up to the bounds and not beyond them."""

from typing import Any

import pytest
from tests.unit.proxy.stores import SyncStore

from rolloutfleet.wire import ChosenSessions, GiveReward
from rolloutfleet_proxy.store.listing import Listing, list_sessions
from rolloutfleet_proxy.store.rewards import give_reward
from rolloutfleet_proxy.store.trajectories import close_session


@pytest.fixture
def sessions(store: SyncStore) -> tuple[str, str, str]:
    """One of two turns in a chain, of versions 2 to 5, rewarded with 0.5; one of two branches, of version 4, that has
    ended; one without turns."""
    [(long, first)], [(wide, second), (_, third)] = store.start(task_id="a"), store.start(2, task_id="b")
    one = store.commit(long, name="one", versions=[(2, 1), (3, 1)])
    store.commit(long, name="two", parent=one, versions=[(4, 1), (5, 1)])
    store.run(lambda transaction: give_reward(transaction, long, GiveReward(reward=0.5, turn_id="two")))
    for name in ("three", "four"):
        store.commit(wide, name=name, output=[3], versions=[(4, 1)])
    store.run(lambda transaction: close_session(transaction, wide))
    return first, second, third


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ({}, "012"),
        ({"task_id": "a"}, "0"),
        ({"task_id": "b"}, "12"),
        ({"state": "open"}, "02"),
        ({"rewarded": True}, "0"),
        ({"rewarded": False}, "12"),
        ({"min_reward": 0.5}, "0"),
        ({"min_reward": 0.6}, ""),
        ({"max_reward": 0.5}, "0"),
        ({"max_reward": 0.4}, ""),
        ({"min_branches": 1}, "01"),
        ({"min_branches": 2}, "1"),
        ({"min_turns": 2}, "01"),
        ({"min_turns": 3}, ""),
        ({"max_turns": 2}, "012"),
        ({"max_turns": 1}, "2"),
        ({"min_tokens": 8}, "0"),
        ({"min_tokens": 6}, "01"),
        ({"max_tokens": 6}, "12"),
        ({"max_tokens": 5}, "2"),
        ({"min_version": 4}, "01"),
        ({"min_version": 5}, "0"),
        ({"min_version": 6}, ""),
        ({"max_version": 4}, "01"),
        ({"max_version": 2}, "0"),
        ({"max_version": 1}, ""),
        ({"min_version": 3, "max_version": 3}, "0"),
        ({"min_turns": 1, "task_id": "b"}, "1"),
    ],
    ids=str,
)
def test_a_list_has_what_fulfils_each_condition(
    store: SyncStore, sessions: tuple[str, str, str], asked: dict[str, Any], chosen: str
) -> None:
    def listed(**more: Any) -> list[str]:
        listing = Listing(chosen=ChosenSessions(**asked), **more)
        return [
            shown["session_id"]
            for _, shown in store.read(lambda connection: list_sessions(connection, listing, served=0.0))
        ]

    expected = [sessions[int(place)] for place in chosen]
    assert listed(limit=10) == expected
    assert listed(limit=10, newest_first=True) == expected[::-1]
    assert listed(limit=1) == expected[:1]
