"""uvicorn's HTTP within bounds: how large a request's head may be, how long it and the rest of a body may take.

An answer's head and the first of its body leave in one write: uvicorn writes them apart, and each write is a system
call and a packet of its own.

A client of HTTP/1.0 knows no chunks: uvicorn would send them all the same. An answer of unknown length ends for it with
the connection, and one that breaks off is reset, or it would look whole.

A client that closes its sending side behind its request is answered. One that has left looks the same, until something
is written to it: then its system resets the connection. So it is sent an interim response, of which any client of
HTTP/1.1 takes any number (RFC 9110, section 15.2). One of HTTP/1.0 knows none, and has left.
"""

import asyncio
import contextlib
import http
import socket
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, cast

import httptools
from starlette.types import Message, Receive, Scope, Send
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.http.connections import Connections, Taking, has_ended, in_the_system, was_reset
from rolloutfleet_proxy.http.departures import CLOSED
from rolloutfleet_proxy.http.errors import HeadTooLarge, MalformedRequest, RequestTimeout, answer_to
from rolloutfleet_proxy.http.headers import FROM_PEER, LENGTH, MORE_BYTES, MORE_HEADERS, PASSED, framing
from rolloutfleet_proxy.http.last_bytes import EMPTIED

HEAD_BYTES: Final = 64 << 10
"""Of a request's line and headers; of trailers, and of one chunk's extensions, too."""
HEADERS: Final = 1000
"""In a head, or in trailers. 64 KiB can hold 16,000 of them, which take megabytes as objects."""
HEAD_TIMEOUT: Final = 15.0
"""From a head's first byte, or from when a connection was made, to its last."""
REST_TIMEOUT: Final = 30.0
"""From an answer to the end of a body that it did not wait for."""
WRITE_TIMEOUT: Final = 60.0
"""In which a client must take some of the answer that waits for it."""
PEER_WRITE_TIMEOUT: Final = 600.0
"""The same for another proxy, which reads no faster than its own client, and in large pieces."""
MAX_PIPELINED: Final = 64
"""Requests of one connection that wait for the answers before them."""
LINGER_TIMEOUT: Final = 2.0
"""What still comes behind a refusal is read for so long: a closed socket would reset the connection, and the client
might never see the answer."""
RESET_INTERVAL: Final = 0.05
"""How often a client that has closed its sending side is looked at, whether it has left."""

_HEAD = b"HTTP/1.1 "
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


class _Reading(Enum):
    """What comes next over a connection."""

    NOTHING = auto()
    """A new request, or none."""
    HEAD = auto()
    BODY = auto()


