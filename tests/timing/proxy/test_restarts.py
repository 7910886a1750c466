"""How long fresh connections wait while one worker takes over from another, under agents who notice nothing."""

import threading
import time
from collections.abc import Iterator

import httpx
import openai
import pytest
from tests.fleets import Fleet, ProxyProcess, running_fleet
from tests.integration.proxy import judge
from tests.integration.proxy.load import Load, Way
from tests.integration.proxy.restarts import GENERATION, assert_one_owner_at_a_time, restart
from tests.printing import say
from tests.timing.stalls import Stalls
from tests.waiting import PATIENCE, eventually

RESTARTS = 10
WAYS = [Way(stream=stream, keyed=False, tools=tools) for stream in (False, True) for tools in (False, True)] * 4
LONGEST_WITHOUT_ANSWER = 5.0
"""Seconds that a fresh connection may wait for /health while one worker takes over from another, the machine busy with
all that tests run on it; `benchmarks/rigs/restarts.py` measures it."""


@pytest.fixture
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    settings = {"drain_timeout": 30}
    with running_fleet(tmp_path_factory.mktemp("restarts"), engine_options=GENERATION, settings=settings) as running:
        yield running


class Probe:
    """Asks /health on fresh connections all the time, and notes how long each took while this process ran."""

    def __init__(self, proxy: ProxyProcess, stalls: Stalls) -> None:
        self.waits: list[float] = []
        self.failed: list[str] = []
        self._stalls = stalls
        self._url = f"{proxy.url}/health"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Probe":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            began = time.monotonic()
            try:
                httpx.get(self._url, timeout=PATIENCE).raise_for_status()
            except httpx.HTTPError as error:
                self.failed.append(repr(error))
            ended = time.monotonic()
            self.waits.append(ended - began - self._stalls.between(began, ended))


async def test_no_agent_notices_restarts(fleet: Fleet, request: pytest.FixtureRequest) -> None:
    proxy, parent = fleet.proxy, fleet.proxy.process
    assert parent is not None
    load = Load(proxy, seed=3, ways=WAYS, retries=openai.DEFAULT_MAX_RETRIES)
    with Stalls() as stalls, Probe(proxy, stalls) as probe:
        async with load.running():
            await restart(proxy, RESTARTS)
            await eventually(lambda: load.answers > 2 * len(WAYS))
    assert parent.poll() is None and assert_one_owner_at_a_time(proxy) == RESTARTS
    assert load.interrupted["chat"] == load.interrupted["stream"] == 0
    assert max(probe.waits) < LONGEST_WITHOUT_ANSWER, sorted(probe.waits)[-3:]
    for conversation in load.conversations:
        conversation.exactly_once = True  # nothing broke off, so there is a turn for each answer and no other
    judge.assert_all_is_kept(fleet, load.conversations)
    say(
        request,
        f"{RESTARTS} restarts under {len(WAYS)} agents: {load.answers} answers, no error; the longest that a fresh "
        f"connection waited for /health was {max(probe.waits):.2f} s ({len(probe.failed)} of {len(probe.waits)} broke)",
    )
