"""HTTP to the gateway, against a server that sends exactly the bytes it is told."""

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import uvloop
from tests.waiting import PATIENCE

from rolloutfleet_proxy.engine.connections import BrokenOff, Connections, Unreachable, _Bounded

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Reads a request, then does what `behaviour` does; again on the same connection while that is open."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.requests: list[bytes] = []
        self.connections = 0
        self.ended = 0
        self._changed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                await self.behaviour(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self.ended += 1
            self._changed.set()

    async def until_ended(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.ended < count:
                self._changed.clear()
                await self._changed.wait()


def says(*pieces: bytes, close: bool = False) -> Behaviour:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if close:
            raise ConnectionError

    return behave


@asynccontextmanager
async def serving(behaviour: Behaviour, *, silence: float = 3600.0) -> AsyncIterator[tuple[Server, Connections]]:
    server = Server(behaviour)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    client = Connections(f"http://127.0.0.1:{port}/base/", silence=silence)
    try:
        yield server, client
    finally:
        await client.aclose()
        listening.close()
        await server.until_ended(server.connections)


async def until_none_kept(client: Connections) -> None:
    """Wait until the ends of all connections that are kept have come."""
    connector = client.session.connector
    assert connector is not None
    async with asyncio.timeout(PATIENCE):
        while any(handler.is_connected() for kept in connector._conns.values() for handler, _ in kept):
            await asyncio.sleep(0.001)


async def posted(client: Connections, body: bytes = b"{}") -> bytes:
    headers = {"Accept": "*/*", "Content-Type": "application/json", "X-One": "1"}
    response = await client.post("/generate", (body[:1], body[1:]), headers)
    try:
        return await response.read()
    finally:
        response.close()


async def test_a_request_is_sent_as_meant() -> None:
    async with serving(says(OK)) as (server, client):
        assert await posted(client, b"x" * 3_000_000) == b"ok"
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /base/generate HTTP/1.1"
    names = [line.partition(b": ")[0] for line in lines[1:]]
    assert sorted(names) == [b"Accept", b"Content-Length", b"Content-Type", b"Host", b"X-One"]
    assert {b"Accept: */*", b"X-One: 1", b"Content-Length: 3000000"} <= set(lines)
    assert body == b"x" * 3_000_000


async def test_a_header_of_two_lines_is_refused() -> None:
    async with serving(says(OK)) as (server, client):
        for value in ("a\r\nX-Two: 2", "a\nb", "a\rb"):
            with pytest.raises(ValueError, match="header"):
                await client.post("/generate", (), {"X-One": value})
        assert await posted(client) == b"ok"
    assert len(server.requests) == 1


WHOLE = {
    "in one piece": [OK],
    "byte by byte": [OK[index : index + 1] for index in range(len(OK))],
    "chunked": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n", b"1\r\nk\r\n0\r\n\r\n"],
    "behind a 100": [b"HTTP/1.1 100 Continue\r\nContent-Length: 9\r\n\r\n", OK],
}


@pytest.mark.parametrize("pieces", WHOLE.values(), ids=WHOLE)
async def test_a_response_is_read_and_its_connection_kept(pieces: list[bytes]) -> None:
    async with serving(says(*pieces)) as (server, client):
        for _ in range(3):
            assert await posted(client) == b"ok"
        assert server.connections == 1


LAST = {
    "it says so": says(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"),
    "its body ends with it": says(b"HTTP/1.1 200 OK\r\n\r\no", b"k", close=True),
    "more follows than was asked for": says(OK + OK),
    "HTTP/1.0": says(OK.replace(b"1.1", b"1.0")),
}


@pytest.mark.parametrize("behaviour", LAST.values(), ids=LAST)
async def test_a_connection_that_is_of_no_more_use_is_not_used_again(behaviour: Behaviour) -> None:
    async with serving(behaviour) as (server, client):
        assert await posted(client) == await posted(client) == b"ok"
        assert server.connections == 2


async def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    async with serving(says(OK, close=True)) as (server, client):
        assert await posted(client) == b"ok"
        await server.until_ended(1)
        await until_none_kept(client)
        assert await posted(client) == b"ok"


BROKEN = {
    "at once": says(close=True),
    "in the head": says(b"HTTP/1.1 200 OK\r\nConte", close=True),
    "in the body": says(OK[:-1], close=True),
    "in a chunk": says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", close=True),
    "no HTTP": says(b"220 ready\r\n"),
    "two lengths": says(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok"),
    "a bad chunk": says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n"),
}


@pytest.mark.parametrize("behaviour", BROKEN.values(), ids=BROKEN)
async def test_what_breaks_off_says_so_and_is_not_sent_again(behaviour: Behaviour) -> None:
    async with serving(behaviour) as (server, client):
        with pytest.raises(BrokenOff):
            await posted(client)
        assert len(server.requests) == 1
        server.behaviour = says(OK)
        assert await posted(client) == b"ok"


async def test_silence_ends_a_response_only_while_it_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that stands still where nothing is said of it: the time that the test itself takes is no silence."""
    silence, apart = 1.0, 0.4  # three pieces take longer than the silence
    loop = asyncio.get_running_loop()
    now = loop.time()
    asked: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    came = asyncio.Event()
    receive = _Bounded.data_received

    async def passes(seconds: float) -> None:
        nonlocal now
        now += seconds
        for _ in range(20):  # for what is due by now, and for those who wait for it
            await asyncio.sleep(0)

    def data_received(connection: _Bounded, data: bytes) -> None:
        receive(connection, data)
        came.set()

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.put_nowait(writer)
        await reader.read()

    monkeypatch.setattr(_Bounded, "data_received", data_received)
    async with serving(ask, silence=silence) as (server, client):
        with monkeypatch.context() as patched:
            patched.setattr(loop, "time", lambda: now)
            answer = asyncio.ensure_future(posted(client))
            writer = await asked.get()
            for piece in (b"HTTP/1.1 200 OK\r\n", b"Content-Length: 4\r\n", b"\r\n", b"o", b"k", b"a"):
                await passes(apart)
                assert not answer.done()
                came.clear()
                writer.write(piece)
                await came.wait()
            await passes(0.99 * silence)
            assert not answer.done()
            await passes(0.02 * silence)
            assert answer.done() and isinstance(answer.exception(), TimeoutError)
            server.behaviour = says(OK)
            assert await posted(client) == b"ok"
            await passes(2 * silence)  # unused, a connection may be silent
            assert await posted(client) == b"ok" and server.connections == 2


@pytest.mark.parametrize("said", [b"", OK[:20], OK[:-1]])
async def test_silence_ends_a_response(said: bytes) -> None:
    async def stop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await reader.read()

    async with serving(stop, silence=0.1) as (server, client):
        with pytest.raises(TimeoutError):
            await posted(client)
        await server.until_ended(1)


async def test_a_reader_that_is_slow_holds_the_server_back() -> None:
    size = 64 << 20
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while sent < size:
            writer.write(bytes(1 << 16))
            sent += 1 << 16
            await writer.drain()

    async with serving(flood, silence=0.3) as (_, client):
        response = await client.post("/generate", (), {})
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < size / 2, "the sockets' buffers hold the rest back"
        # Longer than the silence: it is the reader who is silent here.
        await asyncio.sleep(0.4)
        read = 0
        async for piece in response.pieces():
            read += len(piece)
        response.close()
        assert read == sent == size


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_what_follows_quickly_is_read_together() -> None:
    read = asyncio.Event()

    async def quick(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + b"1\r\n-\r\n")
        await read.wait()
        for _ in range(40):
            writer.write(b"1\r\n.\r\n")
            await asyncio.sleep(0.005)
        writer.write(b"0\r\n\r\n")

    async with serving(quick) as (server, client):
        response = await client.post("/generate", (), {})
        pieces = []
        async for piece in response.pieces(rest=lambda: 0.5):
            pieces.append(piece)
            read.set()
        response.close()
        assert pieces[0] == b"-", "the first is not held up"
        assert b"".join(pieces) == b"-" + 40 * b"."
        assert len(pieces) <= 10
        server.behaviour = says(OK)
        assert await posted(client) == b"ok" and server.connections == 1


async def test_a_stream_that_rests_can_be_closed() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        while True:
            writer.write(b"1\r\n.\r\n")
            await writer.drain()
            await asyncio.sleep(0.001)

    async with serving(endless) as (server, client):
        response = await client.post("/generate", (), {})
        pieces = response.pieces(rest=lambda: 0.05)
        for _ in range(3):
            await anext(pieces)
        waiting = asyncio.ensure_future(anext(pieces))  # and now it rests
        await asyncio.sleep(0)
        waiting.cancel()
        response.close()
        await server.until_ended(1)
        await asyncio.sleep(0.1)  # its rest is over, and nothing is left to read from


@pytest.mark.parametrize("when", ["before the head", "in the body"])
async def test_cancelled_or_closed_it_ends_the_connection(when: str) -> None:
    pieces = [] if when == "before the head" else [OK[:-1]]

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await says(*pieces)(reader, writer)
        came.set()
        await reader.read()
        raise ConnectionError

    came = asyncio.Event()
    async with serving(never) as (server, client):
        calling = asyncio.ensure_future(posted(client))
        await came.wait()
        await asyncio.sleep(0.05)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await server.until_ended(1)


async def test_no_server_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    client = Connections(f"http://127.0.0.1:{port}", silence=5)
    with pytest.raises(Unreachable):
        await posted(client)
    await client.aclose()


@pytest.mark.parametrize("end", [_Bounded.close, _Bounded.abort])
async def test_a_response_whose_caller_left_as_it_came_goes_with_its_connection(
    end: Callable[[_Bounded], None],
) -> None:
    near, far = socket.socketpair()
    loop = asyncio.get_running_loop()
    with far:
        _, connection = await loop.create_connection(lambda: _Bounded(loop), sock=near)
        connection.set_response_params()
        gc.disable()
        try:
            far.sendall(OK)
            while not len(connection):
                await asyncio.sleep(0)
            end(connection)
            gone = weakref.ref(connection)
            del connection
            await asyncio.sleep(0.01)
            assert gone() is None
        finally:
            gc.enable()


@pytest.mark.parametrize("url", ["ftp://x", "localhost:80", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="address"):
        Connections(url, silence=1)


ON_UVLOOP: list[Callable[[], Coroutine[Any, Any, None]]] = [
    test_a_request_is_sent_as_meant,
    test_a_connection_that_the_server_closed_is_not_used_again,
    partial(test_silence_ends_a_response, b""),
    partial(test_silence_ends_a_response, OK[:-1]),
    test_a_reader_that_is_slow_holds_the_server_back,
    test_what_follows_quickly_is_read_together,
    test_a_stream_that_rests_can_be_closed,
    partial(test_cancelled_or_closed_it_ends_the_connection, "in the body"),
    *(partial(test_what_breaks_off_says_so_and_is_not_sent_again, behaviour) for behaviour in BROKEN.values()),
    *(partial(test_a_connection_that_is_of_no_more_use_is_not_used_again, behaviour) for behaviour in LAST.values()),
]


@pytest.mark.parametrize("test", ON_UVLOOP)
def test_on_the_loop_of_the_proxy(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(test())
