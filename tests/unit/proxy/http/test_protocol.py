"""What a client may send before anybody knows who it is: bounded in bytes and in time, and answered where it can be."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.unit.proxy.http.served import GET, Server
from tests.unit.raw_client import Client
from tests.waiting import PATIENCE, comes_true

from rolloutfleet.http_serving import HEAD_BYTES, HEAD_TIMEOUT, HEADERS, LINGER_TIMEOUT, MAX_PIPELINED, REST_TIMEOUT
from rolloutfleet_proxy.http.connections import for_clients
from rolloutfleet_proxy.http.departures import RESET_INTERVAL
from rolloutfleet_proxy.http.protocol import HttpProtocol

LARGE = 4 << 20
"""Bytes, more than the system takes ahead of a client."""
A_LOOK = 1.0
"""Seconds between two looks at connections."""


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server(large=LARGE)
    listening = await asyncio.get_running_loop().create_server(made.protocol, "127.0.0.1", 0)
    made.address = listening.sockets[0].getsockname()
    yield made
    listening.close()
    await made.close()


def head(size: int) -> bytes:
    """A request's head of exactly so many bytes."""
    before, after = b"GET / HTTP/1.1\r\nhost: a\r\nx-long: ", b"\r\n\r\n"
    return before + b"x" * (size - len(before) - len(after)) + after


def in_pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


# HTTP/1.0


@pytest.mark.parametrize("wish", [b"", b"connection: keep-alive\r\n"])
async def test_a_stream_ends_with_the_connection_for_a_client_of_http_1_0(server: Server, wish: bytes) -> None:
    client = await server.connect(b"GET /stream HTTP/1.0\r\n" + wish + b"\r\n")
    head, body = (await client.rest()).split(b"\r\n\r\n", 1)
    assert body == b"onetwo"
    assert b"connection: close" in head and b"transfer-encoding" not in head


