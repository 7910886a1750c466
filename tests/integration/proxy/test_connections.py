"""What clients may cost a proxy before it knows who they are."""

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.fleets import Fleet, ProxyProcess
from tests.integration.proxy.edge import answer, begun, connected, fleet_of_few_descriptors, idle_connections
from tests.integration.proxy.in_process import proxy_in_process
from tests.integration.proxy.metrics import samples
from tests.processes import free_port
from tests.waiting import PATIENCE, eventually

from rolloutfleet.http_serving import HEAD_BYTES, HEADERS
from rolloutfleet_proxy.http import request_bodies
from rolloutfleet_proxy.http.headers import PLACED

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_of_few_descriptors(tmp_path_factory.mktemp("edge")) as running:
        yield running


async def test_probes_and_calls_are_answered_beside_more_idle_connections_than_descriptors(two: Fleet) -> None:
    session = two.proxy.start_session()
    with idle_connections(two.proxy, answered_within=PATIENCE):
        for _ in range(5):
            assert session.raw_chat(CHAT).status_code == 200
    await eventually(lambda: "file descriptors are running out" in two.proxy.log.read_text())


async def test_a_flood_of_headers_is_answered_and_leaves_nothing_behind(two: Fleet) -> None:
    start, header = b"GET /health HTTP/1.1\r\nhost: x\r\n", b"x-header: " + b"y" * 1_000_000 + b"\r\n"
    all_at_once = connected(two.proxy.port, start + 5 * header)
    with connected(two.proxy.port, start + header) as flood:
        ours = {connection.getsockname()[1] for connection in (all_at_once, flood)}
        answers = answer(all_at_once), answer(flood.dup())
        with contextlib.suppress(ConnectionError):  # once it is answered, the proxy listens for two seconds more
            for _ in range(99):
                flood.sendall(header)
    for status, error in answers:
        assert (status, error["code"]) == (431, "head_too_large") and "65536" in error["message"]
    assert samples(two.proxy)["rolloutfleet_refused_total", ("head_too_large",)] >= 1
    await eventually(lambda: not ours & connected_to(two.proxy))
    assert two.proxy.stats()["in_flight_bytes"] == 0


def test_a_client_of_http_1_0_gets_streams_without_chunks_from_every_proxy(two: Fleet) -> None:
    session = two.proxy.start_session()
    path = f"/sessions/{session.session_id}/v1/chat/completions"
    content = json.dumps({**CHAT, "stream": True}).encode()
    head = f"POST {path} HTTP/1.0\r\nauthorization: Bearer {session.api_key}\r\ncontent-length: {len(content)}\r\n\r\n"
    for proxy in two.proxies:
        with connected(proxy.port, head.encode() + content) as connection, connection.makefile("rb") as answer:
            said, _, stream = answer.read().partition(b"\r\n\r\n")
        assert b" 200 " in said and b"transfer-encoding" not in said and b"connection: close" in said
        assert stream.startswith(b"data: {") and stream.endswith(b"data: [DONE]\n\n")
        assert all(line.startswith(b"data: ") for line in stream.split(b"\n\n")[:-1])


@pytest.mark.parametrize("stream", [False, True])
def test_a_half_closed_client_gets_its_answer_from_every_proxy(two: Fleet, stream: bool) -> None:
    session = two.proxy.start_session()
    path = f"/sessions/{session.session_id}/v1/chat/completions"
    content = json.dumps({**CHAT, "stream": stream}).encode()
    lines = (f"POST {path} HTTP/1.1", "host: x", f"authorization: Bearer {session.api_key}")
    head = "\r\n".join((*lines, f"content-length: {len(content)}", "", ""))
    for proxy in two.proxies:
        with connected(proxy.port, head.encode() + content) as connection:
            connection.shutdown(socket.SHUT_WR)
            with contextlib.closing(http.client.HTTPResponse(connection, method="POST")) as response:
                response.begin()
                said = response.read()
            assert response.status == 200
            assert said.endswith(b"data: [DONE]\n\n") if stream else json.loads(said)["choices"]
            assert connection.recv(1) == b"", "the proxy closes it too"


def connected_to(proxy: ProxyProcess) -> set[int]:
    """The ports at the other ends of its worker's connections."""
    open_ = psutil.Process(proxy.stats()["pid"]).net_connections("tcp")
    return {connection.raddr.port for connection in open_ if connection.raddr}


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
        with connected(proxy.port, head + b"{}") as connection, http.client.HTTPResponse(connection) as response:
            response.begin()
            assert response.status in (200, 201), response.read()


def test_a_trailer_opens_nothing(two: Fleet) -> None:
    session = two.proxy.start_session()
    request = (
        f"POST /sessions/{session.session_id}/v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        f"transfer-encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\nauthorization: Bearer {session.api_key}\r\n\r\n"
    )
    status, error = answer(connected(two.proxy.port, request.encode()))
    assert (status, error["code"]) == (401, "invalid_key")


async def test_a_body_that_is_silent_is_408_on_every_way_that_it_can_take(
    two: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read whole for a chat or a control call, streamed to disk for a shard, or passed on to its owner."""
    monkeypatch.setattr(request_bodies, "BODY_IDLE_TIMEOUT", 0.2)
    other = two.proxies[1]
    there = other.start_session(here=True)
    cluster = {
        "replicas": 2,
        "peers": {"ports": [free_port(), other.port]},
        "admin_key_file": str(tmp_path / "admin.key"),
    }
    (tmp_path / "admin.key").write_text(other.key)
    async with proxy_in_process(two, tmp_path, **cluster) as (_, admin):
        port, key = admin.base_url.port, other.key
        assert port is not None
        here = (await admin.post("/sessions", json={}, headers={PLACED: "0"})).raise_for_status().json()
        theirs = f"/sessions/{there.session_id}"
        waiting = [
            begun(port, "/v1/chat/completions", here["api_key"]),
            begun(port, "/sessions", key),
            begun(port, "/export", key),
            begun(port, "/shards/silent", key, method="PUT"),
            begun(port, f"{theirs}/v1/chat/completions", there.api_key),
            begun(port, f"{theirs}/reward", key),
        ]
        for status, error in await asyncio.gather(*(asyncio.to_thread(answer, each) for each in waiting)):
            assert (status, error["code"], error["type"]) == (408, "request_timeout", "timeout_error"), error
        assert (await admin.get(f"/sessions/{here['session_id']}/turns")).json()["turns"] == there.turns() == []
        assert (await admin.get("/shards/silent")).status_code == 404
