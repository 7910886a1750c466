"""uvicorn's HTTP within bounds, for every server here: how large a request's head may be, how long it and the rest of a
body may take.

A client of HTTP/1.0 knows no chunks: uvicorn would send them all the same. An answer of unknown length ends for it with
the connection, and one that breaks off is reset, or it would look whole.
"""

import asyncio
import contextlib
import http
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, cast

import httptools
import uvicorn
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

HEAD_BYTES: Final = 64 << 10
"""Of a request's line and headers; of trailers, and of one chunk's extensions, too."""
HEADERS: Final = 1000
"""In a head, or in trailers. 64 KiB can hold 16,000 of them, which take megabytes as objects."""
HEAD_TIMEOUT: Final = 15.0
"""From a head's first byte, or from when a connection was made, to its last."""
REST_TIMEOUT: Final = 30.0
"""From an answer to the end of a body that it did not wait for."""
MAX_PIPELINED: Final = 64
"""Requests of one connection that wait for the answers before them."""
LINGER_TIMEOUT: Final = 2.0
"""Seconds for which bytes behind a refusal are read: a closed socket would reset the connection, and the client might
never see the answer."""
TICKS_A_LOOK: Final = 10
"""uvicorn ticks ten times a second."""

_LENGTH: Final = b"content-length"
_FRAMING: Final = frozenset((_LENGTH, b"transfer-encoding"))

Answer = tuple[int, list[tuple[bytes, bytes]], bytes]
"""Status, headers in ASGI's form, and body."""


