"""A trainer of four ranks, step after step: neither ranks nor proxies grow, though a rank dies and a proxy is killed.

With the figures of docs/remote-tensors.md:

    export ROLLOUTFLEET_TEST_STEPS=200 ROLLOUTFLEET_TEST_STEP_BYTES=50000000
    pytest tests/timing/client/test_memory_of_ranks.py -s
"""

import contextlib
import os
import signal
import statistics
import time
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests.engine.sglang.places import find
from tests.engine.torch.keepers import Keepers
from tests.engine.torch.steps import ask, check_nothing_left, stepped, wait_for_turns
from tests.fleets import running_fleet
from tests.paths import ROOT

MIB = 2**20
STEPS = int(os.environ.get("ROLLOUTFLEET_TEST_STEPS", "16"))
STEP_BYTES = int(os.environ.get("ROLLOUTFLEET_TEST_STEP_BYTES", "5000000"))
SECONDS = 240.0 + 20 * STEPS


def quarters(samples: list[int]) -> list[float]:
    """The median of each quarter, in bytes."""
    quarter = len(samples) // 4
    return [statistics.median(samples[at * quarter : (at + 1) * quarter]) for at in range(4)]


def check_flat(what: str, samples: list[int], *, allowed: int) -> None:
    """Apart from the first quarter, in which caches and allocators fill."""
    found = quarters(samples)
    medians = ", ".join(f"{median / MIB:.0f}" for median in found)
    print(f"{what}: {medians} MiB by quarter, {max(samples) / MIB:.0f} at most")
    assert found[3] - found[1] < allowed, samples


@pytest.mark.timeout(3 * SECONDS)
def test_neither_ranks_nor_proxies_grow(tmp_path: Path) -> None:
    installed = find()
    assert installed is not None, "needs PyTorch, which `make sglang` installs"
    packages = (str(ROOT / name) for name in ("client", "proxy", "operator", "engine", "."))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(packages), "OMP_NUM_THREADS": "1"}
    train = partial(stepped, nbytes=STEP_BYTES, seconds=SECONDS, python=installed.python, environment=environment)
    (tmp_path / "fleet").mkdir()
    with running_fleet(tmp_path / "fleet", proxies=2) as fleet:
        keepers = Keepers([proxy.url for proxy in fleet.proxies], fleet.proxy.key)
        train(tmp_path / "first", keepers, steps=4, dies=True)
        # The rank that died has cost a lease; when that ends, the trajectory is there for the next trainer.
        wait_for_turns(keepers, live=1)
        proxies: list[int] = []
        killed: list[int] = []

        def each_step(step: int) -> None:
            # One may just be being started again.
            with contextlib.suppress(httpx.HTTPError):
                proxies.append(sum(ask(keepers, url, "/stats")["rss_bytes"] for url in keepers.urls))
            if step >= STEPS // 4 and not killed:
                killed.append(step)
                os.kill(ask(keepers, keepers.urls[1], "/stats")["pid"], signal.SIGKILL)

        started = time.monotonic()
        ranks = train(tmp_path / "second", keepers, steps=STEPS, each_step=each_step)
        seconds = time.monotonic() - started
        for rank, memory in enumerate(ranks):
            check_flat(f"rank {rank}", memory, allowed=2 * STEP_BYTES)
        check_flat("two proxies", proxies, allowed=STEP_BYTES + 32 * MIB)
        print(f"{STEPS} steps of {STEP_BYTES / 1e6:.0f} MB in {seconds:.0f} s, a proxy killed at step {killed[0]}")
        check_nothing_left(keepers)
