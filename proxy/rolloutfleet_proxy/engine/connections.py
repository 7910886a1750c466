"""HTTP for the one kind of request that every turn makes: POST a body, read what comes, whole or as it comes.

aiohttp's client, and what can go wrong with it said in three words: nothing was sent (Unreachable), nothing came for
too long (TimeoutError), or it broke off (BrokenOff). A request is written once: what to do where it fails is the
caller's to know.
"""

from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler

from rolloutfleet.http_failures import failure_in_words

KEPT = 60.0
"""Seconds that a connection is kept unused."""
CONNECT_TIMEOUT = 1.0
"""Seconds for a connection to be made: one to a node that is lost is tried again soon, and may go to another."""
DEAD_AFTER = 20
"""Seconds after which a connection to an unresponsive host, such as a lost node, is given up."""
_PROBES = 3
MOST_INTERIM = 16
"""Interim responses (1xx) to one request at the most: HTTP sets no bound, and aiohttp none either."""
_HEAD_AT_ONCE = 1 << 12
"""Bytes of heads that are read in one go: the shortest interim response has 17."""
_WRITTEN_AT_ONCE = 1 << 16
_MOST_BUFFERED = 1 << 18
"""Bytes that wait for their reader before no more are taken from the network."""


class Unreachable(Exception):
    """No connection could be made: nothing was sent. It says why in our words, as `BrokenOff` does."""


class BrokenOff(Exception):
    """The connection ended before the response did, or what came is not HTTP."""


class _Bounded(ResponseHandler):
    """A connection that is closed for too many interim responses.

    It holds a response until it is read, and the response its connection: what was never read is let go at the end,
    or a collection of garbage would have to find the two.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._interim = 0
        self._answered = False

    def set_response_params(self, **params: Any) -> None:
        self._interim, self._answered = 0, False
        super().set_response_params(**params)

    def close(self) -> None:
        super().close()
        self._buffer.clear()

    def abort(self) -> None:
        super().abort()
        self._buffer.clear()

    def data_received(self, data: bytes) -> None:
        while len(data) > _HEAD_AT_ONCE and not self._answered and self._parser is not None:
            super().data_received(data[:_HEAD_AT_ONCE])
            data = data[_HEAD_AT_ONCE:]
            if self.exception() is not None:
                return
        super().data_received(data)

    def feed_data(self, data: Any, size: int = 0) -> None:
        code = data[0].code
        self._interim += 100 <= code < 200 and code != 101
        self._answered = self._answered or code >= 200
        if self._interim <= MOST_INTERIM:
            super().feed_data(data, size)
        elif self.transport is not None and not self.transport.is_closing():
            self.set_exception(aiohttp.ClientPayloadError("too many interim responses"))
            self.transport.close()


class Connector(aiohttp.TCPConnector):
    """As aiohttp's, whose connections bound what comes before a response."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        handler: type[ResponseHandler] = _Bounded
        self._factory = partial(handler, loop=self._loop)

    async def _create_connection(self, *asked: Any) -> ResponseHandler:
        """As aiohttp's. Of a failure it empties the frames: some hold it in turn, and with it the request's body, which
        only a collection of garbage would free."""
        try:
            return await super()._create_connection(*asked)
        except (aiohttp.ClientError, OSError) as failure:
            error: BaseException | None = failure
            while error is not None:
                traceback.clear_frames(error.__traceback__)
                error = error.__cause__ or error.__context__
            raise


def new_session(
    *,
    kept: float = KEPT,
    dns_kept: int = 10,
    skipped: tuple[str, ...] = (),
    reads_promptly: bool = False,
    **options: Any,
) -> aiohttp.ClientSession:
    """aiohttp's client without its own additions to requests and answers; `skipped` are further headers of those.

    Unused connections are `kept` for so many seconds, and addresses for `dns_kept`. A dead one is given up after
    `DEAD_AFTER` seconds; one with unacknowledged bytes only where the server `reads_promptly`, since
    another may leave a body unread on purpose.
    """
    make = partial(_keepalive_socket, reads_promptly=reads_promptly)
    return aiohttp.ClientSession(
        connector=Connector(limit=0, keepalive_timeout=kept, ttl_dns_cache=dns_kept, socket_factory=make),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", *skipped),
        auto_decompress=False,
        trust_env=False,
        **options,
    )


