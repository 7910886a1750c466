"""Bodies that are made piece by piece in worker threads, so that none is ever whole in memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

CHUNK: Final = 256 * 1024
"""Bytes of a body that are gathered before they are sent."""


async def first_chunk(pieces: Iterator[bytes]) -> bytes:
    """The beginning of a body: what fails so early can still be answered with an error."""
    return await asyncio.to_thread(_gather, pieces)


class PieceByPiece(StreamingResponse):
    """A body in chunks, behind its `first_chunk`. What fails midway cuts the connection: the reader sees it short.

    However it ends, the pieces' generator has been closed then, and with it what it held.
    """

    def __init__(self, first: bytes, pieces: Iterator[bytes], *, media_type: str, headers: Mapping[str, str]) -> None:
        self._pieces = pieces
        self._making: asyncio.Future[bytes] | None = None
        super().__init__(self._chunks(first), media_type=media_type, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._close()

    async def _chunks(self, first: bytes) -> AsyncIterator[bytes]:
        chunk = first
        while chunk:
            yield chunk
            self._making = asyncio.get_running_loop().run_in_executor(None, _gather, self._pieces)
            chunk = await asyncio.shield(self._making)

    async def _close(self) -> None:
        """Of a caller that left, a piece may still be in the making; a generator can't be closed while it runs."""
        making = self._making
        if making is not None:
            while not making.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([making])
            making.exception()
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()


def _gather(pieces: Iterator[bytes]) -> bytes:
    gathered = []
    size = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= CHUNK:
            break
    return b"".join(gathered)
