"""HTTP/1.1 as a fuzzer speaks it: any bytes go out, in any pieces; only what comes back must be right."""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import h11

TIMEOUT = 60.0
"""Seconds for an answer: more than anything but a connection that is slow on purpose may take."""
SECONDS_TO_CLOSE = 45.0
KEPT_FOR = 60.0
"""Seconds that a connection is used again after; a proxy keeps it for 75."""


class NoAnswer(Exception):
    """The connection ended, or stayed silent, where there should have been an answer; or what came is no HTTP."""

    def __init__(self, why: str, *, before: str = "") -> None:
        """`before` is what was asked over it before."""
        super().__init__(f"{why}; before it came {before}" if before else why)
        self._why = why

    def behind(self, before: str) -> "NoAnswer":
        return NoAnswer(self._why, before=before)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    closes: bool
    """Whether it says that the connection ends behind it."""

    @property
    def json(self) -> Any:
        """The body; None where it is no JSON."""
        with contextlib.suppress(ValueError):
            return json.loads(self.body)
        return None

    @property
    def raw(self) -> bytes:
        """All of it that could tell something."""
        head = "\n".join(f"{name}: {value}" for name, value in self.headers.items())
        return head.encode("latin-1") + b"\n\n" + self.body


@dataclass(slots=True)
class Connection:
    """One TCP connection. `exchange` may be used again as long as `usable`."""

    port: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    usable: bool = True
    used_at: float = 0.0
    used_for: str = ""
    """What was asked over it last."""
    _rest: bytes = field(default=b"")

    @classmethod
    async def open(cls, port: int) -> "Connection":
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        return cls(port, reader, writer, used_at=asyncio.get_running_loop().time())

    @property
    def fresh(self) -> bool:
        return self.usable and asyncio.get_running_loop().time() - self.used_at < KEPT_FOR

    async def send(self, pieces: Sequence[bytes], *, pause: float = 0.0) -> None:
        """Write piece by piece. A connection that breaks meanwhile is no error: an answer may have come before."""
        with contextlib.suppress(ConnectionError):
            for number, piece in enumerate(pieces):
                if number:
                    await _takes_its_time(pause)
                self.writer.write(piece)
                await self.writer.drain()

    async def answer(self, method: str, *, patience: float = TIMEOUT) -> Answer:
        """The next answer, interim ones passed over. Raises NoAnswer."""
        try:
            async with asyncio.timeout(patience):
                found = await self._answer(method)
        except NoAnswer:
            self.usable = False
            raise
        except (h11.RemoteProtocolError, ConnectionError, TimeoutError) as error:
            self.usable = False
            raise NoAnswer(f"{type(error).__name__}: {error}") from None
        self.usable = not found.closes
        self.used_at = asyncio.get_running_loop().time()
        return found

    async def _answer(self, method: str) -> Answer:
        parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
        # The parser wants to know of a request; what was sent may have been none.
        method = method if method == "HEAD" else "GET"
        parser.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        parser.send(h11.EndOfMessage())
        if self._rest:
            parser.receive_data(self._rest)
        head: h11.Response | None = None
        body = bytearray()
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                data = await self.reader.read(1 << 16)
                if not data and head is None and not parser.trailing_data[0]:
                    raise NoAnswer("the connection was closed without an answer")
                parser.receive_data(data)
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
        assert head is not None
        self._rest = parser.trailing_data[0]
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in head.headers}
        return Answer(head.status_code, headers, bytes(body), parser.their_state is not h11.DONE)

    async def ends(self, *, first: bool) -> bytes:
        """What still comes until the other side closes; `first`: this side does before it. Raises NoAnswer."""
        rest = self._rest
        try:
            if first:
                with contextlib.suppress(OSError, RuntimeError):
                    self.writer.write_eof()
            async with asyncio.timeout(SECONDS_TO_CLOSE):
                rest += await self.reader.read()
        except TimeoutError:
            raise NoAnswer("the connection stays open") from None
        except ConnectionError:
            pass
        return rest

    async def close(self, *, abruptly: bool = False) -> None:
        self.usable = False
        if abruptly:
            self.writer.transport.abort()
            return
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


async def _takes_its_time(seconds: float) -> None:
    """A client that is slow on purpose: there is nothing that it could wait for."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()
