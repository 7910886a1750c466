"""A proxy finds out by itself whether its gateway loses what it does not know."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, web
from tests.gateways import gateway_command
from tests.processes import serving
from tests.waiting import PATIENCE

from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_engine.testing import running_engine
from rolloutfleet_proxy.engine import probing
from rolloutfleet_proxy.engine.client import Engine
from rolloutfleet_proxy.engine.probing import LOST, Probing

OWN = {"logit_bias": {"5": 1.0}, "stop_regex": ["x+y"], "custom_params": {"a": 1}}
"""SGLang's own fields that agents may send."""
KNOWN = {"max_new_tokens", "temperature"}


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with running_engine(EngineOptions()) as running:
        yield running.url


@asynccontextmanager
async def rewriting(engine: str) -> AsyncIterator[str]:
    """A gateway that passes on the sampling parameters that it knows, and no others."""

    async def generate(request: web.Request) -> web.Response:
        body = await request.json()
        body["sampling_params"] = {name: each for name, each in body["sampling_params"].items() if name in KNOWN}
        async with ClientSession() as session, session.post(f"{engine}/generate", json=body) as reply:
            return web.Response(status=reply.status, body=await reply.read(), content_type="application/json")

    app = web.Application()
    app.router.add_post("/generate", generate)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def probed(gateway: str, engine: str) -> Probing:
    made, client = Probing(), Engine(gateway, engine_urls=[engine])
    try:
        async with asyncio.timeout(PATIENCE):
            await made.run(client)
    finally:
        await client.aclose()
    return made


async def test_through_the_real_gateway_nothing_is_lost(engine: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    command = gateway_command([engine])
    log = tmp_path_factory.mktemp("gateway") / "log"
    with serving(command.argv, port=command.port, log=log, ready_path="/readiness", deadline=PATIENCE):
        made = await probed(command.url, engine)
        assert (made.loses, made.requests) == ((), 1)


async def test_what_the_real_gateway_loses_of_sampling_under_another_policy_is_found_out(
    engine: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever is lost is lost because bodies are written anew, which is what the probe looks for."""
    sampling = {"max_new_tokens": 1, "temperature": 0.5} | OWN
    command = gateway_command([engine], {"--policy": "cache_aware"})
    log = tmp_path_factory.mktemp("gateway") / "log"
    with serving(command.argv, port=command.port, log=log, ready_path="/readiness", deadline=PATIENCE):
        made = await probed(command.url, engine)
        async with ClientSession() as session:
            asked = {"rid": "lossy", "input_ids": [1], "return_logprob": True, "sampling_params": sampling}
            async with session.post(f"{command.url}/generate", json=asked) as reply:
                assert reply.status == 200
            async with session.get(f"{engine}/log") as told:
                [arrived] = [each for each in (await told.json())["requests"] if each["rid"] == "lossy"]
    lost = sampling.keys() - arrived["sampling_params"].keys()
    assert lost and lost <= OWN.keys()
    assert made.loses == (LOST,)


async def test_a_gateway_that_leaves_out_what_it_does_not_know_is_named(
    engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with rewriting(engine) as gateway:
        made = await probed(gateway, engine)
    assert made.loses == (LOST,)
    assert LOST in caplog.text


async def test_engines_that_take_anything_leave_it_unknown() -> None:
    async def generate(request: web.Request) -> web.Response:
        return web.json_response({"output_ids": [1], "meta_info": {}})

    app = web.Application()
    app.router.add_post("/generate", generate)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    assert (await probed(url, url)).loses is None
    await runner.cleanup()


@pytest.mark.parametrize("status", [404, 503])
async def test_where_no_engine_is_there_yet_it_is_tried_again(
    engine: str, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(probing, "AGAIN", 0.01)
    answers: Callable[[], int] = iter([status, status, 400]).__next__

    async def generate(request: web.Request) -> web.Response:
        return web.json_response({"error": f"unknown field {probing.FIELD}"}, status=answers())

    app = web.Application()
    app.router.add_post("/generate", generate)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made = await probed(f"http://127.0.0.1:{runner.addresses[0][1]}", engine)
    assert (made.loses, made.requests) == ((), 3)
    await runner.cleanup()


def test_what_is_sent_generates_next_to_nothing_where_it_is_not_refused() -> None:
    assert json.loads(json.dumps(probing.BODY))["sampling_params"]["max_new_tokens"] == 1
