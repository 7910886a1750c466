"""HTTP to a server that sends exactly the bytes it is told, and what holds of it on any loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.waiting import PATIENCE, comes_true

from rolloutfleet_proxy.engine import connections
from rolloutfleet_proxy.engine.connections import BrokenOff, Connections

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
    await comes_true(
        lambda: not any(handler.is_connected() for kept in connector._conns.values() for handler, _ in kept)
    )


async def posted(client: Connections, body: bytes = b"{}") -> bytes:
    headers = {"Accept": "*/*", "Content-Type": "application/json", "X-One": "1"}
    response = await client.post("/generate", (body[:1], body[1:]), headers)
    try:
        return await response.read()
    finally:
        response.close()


async def sends_a_request_as_meant() -> None:
    async with serving(says(OK)) as (server, client):
        assert await posted(client, b"x" * 3_000_000) == b"ok"
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /base/generate HTTP/1.1"
    names = [line.partition(b": ")[0] for line in lines[1:]]
    assert sorted(names) == [b"Accept", b"Content-Length", b"Content-Type", b"Host", b"X-One"]
    assert {b"Accept: */*", b"X-One: 1", b"Content-Length: 3000000"} <= set(lines)
    assert body == b"x" * 3_000_000


async def leaves_a_connection_that_the_server_closed() -> None:
    async with serving(says(OK, close=True)) as (server, client):
        assert await posted(client) == b"ok"
        await server.until_ended(1)
        await until_none_kept(client)
        assert await posted(client) == b"ok"


LAST = {
    "it says so": says(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"),
    "its body ends with it": says(b"HTTP/1.1 200 OK\r\n\r\no", b"k", close=True),
    "more follows than was asked for": says(OK + OK),
    "HTTP/1.0": says(OK.replace(b"1.1", b"1.0")),
}


async def leaves_a_connection_of_no_more_use(behaviour: Behaviour) -> None:
    async with serving(behaviour) as (server, client):
        assert await posted(client) == await posted(client) == b"ok"
        assert server.connections == 2


BROKEN = {
    "at once": says(close=True),
    "in the head": says(b"HTTP/1.1 200 OK\r\nConte", close=True),
    "in the body": says(OK[:-1], close=True),
    "in a chunk": says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", close=True),
    "no HTTP": says(b"220 ready\r\n"),
    "two lengths": says(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok"),
    "a bad chunk": says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n"),
}


async def says_what_breaks_off_and_does_not_send_it_again(behaviour: Behaviour) -> None:
    async with serving(behaviour) as (server, client):
        with pytest.raises(BrokenOff):
            await posted(client)
        assert len(server.requests) == 1
        server.behaviour = says(OK)
        assert await posted(client) == b"ok"


async def gives_a_silent_response_up(said: bytes) -> None:
    async def stop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await reader.read()

    async with serving(stop, silence=0.1) as (server, client):
        with pytest.raises(TimeoutError):
            await posted(client)
        await server.until_ended(1)


async def holds_the_server_back_while_its_reader_is_slow() -> None:
    size = 64 << 20
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while sent < size:
            writer.write(bytes(1 << 16))
            sent += 1 << 16
            await writer.drain()

    async with serving(flood) as (_, client):
        response = await client.post("/generate", (), {})
        connection = response._response.connection
        assert connection is not None
        transport: Any = connection.transport
        await comes_true(lambda: not transport.is_reading())
        assert response._response.content.total_bytes < 4 * connections._MOST_BUFFERED
        assert sent < size / 2, "the sockets' buffers hold the rest back"
        read = 0
        async for piece in response.pieces():
            read += len(piece)
        response.close()
        assert read == sent == size


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def reads_together_what_follows_quickly() -> None:
    resting = asyncio.Event()

    async def quick(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + b"1\r\n-\r\n")
        await resting.wait()
        for _ in range(40):
            writer.write(b"1\r\n.\r\n")
            # One at a time, each with a round of the loop in which it could be read.
            await writer.drain()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")

    async with serving(quick) as (server, client):
        response = await client.post("/generate", (), {})
        pieces = []
        async for piece in response.pieces(rest=lambda: 0.5):
            pieces.append(piece)
            resting.set()
        response.close()
        assert pieces[0] == b"-", "the first is not held up"
        assert b"".join(pieces) == b"-" + 40 * b"."
        assert len(pieces) <= 10
        server.behaviour = says(OK)
        assert await posted(client) == b"ok" and server.connections == 1


async def closes_a_stream_that_rests() -> None:
    over = asyncio.Event()
    failed: list[Exception] = []
    go_on = connections._go_on

    def go_on_seen(transport: asyncio.ReadTransport) -> None:
        try:
            go_on(transport)
        except Exception as error:
            failed.append(error)
        if transport.is_closing():
            over.set()

    asked = asyncio.Semaphore(0)

    async def quick(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        for _ in range(3):
            await asked.acquire()
            writer.write(b"1\r\n.\r\n")
        await reader.read()
        raise ConnectionError

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(connections, "_go_on", go_on_seen)
        async with serving(quick) as (server, client):
            response = await client.post("/generate", (), {})
            pieces = response.pieces(rest=lambda: 0.05)
            for _ in range(3):
                asked.release()
                await anext(pieces)
            waiting = asyncio.ensure_future(anext(pieces))  # and now it rests
            await asyncio.sleep(0)
            waiting.cancel()
            response.close()
            await server.until_ended(1)
            async with asyncio.timeout(PATIENCE):
                await over.wait()
    assert not failed, "its rest is over, and nothing is left to read from"


async def ends_the_connection_of_a_cancelled_call(said: bytes) -> None:
    came = asyncio.Event()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        came.set()
        await reader.read()
        raise ConnectionError

    async def call() -> None:
        response = await client.post("/generate", (), {})
        try:
            reading.set()
            await response.read()
        finally:
            response.close()

    reading = asyncio.Event()
    async with serving(never) as (server, client):
        calling = asyncio.ensure_future(call())
        await came.wait()
        if said:
            await reading.wait()
            await asyncio.sleep(0)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await server.until_ended(1)
