"""What a client may send before anybody knows who it is: bounded in bytes and in time, and answered where it can be."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
import uvicorn
import uvloop
from tests.waiting import PATIENCE

from rolloutfleet_proxy.http import protocol
from rolloutfleet_proxy.http.accepting import Accepting
from rolloutfleet_proxy.http.connections import Connections, for_clients
from rolloutfleet_proxy.http.last_bytes import emptied_of
from rolloutfleet_proxy.http.protocol import (
    HEAD_BYTES,
    HEADERS,
    MAX_PIPELINED,
    PEER_WRITE_TIMEOUT,
    WRITE_TIMEOUT,
    HttpProtocol,
)
from rolloutfleet_proxy.process.supervisor import listen

GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
LARGE = 32 << 20


class App:
    """Answers 200 with what it was asked, once it has the whole body; `/early` before, `/held` when told to go on.

    `/open` answers at once, and says that this was all when told to go on. `large` gets much. What begins with `/last`
    notes whether the last byte of its answer left; `/last-held` answers when told to go on, whoever has left meanwhile.
    """

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.left = 0
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.has_left: asyncio.Queue[bool] = asyncio.Queue()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun.set()
        if scope["path"].endswith("held"):
            await self.go_on.wait()
        if scope["path"] not in ("/early", "/last-held") and not await self._whole(receive):
            self.left += 1
            return
        # Read here and not before: what comes as a trailer has come by now.
        self.asked.append({name.decode(): value.decode() for name, value in scope["headers"]})
        body = bytes(LARGE) if scope["path"].endswith("large") else b"ok"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body, "more_body": scope["path"] == "/open"})
        if scope["path"] == "/open":
            await self.go_on.wait()
            await send({"type": "http.response.body", "body": b""})
        if scope["path"].startswith("/last"):
            self.has_left.put_nowait(await emptied_of(scope)())

    async def _whole(self, receive: Any) -> bool:
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return False
            body += message.get("body", b"")
            if not message.get("more_body"):
                self.bodies.append(body)
                return True


class Server:
    """The protocol behind a real socket; `look` stands for the second that passes between two looks."""

    def __init__(self, listening: socket.socket) -> None:
        self.app = App()
        self.descriptors_run_short = False
        self.clients: list[Client] = []
        self.refused: list[str] = []
        self.has_refused = asyncio.Event()
        self.connections = Connections(refused=self._refuses)
        self._address = listening.getsockname()
        self._config = uvicorn.Config(self.app, ws="none", lifespan="off", access_log=False, timeout_keep_alive=75)
        self._config.load()
        self.state = uvicorn.server.ServerState()
        self.accepting = Accepting([listening], self._protocol, make_room=self._make_room, short_from=0)

    def _protocol(self) -> asyncio.Protocol:
        return HttpProtocol(self._config, self.state, {}, connections=self.connections)

    def _refuses(self, code: str) -> None:
        self.refused.append(code)
        self.has_refused.set()

    def _make_room(self) -> bool:
        return self.descriptors_run_short and self.connections.make_room()

    async def connect(self, first: bytes = b"") -> "Client":
        reader, writer = await asyncio.open_connection(*self._address)
        client = Client(reader, writer)
        self.clients.append(client)
        if first:
            await client.send(first)
        return client

    async def looks_until_closed(self, client: "Client") -> bytes:
        """What the client gets before its connection is closed, by what is noticed when connections are looked at."""
        reading = asyncio.create_task(client.rest())
        while not reading.done():
            self.connections.look()
            await asyncio.wait([reading], timeout=0.02)
        return reading.result()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self) -> tuple[int, bytes]:
        async with asyncio.timeout(PATIENCE):
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
            return int(head.split()[1]), await self._reader.readexactly(length)

    async def error(self) -> tuple[int, str]:
        status, body = await self.answer()
        return status, json.loads(body)["error"]["code"]

    async def skip(self, end: bytes) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._reader.readuntil(end)

    async def take(self, size: int) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._reader.readexactly(size)

    async def rest(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self._reader.read()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    [found] = listen("127.0.0.1", 0)
    with closing(found):
        yield found


@asynccontextmanager
async def serving(listening: socket.socket) -> AsyncIterator[Server]:
    server = Server(listening)
    try:
        yield server
    finally:
        server.accepting.close()
        for connection in list(server.state.connections):
            connection.transport.abort()
        for client in server.clients:
            await client.close()


@pytest.fixture
def run(listening: socket.socket) -> Callable[..., None]:
    """Runs a test's work against a server."""

    def run(work: Callable[[Server], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with serving(listening) as server:
                await work(server)

        uvloop.run(whole())

    return run


def head(size: int) -> bytes:
    """A request's head of exactly so many bytes."""
    before, after = b"GET / HTTP/1.1\r\nhost: a\r\nx-long: ", b"\r\n\r\n"
    return before + b"x" * (size - len(before) - len(after)) + after


def in_pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


# Bytes


@pytest.mark.parametrize("piece", [1000, HEAD_BYTES - 1, 10**9])
def test_a_head_is_read_up_to_its_limit_in_whatever_pieces_it_comes(run: Callable[..., None], piece: int) -> None:
    async def work(server: Server) -> None:
        client = await server.connect()
        for size, expected in [(HEAD_BYTES, 200), (100, 200), (HEAD_BYTES + 1, 431)]:
            for data in in_pieces(head(size), piece):
                await client.send(data)
            assert (await client.answer())[0] == expected
        assert await client.rest() == b""
        assert server.refused == ["head_too_large"]

    run(work)


@pytest.mark.parametrize(
    ("first", "more"),
    [
        (b"GET / HTTP/1.1\r\nhost: a\r\n", b"x-many: y\r\n"),
        (b"GET / HTTP/1.1\r\nhost: a\r\n", b"x-long: " + b"y" * 1000 + b"\r\n"),
        (b"GET / HTTP/1.1\r\nx-endless: ", b"y" * 1000),
        (b"GET /", b"y" * 1000),
        (b"\r\n", b"\r\n"),
    ],
    ids=["headers", "long headers", "a header", "a path", "empty lines"],
)
def test_who_sends_a_head_without_an_end_sees_why_it_is_refused(
    run: Callable[..., None], first: bytes, more: bytes
) -> None:
    """The client sends all of it before it looks for an answer, as HTTP libraries do."""

    async def work(server: Server) -> None:
        client = await server.connect(first)
        for _ in range(40):
            await client.send(more * (1_000_000 // len(more)))
        assert await client.error() == (431, "head_too_large")

    run(work)


def test_a_head_is_bounded_alike_behind_the_end_of_another_request(run: Callable[..., None]) -> None:
    """What comes in one piece with that end counts as well."""
    long_line = b"GET /" + b"x" * HEAD_BYTES + b" HTTP/1.1\r\nhost: a\r\n\r\n"

    async def work(server: Server) -> None:
        for large in (head(HEAD_BYTES + 100), head(HEAD_BYTES * 2), long_line):
            client = await server.connect(GET + large)
            assert await client.answer() == (200, b"ok")
            assert await client.error() == (431, "head_too_large")
        client = await server.connect(GET + head(HEAD_BYTES) + GET)
        assert [await client.answer() for _ in range(3)] == [(200, b"ok")] * 3

    run(work)


def test_more_headers_than_anybody_needs_are_refused(run: Callable[..., None]) -> None:
    async def work(server: Server) -> None:
        for count, status in [(HEADERS, 200), (HEADERS + 1, 431)]:
            client = await server.connect(b"GET / HTTP/1.1\r\n" + b"a:\r\n" * count + b"\r\n")
            assert (await client.answer())[0] == status

    run(work)


def test_a_large_body_is_no_head(run: Callable[..., None]) -> None:
    async def work(server: Server) -> None:
        size = 5 * HEAD_BYTES
        client = await server.connect(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size)
        assert await client.answer() == (200, b"ok")
        chunk = b"%x\r\n" % size + b"x" * size + b"\r\n"
        await client.send(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n" + chunk * 3 + b"0\r\n\r\n")
        assert await client.answer() == (200, b"ok")

    run(work)


CHUNKED = b"POST %s HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n"


def test_trailers_never_become_headers(run: Callable[..., None]) -> None:
    async def work(server: Server) -> None:
        client = await server.connect(CHUNKED % b"/" + b"0\r\nauthorization: Bearer one\r\nhost: b\r\n\r\n")
        assert (await client.answer())[0] == 200
        assert server.app.asked == [{"host": "a", "transfer-encoding": "chunked"}]

    run(work)


@pytest.mark.parametrize("path", [b"/", b"/early"])
@pytest.mark.parametrize(
    "endless",
    [b"0\r\nx-long: " + b"y" * HEAD_BYTES * 2, b"0\r\n" + b"a:\r\n" * HEADERS * 2, b"2;" + b"y" * HEAD_BYTES * 2],
    ids=["a trailer", "trailers", "an extension"],
)
def test_trailers_and_chunks_extensions_are_bounded_like_heads(
    run: Callable[..., None], path: bytes, endless: bytes
) -> None:
    async def work(server: Server) -> None:
        client = await server.connect(CHUNKED % path)
        if path == b"/early":
            assert (await client.answer())[0] == 200
        await client.send(endless)
        if path == b"/":
            assert await client.error() == (431, "head_too_large")
        assert await client.rest() == b"", "one request, one answer"
        assert server.refused == ["head_too_large"] and server.app.left == (path == b"/")

    run(work)


def test_what_is_no_http_is_refused_in_the_form_of_all_errors(run: Callable[..., None]) -> None:
    async def work(server: Server) -> None:
        for nonsense in (
            b"\x16\x03\x01\x02\x00 hello\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET\x00 / HTTP/1.1\r\n\r\n",
        ):
            assert await (await server.connect(nonsense)).error() == (400, "invalid_request")
        client = await server.connect(GET)
        assert (await client.answer())[0] == 200
        await client.send(b"nonsense\r\n\r\n")
        assert await client.error() == (400, "invalid_request")

    run(work)


@pytest.mark.parametrize("path", [b"/held", b"/open"])
def test_nonsense_behind_a_request_under_way_is_refused_behind_its_answer(
    run: Callable[..., None], path: bytes
) -> None:
    async def work(server: Server) -> None:
        client = await server.connect(b"GET %s HTTP/1.1\r\n\r\n" % path + GET + b"nonsense\r\n\r\n")
        await server.has_refused.wait()
        server.app.go_on.set()
        assert [await client.answer() for _ in range(2)] == [(200, b"ok")] * 2
        assert await client.error() == (400, "invalid_request")
        assert await client.rest() == b""

    run(work)


def test_nonsense_behind_an_answer_that_the_client_has_seen_is_refused(run: Callable[..., None]) -> None:
    """The app has yet to say that this was all: so it is where an answer is passed on."""

    async def work(server: Server) -> None:
        client = await server.connect(b"GET /open HTTP/1.1\r\n\r\n")
        assert await client.answer() == (200, b"ok")
        await client.send(b"nonsense\r\n\r\n")
        await server.has_refused.wait()
        server.app.go_on.set()
        assert await client.error() == (400, "invalid_request")
        assert await client.rest() == b""

    run(work)


def test_nonsense_in_a_body_that_waits_for_its_turn_is_refused_in_its_turn(run: Callable[..., None]) -> None:
    async def work(server: Server) -> None:
        posted = b"POST /held HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
        client = await server.connect(b"GET /held HTTP/1.1\r\n\r\n" + GET + posted + b"no size\r\n")
        await server.has_refused.wait()
        server.app.go_on.set()
        assert [await client.answer() for _ in range(2)] == [(200, b"ok")] * 2
        assert await client.error() == (400, "invalid_request")
        assert await client.rest() == b""
        assert len(server.app.asked) == 2, "it never reached the app"

    run(work)


def test_requests_sent_ahead_of_their_answers_are_bounded(run: Callable[..., None]) -> None:
    async def work(server: Server) -> None:
        client = await server.connect(GET * (MAX_PIPELINED + 1))
        for _ in range(MAX_PIPELINED + 1):
            assert (await client.answer())[0] == 200
        greedy = await server.connect(GET.replace(b"/ ", b"/held ") + GET * (MAX_PIPELINED + 9))
        await server.has_refused.wait()
        server.app.go_on.set()
        for _ in range(MAX_PIPELINED + 1):
            assert (await greedy.answer())[0] == 200
        assert await greedy.error() == (400, "invalid_request")
        assert await greedy.rest() == b""

    run(work)


UPGRADE = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAA\r\n"
"""What the HTTP client of Java adds to every request."""


@pytest.mark.parametrize("piece", [1, 7, 10**9])
def test_an_upgrade_is_passed_over(run: Callable[..., None], piece: int) -> None:
    """Its body is a body, and never the next request; what is sent behind it is answered, too."""
    request = b"GET /smuggled HTTP/1.1\r\n\r\n"

    async def work(server: Server) -> None:
        client = await server.connect()
        for asked in (
            b"GET / HTTP/1.1\r\n" + UPGRADE + b"\r\n",
            b"POST / HTTP/1.1\r\n%scontent-length: %d\r\n\r\n%s" % (UPGRADE, len(request), request),
            b"POST / HTTP/1.1\r\n%stransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\nx-trailer: y\r\n\r\n"
            % (UPGRADE, len(request), request),
        ):
            for data in in_pieces(asked * 2 + GET, piece):
                await client.send(data)
            for _ in range(3):
                assert await client.answer() == (200, b"ok")
        await client.send(b"nonsense\r\n\r\n")
        assert await client.error() == (400, "invalid_request"), "nothing else came"
        assert len(server.app.asked) == 9 and not any("x-trailer" in asked for asked in server.app.asked)

    run(work)


def test_the_body_behind_an_upgrade_reaches_the_app(run: Callable[..., None]) -> None:
    async def work(server: Server) -> None:
        client = await server.connect(b"POST / HTTP/1.1\r\n" + UPGRADE + b"content-length: 5\r\n\r\nhello" + GET)
        assert [await client.answer() for _ in range(2)] == [(200, b"ok")] * 2
        assert server.app.bodies == [b"hello", b""]

    run(work)


def test_who_leaves_with_several_requests_under_way_is_seen_to_leave(
    run: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def work(server: Server) -> None:
        await server.connect(b"GET /held HTTP/1.1\r\n\r\n" + GET)
        await server.app.begun.wait()
        [connection] = server.state.connections
        connection.transport.abort()
        async with asyncio.timeout(PATIENCE):
            while server.state.connections:
                await asyncio.sleep(0.01)
        server.app.go_on.set()
        await asyncio.gather(*server.state.tasks)
        assert server.app.left == 1 and not server.app.asked

    run(work)
    assert not caplog.records, caplog.text


# Time


def test_a_head_that_does_not_end_in_time_is_408(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT", 0.3)

    async def work(server: Server) -> None:
        begun = time.monotonic()
        for first in (b"G", b"GET / HTTP/1.1\r\nhost: a\r\n", b"\r\n"):
            client = await server.connect(first)
            assert b" 408 " in (await server.looks_until_closed(client)).split(b"\r\n")[0]
        assert time.monotonic() - begun > 3 * 0.3
        again = await server.connect(GET)
        assert (await again.answer())[0] == 200
        await again.send(b"GET /")
        assert b'"request_timeout"' in await server.looks_until_closed(again)

    run(work)


def test_one_byte_at_a_time_makes_a_head_no_younger(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT", 0.3)
    monkeypatch.setattr(protocol, "LINGER_TIMEOUT", 0.1)

    async def work(server: Server) -> None:
        client = await server.connect(b"GET / HTTP/1.1\r\nx-long: ")

        async def dribble() -> None:
            while True:
                await client.send(b"x")
                await asyncio.sleep(0.01)

        dribbling = asyncio.create_task(dribble())
        assert b" 408 " in await server.looks_until_closed(client)
        dribbling.cancel()

    run(work)


def test_a_connection_that_sends_nothing_is_closed(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT", 0.2)

    async def work(server: Server) -> None:
        used = await server.connect(GET)
        assert (await used.answer())[0] == 200
        assert await server.looks_until_closed(await server.connect()) == b""
        await used.send(GET)
        assert (await used.answer())[0] == 200, "one that has been used is kept for longer"

    run(work)


def test_the_rest_of_a_body_that_nobody_waits_for_is_not_read_for_ever(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "REST_TIMEOUT", 0.2)

    async def work(server: Server) -> None:
        client = await server.connect(b"POST /early HTTP/1.1\r\ncontent-length: 1000\r\n\r\nx")
        assert (await client.answer())[0] == 200
        assert await server.looks_until_closed(client) == b""
        whole = await server.connect(b"POST /early HTTP/1.1\r\ncontent-length: 2\r\n\r\nx")
        assert (await whole.answer())[0] == 200
        await whole.send(b"x" + GET)
        assert (await whole.answer())[0] == 200

    run(work)


def test_a_request_in_flight_is_never_ended_by_time(run: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_TIMEOUT", "REST_TIMEOUT"):
        monkeypatch.setattr(protocol, name, 0.0)

    async def work(server: Server) -> None:
        client = await server.connect(b"GET /held HTTP/1.1\r\n\r\n")
        await server.app.begun.wait()
        for _ in range(10):
            server.connections.look()
            await asyncio.sleep(0.01)
        server.app.go_on.set()
        assert (await client.answer())[0] == 200

    run(work)


@pytest.mark.parametrize("more", [b"", b"connection: close\r\n"], ids=["kept", "closing"])
def test_who_takes_nothing_of_an_answer_is_let_go(run: Callable[..., None], more: bytes) -> None:
    async def work(server: Server) -> None:
        await server.connect(b"GET /large HTTP/1.1\r\n" + more + b"\r\n")
        await server.app.begun.wait()
        now = asyncio.get_running_loop().time()
        async with asyncio.timeout(PATIENCE):
            while server.state.connections:
                now += WRITE_TIMEOUT / 4
                server.connections.look(now)
                await asyncio.sleep(0.02)
        assert not server.connections.make_room(), "nothing is left of it"

    run(work)


@pytest.mark.parametrize("peer", [False, True])
def test_who_takes_an_answer_slowly_gets_all_of_it(run: Callable[..., None], peer: bool) -> None:
    """Another proxy reads in larger pieces than a client of its own."""

    async def work(server: Server) -> None:
        mark = b"x-rolloutfleet-forwarded: 1\r\n" if peer else b""
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


# Last bytes


@pytest.mark.parametrize("path", [b"/last", b"/last-large"])
def test_what_a_client_takes_has_left(run: Callable[..., None], path: bytes) -> None:
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


def test_what_a_client_leaves_behind_has_not_left(run: Callable[..., None]) -> None:
    async def work(server: Server) -> None:
        client = await server.connect(b"GET /last-large HTTP/1.1\r\n\r\n")
        await client.skip(b"\r\n\r\n")
        await client.close()
        async with asyncio.timeout(PATIENCE):
            assert not await server.app.has_left.get()

    run(work)


def test_what_nobody_took_until_its_connection_was_ended_has_not_left(run: Callable[..., None]) -> None:
    async def work(server: Server) -> None:
        client = await server.connect(b"GET /last-large HTTP/1.1\r\n\r\n")
        await client.skip(b"\r\n\r\n")
        [connection] = server.state.connections
        assert isinstance(connection, HttpProtocol)
        connection.give_way()
        async with asyncio.timeout(PATIENCE):
            assert not await server.app.has_left.get()

    run(work)


def test_what_is_sent_to_a_client_that_has_gone_has_not_left(run: Callable[..., None]) -> None:
    async def work(server: Server) -> None:
        client = await server.connect(b"GET /last-held HTTP/1.1\r\n\r\n")
        await server.app.begun.wait()
        await client.close()
        async with asyncio.timeout(PATIENCE):
            while server.state.connections:
                await asyncio.sleep(0)
        server.app.go_on.set()
        async with asyncio.timeout(PATIENCE):
            assert not await server.app.has_left.get()

    run(work)


# Descriptors


def test_who_has_been_without_a_request_for_the_longest_gives_way_to_who_comes(run: Callable[..., None]) -> None:
    async def work(server: Server) -> None:
        held = await server.connect(b"GET /held HTTP/1.1\r\n\r\n")
        await server.app.begun.wait()
        first, second = [await server.connect(GET) for _ in range(2)]
        for client in (first, second):
            assert (await client.answer())[0] == 200
        await first.send(GET)
        assert (await first.answer())[0] == 200
        server.descriptors_run_short = True
        begun = await server.connect(b"GET / HT")
        assert await second.rest() == b"", "it has rested for longer than the first"
        await begun.send(b"TP/1.1\r\n\r\n")
        assert (await begun.answer())[0] == 200
        await server.connect(GET)
        assert await first.rest() == b""
        server.app.go_on.set()
        assert (await held.answer())[0] == 200, "one in flight is not closed"

    run(work)


def test_a_part_of_the_descriptors_is_left_to_the_proxy_itself() -> None:
    assert [for_clients(limit) for limit in (256, 1024, 1 << 20)] == [192, 768, (1 << 20) - 1024]
