"""Two hundred kills of a trainer that loops over rollouts, and of its proxies."""

from pathlib import Path

import pytest
from tests.integration.client.fleet.killing_rollouts import kill_rollouts
from tests.integration.client.fleet.looping_trainer import LEASE_SECONDS, STALE_AFTER, Place
from tests.printing import say

SLACK = 5.0
"""Seconds in which a proxy looks for stale sessions, on a machine that is busy with starts."""


@pytest.mark.timeout(1500)
def test_two_hundred_kills_lose_and_double_nothing(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    figures = kill_rollouts(tmp_path, kills=200, seed=1)
    say(request, str(figures))
    assert sum(figures["kills"].values()) == 200
    assert figures["kills"].keys() == {"trainer", "proxy 0", "proxy 1", *(f"trainer: {place}" for place in Place)}
    assert figures["turns"]["acknowledged"] and figures["turns"]["discarded: deleted"]
    # What is leased of a group keeps its open members.
    assert figures["longest_idle"] < STALE_AFTER + LEASE_SECONDS + SLACK
