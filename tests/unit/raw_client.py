"""Clients that send a server whatever bytes they like, and read what comes."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.waiting import PATIENCE


class Client:
    """One connection; whatever it waits for must come within `PATIENCE`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, address: tuple[str, int]) -> "Client":
        return cls(*await asyncio.open_connection(*address))

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self) -> tuple[int, bytes]:
        async with asyncio.timeout(PATIENCE):
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
            return int(head.split()[1]), await self._reader.readexactly(length)

    def half_close(self) -> None:
        self._writer.write_eof()

    async def error(self) -> tuple[int, str]:
        status, body = await self.answer()
        return status, json.loads(body)["error"]["code"]

    async def skip(self, end: bytes) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._reader.readuntil(end)

    async def take(self, size: int) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._reader.readexactly(size)

    async def rest(self, *, seconds: float = PATIENCE) -> bytes:
        async with asyncio.timeout(seconds):
            return await self._reader.read()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


@asynccontextmanager
async def connected(address: tuple[str, int], first: bytes = b"") -> AsyncIterator[Client]:
    """A client that has sent its first bytes, until the block ends."""
    client = await Client.connect(address)
    try:
        await client.send(first)
        yield client
    finally:
        await client.close()
