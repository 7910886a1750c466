"""The real gateway in front of the real engine: what the proxy relies on when it talks to the one through the other."""

from collections.abc import AsyncIterator

import pytest
from tests.engine.engines import Engine, Generation, is_healthy
from tests.processes import Server
from tests.waiting import comes_true, eventually

ENDLESS = 8000
"""Tokens that take the engine far longer than any test waits for it to stop."""


@pytest.fixture
async def gateway(real_gateway: Server) -> AsyncIterator[Engine]:
    async with Engine(real_gateway.url) as gateway:
        yield gateway


def body(*, stream: bool, max_new_tokens: int = ENDLESS, rid: str | None = None) -> dict[str, object]:
    sampling = {"max_new_tokens": max_new_tokens, "temperature": 1.0, "ignore_eos": True}
    named = {"rid": rid} if rid else {}
    return {"input_ids": [400, 500, 600], "sampling_params": sampling, "return_logprob": True, "stream": stream} | named


async def in_flight(gateway: Engine, engine: Engine, *, stream: bool) -> Generation:
    generation = gateway.start(body(stream=stream))
    await eventually(lambda: engine.running_requests() > 0)
    return generation


async def idle(engine: Engine) -> None:
    await eventually(lambda: engine.running_requests() == 0)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_ids_and_log_probabilities_come_through(gateway: Engine, real_engine: Engine, stream: bool) -> None:
    reply = await gateway.generate(body(stream=stream, max_new_tokens=50, rid=f"through-the-gateway-{stream}"))
    meta = reply.final["meta_info"]
    assert meta["id"] == f"through-the-gateway-{stream}"
    assert [entry[1] for entry in meta["output_token_logprobs"]] == reply.output_ids
    assert reply.versions == [("1", 0, 50)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_caller_that_leaves_ends_the_generation(gateway: Engine, real_engine: Engine, stream: bool) -> None:
    generation = await in_flight(gateway, real_engine, stream=stream)
    await generation.leave()
    await idle(real_engine)


async def test_the_engine_is_told_directly_to_abort(gateway: Engine, real_engine: Engine) -> None:
    """The gateway passes no control calls on; it lists the engines to ask."""
    assert (await gateway.post("/abort_request", {"rid": "any"})).status == 404
    assert (await gateway.post("/pause_generation", {"mode": "abort"})).status == 404
    listed = (await gateway.get("/workers")).body["workers"]
    assert [worker["url"] for worker in listed] == [real_engine.url]

    generation = gateway.start(body(stream=True, rid="told-directly"))
    await begun(generation)
    await real_engine.post("/abort_request", {"rid": "told-directly"})
    reply = await generation.reply()
    assert reply.finish_type == "abort"
    assert 0 < len(reply.output_ids) < ENDLESS


async def begun(generation: Generation) -> None:
    await comes_true(lambda: len(generation.events) > 3)


async def test_an_engine_paused_for_long_is_not_lost_to_the_gateway(gateway: Engine, real_engine: Engine) -> None:
    """A health check asks for a token, and a paused engine holds it, so the gateway takes the engine for dead.

    A call then gets a 503 that names no worker, although nothing is wrong. Seconds after the engine goes on, it is
    used again.
    """
    await real_engine.pause("abort")  # paused in another way it keeps a whole processor busy
    await eventually(lambda: not is_healthy(gateway.url))
    refused = await gateway.generate(body(stream=False, max_new_tokens=1))
    assert (refused.status, refused.body["error"]["code"]) == (503, "no_available_workers")
    await real_engine.go_on()
    await eventually(lambda: is_healthy(gateway.url))
    assert (await gateway.generate(body(stream=False, max_new_tokens=1))).status == 200
