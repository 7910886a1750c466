"""A server within bounds, whatever app it serves. The proxy's, which adds to it, has more of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final, cast

import pytest
import uvicorn
from tests.unit.raw_client import connected
from tests.waiting import PATIENCE, comes_true

from rolloutfleet.http_serving import (
    HEAD_BYTES,
    HEAD_TIMEOUT,
    HEADERS,
    LINGER_TIMEOUT,
    REST_TIMEOUT,
    BoundedProtocol,
    BoundedServer,
)

ADDRESS: Final = ("127.0.0.1", 30_000)
LONG: Final = 10 * PATIENCE
A_LOOK: Final = 1.2
"""Seconds between two looks at connections, ticks and all."""


class App:
    """Answers in two parts, and says no length; `/held` waits until it may go on."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun.set()
        if scope["path"] == "/held":
            await self.go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})


@pytest.fixture
async def server() -> AsyncIterator[BoundedServer]:
    host, port = ADDRESS
    made = BoundedServer(
        uvicorn.Config(App(), host=host, port=port, http=BoundedProtocol, ws="none", lifespan="off", log_config=None)
    )
    serving = asyncio.create_task(made.serve())
    await comes_true(lambda: made.started)
    yield made
    made.should_exit = True
    await serving


def app_of(server: BoundedServer) -> App:
    return cast(App, server.config.app)


@pytest.mark.parametrize(
    ("line", "enough"),
    [(b"a:\r\n", HEADERS + 2), (b"x-long: " + b"y" * 990 + b"\r\n", HEAD_BYTES // 1000 + 1)],
    ids=["many", "long"],
)
async def test_a_head_without_an_end_is_refused_at_its_bound_and_nothing_more_is_kept(
    server: BoundedServer, line: bytes, enough: int
) -> None:
    async with connected(ADDRESS, b"GET / HTTP/1.1\r\n" + line * enough) as client:
        await client.skip(b"HTTP/1.1 431 ")
        [connection] = server.server_state.connections
        for _ in range(8):
            await client.send(line * (1_000_000 // len(line)))
        kept = cast(BoundedProtocol, connection).headers
        assert sum(len(name) + len(value) for name, value in kept) <= HEAD_BYTES
        assert b"that are allowed." in await client.rest(), "the answer is there, whatever was sent behind it"
    assert not app_of(server).begun.is_set()


async def test_no_http_is_refused(server: BoundedServer) -> None:
    async with connected(ADDRESS, b"nonsense\r\n\r\n") as client:
        head, body = (await client.rest()).split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n") and b"connection: close" in head
    assert body == b"This is not an HTTP/1.1 request."


async def test_one_byte_at_a_time_makes_a_head_no_younger(server: BoundedServer) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with connected(ADDRESS, b"GET / HTTP/1.1\r\nx-long: ") as client:

        async def dribble() -> None:
            with suppress(OSError):
                while True:
                    await client.send(b"x")
                    await asyncio.sleep(0.3)

        dribbling = asyncio.create_task(dribble())
        answer = await client.rest(seconds=LONG)
        took = loop.time() - began
        dribbling.cancel()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert HEAD_TIMEOUT <= took <= HEAD_TIMEOUT + A_LOOK + LINGER_TIMEOUT


@pytest.mark.parametrize(
    ("first", "answer", "seconds"),
    [(b"", b"", HEAD_TIMEOUT), (b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nx", b"HTTP/1.1 200 ", REST_TIMEOUT)],
    ids=["nothing", "a body that nobody waits for"],
)
async def test_the_rest_of_a_request_is_not_waited_for_for_ever(
    server: BoundedServer, first: bytes, answer: bytes, seconds: float
) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with connected(ADDRESS, first) as client:
        assert (await client.rest(seconds=LONG)).startswith(answer)
    assert seconds <= loop.time() - began <= seconds + A_LOOK


async def test_a_request_in_flight_is_never_ended_by_time(server: BoundedServer) -> None:
    app = app_of(server)
    async with connected(ADDRESS, b"GET /held HTTP/1.1\r\n\r\nGET / HT") as client:
        await app.begun.wait()
        await asyncio.sleep(2 * (HEAD_TIMEOUT + REST_TIMEOUT))
        app.go_on.set()
        await client.skip(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_only_a_client_that_knows_chunks_gets_chunks(server: BoundedServer, version: bytes) -> None:
    async with connected(ADDRESS, b"GET / HTTP/%s\r\nconnection: close\r\n\r\n" % version) as client:
        head, body = (await client.rest()).split(b"\r\n\r\n", 1)
    assert (b"transfer-encoding: chunked" in head) == (version == b"1.1")
    assert body == (b"onetwo" if version == b"1.0" else b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")
