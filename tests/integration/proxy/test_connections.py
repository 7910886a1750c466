"""What clients may cost a proxy before it knows who they are, and how long it waits for what they began to send."""

import asyncio
import contextlib
import http.client
import json
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from tests.fleets import Fleet, ProxyProcess, running_fleet
from tests.integration.proxy.test_observability import samples
from tests.waiting import PATIENCE, eventually

from rolloutfleet_proxy.http import request_bodies
from rolloutfleet_proxy.http.in_flight import CALL_BYTES
from rolloutfleet_proxy.http.protocol import HEAD_BYTES, HEAD_TIMEOUT, HEADERS

DESCRIPTORS = 256
IDLE = 300
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet with few descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    try:
        with running_fleet(tmp_path_factory.mktemp("edge"), proxies=2) as running:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            yield running
            for proxy in running.proxies:
                assert "Traceback" not in proxy.log.read_text()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connected(proxy: ProxyProcess, sent: bytes = b"") -> socket.socket:
    host, port = proxy.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE)
    connection.sendall(sent)
    return connection


def answer(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """The status and the error of what comes."""
    with contextlib.closing(http.client.HTTPResponse(connection, method="POST")) as response, connection:
        response.begin()
        error: dict[str, Any] = json.loads(response.read())["error"]
    return response.status, error


def begun(fleet: Fleet, path: str, key: str, *, body: bytes = b"{", method: str = "POST") -> socket.socket:
    """A request whose body does not end."""
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: 1000\r\n\r\n"
    return connected(fleet.proxy, head.encode() + body)


async def test_probes_and_calls_are_answered_beside_more_idle_connections_than_descriptors(two: Fleet) -> None:
    session = two.proxy.start_session()
    kinds = (b"", b"GET /he", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    with contextlib.ExitStack() as stack:
        for number in range(IDLE):
            stack.enter_context(connected(two.proxy, kinds[number % 3]))
            if number % 50 == 49:
                assert httpx.get(f"{two.proxy.url}/health", timeout=HEAD_TIMEOUT / 2).status_code == 200
        for _ in range(5):
            assert session.raw_chat(CHAT).status_code == 200
    await eventually(lambda: "file descriptors are running out" in two.proxy.log.read_text())


def test_a_flood_of_headers_leaves_no_memory_behind_and_is_answered(two: Fleet) -> None:
    before = two.proxy.stats()["rss_anon_bytes"]
    start, header = b"GET /health HTTP/1.1\r\nhost: x\r\n", b"x-header: " + b"y" * 1_000_000 + b"\r\n"
    all_at_once = connected(two.proxy, start + 5 * header)
    with connected(two.proxy, start + header) as flood:
        answers = answer(all_at_once), answer(flood.dup())
        with contextlib.suppress(ConnectionError):  # once it is answered, the proxy listens for two seconds more
            for _ in range(99):
                flood.sendall(header)
    for status, error in answers:
        assert (status, error["code"]) == (431, "head_too_large") and "65536" in error["message"]
    assert two.proxy.stats()["rss_anon_bytes"] - before < 20 << 20
    assert samples(two.proxy)["rolloutfleet_refused_total", ("head_too_large",)] >= 1


FILLED: dict[str, Callable[[int], bytes]] = {
    "one long header": lambda room: b"x-long: " + b"y" * (room - 10) + b"\r\n",
    "many headers without spaces": lambda room: b"a:b\r\n" * (HEADERS - 5),
    "bytes that are no text": lambda room: b"x-long: " + b"\xff" * (room - 10) + b"\r\n",
}


@pytest.mark.parametrize("line", ["GET /sessions/{session} HTTP/1.1", "POST /sessions HTTP/1.1"])
@pytest.mark.parametrize("filled", FILLED)
def test_the_largest_head_that_a_proxy_takes_is_taken_where_it_is_passed_on(two: Fleet, filled: str, line: str) -> None:
    """A session's calls go to its own proxy, and a start with a key to the key's."""
    first = "\r\n".join(
        (
            line.format(session=two.proxy.start_session().session_id),
            *("host: x", "connection: close", f"authorization: Bearer {two.proxy.key}"),
            *(f"idempotency-key: {filled}", "content-length: 2", ""),
        )
    ).encode()
    head = first + FILLED[filled](HEAD_BYTES - len(first) - 2) + b"\r\n"
    for proxy in two.proxies:
        with connected(proxy, head + b"{}") as connection, http.client.HTTPResponse(connection) as response:
            response.begin()
            assert response.status in (200, 201), response.read()


def test_a_trailer_opens_nothing(two: Fleet) -> None:
    session = two.proxy.start_session()
    request = (
        f"POST /sessions/{session.session_id}/v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        f"transfer-encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\nauthorization: Bearer {session.api_key}\r\n\r\n"
    )
    status, error = answer(connected(two.proxy, request.encode()))
    assert (status, error["code"]) == (401, "invalid_key")


async def test_a_body_that_is_silent_is_408_on_every_way_that_it_can_take(two: Fleet) -> None:
    """Read whole for a chat or a control call, streamed to disk for a shard, or passed on to its owner."""
    here, there = two.proxy.start_session(), two.proxies[1].start_session()
    with two.proxies[1].admin() as admin:
        reply = admin.post("/sessions", json={}, headers={"x-rolloutfleet-placed": "1"}).json()
    assert reply["ordinals"] == [1]
    key = two.proxy.key
    began = time.monotonic()
    waiting = [
        begun(two, "/v1/chat/completions", here.api_key),
        begun(two, "/sessions", key),
        begun(two, "/export", key),
        begun(two, "/shards/silent", key, method="PUT"),
        begun(two, f"/sessions/{reply['session_id']}/v1/chat/completions", reply["api_key"]),
        begun(two, f"/sessions/{reply['session_id']}/reward", key),
    ]
    for status, error in await asyncio.gather(*(asyncio.to_thread(answer, each) for each in waiting)):
        assert (status, error["code"], error["type"]) == (408, "request_timeout", "timeout_error"), error
    assert request_bodies.BODY_IDLE_TIMEOUT <= time.monotonic() - began < request_bodies.BODY_IDLE_TIMEOUT + 15
    assert there.turns() == [] and here.turns() == []
    with two.proxy.admin() as admin:
        assert admin.get("/shards/silent").status_code == 404


async def test_a_planned_stop_waits_for_a_body_that_dribbles_no_longer_than_for_a_silent_one(two: Fleet) -> None:
    here = two.proxy.start_session(here=True)
    bodies = [begun(two, "/v1/chat/completions", here.api_key), begun(two, "/export", two.proxy.key)]
    await eventually(lambda: two.proxy.stats()["in_flight_bytes"] >= len(bodies) * CALL_BYTES)
    process = two.proxy.process
    assert process is not None

    async def dribble(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                await asyncio.to_thread(connection.sendall, b" ")
                await asyncio.sleep(1)

    dribbling = [asyncio.create_task(dribble(body)) for body in bodies]
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(process.wait, 55)
    assert time.monotonic() - began < request_bodies.BODY_IDLE_TIMEOUT + 10
    for task in dribbling:
        task.cancel()
    await asyncio.gather(*dribbling, return_exceptions=True)
    for body in bodies:
        status, error = answer(body)
        assert (status, error["code"]) == (503, "draining")
    two.proxy.start()
