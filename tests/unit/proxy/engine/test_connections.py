"""HTTP to the gateway, against a server that sends exactly the bytes it is told."""

import asyncio
import gc
import socket
import weakref
from collections.abc import Callable

import pytest
from tests.unit.proxy.engine import connecting
from tests.unit.proxy.engine.connecting import BROKEN, LAST, OK, Behaviour, posted, says, serving

from rolloutfleet_proxy.engine.connections import Connections, Unreachable, _Bounded


async def test_a_request_is_sent_as_meant() -> None:
    await connecting.sends_a_request_as_meant()


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


@pytest.mark.parametrize("behaviour", LAST.values(), ids=LAST)
async def test_a_connection_that_is_of_no_more_use_is_not_used_again(behaviour: Behaviour) -> None:
    await connecting.leaves_a_connection_of_no_more_use(behaviour)


async def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    await connecting.leaves_a_connection_that_the_server_closed()


@pytest.mark.parametrize("behaviour", BROKEN.values(), ids=BROKEN)
async def test_what_breaks_off_says_so_and_is_not_sent_again(behaviour: Behaviour) -> None:
    await connecting.says_what_breaks_off_and_does_not_send_it_again(behaviour)


async def test_silence_ends_a_response_only_while_it_is_awaited() -> None:
    silence, apart = 1.0, 0.4  # three pieces take longer than the silence
    pieces = (b"HTTP/1.1 200 OK\r\n", b"Content-Length: 4\r\n", b"\r\n", b"o", b"k", b"a")

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            await asyncio.sleep(apart)
            writer.write(piece)
        await reader.read()

    clock = asyncio.get_running_loop().time
    async with serving(slowly, silence=silence) as (server, client):
        began = clock()
        with pytest.raises(TimeoutError):
            await posted(client)
        assert clock() - began == pytest.approx(len(pieces) * apart + silence)
        server.behaviour = says(OK)
        assert await posted(client) == b"ok"
        await asyncio.sleep(2 * silence)  # unused, a connection may be silent
        assert await posted(client) == b"ok" and server.connections == 2


@pytest.mark.parametrize("said", [b"", OK[:20], OK[:-1]])
async def test_silence_ends_a_response(said: bytes) -> None:
    await connecting.gives_a_silent_response_up(said)


async def test_a_reader_that_is_slow_holds_the_server_back() -> None:
    await connecting.holds_the_server_back_while_its_reader_is_slow()


async def test_a_reader_that_is_silent_is_no_silent_server() -> None:
    size = 8 << 20

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))

    async with serving(flood, silence=0.3) as (_, client):
        response = await client.post("/generate", (), {})
        await asyncio.sleep(60.0)
        assert size == sum([len(piece) async for piece in response.pieces()])
        response.close()


async def test_what_follows_quickly_is_read_together() -> None:
    await connecting.reads_together_what_follows_quickly()


async def test_a_stream_that_rests_can_be_closed() -> None:
    await connecting.closes_a_stream_that_rests()


@pytest.mark.parametrize("said", [b"", OK[:-1]], ids=["before the head", "in the body"])
async def test_cancelled_or_closed_it_ends_the_connection(said: bytes) -> None:
    await connecting.ends_the_connection_of_a_cancelled_call(said)


async def test_no_server_is_unreachable() -> None:
    client = Connections("http://127.0.0.1:9", silence=5)
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
