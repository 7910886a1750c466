"""A trainer of four ranks, step after step: a rank dies, a proxy is killed, and neither ranks nor proxies grow.

The steps here are few and small. By hand, with the figures of docs/remote-tensors.md:

    ROLLOUTFLEET_TEST_STEPS=200 ROLLOUTFLEET_TEST_STEP_BYTES=50000000 pytest tests/engine/test_torch.py -s
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.engine.torch.conftest import Keepers
from tests.engine.torch.stepping import LEASE_SECONDS, WORLD
from tests.waiting import PATIENCE

ORPHAN_SECONDS = 60 + PATIENCE
"""A file of nobody's is left in peace for a minute."""

MIB = 2**20
STEPS = int(os.environ.get("ROLLOUTFLEET_TEST_STEPS", "16"))
STEP_BYTES = int(os.environ.get("ROLLOUTFLEET_TEST_STEP_BYTES", "5000000"))
SECONDS = 240 + 20 * STEPS


class Sampler:
    """Resident memory of the proxies, and what happens to them, while the ranks step."""

    def __init__(self, keepers: Keepers) -> None:
        self._keepers = keepers
        self.proxies: list[int] = []

    def ask(self, url: str, path: str) -> Any:
        headers = {"authorization": f"Bearer {self._keepers.key}"}
        return httpx.get(f"{url}{path}", headers=headers, timeout=PATIENCE).raise_for_status().json()

    def sample(self) -> None:
        # One may just be being started again.
        with contextlib.suppress(httpx.HTTPError):
            self.proxies.append(sum(self.ask(url, "/stats")["rss_bytes"] for url in self._keepers.urls))

    def kill_a_worker(self) -> None:
        os.kill(self.ask(self._keepers.urls[1], "/stats")["pid"], signal.SIGKILL)


def stepped(
    folder: Path, keepers: Keepers, *, steps: int, dies: bool, each_second: Callable[[int], None]
) -> list[list[int]]:
    """Memory of each rank after each step."""
    folder.mkdir()
    asked = json.dumps({**asdict(keepers), "steps": steps, "bytes": STEP_BYTES, "dies": dies})
    ranks = []
    for rank in range(WORLD):
        command = [sys.executable, "-m", "tests.engine.torch.stepping", str(rank), str(folder), asked]
        with (folder / f"rank-{rank}.log").open("wb") as log:
            ranks.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT))
    until = time.monotonic() + SECONDS
    pause = threading.Event()
    try:
        while any(process.poll() is None for process in ranks) and time.monotonic() < until:
            done = folder / "rank-0.json"
            each_second(len(json.loads(done.read_text())) if done.exists() else 0)
            pause.wait(1)
    finally:
        for process in ranks:
            process.kill()
    codes = [process.wait() for process in ranks]
    assert codes == ([3, 3, 3, 9] if dies else [0] * WORLD), "\n".join(
        file.read_text()[-3000:] for file in sorted(folder.glob("*.log"))
    )
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(WORLD)]


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


@pytest.mark.timeout(2 * SECONDS)
def test_nobody_grows_and_nothing_is_left(keepers: Keepers, tmp_path: Path) -> None:
    sampler = Sampler(keepers)
    stepped(tmp_path / "first", keepers, steps=4, dies=True, each_second=lambda _: None)
    # The rank that died has cost a lease; when that ends, the trajectory is there for the next trainer.
    wait_for_turns(sampler, keepers, live=1)
    killed: list[int] = []

    def each_second(steps: int) -> None:
        sampler.sample()
        if steps >= STEPS // 4 and not killed:
            killed.append(steps)
            sampler.kill_a_worker()

    started = time.monotonic()
    ranks = stepped(tmp_path / "second", keepers, steps=STEPS, dies=False, each_second=each_second)
    seconds = time.monotonic() - started
    for rank, memory in enumerate(ranks):
        check_flat(f"rank {rank}", memory, allowed=2 * STEP_BYTES)
    check_flat("two proxies", sampler.proxies, allowed=STEP_BYTES + 32 * MIB)
    print(f"{STEPS} steps of {STEP_BYTES / 1e6:.0f} MB in {seconds:.0f} s, a proxy killed at step {killed[0]}")
    check_nothing_left(sampler, keepers)


def wait_for_turns(sampler: Sampler, keepers: Keepers, *, live: int) -> list[Any]:
    """Until so many turns are live and none is leased, over all proxies. Their audits."""
    until = time.monotonic() + LEASE_SECONDS + PATIENCE
    while True:
        audits = [sampler.ask(url, "/audit") for url in keepers.urls]
        counts = [sum(audit["turns"][name] for audit in audits) for name in ("live", "leased")]
        if counts == [live, 0]:
            return audits
        assert time.monotonic() < until, counts
        time.sleep(0.5)


def check_nothing_left(sampler: Sampler, keepers: Keepers) -> None:
    until = time.monotonic() + ORPHAN_SECONDS
    for audit in wait_for_turns(sampler, keepers, live=0):
        assert audit["balanced"] and (audit["shards"]["count"], audit["shards"]["bytes"]) == (0, 0)
    # A worker that is killed in the middle of a write leaves a file, which is taken for nobody's after a while.
    while left := [url for url in keepers.urls if sampler.ask(url, "/audit")["shards"]["orphans"]]:
        assert time.monotonic() < until, left
        time.sleep(1)
