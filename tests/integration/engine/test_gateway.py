"""Behind the real gateway: the answers come through as they are, and so do the callers that leave."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateways import gateway_command, healthy_engines
from tests.processes import serving, status
from tests.unit.engine.asking import Asker
from tests.waiting import START, eventually, until

from rolloutfleet_engine.faults import Fault


@pytest.fixture
def gateway(connect: Callable[[str], Asker], tmp_path: Path) -> Iterator[Callable[..., Asker]]:
    """Starts a gateway before engines, and gives a client of it once it has found all of them in order.

    It gives an engine up after `failures` failed looks at its health in a row.
    """
    with ExitStack() as stack:

        def starting(*engines: Asker, failures: int = 3) -> Asker:
            command = gateway_command(
                [engine.url for engine in engines],
                {"--health-failure-threshold": failures, "--health-check-timeout-secs": 1},
            )
            log = tmp_path / "gateway.log"
            running = serving(
                command.argv, port=command.port, log=log, ready_path="/readiness", deadline=START, gently=False
            )
            stack.enter_context(running)
            # It is ready with the first: what is asked then goes there, whichever engine its key belongs to.
            until(lambda: healthy_engines(command.url) == len(engines))
            return connect(command.url)

        yield starting


async def until_ready(gateway: Asker, code: int) -> None:
    """Wait until the gateway answers so where it is asked whether it is ready."""
    await eventually(lambda: status(f"{gateway.url}/readiness") == code)


async def until_count(engine: Asker, **counts: int) -> None:
    await eventually(lambda: counts.items() <= httpx.get(f"{engine.url}/counters").json().items())


async def test_answers_come_through_unchanged(
    engine: Callable[..., Any], gateway: Callable[..., Any], prompt: list[int]
) -> None:
    asker = engine(token_latency=0.002)
    before = gateway(asker)
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
    before = gateway(*engines)
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
    asker = engine(token_latency=1.0)
    before = gateway(asker)
    asking = asyncio.create_task(before.post("/generate", **before.body(prompt, stream=stream)))
    await until_count(asker, running=1)
    asking.cancel()
    await until_count(asker, running=0, aborted_by_caller=1)


async def test_faults_come_through(engine: Callable[..., Any], gateway: Callable[..., Any], prompt: list[int]) -> None:
    asker = engine(faults=[Fault(kind="nan"), Fault(kind="error_429"), Fault(kind="context_length")])
    before = gateway(asker)
    assert "NaN" in (await before.post("/generate", **before.body(prompt))).text
    statuses = [(await before.post("/generate", **before.body(prompt))).status_code for _ in range(3)]
    assert statuses == [429, 400, 200]


async def test_a_long_pause_closes_the_gateway_until_the_engine_goes_on(
    engine: Callable[..., Any], gateway: Callable[..., Any], prompt: list[int]
) -> None:
    """SGLang's health check is a generation, which a pause holds: the gateway takes the engine for dead."""
    asker = engine()
    before = gateway(asker, failures=1)
    await asker.post("/pause_generation", mode="retract")
    await until_ready(before, 503)
    assert (await before.post("/generate", **before.body(prompt))).status_code == 503
    await asker.post("/continue_generation")
    await until_ready(before, 200)
    assert (await before.post("/generate", **before.body(prompt))).status_code == 200
