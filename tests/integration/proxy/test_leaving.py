"""Callers that leave in the middle of what is passed on to its owner leave nothing behind, at either proxy."""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save
from tests.fleets import AgentSession, Fleet, running_fleet
from tests.waiting import PATIENCE, eventually

LEAVERS = 300
AT_ONCE = 30
LARGE = 8 << 20
"""Bytes of an answer that no buffer on its way holds whole."""
RECEIVE_BUFFER = 16 << 10
SMALL = 2_000
"""Bytes that an answer to a chat call may have."""
EXPORT = 400_000
"""Bytes that the answer to an export may have."""
LONG: dict[str, Any] = {"messages": [{"role": "user", "content": "a long story " * 4_000}], "max_tokens": 5}
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER, with which a close is a reset."""
GONE = ("Traceback", "ASGI", "never retrieved", "Unclosed")
"""What a log says where a caller's leaving was not expected."""

Json = Any


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet whose engine takes 2 ms a token, so that there is a middle to leave in."""
    settings = {"sessions": {"retryGrace": "0s"}, "stream_comment": 0.02}
    options = ("--token-latency", "0.002")
    folder = tmp_path_factory.mktemp("leaving")
    with running_fleet(folder, proxies=2, engine_options=options, settings=settings) as running:
        yield running


def asked(method: str, path: str, key: str, body: bytes | None = None, *more: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: x", "connection: close", f"authorization: Bearer {key}", *more]
    lines += [] if body is None else [f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


class Requests:
    """Requests for what the other proxy owns, and how far a caller may go with each before it leaves."""

    def __init__(self, there: AgentSession, exported: AgentSession, tensor: bytes) -> None:
        self._there = there
        self._exported = exported
        self._tensor = tensor
        self.makers: tuple[Callable[[Random], tuple[bytes, int, int]], ...] = (
            self.plain_chat,
            self.streamed_chat,
            self.streamed_chat,
            self.large_answer,
            self.export,
            self.upload,
        )

    def plain_chat(self, random: Random) -> tuple[bytes, int, int]:
        return self._chat(random, stream=False)

    def streamed_chat(self, random: Random) -> tuple[bytes, int, int]:
        return self._chat(random, stream=True)

    def _chat(self, random: Random, *, stream: bool) -> tuple[bytes, int, int]:
        """(request, bytes of it that are sent, bytes of its answer that are read)"""
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 40, "stream": stream}
        whole = asked("POST", "/v1/chat/completions", self._there.api_key, json.dumps(body).encode())
        return whole, len(whole), random.randrange(SMALL)

    def large_answer(self, random: Random) -> tuple[bytes, int, int]:
        path = f"/shards/large?session_id={self._there.session_id}"
        whole = asked("GET", path, self._there.proxy.key)
        return whole, len(whole), random.randrange(LARGE)

    def export(self, random: Random) -> tuple[bytes, int, int]:
        """Passed on by its handler, which has read the body; each is a retry of the first."""
        body = json.dumps({"session_ids": [self._exported.session_id]}).encode()
        whole = asked("POST", "/export", self._exported.proxy.key, body, "idempotency-key: the only one")
        return whole, len(whole), random.randrange(EXPORT)

    def upload(self, random: Random) -> tuple[bytes, int, int]:
        path = f"/shards/upload-{random.randrange(4)}?session_id={self._there.session_id}"
        whole = asked("PUT", path, self._there.proxy.key, self._tensor)
        return whole, random.randrange(len(whole)), 0


async def leave(port: int, asking: tuple[bytes, int, int], *, random: Random) -> None:
    """Send some of a request, read some of its answer, and be gone: by a close, a reset, or an end and then a close."""
    whole, sent, read = asking
    loop = asyncio.get_running_loop()
    with socket.socket() as connection, contextlib.suppress(ConnectionError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", port))
        await loop.sock_sendall(connection, whole[:sent])
        while sent == len(whole) and read > 0:
            data = await loop.sock_recv(connection, min(read, 65_536))
            read -= len(data) if data else read
        way = random.randrange(3)
        if way == 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        elif way == 1:
            connection.shutdown(socket.SHUT_WR)
            await loop.sock_recv(connection, 1)  # the proxy has said more, or hung up


async def test_callers_that_leave_what_is_passed_on_leave_nothing_behind(two: Fleet) -> None:
    here, there = two.proxies[0], two.proxies[1].start_session(here=True)
    tensor = save({"x": np.zeros(LARGE, np.uint8)})
    url = f"{there.proxy.url}/shards/large?session_id={there.session_id}"
    httpx.put(url, content=tensor, headers={"authorization": f"Bearer {there.proxy.key}"}).raise_for_status()
    exported = two.proxies[1].start_session(here=True)
    assert exported.raw_chat(LONG).status_code == 200 and exported.post("close").status_code == 200
    requests, random, gate = Requests(there, exported, tensor), Random(12), asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with gate:
            await leave(here.port, random.choice(requests.makers)(random), random=random)

    async with asyncio.timeout(4 * PATIENCE):
        await asyncio.gather(*(one() for _ in range(LEAVERS)))
    await eventually(lambda: all(proxy.stats()["in_flight"] == 0 for proxy in two.proxies))
    for proxy in two.proxies:
        text = proxy.log.read_text()
        assert not [line for line in text.splitlines() if any(said in line for said in GONE)]
        assert proxy.audit()["balanced"]
    assert there.raw_chat({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}).status_code == 200
