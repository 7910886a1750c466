"""Gateways and engines that are away for a while: agents wait, and what is lost on the way is made again."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fleets import AgentSession, Fleet, running_fleet
from tests.gateways import GatewayCommand, gateway_command
from tests.integration.proxy.calls import opened
from tests.processes import Server, serving
from tests.waiting import START, eventually

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 100, "ignore_eos": True}
LONG: dict[str, Any] = {**HELLO, "max_tokens": 400, "stream": True}
"""4 s, of which a test cuts the beginning."""
RunGateway = Callable[[], contextlib.AbstractContextManager[Server]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, GatewayCommand]]:
    """A fleet, and the command of the gateway that its proxy asks."""
    folder = tmp_path_factory.mktemp("outages")
    with running_fleet(folder, engine_options=("--token-latency", "0.01"), start_proxies=False) as fleet:
        command = gateway_command([fleet.engine.url])
        fleet.proxy.settings |= {"gateway_url": command.url, "stream_comment": 0.2}
        fleet.proxy.start()
        yield fleet, command


@pytest.fixture
def fleet(made: tuple[Fleet, GatewayCommand]) -> Fleet:
    return made[0]


@pytest.fixture
def gateway(made: tuple[Fleet, GatewayCommand], tmp_path: Path) -> RunGateway:
    """Runs the gateway until the block ends, and kills it then."""
    _, command = made
    log = tmp_path / "gateway.log"
    return lambda: serving(
        command.argv, port=command.port, log=log, ready_path="/readiness", deadline=START, gently=False
    )


def rounds(fleet: Fleet) -> float:
    """Sent to the gateway, or tried to."""
    return fleet.proxy.gauge("rolloutfleet_generations_total")


async def streamed(session: AgentSession, body: dict[str, Any], heads: list[int]) -> list[str]:
    async with opened(session, body) as reply:
        heads.append(reply.status_code)
        return [line async for line in reply.aiter_lines() if line]


async def test_calls_wait_for_a_gateway_and_a_stream_gets_no_status_meanwhile(
    fleet: Fleet, gateway: RunGateway
) -> None:
    session = fleet.proxy.start_session()
    heads: list[int] = []
    stream = asyncio.create_task(streamed(session, {**HELLO, "stream": True}, heads))
    whole = asyncio.create_task(asyncio.to_thread(session.raw_chat, {**HELLO, "seed": 1}))
    before = rounds(fleet)
    await eventually(lambda: rounds(fleet) >= before + 6)
    assert not heads and not whole.done()
    with gateway():
        assert (await whole).status_code == 200
        assert (await stream)[-1] == "data: [DONE]" and heads == [200]
    assert len(session.turns()) == 2


async def test_a_stream_goes_on_through_the_loss_of_its_gateway(fleet: Fleet, gateway: RunGateway) -> None:
    session = fleet.proxy.start_session()
    with contextlib.ExitStack() as first:
        first.enter_context(gateway())
        async with opened(session, LONG) as reply:
            lines = reply.aiter_lines()
            for _ in range(20):
                await anext(lines)
            first.close()
            await eventually(lambda: fleet.engine.counters()["running"] == 0)
            with gateway():
                rest = [line async for line in lines if line]
    (turn,) = session.turns()
    assert rest[-1] == "data: [DONE]" and len(turn["output_ids"]) == LONG["max_tokens"]
    begun, last = fleet.engine.log()[-2:]
    part = len(last["input_ids"]) - len(begun["input_ids"])
    assert part > 0 and turn["output_ids"] == begun["output_ids"][:part] + last["output_ids"]


async def test_a_call_that_finds_no_gateway_in_time_gets_an_errors_status(fleet: Fleet) -> None:
    """Also a stream, which would have had comments long before."""
    fleet.proxy.stop()
    fleet.proxy.settings |= {"sessions": {"maxHold": "2s"}}
    fleet.proxy.start()
    session = fleet.proxy.start_session()
    for stream in (False, True):
        reply = await asyncio.to_thread(session.raw_chat, {**HELLO, "stream": stream})
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_unreachable"), reply.text
        assert reply.headers["retry-after"] == "1"
    assert session.turns() == []
