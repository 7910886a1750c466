"""Questions to proxies and gateways: whatever is at the other end, there is an answer or none, and nothing else."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from tests.unit.web_apps import serving
from tests.waiting import PATIENCE

from rolloutfleet_operator.cluster.gateway_client import GatewayClient
from rolloutfleet_operator.cluster.http_client import LARGEST, Answer, HttpClient

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def echo(request: web.Request) -> web.Response:
    return web.json_response({"key": request.headers.get("Authorization"), "sent": await request.text()})


async def other_fleets(request: web.Request) -> web.Response:
    raise web.HTTPFound("/never")


async def silent(request: web.Request) -> web.Response:
    await asyncio.sleep(60)
    return web.Response()


async def endless(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    while True:
        await answer.write(bytes(1 << 16))


async def cut(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Length": "100"})
    await answer.prepare(request)
    await answer.write(b"half")
    assert request.transport is not None
    request.transport.close()
    return answer


async def full(request: web.Request) -> web.Response:
    return web.Response(body=bytes(LARGEST))


def asked(handler: Handler, *, key: str | None = "the-admin-key", timeout: float = PATIENCE) -> Answer:
    async def play() -> Answer:
        app = web.Application()
        app.router.add_route("*", "/here", handler)
        async with serving(app) as url:
            http = HttpClient()
            try:
                return await http.ask("POST", f"{url}/here", key, timeout=timeout, json={"a": 1})
            finally:
                await http.close()

    return asyncio.run(play())


def test_an_answer_is_given_as_it_came_but_for_the_key() -> None:
    answer = asked(echo)
    assert answer.is_success and answer.json() == {"key": "Bearer [key]", "sent": '{"a": 1}'}
    assert asked(echo, key=None).json() == {"key": None, "sent": '{"a": 1}'}
    assert asked(full).status == 200
    moved = asked(other_fleets)
    assert (moved.status, moved.is_success) == (302, False), "a key goes nowhere else"


@pytest.mark.parametrize(
    ("handler", "said"), [(silent, "in time"), (endless, f"more than {LARGEST} bytes"), (cut, "broke off")]
)
def test_what_is_no_answer_is_said_in_time(handler: Handler, said: str) -> None:
    answer = asked(handler, timeout=0.5 if handler is silent else PATIENCE)
    assert said in answer.failure
    assert (answer.status, answer.json()) == (0, None)


@pytest.mark.parametrize("key", ["two\nlines", "carriage\rreturn", "nothing\x00", "a\x01b"])
def test_a_key_that_no_header_can_hold_asks_nobody(key: str) -> None:
    assert asked(echo, key=key) == Answer(failure="its key can't stand in a header")


def test_nobody_there_is_no_answer() -> None:
    async def play() -> None:
        http = HttpClient()
        try:
            assert await GatewayClient(http).lists(["http://127.0.0.1:9"], "two\nlines") == {}
            assert await GatewayClient(http).lists(["http://127.0.0.1:9"], None) == {}
        finally:
            await http.close()

    asyncio.run(play())
