"""Behind the real gateway: the answers come through as they are, and so do the callers that leave."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from tests.gateways import gateway_command
from tests.waiting import PATIENCE

from rolloutfleet_engine.faults import Fault


@pytest.fixture
async def gateway(connect: Callable[[str], Any]) -> AsyncIterator[Callable[..., Any]]:
    """Starts a gateway before engines, and gives a client of it once it serves.

    It gives an engine up after `failures` failed looks at its health in a row.
    """
    processes: list[subprocess.Popen[bytes]] = []

    async def starting(*engines: Any, failures: int = 3) -> Any:
        command = gateway_command(
            [engine.url for engine in engines],
            {"--health-failure-threshold": failures, "--health-check-timeout-secs": 1},
        )
        processes.append(subprocess.Popen(command.argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        asker = connect(command.url)
        await until_status(asker, "/readiness", 200)
        return asker

    yield starting
    for process in processes:
        process.kill()
        process.wait()


async def until_status(asker: Any, path: str, status: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                if (await asker.http.get(path)).status_code == status:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)


async def until_count(asker: Any, **counts: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while not counts.items() <= (await asker.counters()).items():
            await asyncio.sleep(0.02)


async def test_answers_come_through_unchanged(
    engine: Callable[..., Any], gateway: Callable[..., Any], prompt: list[int]
) -> None:
    asker = engine(token_latency=0.002)
    before = await gateway(asker)
    headers = {"x-smg-routing-key": "session-1"}
    body = asker.body(prompt, rid="one")
    answer = await before.http.post("/generate", json=body, headers=headers)
    whole = json.loads(answer.text)
    events = [json.loads(event) async for event in before.events(prompt, rid="two") if event != "[DONE]"]
    assert events[-1]["output_ids"] == whole["output_ids"]
    logged = {entry["rid"]: entry for entry in await asker.log()}
    assert set(logged) == {"one", "two"}
    assert logged["one"]["routing_key"] == "session-1"
    for entry in logged.values():
        assert entry["input_ids"] == prompt
        assert entry["output_ids"] == whole["output_ids"]
        assert entry["output_logprobs"] == [value for value, _, _ in whole["meta_info"]["output_token_logprobs"]]


async def test_a_routing_key_keeps_its_engine(
    engine: Callable[..., Any], gateway: Callable[..., Any], prompt: list[int]
) -> None:
    engines = [engine(), engine()]
    before = await gateway(*engines)
    for turn in range(4):
        for session in range(6):
            headers = {"x-smg-routing-key": f"session-{session}"}
            answer = await before.http.post("/generate", json=before.body([*prompt, turn]), headers=headers)
            assert answer.status_code == 200
    keys = [{entry["routing_key"] for entry in await asker.log()} for asker in engines]
    assert keys[0] | keys[1] == {f"session-{session}" for session in range(6)}
    assert not keys[0] & keys[1]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_that_leaves_is_seen(
    engine: Callable[..., Any], gateway: Callable[..., Any], prompt: list[int], stream: bool
) -> None:
    asker = engine(token_latency=0.05)
    before = await gateway(asker)
    asking = asyncio.create_task(before.post("/generate", **before.body(prompt, stream=stream)))
    await until_count(asker, running=1)
    asking.cancel()
    await until_count(asker, running=0, aborted_by_caller=1)


async def test_faults_come_through(engine: Callable[..., Any], gateway: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine(faults=[Fault(kind="nan"), Fault(kind="error_429"), Fault(kind="context_length")])
    before = await gateway(asker)
    assert "NaN" in (await before.post("/generate", **before.body(prompt))).text
    statuses = [(await before.post("/generate", **before.body(prompt))).status_code for _ in range(3)]
    assert statuses == [429, 400, 200]


async def test_a_long_pause_closes_the_gateway_until_the_engine_goes_on(
    engine: Callable[..., Any], gateway: Callable[..., Any], prompt: list[int]
) -> None:
    """SGLang's health check is a generation, which a pause holds: the gateway takes the engine for dead."""
    asker = engine()
    before = await gateway(asker, failures=1)
    await asker.post("/pause_generation", mode="retract")
    await until_status(before, "/readiness", 503)
    assert (await before.post("/generate", **before.body(prompt))).status_code == 503
    await asker.post("/continue_generation")
    await until_status(before, "/readiness", 200)
    assert (await before.post("/generate", **before.body(prompt))).status_code == 200