class HttpProtocol(HttpToolsProtocol):
    """One connection of a client."""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], *, connections: Connections
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._others = connections
        self._reading = _Reading.NOTHING
        self._since = 0.0
        """When the client began to owe what it owes now, or to rest."""
        self._used = False
        """Whether a request has ever been answered here."""
        self._unparsed = 0
        """Bytes since the parser last came to the end of a head, a piece of a body or a request."""
        self._advanced = False
        self._from_peer = False
        """Whether the request has come from another proxy, or says so: then its head may be a little larger."""
        self._piece = 0
        """Bytes that the parser was given last."""
        self._since_begun = 0
        """No fewer than the newest request has come to: what came in one piece with its beginning counts as well."""
        self._deaf = False
        """It was refused: what still comes is not looked at."""
        self._answering: RequestResponseCycle | None = None
        self._last: DomainError | None = None
        """What it was refused with, while answers before it are under way."""
        self._framing: list[tuple[bytes, bytes]] = []
        """Headers that say how long the body is of a request that asks for another protocol."""
        self._replaying = False
        """The parser is told these headers; the app has them."""
        self._lost = False
        """The client has left, as far as the app is told."""
        self._half_closed = False
        """The client has closed its sending side, and is answered."""
        self._emptying: asyncio.Future[bool] | None = None
        """Somebody waits until all that was written has left."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._joining = _Joining(cast(asyncio.Transport, transport), self.loop)
        super().connection_made(cast(asyncio.Transport, self._joining))
        self._taking = Taking()
        self.headers = []
        self._others.begins(self)
        self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.ends(self)
        self._lose()  # uvicorn tells the newest request alone, which may wait behind the one that is being answered.
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection of a client that may wait for its answer."""
        if self._half_closed:
            return True  # Reading has begun again, as the app asked for it.
        answering = self._answering
        if answering is None or answering.response_complete or not self._awaits(answering):
            return False
        self._half_closed = True
        if not answering.response_started:
            self.transport.write(_INTERIM)
        self.loop.call_soon(self._look_whether_reset)
        return True

    def _awaits(self, answering: RequestResponseCycle) -> bool:
        """Whether a client that will send no more can wait for this answer, and can be told from one that left."""
        whole = self._reading is _Reading.NOTHING and not self._unparsed
        return whole and answering.scope["http_version"] != "1.0" and sys.platform == "linux"

    def _look_whether_reset(self) -> None:
        """Until the client has left, or has taken its answer."""
        if self.transport.is_closing():
            return
        if was_reset(self.transport):
            self.transport.abort()
            self._lose()
            return
        if not self.transport.get_write_buffer_size() and not in_the_system(self.transport):
            self._emptied(whole=True)
            if self._answering is None or self._answering.response_complete:
                self.transport.close()
                return
        self.loop.call_later(RESET_INTERVAL, self._look_whether_reset)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        if cycle.scope["http_version"] == "1.0":
            app = cast(ASGI3Application, _WithoutChunks(cycle, app))
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._reading is _Reading.NOTHING and not self._unparsed:
            self._since = self.loop.time()
        try:
            if len(data) <= self._room():
                self._parse(data)
            else:
                self._parse_in_parts(data)
        except DomainError as refused:
            self._refuse(refused)

    def on_message_begin(self) -> None:
        if self._replaying:
            return
        super().on_message_begin()
        scope = cast(dict[str, Any], self.scope)
        scope[EMPTIED], scope[CLOSED] = self.emptied, self.closed
        self._reading, self._from_peer = _Reading.HEAD, False
        self._since_begun = self._piece

    def on_url(self, url: bytes) -> None:
        if not self._replaying:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._replaying:
            return
        super().on_header(name, value)
        self._from_peer = self._from_peer or self.headers[-1][0] in PASSED

    def on_headers_complete(self) -> None:
        if self._replaying:
            return
        if self._since_begun > self._most() and self._head_bytes() > self._most():
            raise _too_large()
        self._check_number()
        if len(self.pipeline) >= MAX_PIPELINED:
            raise MalformedRequest(f"More than {MAX_PIPELINED} requests were sent ahead of their answers.")
        self._others.leaves(self)
        if self.parser.should_upgrade():
            self._framing = list(framing(self.headers).items())
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

    def closed(self) -> bool:
        """Look whether the client has closed the connection. Whoever answers is told now, as if the loop had read of
        it. What was written to a client that still reads is not kept from it."""
        if not self._lost and has_ended(self.transport):
            self.transport.close()
            self._lose()
        return self._lost

    async def emptied(self) -> bool:
        """Wait until all that was written is out of the process; False where the connection was lost before."""
        if not self._lost and self.transport.get_write_buffer_size():
            await asyncio.sleep(0)  # It is written at the end of the loop's round, and mostly all taken at once.
        if self._lost or not (self._half_closed or self.transport.get_write_buffer_size()):
            return not self._lost
        if self._emptying is None:
            self._emptying = self.loop.create_future()
            self.transport.set_write_buffer_limits(high=0)  # so that it says when nothing is left
        return await self._emptying

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._emptying is not None and not self._half_closed and not self.transport.get_write_buffer_size():
            self.transport.set_write_buffer_limits()
            self._emptied(whole=True)

    def _lose(self) -> None:
        """Tell the app that its client has left."""
        self._lost = True
        self._emptied(whole=False)
        answering = self._answering
        if answering is not None and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()
        self.flow.resume_writing()

    def _emptied(self, *, whole: bool) -> None:
        emptying, self._emptying = self._emptying, None
        if emptying is not None and not emptying.done():
            emptying.set_result(whole)

    def look(self, now: float) -> None:
        waited = now - self._since
        if self._deaf or self.transport.is_closing():
            return
        if self._reading is _Reading.HEAD or self._unparsed:
            if waited > HEAD_TIMEOUT:
                self._refuse(RequestTimeout(f"The request's line and headers did not come within {HEAD_TIMEOUT:g} s."))
        elif waited > self._idle_timeout():
            self.transport.close()

    def is_unread(self, now: float) -> bool:
        """Also while it is being closed: that waits for what was written to be taken."""
        waiting = self.transport.get_write_buffer_size()
        if not waiting:
            return False
        taken = self._joining.written - waiting - in_the_system(self.transport)
        from_peer = self.scope is not None and cast(dict[str, Any], self.scope).get(FROM_PEER, False)
        timeout = PEER_WRITE_TIMEOUT if from_peer else WRITE_TIMEOUT
        return self._taking.nothing_for(taken, now) > timeout

    def give_way(self) -> None:
        # Not closed but aborted: what the client does not take of its last answer must not keep the descriptor.
        self.transport.abort()

    def _idle_timeout(self) -> float:
        """Seconds that it may stay as it is, with no head under way."""
        if self._reading is _Reading.BODY:
            return REST_TIMEOUT
        return self.timeout_keep_alive if self._used else HEAD_TIMEOUT

    def _rest(self) -> None:
        self._since = self.loop.time()
        self._others.rests(self)

    def _parse_in_parts(self, data: bytes) -> None:
        left = memoryview(data)
        while left and not self.transport.is_closing():
            room = self._room()
            self._parse(left[:room])
            left = left[room:]

    def _parse(self, data: bytes | memoryview) -> None:
        """Raises DomainError for what is no HTTP, or too much of it."""
        self._advanced = False
        self._piece = len(data)
        self._since_begun += self._piece
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, DomainError):
                raise error.__context__ from None
            raise MalformedRequest("This is not an HTTP/1.1 request.") from None
        self._unparsed = 0 if self._advanced else self._unparsed + self._piece
        if self._room() <= 0:
            raise _too_large()
        self._check_number()

    def _room(self) -> int:
        """Bytes that may come yet before the parser comes to the next end."""
        return self._most() - self._unparsed

    def _most(self) -> int:
        """Bytes that the head may have."""
        return HEAD_BYTES + (MORE_BYTES if self._from_peer else 0)

    def _check_number(self) -> None:
        """Raises HeadTooLarge."""
        if len(self.headers) > HEADERS + (MORE_HEADERS if self._from_peer else 0):
            raise HeadTooLarge(f"The request has more than the {HEADERS} headers that are allowed.")

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
            self._replaying = False

    def _refuse(self, answer: DomainError) -> None:
        """Answer in its turn, behind those before it, and let go of what still comes."""
        self._deaf = True
        self._others.refused(answer.code)
        if self.transport.is_closing():
            return
        answering = self._answering
        if self._reading is _Reading.BODY and self.pipeline:
            self.pipeline.popleft()  # It is the newest, and nobody has begun with it.
        elif self._reading is _Reading.BODY and answering is not None:
            self._refuse_rest(answering, answer)
            return
        if answering is None or answering.response_complete:
            self._say_last(answer)
        else:
            self._last = answer

    def _refuse_rest(self, answering: RequestResponseCycle, answer: DomainError) -> None:
        """It is the rest of a body that the app may be waiting for."""
        if answering.response_complete:
            self._linger()
        elif answering.response_started:
            self.transport.close()
        else:
            # For the app, which waits for what never ends, the client has left.
            answering.disconnected = True
            answering.message_event.set()
            self._say_last(answer)

    def _say_last(self, answer: DomainError) -> None:
        self.transport.write(_raw(answer))
        self._linger()

    def _linger(self) -> None:
        self._others.rests(self)
        self.flow.resume_reading()
        self.transport.write_eof()
        self.loop.call_later(LINGER_TIMEOUT, self.transport.close)

    def _unsupported_upgrade_warning(self) -> None:
        """Nobody here can mend what clients ask for."""


