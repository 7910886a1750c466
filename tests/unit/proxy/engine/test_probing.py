"""A proxy finds out by itself whether its gateway loses what it does not know."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, web
from tests.unit.engine.serving import engine_here
from tests.unit.web_apps import serving
from tests.waiting import PATIENCE

from rolloutfleet_proxy.engine import probing
from rolloutfleet_proxy.engine.client import Engine
from rolloutfleet_proxy.engine.probing import LOST, Probing

KNOWN = {"max_new_tokens", "temperature"}
"""The sampling parameters that a gateway passes on which writes bodies anew."""


@pytest.fixture
async def engine() -> AsyncIterator[str]:
    async with engine_here() as running:
        yield running.url


@asynccontextmanager
async def gateway(generate: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """One that does so with generations."""
    app = web.Application()
    app.router.add_post("/generate", generate)
    async with serving(app) as url:
        yield url


async def probed(gateway: str, engine: str) -> Probing:
    made, client = Probing(), Engine(gateway, engine_urls=[engine], clock=asyncio.get_running_loop().time)
    try:
        async with asyncio.timeout(PATIENCE):
            await made.run(client)
    finally:
        await client.aclose()
    return made


async def test_a_gateway_that_leaves_out_what_it_does_not_know_is_named(
    engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def rewrite(request: web.Request) -> web.Response:
        body = await request.json()
        body["sampling_params"] = {name: each for name, each in body["sampling_params"].items() if name in KNOWN}
        async with ClientSession() as session, session.post(f"{engine}/generate", json=body) as reply:
            return web.Response(status=reply.status, body=await reply.read(), content_type="application/json")

    async with gateway(rewrite) as url:
        made = await probed(url, engine)
    assert made.loses == (LOST,)
    assert LOST in caplog.text


async def test_engines_that_take_anything_leave_it_unknown() -> None:
    async def take(request: web.Request) -> web.Response:
        return web.json_response({"output_ids": [1], "meta_info": {}})

    async with gateway(take) as url:
        assert (await probed(url, url)).loses is None


@pytest.mark.parametrize("status", [404, 503])
async def test_where_no_engine_is_there_yet_it_is_tried_again(engine: str, status: int) -> None:
    answers: Callable[[], int] = iter([status, status, 400]).__next__

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"error": f"unknown field {probing.FIELD}"}, status=answers())

    async with gateway(answer) as url:
        made = await probed(url, engine)
    assert (made.loses, made.requests) == ((), 3)


def test_what_is_sent_generates_next_to_nothing_where_it_is_not_refused() -> None:
    assert json.loads(json.dumps(probing.BODY))["sampling_params"]["max_new_tokens"] == 1
