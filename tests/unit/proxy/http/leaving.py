"""A client that leaves while it is answered, before the event loop has read that it did, over whatever connection."""

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

import uvicorn
from tests.waiting import until

from rolloutfleet_proxy.http.connections import Connections
from rolloutfleet_proxy.http.departures import Closed, closed_of
from rolloutfleet_proxy.http.last_bytes import emptied_of
from rolloutfleet_proxy.http.protocol import HttpProtocol

LARGE: Final = 32 << 20
"""Bytes, more than the system takes ahead of a client."""

Leave = Callable[[socket.socket], object]


class Answering:
    """Begins an answer of `size` bytes to the one request that comes, never ends it, and notes what it is told."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.closed: Closed = lambda: False
        self.begun = asyncio.Event()
        self.has_left = False
        self.emptied: bool | None = None
        self._config = uvicorn.Config(self, ws="none", lifespan="off", access_log=False)
        self._config.load()
        self.state = uvicorn.server.ServerState()

    def protocol(self) -> asyncio.Protocol:
        return HttpProtocol(self._config, self.state, {}, connections=Connections())

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.closed = closed_of(scope)
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(self.size), "more_body": True})
        emptying = asyncio.ensure_future(emptied_of(scope)())
        self.begun.set()
        self.has_left = (await receive())["type"] == "http.disconnect"
        self.emptied = await emptying


def close(client: socket.socket) -> None:
    client.close()


def close_one_way(client: socket.socket) -> None:
    client.shutdown(socket.SHUT_WR)


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


async def leaves(answering: Answering, client: socket.socket, leave: Leave) -> None:
    """Have a connected client ask and leave, and say what is to be known of it."""
    loop = asyncio.get_running_loop()
    with client:
        await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await answering.begun.wait()
        assert not answering.closed()
        leave(client)
        until(answering.closed)  # The loop stands still, and reads of nothing meanwhile.
        assert not answering.has_left
        await asyncio.wait(answering.state.tasks)
        assert answering.has_left
        assert answering.size < LARGE or not answering.emptied
        if leave is close_one_way:
            got = 0
            while piece := await loop.sock_recv(client, 1 << 20):
                got += len(piece)
            assert got > answering.size, "what was written is not kept from it"
    assert answering.closed()