def _too_large() -> DomainError:
    return HeadTooLarge(f"The request's line and headers are larger than the {HEAD_BYTES} bytes that are allowed.")


def _raw(answer: DomainError) -> bytes:
    status, headers, body = answer_to(answer)
    head = b"HTTP/1.1 %d %s\r\n" % (status, http.HTTPStatus(status).phrase.encode())
    return b"".join((head, *(b"%s: %s\r\n" % header for header in headers), b"\r\n", body))


@dataclass(frozen=True, slots=True)
class _WithoutChunks:
    """ASGI: an app whose answer to a client of HTTP/1.0 is told by its length, or by the connection's end."""

    cycle: RequestResponseCycle
    app: ASGI3Application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        to_its_end = False

        async def unchunked(message: Message) -> None:
            nonlocal to_its_end
            if message["type"] == "http.response.start":
                to_its_end = LENGTH not in framing(message["headers"])
                self.cycle.chunked_encoding = False if to_its_end else None
            elif to_its_end:
                self.cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        try:
            await self.app(cast(Any, scope), cast(Any, receive), cast(Any, unchunked))
        finally:
            if to_its_end and not self.cycle.response_complete and not self.cycle.transport.is_closing():
                _reset(self.cycle.transport)


def _reset(transport: asyncio.Transport) -> None:
    """Close a connection so that its reader gets an error, and what was written last may be lost."""
    with contextlib.suppress(OSError):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class _Joining:
    """A transport that keeps a head until a body follows, but not beyond the loop's current round."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None
        self.written = 0
        """Bytes so far."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self.written += len(data)
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.writelines((head, data))
        elif data.startswith(_HEAD):
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        head, self._head = self._head, None
        if head is not None and not self._transport.is_closing():
            self._transport.write(head)
