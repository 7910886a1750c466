"""Promise 7: under churn that goes on, resident memory has no upward slope. `benchmarks.soak` is the long form."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from benchmarks.rigs.watching import Slope, thinned
from tests.fleets import Fleet, ProxyProcess, running_fleet
from tests.integration.proxy.load import Load

TURNS = 1000
"""Answers before it is judged, on a slow machine too."""
SECONDS = 120.0
"""And it goes on for so long."""
WARM_UP = 1 / 3
"""Of the answers."""
LARGE = "All work and no play makes a dull text. " * 2500
LARGE_TURNS = 120
"""With these there is more in the store than SQLite's page caches hold."""
SAMPLE_EVERY = 0.1
INSTRUCTIONS = "Be careful, be brief, and say what you are about to do before you do it. " * 270
"""20 KB, so that a request which stays in memory shows."""
MOST_BYTES_A_TURN = 4000


@pytest.fixture
def churned(tmp_path: Path) -> Iterator[Fleet]:
    options = ("--latency", "0", "--token-latency", "0")
    # Caches so small that they are full when the warm-up ends.
    with running_fleet(tmp_path, engine_options=options, settings={"cache_bytes": 2 << 20}) as fleet:
        yield fleet


def resident(proxy: ProxyProcess) -> int:
    assert proxy.process is not None
    root = psutil.Process(proxy.process.pid)
    return sum(each.memory_info().rss for each in [root, *root.children(recursive=True)])


def fill_page_caches(proxy: ProxyProcess) -> None:
    session = proxy.start_session()

    def ask(number: int) -> int:
        said = [{"role": "user", "content": f"{number} {LARGE}"}]
        return session.raw_chat({"messages": said, "max_tokens": 5}).status_code

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(ask, range(LARGE_TURNS))) == {200}
    assert len(session.turns()) == LARGE_TURNS
    proxy.audit()
    assert session.post("close").status_code == 200


async def test_memory_does_not_rise_with_the_turns_that_were_made(churned: Fleet) -> None:
    """Sessions are opened, left open, closed, exported and acknowledged; calls stream, call tools, and retry."""
    proxy = churned.proxy
    load = Load(proxy, seed=11, instructions=INSTRUCTIONS)
    await asyncio.to_thread(fill_page_caches, proxy)
    points: list[tuple[float, float]] = []
    ends = time.monotonic() + SECONDS
    async with load.running():
        while load.answers < TURNS or time.monotonic() < ends:
            # Against the turns and not the time, so that a slow machine is judged alike.
            points.append((float(load.answers), float(await asyncio.to_thread(resident, proxy))))
            await asyncio.sleep(SAMPLE_EVERY)
    warm = [point for point in points if point[0] >= WARM_UP * load.answers]
    assert len(warm) > 50
    slope = Slope(thinned(warm, most=60)).value
    told = f"{slope:.0f} bytes a turn, from {warm[0][1] / 1e6:.1f} to {warm[-1][1] / 1e6:.1f} MB"
    assert slope < MOST_BYTES_A_TURN, told
    stats = proxy.stats()
    assert sum(stats["caches"].values()) > 1 << 18, "what is cached was held level, and not just absent"
    assert stats["collections"]["times"][2] == 0, "the collector never looks at everything while it serves"
    assert not load.interrupted and proxy.audit()["balanced"]
