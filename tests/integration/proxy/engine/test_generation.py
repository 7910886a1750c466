"""A turn through the real gateway: it comes whole, and cancelled it ends at the engine."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateways import gateway_command
from tests.processes import serving
from tests.unit.proxy.engine.exchanges import both
from tests.unit.proxy.engine.stages import Stage
from tests.unit.proxy.services import open_weights
from tests.unit.proxy.stores import InlineStore
from tests.waiting import START

from rolloutfleet.errors import ENGINE_UNREACHABLE
from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_engine.testing import running_engine
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.engine.evidence import Evidence
from rolloutfleet_proxy.http.errors import status_of

MANY = 4000
"""Tokens for minutes: a call that is given up is far from its end, however late that is."""


@pytest.fixture(scope="module")
def slow_engine() -> Iterator[str]:
    with running_engine(EngineOptions(token_latency=0.05, weight_version="1")) as running:
        yield running.url


@pytest.fixture(scope="module")
def gateway(slow_engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    command = gateway_command([slow_engine])
    log = tmp_path_factory.mktemp("gateway") / "log"
    with serving(command.argv, port=command.port, log=log, ready_path="/readiness", deadline=START, gently=False):
        yield command.url


@asynccontextmanager
async def through(gateway: str, engine: str, *, max_hold: float = 60.0) -> AsyncIterator[Stage]:
    def counters() -> dict[str, Any]:
        counted: dict[str, Any] = httpx.get(f"{engine}/counters").json()
        return counted

    weights = await open_weights(InlineStore(), max_hold=max_hold)
    await weights.advance(1)
    made = Stage(engine, gateway, weights, counters=counters)
    try:
        yield made
    finally:
        await made.close()


async def given_up(on: Stage, turn: "asyncio.Future[Evidence]") -> dict[str, Any]:
    """Cancel, and see that the engine stops: what it says of the call."""
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    await on.until(running=0, held=0)
    entry = (await on.log())[-1]
    assert entry["outcome"] in ("aborted_by_request", "aborted_by_caller")
    return entry


async def test_the_gateway_passes_a_turn_through(gateway: str, slow_engine: str) -> None:
    async with through(gateway, slow_engine) as on:
        for streamed in (False, True):
            evidence = await on.turn(streamed=streamed, tokens=4, rid=f"whole-{streamed}")
            assert (await on.log())[-1]["output_ids"] == evidence.output_ids.tolist()
        assert await on.engine.engines() == (slow_engine,)


async def test_a_gateway_without_an_engine_is_no_engine_and_not_an_unknown_model(tmp_path: Path) -> None:
    """smg answers 404 `model_not_found` to a request that names no model; later calls find an engine again."""
    command = gateway_command([])
    log = tmp_path / "gateway.log"
    with serving(command.argv, port=command.port, log=log, ready_path="/liveness", deadline=START, gently=False):
        async with through(command.url, "http://127.0.0.1:9", max_hold=0.3) as on:
            for streamed in (False, True):
                with pytest.raises(DomainError) as caught:
                    await on.turn(streamed=streamed, tokens=4, rid=f"none-{streamed}")
                error = caught.value
                assert (status_of(error), error.code) == (503, ENGINE_UNREACHABLE)
                assert error.retry_after and "model" not in error.message


@both
async def test_cancelled_while_silent_the_engine_stops(gateway: str, slow_engine: str, streamed: bool) -> None:
    async with through(gateway, slow_engine) as on:
        await on.fault(kind="slow", seconds=3600.0)
        turn = asyncio.ensure_future(on.turn(streamed=streamed, tokens=400, rid=f"silent-{streamed}"))
        await on.until(running=1)
        assert not on.chunks
        assert not (await given_up(on, turn))["output_ids"]


async def test_cancelled_while_it_flows_the_engine_stops(gateway: str, slow_engine: str) -> None:
    async with through(gateway, slow_engine) as on:
        turn = asyncio.ensure_future(on.turn(streamed=True, tokens=MANY, rid="flowing"))
        await on.until_shown(tokens=3)
        assert 3 <= len((await given_up(on, turn))["output_ids"]) < MANY


async def test_cancelled_in_mid_generation_the_engine_stops(gateway: str, slow_engine: str) -> None:
    async with through(gateway, slow_engine) as on:
        turn = asyncio.ensure_future(on.turn(tokens=MANY, rid="whole"))
        await on.until(running=1)  # and so its first token is made
        assert 0 < len((await given_up(on, turn))["output_ids"]) < MANY
