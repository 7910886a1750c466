"""A trainer of four ranks, step after step: a rank dies, a proxy is killed, and nothing is left with anybody.

That neither ranks nor proxies grow is shown by tests/timing/client/test_memory_of_ranks.py.
"""

import os
import signal
from pathlib import Path

import pytest
from tests.engine.torch.keepers import Keepers
from tests.engine.torch.steps import ask, check_nothing_left, stepped, wait_for_turns

STEPS = 6
STEP_BYTES = 1_000_000
SECONDS = 240.0


@pytest.mark.timeout(3 * SECONDS)
def test_nothing_is_left_of_a_rank_that_died_and_a_proxy_that_was_killed(keepers: Keepers, tmp_path: Path) -> None:
    stepped(tmp_path / "first", keepers, steps=2, nbytes=STEP_BYTES, dies=True, seconds=SECONDS)
    # The rank that died has cost a lease; when that ends, the trajectory is there for the next trainer.
    wait_for_turns(keepers, live=1)
    killed: list[int] = []

    def kill_a_worker(step: int) -> None:
        if not killed:
            killed.append(step)
            os.kill(ask(keepers, keepers.urls[1], "/stats")["pid"], signal.SIGKILL)

    stepped(tmp_path / "second", keepers, steps=STEPS, nbytes=STEP_BYTES, seconds=SECONDS, each_step=kill_a_worker)
    assert killed and killed[0] < STEPS
    check_nothing_left(keepers)
