"""The protocol of clients' connections in front of an app, and clients that send it whatever bytes they like."""

import asyncio
from typing import Any, Final

import uvicorn
from tests.unit.raw_client import Client

from rolloutfleet_proxy.http.connections import Connections
from rolloutfleet_proxy.http.departures import Closed, closed_of
from rolloutfleet_proxy.http.headers import settle
from rolloutfleet_proxy.http.last_bytes import emptied_of
from rolloutfleet_proxy.http.protocol import HttpProtocol

GET: Final = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


class App:
    """Answers 200 with what it was asked, once it has the whole body; `/early` before, `/held` when told to go on.

    `/open` answers at once, and says that this was all when told to go on. `large` gets much. What begins with `/last`
    notes whether the last byte of its answer left; `/last-held` answers when told to go on, whoever has left meanwhile.
    Where a path ends with `stream` or `cut`, the answer says no length; of `cut` there is no end.
    """

    def __init__(self, *, large: int) -> None:
        self.large = large
        self.asked: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.left = 0
        self.closed: Closed = lambda: False
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.has_left: asyncio.Queue[bool] = asyncio.Queue()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.closed = closed_of(scope)
        self.begun.set()
        settle(scope, lambda voucher, key: voucher == "a peer's")
        if scope["path"].endswith("held"):
            await self.go_on.wait()
        if scope["path"] not in ("/early", "/last-held") and not await self._whole(receive):
            self.left += 1
            return
        # Read here and not before: what comes as a trailer has come by now.
        self.asked.append({name.decode(): value.decode() for name, value in scope["headers"]})
        if scope["path"].endswith(("stream", "cut")):
            await self._stream(send, cut=scope["path"].endswith("cut"))
            return
        body = bytes(self.large) if "large" in scope["path"] else b"ok"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body, "more_body": scope["path"] == "/open"})
        if scope["path"] == "/open":
            await self.go_on.wait()
            await send({"type": "http.response.body", "body": b""})
        if scope["path"].startswith("/last"):
            self.has_left.put_nowait(await emptied_of(scope)())

    async def _stream(self, send: Any, *, cut: bool) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"one", b"two"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        if not cut:
            await send({"type": "http.response.body", "body": b""})

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
    """Its `protocol` is for whoever accepts connections at `address`."""

    def __init__(self, *, large: int) -> None:
        """`large` are the bytes of a large answer."""
        self.app = App(large=large)
        self.address: tuple[str, int] = ("", 0)
        self.clients: list[Client] = []
        self.refused: list[str] = []
        self.has_refused = asyncio.Event()
        self.connections = Connections(refused=self._refuses)
        self._config = uvicorn.Config(self.app, ws="none", lifespan="off", access_log=False, timeout_keep_alive=75)
        self._config.load()
        self.state = uvicorn.server.ServerState()

    def protocol(self) -> asyncio.Protocol:
        return HttpProtocol(self._config, self.state, {}, connections=self.connections)

    def _refuses(self, code: str) -> None:
        self.refused.append(code)
        self.has_refused.set()

    async def connect(self, first: bytes = b"") -> Client:
        client = await Client.connect(self.address)
        self.clients.append(client)
        if first:
            await client.send(first)
        return client

    async def close(self) -> None:
        for connection in list(self.state.connections):
            connection.transport.abort()
        for client in self.clients:
            await client.close()