async def test_a_stream_comes_in_chunks_for_any_other_client(server: Server) -> None:
    client = await server.connect(b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n")
    await client.skip(b"transfer-encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")


async def test_a_length_is_still_told_to_a_client_of_http_1_0(server: Server) -> None:
    client = await server.connect(b"POST / HTTP/1.0\r\ncontent-length: 2\r\n\r\nab")
    assert await client.answer() == (200, b"ok")
    assert await client.rest() == b"" and server.app.bodies == [b"ab"]
    client = await server.connect(b"HEAD /stream HTTP/1.0\r\n\r\n")
    assert (await client.rest()).endswith(b"connection: close\r\n\r\n")


# Bytes


@pytest.mark.parametrize("piece", [1000, HEAD_BYTES - 1, 10**9])
async def test_a_head_is_read_up_to_its_limit_in_whatever_pieces_it_comes(server: Server, piece: int) -> None:
    client = await server.connect()
    for size, expected in [(HEAD_BYTES, 200), (100, 200), (HEAD_BYTES + 1, 431)]:
        for data in in_pieces(head(size), piece):
            await client.send(data)
        assert (await client.answer())[0] == expected
    assert await client.rest() == b""
    assert server.refused == ["head_too_large"]


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
async def test_who_sends_a_head_without_an_end_sees_why_it_is_refused(
    server: Server, first: bytes, more: bytes
) -> None:
    """The client sends all of it before it looks for an answer, as HTTP libraries do."""
    client = await server.connect(first)
    for _ in range(8):
        await client.send(more * (1_000_000 // len(more)))
    assert await client.error() == (431, "head_too_large")


async def test_a_head_is_bounded_alike_behind_the_end_of_another_request(server: Server) -> None:
    """What comes in one piece with that end counts as well."""
    long_line = b"GET /" + b"x" * HEAD_BYTES + b" HTTP/1.1\r\nhost: a\r\n\r\n"
    for large in (head(HEAD_BYTES + 100), head(HEAD_BYTES * 2), long_line):
        client = await server.connect(GET + large)
        assert await client.answer() == (200, b"ok")
        assert await client.error() == (431, "head_too_large")
    client = await server.connect(GET + head(HEAD_BYTES) + GET)
    assert [await client.answer() for _ in range(3)] == [(200, b"ok")] * 3


async def test_more_headers_than_anybody_needs_are_refused(server: Server) -> None:
    for count, status in [(HEADERS, 200), (HEADERS + 1, 431)]:
        client = await server.connect(b"GET / HTTP/1.1\r\n" + b"a:\r\n" * count + b"\r\n")
        assert (await client.answer())[0] == status


async def test_a_large_body_is_no_head(server: Server) -> None:
    size = 5 * HEAD_BYTES
    client = await server.connect(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size)
    assert await client.answer() == (200, b"ok")
    chunk = b"%x\r\n" % size + b"x" * size + b"\r\n"
    await client.send(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n" + chunk * 3 + b"0\r\n\r\n")
    assert await client.answer() == (200, b"ok")


CHUNKED = b"POST %s HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n"


async def test_trailers_never_become_headers(server: Server) -> None:
    client = await server.connect(CHUNKED % b"/" + b"0\r\nauthorization: Bearer one\r\nhost: b\r\n\r\n")
    assert (await client.answer())[0] == 200
    assert server.app.asked == [{"host": "a", "transfer-encoding": "chunked"}]


@pytest.mark.parametrize("path", [b"/", b"/early"])
@pytest.mark.parametrize(
    "endless",
    [b"0\r\nx-long: " + b"y" * HEAD_BYTES * 2, b"0\r\n" + b"a:\r\n" * HEADERS * 2, b"2;" + b"y" * HEAD_BYTES * 2],
    ids=["a trailer", "trailers", "an extension"],
)
async def test_trailers_and_chunks_extensions_are_bounded_like_heads(
    server: Server, path: bytes, endless: bytes
) -> None:
    client = await server.connect(CHUNKED % path)
    if path == b"/early":
        assert (await client.answer())[0] == 200
    await client.send(endless)
    if path == b"/":
        assert await client.error() == (431, "head_too_large")
    assert await client.rest() == b"", "one request, one answer"
    assert server.refused == ["head_too_large"] and server.app.left == (path == b"/")


async def test_what_is_no_http_is_refused_in_the_form_of_all_errors(server: Server) -> None:
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


@pytest.mark.parametrize("path", [b"/held", b"/open"])
async def test_nonsense_behind_a_request_under_way_is_refused_behind_its_answer(server: Server, path: bytes) -> None:
    client = await server.connect(b"GET %s HTTP/1.1\r\n\r\n" % path + GET + b"nonsense\r\n\r\n")
    await server.has_refused.wait()
    server.app.go_on.set()
    assert [await client.answer() for _ in range(2)] == [(200, b"ok")] * 2
    assert await client.error() == (400, "invalid_request")
    assert await client.rest() == b""


async def test_nonsense_behind_an_answer_that_the_client_has_seen_is_refused(server: Server) -> None:
    """The app has yet to say that this was all: so it is where an answer is passed on."""
    client = await server.connect(b"GET /open HTTP/1.1\r\n\r\n")
    assert await client.answer() == (200, b"ok")
    await client.send(b"nonsense\r\n\r\n")
    await server.has_refused.wait()
    server.app.go_on.set()
    assert await client.error() == (400, "invalid_request")
    assert await client.rest() == b""


async def test_nonsense_in_a_body_that_waits_for_its_turn_is_refused_in_its_turn(server: Server) -> None:
    posted = b"POST /held HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
    client = await server.connect(b"GET /held HTTP/1.1\r\n\r\n" + GET + posted + b"no size\r\n")
    await server.has_refused.wait()
    server.app.go_on.set()
    assert [await client.answer() for _ in range(2)] == [(200, b"ok")] * 2
    assert await client.error() == (400, "invalid_request")
    assert await client.rest() == b""
    assert len(server.app.asked) == 2, "it never reached the app"


async def test_requests_sent_ahead_of_their_answers_are_bounded(server: Server) -> None:
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


UPGRADE = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAA\r\n"
"""What the HTTP client of Java adds to every request."""


@pytest.mark.parametrize("piece", [1, 7, 10**9])
async def test_an_upgrade_is_passed_over(server: Server, piece: int) -> None:
    """Its body is a body, and never the next request; what is sent behind it is answered, too."""
    request = b"GET /smuggled HTTP/1.1\r\n\r\n"
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


async def test_the_body_behind_an_upgrade_reaches_the_app(server: Server) -> None:
    client = await server.connect(b"POST / HTTP/1.1\r\n" + UPGRADE + b"content-length: 5\r\n\r\nhello" + GET)
    assert [await client.answer() for _ in range(2)] == [(200, b"ok")] * 2
    assert server.app.bodies == [b"hello", b""]


async def test_who_leaves_with_several_requests_under_way_is_seen_to_leave(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    await server.connect(b"GET /held HTTP/1.1\r\n\r\n" + GET)
    await server.app.begun.wait()
    [connection] = server.state.connections
    connection.transport.abort()
    await comes_true(lambda: not server.state.connections)
    server.app.go_on.set()
    await asyncio.gather(*server.state.tasks)
    assert server.app.left == 1 and not server.app.asked
    assert not caplog.records, caplog.text


# Time


async def looks_until_closed(server: Server, client: Client) -> tuple[bytes, float]:
    """What the client gets before its connection is closed, by what is noticed when connections are looked at, and how
    many seconds that takes."""
    loop = asyncio.get_running_loop()
    began, reading = loop.time(), asyncio.create_task(client.rest(seconds=10 * PATIENCE))
    while not reading.done():
        server.connections.look()
        await asyncio.wait([reading], timeout=A_LOOK)
    return reading.result(), loop.time() - began


async def test_a_head_that_does_not_end_in_time_is_408(server: Server) -> None:
    for first in (b"G", b"GET / HTTP/1.1\r\nhost: a\r\n", b"\r\n"):
        answer, took = await looks_until_closed(server, await server.connect(first))
        assert b" 408 " in answer.split(b"\r\n")[0]
        assert HEAD_TIMEOUT <= took <= HEAD_TIMEOUT + 2 * A_LOOK
    again = await server.connect(GET)
    assert (await again.answer())[0] == 200
    await again.send(b"GET /")
    assert b'"request_timeout"' in (await looks_until_closed(server, again))[0]


async def test_one_byte_at_a_time_makes_a_head_no_younger(server: Server) -> None:
    client = await server.connect(b"GET / HTTP/1.1\r\nx-long: ")

    async def dribble() -> None:
        while True:
            await client.send(b"x")
            await asyncio.sleep(A_LOOK / 10)

    dribbling = asyncio.create_task(dribble())
    answer, took = await looks_until_closed(server, client)
    assert b" 408 " in answer and took <= HEAD_TIMEOUT + 2 * A_LOOK
    assert not dribbling.done(), "what still comes is read for a while"
    dribbling.cancel()
    await asyncio.sleep(LINGER_TIMEOUT)
    assert not server.state.connections


async def test_a_connection_that_sends_nothing_is_closed(server: Server) -> None:
    used = await server.connect(GET)
    assert (await used.answer())[0] == 200
    nothing, took = await looks_until_closed(server, await server.connect())
    assert nothing == b"" and HEAD_TIMEOUT <= took <= HEAD_TIMEOUT + 2 * A_LOOK
    await used.send(GET)
    assert (await used.answer())[0] == 200, "one that has been used is kept for longer"


async def test_the_rest_of_a_body_that_nobody_waits_for_is_not_read_for_ever(server: Server) -> None:
    client = await server.connect(b"POST /early HTTP/1.1\r\ncontent-length: 1000\r\n\r\nx")
    assert (await client.answer())[0] == 200
    nothing, took = await looks_until_closed(server, client)
    assert nothing == b"" and REST_TIMEOUT <= took <= REST_TIMEOUT + 2 * A_LOOK
    whole = await server.connect(b"POST /early HTTP/1.1\r\ncontent-length: 2\r\n\r\nx")
    assert (await whole.answer())[0] == 200
    await whole.send(b"x" + GET)
    assert (await whole.answer())[0] == 200


async def test_a_request_in_flight_is_never_ended_by_time(server: Server) -> None:
    client = await server.connect(b"GET /held HTTP/1.1\r\n\r\n")
    await server.app.begun.wait()
    for _ in range(10):
        await asyncio.sleep(HEAD_TIMEOUT + REST_TIMEOUT)
        server.connections.look()
    server.app.go_on.set()
    assert (await client.answer())[0] == 200


# Last bytes


@pytest.mark.parametrize("path", [b"/last", b"/last-large"])
async def test_what_a_client_takes_has_left(server: Server, path: bytes) -> None:
    client = await server.connect(b"GET %s HTTP/1.1\r\n\r\n" % path)
    await client.skip(b"\r\n\r\n")
    assert path == b"/last" or server.app.has_left.empty()
    await client.take(LARGE if path == b"/last-large" else 2)
    async with asyncio.timeout(PATIENCE):
        assert await server.app.has_left.get()
    await client.send(GET)
    assert (await client.answer())[0] == 200


async def test_what_a_client_leaves_behind_has_not_left(server: Server) -> None:
    client = await server.connect(b"GET /last-large HTTP/1.1\r\n\r\n")
    await client.skip(b"\r\n\r\n")
    await client.close()
    async with asyncio.timeout(PATIENCE):
        assert not await server.app.has_left.get()


async def test_what_nobody_took_until_its_connection_was_ended_has_not_left(server: Server) -> None:
    client = await server.connect(b"GET /last-large HTTP/1.1\r\n\r\n")
    await client.skip(b"\r\n\r\n")
    [connection] = server.state.connections
    assert isinstance(connection, HttpProtocol)
    connection.give_way()
    async with asyncio.timeout(PATIENCE):
        assert not await server.app.has_left.get()


async def test_what_is_sent_to_a_client_that_has_gone_has_not_left(server: Server) -> None:
    client = await server.connect(b"GET /last-held HTTP/1.1\r\n\r\n")
    await server.app.begun.wait()
    await client.close()
    await comes_true(lambda: not server.state.connections)
    server.app.go_on.set()
    async with asyncio.timeout(PATIENCE):
        assert not await server.app.has_left.get()


# A client that closes its sending side


HELD = b"GET /held HTTP/1.1\r\nhost: a\r\n\r\n"


@pytest.mark.parametrize("asked", [HELD, HELD + GET, GET + HELD], ids=["one", "one before", "one behind"])
async def test_a_half_closed_client_is_answered(server: Server, asked: bytes) -> None:
    client = await server.connect(asked)
    await server.app.begun.wait()
    client.half_close()
    await asyncio.sleep(2 * A_LOOK)
    server.app.go_on.set()
    said = (await client.rest()).split(b"HTTP/1.1 ")
    assert [answer[:3] for answer in said if answer and not answer.startswith(b"100")] == [b"200"] * asked.count(b"GET")
    assert said[-1].endswith(b"ok")


@pytest.mark.parametrize("seconds", [None, 0.0, RESET_INTERVAL / 2, RESET_INTERVAL])
async def test_a_half_closed_client_is_answered_though_somebody_looks_whether_it_has_left(
    server: Server, seconds: float | None
) -> None:
    client = await server.connect(HELD)
    await server.app.begun.wait()
    client.half_close()
    if seconds is not None:
        await asyncio.sleep(seconds)
    assert server.app.closed() is (False if seconds == RESET_INTERVAL else None)
    await asyncio.sleep(RESET_INTERVAL)
    assert server.app.closed() is False
    server.app.go_on.set()
    assert (await client.rest()).endswith(b"ok")


async def test_a_client_that_left_before_its_answer_has_begun_is_seen_to_leave(server: Server) -> None:
    client = await server.connect(HELD)
    await server.app.begun.wait()
    client.half_close()
    await client.skip(b"HTTP/1.1 100 Continue\r\n\r\n")
    await client.close()
    await comes_true(lambda: not server.state.connections)
    server.app.go_on.set()
    await comes_true(lambda: server.app.left == 1)


@pytest.mark.parametrize(
    "asked", [b"GET /held HTTP/1.0\r\n\r\n", b"POST /held HTTP/1.1\r\ncontent-length: 2\r\n\r\na", GET + HELD[:-1]]
)
async def test_a_client_that_can_wait_for_nothing_more_has_left(server: Server, asked: bytes) -> None:
    client = await server.connect(asked)
    await server.app.begun.wait()
    client.half_close()
    await comes_true(lambda: not server.state.connections)
    assert b"100 Continue" not in await client.rest()


@pytest.mark.parametrize("path", [b"/last-held", b"/last-large-held"])
async def test_an_answer_that_a_half_closed_client_takes_has_left(server: Server, path: bytes) -> None:
    client = await server.connect(b"GET %s HTTP/1.1\r\n\r\n" % path)
    await server.app.begun.wait()
    client.half_close()
    await client.skip(b"100 Continue\r\n\r\n")
    server.app.go_on.set()
    await client.rest()
    assert await server.app.has_left.get()


async def test_an_answer_that_a_half_closed_client_abandons_has_not_left(server: Server) -> None:
    client = await server.connect(b"GET /last-large-held HTTP/1.1\r\n\r\n")
    await server.app.begun.wait()
    client.half_close()
    await client.skip(b"100 Continue\r\n\r\n")
    server.app.go_on.set()
    await client.skip(b"HTTP/1.1 200")
    await client.close()
    async with asyncio.timeout(PATIENCE):
        assert not await server.app.has_left.get()


# Descriptors


def test_a_part_of_the_descriptors_is_left_to_the_proxy_itself() -> None:
    assert [for_clients(limit) for limit in (256, 1024, 1 << 20)] == [192, 768, (1 << 20) - 1024]
