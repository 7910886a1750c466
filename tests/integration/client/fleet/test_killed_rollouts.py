"""A trainer that loops over rollouts, and its proxies, killed by SIGKILL: what is trained, what becomes of the rest."""

from pathlib import Path

from tests.integration.client.fleet.killing_rollouts import kill_rollouts


def test_a_looping_trainer_loses_and_doubles_nothing_through_kills(tmp_path: Path) -> None:
    figures = kill_rollouts(tmp_path, kills=6, seed=3)
    assert sum(figures["kills"].values()) == 6
    assert figures["steps"]["over"] and figures["turns"]["acknowledged"]
