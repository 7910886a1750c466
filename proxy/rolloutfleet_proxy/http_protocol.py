"""uvicorn's HTTP, with an answer's head and the first of its body in one write.

uvicorn writes them apart, and each write is a system call and a packet of its own.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD = b"HTTP/1.1 "


class HttpProtocol(HttpToolsProtocol):
    """One connection of a client."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        joining = _Joining(cast(asyncio.Transport, transport), self.loop)
        super().connection_made(cast(asyncio.Transport, joining))


class _Joining:
    """A transport that keeps a head until a body follows, but not beyond the loop's current round."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
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

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        head, self._head = self._head, None
        if head is not None and not self._transport.is_closing():
            self._transport.write(head)