def _keepalive_socket(address: aiohttp.AddrInfoType, *, reads_promptly: bool) -> socket.socket:
    """A TCP socket with keep-alive probes and, for a server that `reads_promptly`, a time limit for unacknowledged
    bytes, as far as the system has these options of tcp(7)."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    each = DEAD_AFTER // (_PROBES + 1)
    options = {"TCP_KEEPIDLE": each, "TCP_KEEPINTVL": each, "TCP_KEEPCNT": _PROBES}
    if reads_promptly:
        options["TCP_USER_TIMEOUT"] = DEAD_AFTER * 1000
    for name, value in options.items():
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


class _Pieces(aiohttp.Payload):
    """A body in pieces, which are written as they are."""

    _autoclose = True

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__(pieces)
        self._size = sum(len(piece) for piece in pieces)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._value).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        for piece in self._value:
            for start in range(0, len(piece), _WRITTEN_AT_ONCE):
                await writer.write(memoryview(piece)[start : start + _WRITTEN_AT_ONCE])

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """All of it: its length is the one that the request says."""
        await self.write(writer)


class Connections:
    """Kept connections to one server, and through `session` to any other."""

    def __init__(self, url: str, *, silence: float) -> None:
        """Made within a running loop. `silence`: seconds without a byte after which a response is given up."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ValueError(f"{url!r} is not an http or https address")
        self._url = url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=silence)
        self._untimed = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
        self.session = new_session(reads_promptly=True, read_bufsize=_MOST_BUFFERED)

    async def post(
        self, path: str, body: Sequence[bytes], headers: Mapping[str, str], *, timed: bool = True
    ) -> Response:
        """Send a request, whose body is in pieces; returns when the response's head is there. `close` the response,
        whatever happens.

        Redirects are not followed: body and key are for this server alone. Unless `timed` silence is borne.
        Raises Unreachable, BrokenOff, TimeoutError after the silence, and ValueError for a header of several lines.
        Cancelled, it closes the connection.
        """
        try:
            response = await self.session.post(
                self._url + path,
                data=_Pieces(body),
                headers=headers,
                timeout=self._timeout if timed else self._untimed,
                allow_redirects=False,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(failure_in_words(error)) from None
        except TimeoutError:
            raise TimeoutError from None
        except (aiohttp.ClientError, OSError) as error:
            raise BrokenOff(failure_in_words(error)) from None
        return Response(response)

    async def aclose(self) -> None:
        """Close all connections, those in use too."""
        await self.session.close()


class Response:
    """What came back. Its body is read once: `read` or `pieces`, which raise BrokenOff and TimeoutError."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        """By name, whose case does not count."""

    @property
    def length(self) -> int | None:
        """Bytes of the body, where the head says."""
        return self._response.content_length

    async def read(self) -> bytes:
        try:
            return await self._response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise _of_reading(error) from None

    async def pieces(self, *, rest: Callable[[], float] = lambda: 0.0) -> AsyncIterator[bytes]:
        """The body as it comes.

        What follows in quick succession is left with the network for `rest()` seconds at a time, and comes joined. The
        first two pieces are not held up, nor one that comes later than that after the one before it.
        """
        clock = asyncio.get_running_loop().time
        before = float("-inf")
        try:
            while data := await self._response.content.readany():
                since, before = before, clock()
                yield data
                if before - since < 2 * (seconds := rest()):
                    self._rest(seconds)
        except (aiohttp.ClientError, OSError) as error:
            raise _of_reading(error) from None

    def _rest(self, seconds: float) -> None:
        """Take nothing from the network for a while."""
        connection = self._response.connection
        transport = None if connection is None else connection.transport
        if transport is None or transport.is_closing() or not transport.is_reading():
            return  # all is here, or enough of it
        transport.pause_reading()
        asyncio.get_running_loop().call_later(seconds, _go_on, transport)

    def close(self) -> None:
        """Close the connection where the response is not complete, which tells the server to stop.

        Of what was read to its end the connection is kept already.
        """
        self._response.close()


def _go_on(transport: asyncio.ReadTransport) -> None:
    if not transport.is_closing():
        transport.resume_reading()


def _of_reading(error: Exception) -> Exception:
    # aiohttp's response keeps its error, and the error's frames would keep the response, and the call with it.
    error.__traceback__ = None
    return TimeoutError() if isinstance(error, TimeoutError) else BrokenOff(failure_in_words(error))
