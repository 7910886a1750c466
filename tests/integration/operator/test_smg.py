"""What the gateway's flags bring: sessions stay with their engine, and calls may end when it is stopped."""

import asyncio
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, get_args

import httpx
import pytest
from tests.gateways import healthy_engines
from tests.integration.operator.gateways import started, until_status
from tests.waiting import PATIENCE, START, comes_true, eventually

from rolloutfleet.spec import GatewaySpec
from rolloutfleet_engine import server
from rolloutfleet_engine.engine import Engine
from rolloutfleet_engine.exchange import Exchange
from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_engine.testing import RunningEngine, running_engine

A_SECOND: dict[str, Any] = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}}
SLOW = EngineOptions(token_latency=0.01)


@asynccontextmanager
async def serving(
    flags: Mapping[str, object],
) -> AsyncIterator[tuple[RunningEngine, httpx.AsyncClient, subprocess.Popen[bytes]]]:
    """A gateway before one slow engine, and a client with a kept connection to it."""
    with running_engine(SLOW) as engine, started([engine.url], flags) as (command, process):
        async with httpx.AsyncClient(base_url=command.url, timeout=PATIENCE) as http:
            await until_status(f"{command.url}/readiness", 200)
            yield engine, http, process


async def ended(process: subprocess.Popen[bytes]) -> int:
    """Its status, once it has ended by itself."""
    return await asyncio.to_thread(process.wait, PATIENCE)


async def under_way(engine: RunningEngine) -> None:
    await eventually(lambda: httpx.get(f"{engine.url}/counters").json()["running"])


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
        await comes_true(lambda: not engine.engine.calls)
        assert isinstance((await asyncio.gather(call, return_exceptions=True))[0], httpx.TransportError)


KEYS = tuple(f"session-{number}" for number in range(8))
OFF = ("--disable-worker-overload-protection", "--disable-load-monitoring")
ROUNDS = 4
"""In which a gateway that looks at its engines' loads as often as at their health has looked several times."""
_NOTHING = ("dp_rank", "num_running_reqs", "num_used_tokens", "num_total_tokens")
_NOTHING_YET = ("gen_throughput", "cache_hit_rate", "utilization")
_ROOM = ("max_total_num_tokens", "max_running_requests")
LOAD = dict.fromkeys(_NOTHING, 0) | dict.fromkeys(_NOTHING_YET, 0.0) | dict.fromkeys(_ROOM, 1000)
FULL = {"num_waiting_reqs": 1000, "token_usage": 0.99}
IDLE = {"num_waiting_reqs": 0, "token_usage": 0.0}


@dataclass
class Crowd:
    """Engines whose seed is in `busy` say that their queue is long."""

    busy: set[int] = field(default_factory=set)
    checked: Counter[int] = field(default_factory=Counter)
    """How often each engine was asked for its health."""


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> Crowd:
    told, health = Crowd(), server.ROUTES["GET", "/health"]

    async def loads(engine: Engine, exchange: Exchange) -> None:
        load = LOAD | (FULL if engine.options.seed in told.busy else IDLE)
        head = {"timestamp": "2026-01-01T00:00:00+00:00", "version": "0.5.23", "num_accelerators": 1}
        await exchange.answer(head | {"loads": [load]})

    async def checked(engine: Engine, exchange: Exchange) -> None:
        told.checked[engine.options.seed] += 1
        await health(engine, exchange)

    monkeypatch.setitem(server.ROUTES, ("GET", "/v1/loads"), loads)
    monkeypatch.setitem(server.ROUTES, ("GET", "/health"), checked)
    return told


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
async def test_sessions_stay_with_their_engine_however_busy_it_is(crowd: Crowd, without: Collection[str]) -> None:
    """They would not with the gateway's protection from overload, which is on by itself."""
    flags, moved = {"--load-monitor-interval": 1}, without == OFF
    with running_engine(EngineOptions(seed=0)) as one, running_engine(EngineOptions(seed=1)) as other:
        engines = (one, other)
        with started([engine.url for engine in engines], flags, without=without) as (command, _):
            async with httpx.AsyncClient(base_url=command.url, timeout=PATIENCE) as http:
                await eventually(lambda: healthy_engines(command.url) == len(engines), seconds=START)
                await call_all(http)
                crowd.busy.add(0 if KEYS[0] in await seated(one) else 1)
                ends = crowd.checked + Counter({engine.engine.options.seed: ROUNDS for engine in engines})
                while not (both := await seated(one) & await seated(other)) and (moved or not crowd.checked >= ends):
                    await call_all(http)
                assert bool(both) == moved


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Those of the generations that any engine is asked for, as they arrive."""
    arrived: list[bytes] = []

    async def generate(_: Engine, exchange: Exchange) -> None:
        arrived.append(await exchange.body())
        await exchange.answer({})

    monkeypatch.setitem(server.ROUTES, ("POST", "/generate"), generate)
    return arrived


@pytest.mark.parametrize("policy", get_args(GatewaySpec.model_fields["policy"].annotation))
async def test_a_body_goes_through_byte_for_byte_under_each_policy(bodies: list[bytes], policy: str) -> None:
    body = b'{"input_ids": [1,  2], "sampling_params": {"nobody_knows_this": 1.10}, "extra": {"b": 1, "a": null}}'
    head = {"content-type": "application/json", "x-smg-routing-key": "session-1"}
    with running_engine(EngineOptions()) as engine, started([engine.url], {"--policy": policy}) as (command, _):
        await until_status(f"{command.url}/readiness", 200)
        async with httpx.AsyncClient(timeout=PATIENCE) as http:
            assert (await http.post(f"{command.url}/generate", content=body, headers=head)).status_code == 200
    assert bodies == [body]


async def test_two_gateways_agree_on_the_engine_of_each_session() -> None:
    """However their lists of engines were made: one was given them in another order."""
    with (
        running_engine(EngineOptions(seed=0)) as one,
        running_engine(EngineOptions(seed=1)) as other,
        started([one.url, other.url], {}) as (first, _),
        started([other.url, one.url], {}) as (second, _),
    ):
        for gateway in (first, second):
            await eventually(lambda gateway=gateway: healthy_engines(gateway.url) == 2, seconds=START)  # type: ignore[misc]
            async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE) as http:
                await call_all(http)
        seats = await seated(one), await seated(other)
    assert not seats[0] & seats[1] and seats[0] | seats[1] == set(KEYS)
