"""HTTP/1.1 for the one kind of request that every turn makes: POST a body, read what comes, whole or as it comes.

A general client took an eighth of a turn's CPU; this takes a fifth of that. What it leaves out, no generation needs:
redirects, cookies, compression, proxies. `httptools` reads the responses. A request is written once: what to do where
it fails is the caller's to know.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

KEPT = 60.0
"""Seconds that a connection is kept unused."""
_MOST_BUFFERED = 1 << 20
"""Bytes that wait for their reader before no more are taken from the network."""


class Unreachable(Exception):
    """No connection could be made: nothing was sent."""


class BrokenOff(Exception):
    """The connection ended before the response did, or what came is no HTTP."""


class Connections:
    """Kept connections to one server."""

    def __init__(self, url: str, *, headers: Mapping[str, str], silence: float, connect_timeout: float) -> None:
        """`headers` go with every request. `silence`: seconds without a byte after which a response is given up."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ValueError(f"{url!r} is no http or https address")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._base = parts.path.rstrip("/")
        self._fixed = _lines({"Host": parts.netloc.rpartition("@")[2], **headers})
        self._silence = silence
        self._connect_timeout = connect_timeout
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """Send a request; returns when the response's head is there. `close` the response, whatever happens.

        Raises Unreachable, BrokenOff, and TimeoutError after the silence. Cancelled, it closes the connection.
        """
        connection = await self._connection()
        head = b"POST %b%b HTTP/1.1\r\n%b%bContent-Length: %d\r\n\r\n" % (
            self._base.encode(),
            path.encode(),
            self._fixed,
            _lines(headers),
            len(body),
        )
        connection.begin(head, body)
        try:
            await connection.until_head()
        except BaseException:
            connection.close()
            raise
        return Response(connection, self._idle)

    async def aclose(self) -> None:
        """Close all connections, those in use too."""
        for connection in list(self._open):
            connection.close()
        # They learn of it in the loop's next round.
        await asyncio.sleep(0)

    async def _connection(self) -> _Connection:
        # The newest first, so that those not needed age.
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await loop.create_connection(
                    lambda: _Connection(loop, silence=self._silence, gone=self._open.discard),
                    self._host,
                    self._port,
                    ssl=self._ssl,
                )
        except TimeoutError:
            raise Unreachable(f"no connection to {self._host}:{self._port} in {self._connect_timeout:g} s") from None
        except OSError as error:
            raise Unreachable(str(error)) from None
        self._open.add(connection)
        return connection


class Response:
    """What came back. Its body is read once: `read` or `pieces`, which raise BrokenOff and TimeoutError."""

    def __init__(self, connection: _Connection, idle: list[_Connection]) -> None:
        self._connection = connection
        self._idle = idle
        self.status = connection.status
        self.headers = connection.headers
        """By name in lower case."""

    @property
    def length(self) -> int | None:
        """Bytes of the body, where the head says."""
        value = self.headers.get("content-length", "")
        return int(value) if value.isdecimal() else None

    async def read(self) -> bytes:
        connection = self._connection
        pieces = connection.taken()
        while not connection.complete:
            await connection.until_more()
            pieces += connection.taken()
        return b"".join(pieces)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        connection = self._connection
        while True:
            if data := b"".join(connection.taken()):
                yield data
            elif connection.complete:
                return
            else:
                await connection.until_more()

    def close(self) -> None:
        """Keep the connection where the response is complete; close it else, which tells the server to stop."""
        if self._connection.release():
            self._idle.append(self._connection)


class _Connection(asyncio.Protocol):
    """One connection, and the exchange under way on it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, silence: float, gone: Callable[[_Connection], object]
    ) -> None:
        self._loop = loop
        self._silence = silence
        # No exchange's silence ends before the next look, so that beginning one sets no timer.
        self._longest_look = min(silence, KEPT)
        self._gone = gone
        self._parser = HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._busy = False
        self._heard = loop.time()
        self._error: tuple[type[Exception], str] | None = None
        self._forget()

    def _forget(self) -> None:
        """Make ready for the next exchange."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.complete = False
        self._has_head = False
        self._stays = False
        self._paused = False
        self._pieces: list[bytes] = []
        self._buffered = 0

    # An exchange

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def begin(self, head: bytes, body: bytes) -> None:
        assert self._transport is not None
        self._forget()
        self._busy = True
        self._heard = self._loop.time()
        self._transport.writelines((head, body))

    async def until_head(self) -> None:
        while not self._has_head:
            await self._woken()

    async def until_more(self) -> None:
        while not self._pieces and not self.complete:
            await self._woken()

    def taken(self) -> list[bytes]:
        """What of the body has come since the last call."""
        pieces, self._pieces, self._buffered = self._pieces, [], 0
        if self._paused and self._transport is not None and self.usable:
            self._paused = False
            self._heard = self._loop.time()
            self._transport.resume_reading()
        return pieces

    def release(self) -> bool:
        """End the exchange. Whether another one may follow; else the connection is closed."""
        if not self._busy:
            return False
        self._busy = False
        if self.complete and self._stays and self.usable:
            return True
        self.close()
        return False

    def close(self) -> None:
        self._busy = False
        if self._transport is not None:
            self._transport.abort()

    async def _woken(self) -> None:
        if self._error is not None:
            # Made anew: an error that is kept would keep the frames of those who got it.
            kind, message = self._error
            raise kind(message)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, kind: type[Exception], message: str) -> None:
        if self._error is None:
            self._error = (kind, message)
        self._wake()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._check()

    def data_received(self, data: bytes) -> None:
        if not self._busy or self.complete:
            self._stays = False
            if not self._busy:
                self.close()
            return
        self._heard = self._loop.time()
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._fail(BrokenOff, f"the response is no HTTP: {error}")
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # The parser holds this connection's methods: the two would wait for the collector of cycles together.
        del self._parser
        self._gone(self)
        if self._ends_with_connection and error is None and self._error is None:
            self.complete = True
            self._wake()
        else:
            self._fail(BrokenOff, f"the connection was lost: {error}" if error else "the connection was closed")

    # What the parser calls

    def on_message_begin(self) -> None:
        if self.complete:  # more than the one response that was asked for
            self._stays = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.complete:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        self.status = self._parser.get_status_code()
        if self.status >= 200:
            self._has_head = True
        else:  # 100 Continue and its like: the response comes behind it
            self.headers = {}

    def on_body(self, body: bytes) -> None:
        if self.complete:
            return
        self._pieces.append(body)
        self._buffered += len(body)
        if self._buffered > _MOST_BUFFERED and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._has_head and not self.complete:
            self.complete = True
            self._stays = self._parser.should_keep_alive()

    @property
    def _ends_with_connection(self) -> bool:
        """Whether the body is as long as the connection lasts: its head names no other end (RFC 9112, 6.3)."""
        named = "content-length" in self.headers or "transfer-encoding" in self.headers
        return self._has_head and not self.complete and not named

    # Time

    def _check(self) -> None:
        now = self._loop.time()
        if not self._busy:
            due = self._heard + KEPT
        elif self.complete or self._paused:
            due = now + self._silence
        else:
            due = self._heard + self._silence
        if now < due:
            self._timer = self._loop.call_at(min(due, now + self._longest_look), self._check)
            return
        if self._busy:
            self._fail(TimeoutError, f"nothing came for {self._silence:g} s")
        self.close()


def _lines(headers: Mapping[str, str]) -> bytes:
    """Header lines. Raises ValueError for what would be more than a line."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise ValueError("a header holds a line break")
    return lines.encode("latin-1")
