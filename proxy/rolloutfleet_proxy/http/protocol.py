"""HTTP within bounds (`rolloutfleet.http_serving`) for a proxy's clients: a connection gives way to others, tells the
app when the last byte has left, and takes a little more of another proxy.

An answer's head and the first of its body leave in one write: uvicorn writes them apart, and each write is a system
call and a packet of its own.

A client that closes its sending side behind its request is answered. One that has left looks the same, until something
is written to it: then its system resets the connection. So it is sent an interim response, of which any client of
HTTP/1.1 takes any number (RFC 9110, section 15.2). One of HTTP/1.0 knows none, and has left.
"""

import asyncio
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from rolloutfleet.http_serving import Answer, BoundedProtocol, Refused
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.http.connections import Connections, Taking, has_ended, in_the_system, was_reset
from rolloutfleet_proxy.http.departures import CLOSED, RESET_INTERVAL
from rolloutfleet_proxy.http.errors import HeadTooLarge, MalformedRequest, RequestTimeout, answer_to
from rolloutfleet_proxy.http.headers import FROM_PEER, MORE_BYTES, MORE_HEADERS, PASSED
from rolloutfleet_proxy.http.last_bytes import EMPTIED

WRITE_TIMEOUT: Final = 60.0
"""In which a client must take some of the answer that waits for it."""
PEER_WRITE_TIMEOUT: Final = 600.0
"""The same for another proxy, which reads no faster than its own client, and in large pieces."""

_HEAD = b"HTTP/1.1 "
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
_ERRORS: Final[Mapping[int, type[DomainError]]] = {400: MalformedRequest, 408: RequestTimeout, 431: HeadTooLarge}


class HttpProtocol(BoundedProtocol):
    """One connection of a client."""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], *, connections: Connections
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._others = connections
        self._lost = False
        """The client has left, as far as the app is told."""
        self._half_closed = False
        """The client has closed its sending side, and is answered."""
        self._waits_from = math.inf
        """By the loop's clock, when one that has left would have been told apart by a reset."""
        self._emptying: asyncio.Future[bool] | None = None
        """Somebody waits until all that was written has left."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._joining = _Joining(cast(asyncio.Transport, transport), self.loop)
        self._taking = Taking()
        self._others.begins(self)
        super().connection_made(cast(asyncio.Transport, self._joining))

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.ends(self)
        self._lose()  # uvicorn tells the newest request alone, which may wait behind the one that is being answered.
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection of a client that may wait for its answer."""
        return self._half_closed or self._half_close()  # Reading may have begun again, as the app asked for it.

    def _half_close(self) -> bool:
        """Find out whether a client that sends no more waits for its answer; False where it can't wait for any."""
        answering = self._answering
        if answering is None or not self._in_flight() or not self._awaits(answering):
            return False
        self._half_closed = True
        if not answering.response_started:
            self.transport.write(_INTERIM)
            self._waits_from = self.loop.time() + RESET_INTERVAL
        self.loop.call_soon(self._look_whether_reset)
        return True

    def _awaits(self, answering: RequestResponseCycle) -> bool:
        """Whether a client that will send no more can wait for this answer, and can be told from one that left."""
        return self._between_requests() and answering.scope["http_version"] != "1.0" and sys.platform == "linux"

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
            if not self._in_flight():
                self.transport.close()
                return
        self.loop.call_later(RESET_INTERVAL, self._look_whether_reset)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._replaying:
            return
        scope = cast(dict[str, Any], self.scope)
        scope[EMPTIED], scope[CLOSED] = self.emptied, self.closed

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._others.leaves(self)

    def _most_bytes(self) -> int:
        return super()._most_bytes() + (MORE_BYTES if self._from_peer() else 0)

    def _most_headers(self) -> int:
        return super()._most_headers() + (MORE_HEADERS if self._from_peer() else 0)

    def _from_peer(self) -> bool:
        """Tell whether it has come from another proxy, or says so: then its head may be a little larger."""
        return not PASSED.isdisjoint(dict(self.headers))

    def _answer(self, refused: Refused) -> Answer:
        return answer_to(_error(refused))

    def closed(self) -> bool | None:
        """Look whether the client has closed the connection. Whoever answers is told now, as if the loop had read of
        it. What was written to a client that still reads is not kept from it."""
        if self._lost:
            return True
        ended = has_ended(self.transport)
        if ended and not self._half_closed:
            self._half_close()
        if was_reset(self.transport) if self._waits_from < math.inf else ended:
            self.transport.close()
            self._lose()
            return True
        return None if self.loop.time() < self._waits_from < math.inf else False

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

    def _rest(self) -> None:
        super()._rest()
        self._others.rests(self)

    def _refuse(self, refused: Refused) -> None:
        self._others.refused(_error(refused).code)
        super()._refuse(refused)

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


def _error(refused: Refused) -> DomainError:
    return _ERRORS[refused.status](str(refused))


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