class Refused(Exception):
    """A request that never reaches the app, with the status that says why: 400, 408 or 431."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class BoundedServer(uvicorn.Server):
    """uvicorn's server, which looks at its connections once a second. Signals are the owner's."""

    def look(self) -> None:
        """End the connections whose clients take too long."""
        now = asyncio.get_running_loop().time()
        for connection in list(self.server_state.connections):
            cast(BoundedProtocol, connection).look(now)

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_A_LOOK == 0:
            self.look()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Reading(Enum):
    """The part of a request that comes next over a connection."""

    NOTHING = auto()
    """A new request, or none."""
    HEAD = auto()
    BODY = auto()


class BoundedProtocol(HttpToolsProtocol):
    """One connection of a client."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._reading = _Reading.NOTHING
        self._since = 0.0
        """When the client began to owe what it owes now, or to rest."""
        self._used = False
        """True once a request has been answered here."""
        self._unparsed = 0
        """Bytes since the parser last came to the end of a head, a piece of a body or a request."""
        self._advanced = False
        self._piece = 0
        """Bytes that the parser was given last."""
        self._since_begun = 0
        """No fewer than the newest request has come to: what came in one piece with its beginning counts as well."""
        self._deaf = False
        """It was refused: what still comes is not looked at."""
        self._answering: RequestResponseCycle | None = None
        self._last: Refused | None = None
        """Why it was refused, while answers before it are under way."""
        self._framing: list[tuple[bytes, bytes]] = []
        """Headers that say how long the body is of a request that asks for another protocol."""
        self._replaying = False
        """The parser is told these headers; the app has them."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self.headers = []
        self._rest()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        if cycle.scope["http_version"] == "1.0":
            app = _WithoutChunks(cycle, app)
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._between_requests():
            self._since = self.loop.time()
        try:
            if len(data) <= HEAD_BYTES - self._unparsed:
                self._parse(data)
            else:
                self._parse_in_parts(data)
        except Refused as refused:
            self._refuse(refused)

    def on_message_begin(self) -> None:
        if self._replaying:
            return
        super().on_message_begin()
        self._reading = _Reading.HEAD
        self._since_begun = self._piece

    def on_headers_complete(self) -> None:
        if self._replaying:
            return
        if self._since_begun > HEAD_BYTES and self._head_bytes() > self._most_bytes():
            raise _too_large()
        self._check_number()
        if len(self.pipeline) >= MAX_PIPELINED:
            raise Refused(400, f"More than {MAX_PIPELINED} requests were sent ahead of their answers.")
        if self.parser.should_upgrade():
            self._framing = [header for header in self.headers if header[0] in _FRAMING]
        super().on_headers_complete()
        self._reading, self._advanced = _Reading.BODY, True
        # What is called a header from here on is a trailer, and never reaches the request.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._advanced = True

    def on_message_complete(self) -> None:
        if self._framing:
            return  # Only for the parser: its body comes yet.
        super().on_message_complete()
        self._reading, self._advanced = _Reading.NOTHING, True
        if self.cycle.response_complete:
            self._rest()

    def on_response_complete(self) -> None:
        """As uvicorn's, without its timer for each connection."""
        self.server_state.total_requests += 1
        self._used = True
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._last is not None:
            self._say_last(self._last)
        else:
            self._rest()

    def look(self, now: float) -> None:
        """End it where its client has kept the server waiting for too long; `now` is the loop's time."""
        waited = now - self._since
        if self._deaf or self.transport.is_closing() or self._in_flight():
            return
        if self._reading is _Reading.HEAD or self._unparsed:
            if waited > HEAD_TIMEOUT:
                self._refuse(Refused(408, f"The request's line and headers did not come within {HEAD_TIMEOUT:g} s."))
        elif waited > self._idle_timeout():
            self.transport.close()

    def _idle_timeout(self) -> float:
        """Seconds that it may stay as it is, with no head under way."""
        if self._reading is _Reading.BODY:
            return REST_TIMEOUT
        return self.timeout_keep_alive if self._used else HEAD_TIMEOUT

    def _in_flight(self) -> bool:
        return self._answering is not None and not self._answering.response_complete

    def _between_requests(self) -> bool:
        """Return whether all that came so far is whole requests."""
        return self._reading is _Reading.NOTHING and not self._unparsed

    def _rest(self) -> None:
        """It is new, or its last request has been answered."""
        self._since = self.loop.time()

    def _parse_in_parts(self, data: bytes) -> None:
        left = memoryview(data)
        while left and not self.transport.is_closing():
            room = self._room()
            self._parse(left[:room])
            left = left[room:]

    def _parse(self, data: bytes | memoryview) -> None:
        """Raises Refused for what is no HTTP, or too much of it."""
        self._advanced = False
        self._piece = len(data)
        self._since_begun += self._piece
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, Refused):
                raise error.__context__ from None
            raise Refused(400, "This is not an HTTP/1.1 request.") from None
        self._unparsed = 0 if self._advanced else self._unparsed + self._piece
        if self._unparsed >= HEAD_BYTES and self._room() <= 0:
            raise _too_large()
        self._check_number()

    def _room(self) -> int:
        """Bytes that may come yet before the parser comes to the next end."""
        return self._most_bytes() - self._unparsed

    def _most_bytes(self) -> int:
        """The limit of a head's bytes, asked for where there are more than HEAD_BYTES."""
        return HEAD_BYTES

    def _most_headers(self) -> int:
        """The limit of a head's headers, asked for where there are more than HEADERS."""
        return HEADERS

    def _check_number(self) -> None:
        """Raises Refused."""
        if len(self.headers) > HEADERS and len(self.headers) > self._most_headers():
            raise Refused(431, f"The request has more than the {HEADERS} headers that are allowed.")

    def _head_bytes(self) -> int:
        """Of the head that has just come to its end, with no more space in it than must be."""
        line = len(self.parser.get_method()) + len(self.url) + len("  HTTP/1.1\r\n")
        return line + sum(len(name) + len(value) + len(":\r\n") for name, value in self.headers) + len("\r\n")

    def _feed(self, data: bytes | memoryview) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._pass_over()

    def _pass_over(self) -> None:
        """Go on as if no other protocol had been asked for, as RFC 9110, section 7.8, lets a server do.

        The parser takes all behind such a head for the other protocol. So a fresh one is told how long the body is.
        """
        self.parser = httptools.HttpRequestParser(self)
        lines, self._framing = self._framing, []
        if lines:
            self._replaying = True
            head = [b"POST / HTTP/1.1", *(name + b": " + value for name, value in lines), b"", b""]
            self.parser.feed_data(b"\r\n".join(head))
            self._replaying, self.headers = False, []

    def _refuse(self, refused: Refused) -> None:
        """Answer in its turn, behind those before it, and let go of what still comes."""
        self._deaf = True
        if self.transport.is_closing():
            return
        answering = self._answering
        if self._reading is _Reading.BODY and self.pipeline:
            self.pipeline.popleft()  # It is the newest, and nobody has begun with it.
        elif self._reading is _Reading.BODY and answering is not None:
            self._refuse_rest(answering, refused)
            return
        if answering is None or answering.response_complete:
            self._say_last(refused)
        else:
            self._last = refused

    def _refuse_rest(self, answering: RequestResponseCycle, refused: Refused) -> None:
        """It is the rest of a body that the app may be waiting for."""
        if answering.response_complete:
            self._linger()
        elif answering.response_started:
            self.transport.close()
        else:
            # For the app, which waits for what never ends, the client has left.
            answering.disconnected = True
            answering.message_event.set()
            self._say_last(refused)

    def _say_last(self, refused: Refused) -> None:
        self.transport.write(_raw(self._answer(refused)))
        self._linger()

    def _answer(self, refused: Refused) -> Answer:
        body = str(refused).encode()
        length = (_LENGTH, b"%d" % len(body))
        return refused.status, [(b"content-type", b"text/plain"), length, (b"connection", b"close")], body

    def _linger(self) -> None:
        self._rest()
        self.flow.resume_reading()
        self.transport.write_eof()
        self.loop.call_later(LINGER_TIMEOUT, self.transport.close)

    def _unsupported_upgrade_warning(self) -> None:
        """Nobody here can mend what clients ask for."""


def _too_large() -> Refused:
    return Refused(431, f"The request's line and headers are larger than the {HEAD_BYTES} bytes that are allowed.")


def _raw(answer: Answer) -> bytes:
    status, headers, body = answer
    head = b"HTTP/1.1 %d %s\r\n" % (status, http.HTTPStatus(status).phrase.encode())
    return b"".join((head, *(b"%s: %s\r\n" % header for header in headers), b"\r\n", body))


@dataclass(frozen=True, slots=True)
class _WithoutChunks:
    """ASGI: an app whose answer to a client of HTTP/1.0 is told by its length, or by the connection's end."""

    cycle: RequestResponseCycle
    app: ASGI3Application

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        to_its_end = False

        async def unchunked(message: ASGISendEvent) -> None:
            nonlocal to_its_end
            if message["type"] == "http.response.start":
                to_its_end = _LENGTH not in dict(message["headers"])
                self.cycle.chunked_encoding = False if to_its_end else None
            elif message["type"] == "http.response.body" and to_its_end:
                self.cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, unchunked)
        finally:
            if to_its_end and not self.cycle.response_complete and not self.cycle.transport.is_closing():
                _reset(self.cycle.transport)


def _reset(transport: asyncio.Transport) -> None:
    """Close a connection so that its reader gets an error, and what was written last may be lost."""
    with contextlib.suppress(OSError):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
