"""Bodies that are made piece by piece in worker threads, so that none is ever whole in memory."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Final

CHUNK: Final = 256 * 1024
"""Bytes of a body that are gathered before they are sent."""


async def first_chunk(pieces: Iterator[bytes]) -> bytes:
    """The beginning of a body: what fails so early can still be answered with an error."""
    return await asyncio.to_thread(_gather, pieces)


async def chunks(first: bytes, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The body in chunks. What fails midway cuts the connection: the reader sees it short."""
    chunk = first
    while chunk:
        yield chunk
        chunk = await asyncio.to_thread(_gather, pieces)


def _gather(pieces: Iterator[bytes]) -> bytes:
    gathered = []
    size = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= CHUNK:
            break
    return b"".join(gathered)
