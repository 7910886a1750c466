"""Clients that take their answers slowly or not at all, or leave them, over TCP and on the loop that a proxy has."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing

import pytest
import uvloop
from tests.unit.proxy.http.served import GET, Server
from tests.waiting import PATIENCE, comes_true

from rolloutfleet_proxy.http.accepting import Accepting
from rolloutfleet_proxy.http.protocol import PEER_WRITE_TIMEOUT, WRITE_TIMEOUT
from rolloutfleet_proxy.process.supervisor import listen

LARGE = 32 << 20
"""Bytes, more than the system takes ahead of a client."""


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    [found] = listen("127.0.0.1", 0)
    with closing(found):
        yield found


@asynccontextmanager
async def serving(listening: socket.socket, *, descriptors_run_short: Callable[[], bool]) -> AsyncIterator[Server]:
    server = Server(large=LARGE)
    server.address = listening.getsockname()

    def make_room() -> bool:
        return descriptors_run_short() and server.connections.make_room()

    accepting = Accepting([listening], server.protocol, make_room=make_room, short_from=0)
    try:
        yield server
    finally:
        accepting.close()
        await server.close()


Run = Callable[..., None]


@pytest.fixture
def run(listening: socket.socket) -> Run:
    """Runs a test's work against a server."""

    def run(
        work: Callable[[Server], Awaitable[None]], *, descriptors_run_short: Callable[[], bool] = lambda: False
    ) -> None:
        async def whole() -> None:
            async with serving(listening, descriptors_run_short=descriptors_run_short) as server:
                await work(server)

        uvloop.run(whole())

    return run


@pytest.mark.parametrize("more", [b"", b"connection: close\r\n"], ids=["kept", "closing"])
def test_who_takes_nothing_of_an_answer_is_let_go(run: Run, more: bytes) -> None:
    async def work(server: Server) -> None:
        await server.connect(b"GET /large HTTP/1.1\r\n" + more + b"\r\n")
        await server.app.begun.wait()
        now = asyncio.get_running_loop().time()

        def is_let_go() -> bool:
            nonlocal now
            now += WRITE_TIMEOUT / 4
            server.connections.look(now)
            return not server.state.connections

        await comes_true(is_let_go)
        assert not server.connections.make_room(), "nothing is left of it"

    run(work)


@pytest.mark.parametrize("peer", [False, True])
def test_who_takes_an_answer_slowly_gets_all_of_it(run: Run, peer: bool) -> None:
    """Another proxy reads in larger pieces than a client of its own."""

    async def work(server: Server) -> None:
        voucher = b"x-rolloutfleet-voucher: a peer's\r\n" if peer else b""
        mark = b"x-rolloutfleet-forwarded: 1\r\n" + voucher
        client = await server.connect(b"GET /large HTTP/1.1\r\n" + mark + b"connection: close\r\n\r\n")
        now = asyncio.get_running_loop().time()
        left, piece = LARGE, 2 << 20
        await client.skip(b"\r\n\r\n")
        while left:
            await client.take(min(piece, left))
            left -= min(piece, left)
            now += (PEER_WRITE_TIMEOUT if peer else WRITE_TIMEOUT) * 0.9
            server.connections.look(now)

    run(work)


@pytest.mark.parametrize("path", [b"/last", b"/last-large"])
def test_what_a_client_takes_has_left(run: Run, path: bytes) -> None:
    async def work(server: Server) -> None:
        client = await server.connect(b"GET %s HTTP/1.1\r\n\r\n" % path)
        await client.skip(b"\r\n\r\n")
        assert path == b"/last" or server.app.has_left.empty()
        await client.take(LARGE if path == b"/last-large" else 2)
        async with asyncio.timeout(PATIENCE):
            assert await server.app.has_left.get()
        await client.send(GET)
        assert (await client.answer())[0] == 200

    run(work)


def test_what_a_client_leaves_behind_has_not_left(run: Run) -> None:
    async def work(server: Server) -> None:
        client = await server.connect(b"GET /last-large HTTP/1.1\r\n\r\n")
        await client.skip(b"\r\n\r\n")
        await client.close()
        async with asyncio.timeout(PATIENCE):
            assert not await server.app.has_left.get()

    run(work)


@pytest.mark.parametrize("path", [b"/last-held", b"/last-large-held"])
def test_a_half_closed_client_is_answered_and_one_that_left_is_not(run: Run, path: bytes) -> None:
    async def work(server: Server) -> None:
        for stays in (True, False):
            server.app.begun.clear()
            server.app.go_on.clear()
            client = await server.connect(b"GET %s HTTP/1.1\r\n\r\n" % path)
            await server.app.begun.wait()
            client.half_close()
            await client.skip(b"100 Continue\r\n\r\n")
            if not stays:
                await client.close()
            server.app.go_on.set()
            if stays:
                await client.skip(b"\r\n\r\n")
                assert len(await client.rest()) == (2 if path == b"/last-held" else LARGE)
            async with asyncio.timeout(PATIENCE):
                assert await server.app.has_left.get() is stays

    run(work)


def test_a_client_that_closes_its_connection_is_seen_to_leave(run: Run) -> None:
    async def work(server: Server) -> None:
        client = await server.connect(GET.replace(b"/", b"/held", 1))
        await server.app.begun.wait()
        await client.close()
        await comes_true(lambda: not server.state.connections)
        server.app.go_on.set()
        await comes_true(lambda: server.app.left == 1)

    run(work)


def test_who_has_been_without_a_request_for_the_longest_gives_way_to_who_comes(run: Run) -> None:
    short = False

    async def work(server: Server) -> None:
        nonlocal short
        held = await server.connect(b"GET /held HTTP/1.1\r\n\r\n")
        await server.app.begun.wait()
        first, second = [await server.connect(GET) for _ in range(2)]
        for client in (first, second):
            assert (await client.answer())[0] == 200
        await first.send(GET)
        assert (await first.answer())[0] == 200
        short = True
        begun = await server.connect(b"GET / HT")
        assert await second.rest() == b"", "it has rested for longer than the first"
        await begun.send(b"TP/1.1\r\n\r\n")
        assert (await begun.answer())[0] == 200
        await server.connect(GET)
        assert await first.rest() == b""
        server.app.go_on.set()
        assert (await held.answer())[0] == 200, "one in flight is not closed"

    run(work, descriptors_run_short=lambda: short)


def test_a_stream_that_breaks_off_is_reset_for_a_client_of_http_1_0(run: Run) -> None:
    """Nothing else would tell it from one that is whole."""

    async def work(server: Server) -> None:
        client = await server.connect(b"GET /stream HTTP/1.0\r\n\r\n")
        assert (await client.rest()).endswith(b"onetwo")
        client = await server.connect(b"GET /cut HTTP/1.0\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            await client.rest()

    run(work)
