"""What the gateway's flags bring: late engines are used at once, sessions stay, calls may end when it is stopped."""

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import pytest
from tests.gateways import LOOPBACK, GatewayCommand, gateway_command
from tests.processes import free_port
from tests.waiting import PATIENCE

from rolloutfleet_engine import server
from rolloutfleet_engine.engine import Engine
from rolloutfleet_engine.exchange import Exchange
from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_engine.testing import RunningEngine, running_engine

SOON = 20.0
"""Seconds that a loaded machine may take over what takes one; the gateway's own default would be 30 and more."""
A_SECOND: dict[str, Any] = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}}
SLOW = EngineOptions(token_latency=0.01)


@contextmanager
def started(
    engine_urls: Sequence[str], flags: Mapping[str, object], *, without: Collection[str] = ()
) -> Iterator[tuple[GatewayCommand, subprocess.Popen[bytes]]]:
    command = gateway_command(engine_urls, flags)
    words = [word for word in command.argv if word not in without]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield command, process
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def serving(
    flags: Mapping[str, object],
) -> AsyncIterator[tuple[RunningEngine, httpx.AsyncClient, subprocess.Popen[bytes]]]:
    """A gateway before one slow engine, and a client with a kept connection to it."""
    with running_engine(SLOW) as engine, started([engine.url], flags) as (command, process):
        async with httpx.AsyncClient(base_url=command.url, timeout=PATIENCE) as http:
            await until_status(http, "/readiness", 200)
            yield engine, http, process


async def until_status(http: httpx.AsyncClient, path: str, status: int, *, within: float = PATIENCE) -> None:
    async with asyncio.timeout(within):
        while True:
            try:
                if (await http.get(path)).status_code == status:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)


async def ended(process: subprocess.Popen[bytes]) -> int:
    """Its status, once it has ended by itself."""
    return await asyncio.to_thread(process.wait, PATIENCE)


async def under_way(engine: RunningEngine) -> None:
    async with httpx.AsyncClient(base_url=engine.url) as http, asyncio.timeout(PATIENCE):
        while (await http.get("/counters")).json()["running"] == 0:
            await asyncio.sleep(0.02)


async def test_an_engine_that_comes_up_after_its_gateway_is_used_within_seconds() -> None:
    port = free_port()
    with started([f"http://{LOOPBACK}:{port}"], {}) as (command, _):
        async with httpx.AsyncClient(base_url=command.url) as http:
            await until_status(http, "/liveness", 200)
            assert (await http.get("/readiness")).status_code == 503
            with running_engine(port=port):
                await until_status(http, "/readiness", 200, within=SOON)
                assert (await http.post("/generate", json=A_SECOND)).status_code == 200


async def test_a_gateway_with_nothing_under_way_ends_at_once_whatever_its_grace_and_kept_connections() -> None:
    async with serving({"--shutdown-grace-period-secs": 3600}) as (_, http, process):
        assert (await http.post("/generate", json=A_SECOND)).status_code == 200
        process.terminate()
        assert await ended(process) == 0


async def test_a_call_under_way_is_answered_by_a_gateway_that_was_told_to_end() -> None:
    async with serving({"--shutdown-grace-period-secs": 3600}) as (engine, http, process):
        call = asyncio.create_task(http.post("/generate", json=A_SECOND))
        await under_way(engine)
        process.terminate()
        answer = await call
        assert (answer.status_code, len(answer.json()["output_ids"])) == (200, 100)
        assert await ended(process) == 0


async def test_a_call_that_outlasts_the_grace_is_given_up_and_the_engine_sees_that() -> None:
    endless = A_SECOND | {"sampling_params": {"max_new_tokens": 30_000, "ignore_eos": True}}
    async with serving({"--shutdown-grace-period-secs": 1}) as (engine, http, process):
        call = asyncio.create_task(http.post("/generate", json=endless))
        await under_way(engine)
        process.terminate()
        await ended(process)
        async with asyncio.timeout(PATIENCE):
            while engine.engine.calls:
                await asyncio.sleep(0.02)
        assert isinstance((await asyncio.gather(call, return_exceptions=True))[0], httpx.TransportError)


KEYS = tuple(f"session-{number}" for number in range(8))
OFF = ("--disable-worker-overload-protection", "--disable-load-monitoring")
WATCHED = 4.0
"""Seconds in which a gateway that looks at its engines' loads each second has looked several times."""
_NOTHING = ("dp_rank", "num_running_reqs", "num_used_tokens", "num_total_tokens")
_NOTHING_YET = ("gen_throughput", "cache_hit_rate", "utilization")
_ROOM = ("max_total_num_tokens", "max_running_requests")
LOAD = dict.fromkeys(_NOTHING, 0) | dict.fromkeys(_NOTHING_YET, 0.0) | dict.fromkeys(_ROOM, 1000)
FULL = {"num_waiting_reqs": 1000, "token_usage": 0.99}
IDLE = {"num_waiting_reqs": 0, "token_usage": 0.0}


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Engines whose seed is put here say that their queue is long."""
    busy: set[int] = set()

    async def loads(engine: Engine, exchange: Exchange) -> None:
        load = LOAD | (FULL if engine.options.seed in busy else IDLE)
        head = {"timestamp": "2026-01-01T00:00:00+00:00", "version": "0.5.23", "num_accelerators": 1}
        await exchange.answer(head | {"loads": [load]})

    monkeypatch.setitem(server.ROUTES, ("GET", "/v1/loads"), loads)
    return busy


async def call_all(http: httpx.AsyncClient) -> None:
    short = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 1}}
    for key in KEYS:
        answer = await http.post("/generate", json=short, headers={"x-smg-routing-key": key})
        assert answer.status_code == 200


async def seated(engine: RunningEngine) -> set[str]:
    """The sessions whose calls came to this engine, ever."""
    async with httpx.AsyncClient(base_url=engine.url) as direct:
        return {entry["routing_key"] for entry in (await direct.get("/log")).json()["requests"]}


@pytest.mark.parametrize("without", [(), OFF], ids=["a fleet's gateway", "with its protection from overload"])
async def test_sessions_stay_with_their_engine_however_busy_it_is(crowd: set[int], without: Collection[str]) -> None:
    """They would not with the gateway's protection from overload, which is on by itself."""
    flags, moved = {"--load-monitor-interval": 1}, without == OFF
    with running_engine(EngineOptions(seed=0)) as one, running_engine(EngineOptions(seed=1)) as other:
        engines = (one, other)
        with started([engine.url for engine in engines], flags, without=without) as (command, _):
            async with httpx.AsyncClient(base_url=command.url, timeout=PATIENCE) as http:
                await until_healthy(http, len(engines))
                await call_all(http)
                crowd.add(0 if KEYS[0] in await seated(one) else 1)
                until = time.monotonic() + (PATIENCE if moved else WATCHED)
                while not (both := await seated(one) & await seated(other)) and time.monotonic() < until:
                    await call_all(http)
                assert bool(both) == moved


async def until_healthy(http: httpx.AsyncClient, engines: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                workers = (await http.get("/workers")).json()["workers"]
                if sum(worker["is_healthy"] for worker in workers) == engines:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)
