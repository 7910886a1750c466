"""A gateway that does exactly as told, its client, and replies of every size."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.engine.client import Engine
from rolloutfleet_proxy.engine.request import GenerateRequest

both = pytest.mark.parametrize("streamed", [False, True])
IDS = [11, 12, 13]


class Exchange:
    """One request at the server, and what it may do with it."""

    def __init__(self, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        self.path, self.headers, self.body, self.writer = path, headers, body, writer

    def json(self) -> Any:
        return json.loads(self.body)

    async def answer(self, body: bytes | dict[str, Any], status: int = 200, headers: str = "") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n{headers}\r\n".encode() + data)
        await self.writer.drain()

    async def begin_stream(self) -> None:
        self.writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await self.writer.drain()

    async def send(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n" % len(data) + data + b"\r\n")
        await self.writer.drain()

    async def stream(self, *events: dict[str, Any]) -> None:
        await self.begin_stream()
        for event in events:
            await self.send(b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n")
        await self.send(b"data: [DONE]\n\n")
        await self.send(b"")


Behaviour = Callable[[Exchange], Awaitable[None]]


class Server:
    """Does with each request what `behaviour` does; keeps what it saw."""

    def __init__(self) -> None:
        self.behaviour: Behaviour = lambda exchange: exchange.answer(reply())
        self.seen: list[Exchange] = []
        self.connections = 0
        self.left = asyncio.Event()
        """A client closed its connection while a request was open."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url = ""

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                exchange = Exchange(head[0].split(" ")[1], headers, body, writer)
                self.seen.append(exchange)
                await self._behave(exchange, reader)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _behave(self, exchange: Exchange, reader: asyncio.StreamReader) -> None:
        acting = asyncio.ensure_future(self.behaviour(exchange))
        watching = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((acting, watching), return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                self.left.set()
            else:
                acting.result()
        finally:
            for future in (acting, watching):
                future.cancel()
                with suppress(asyncio.CancelledError, ConnectionError):
                    await future


def reply(ids: list[int] | None = None, **meta: Any) -> dict[str, Any]:
    ids = IDS if ids is None else ids
    info = {
        "finish_reason": {"type": "stop", "matched": 13},
        "prompt_tokens": 4,
        "completion_tokens": len(ids),
        "output_token_logprobs": [[-0.5, id, None] for id in ids],
        "weight_version": "3",
    }
    return {"text": "abc", "output_ids": ids, "meta_info": info | meta}


def request(**fields: Any) -> GenerateRequest:
    return GenerateRequest(
        **{
            "rid": "turn.0.",
            "routing_key": "s0-abc",
            "prompt_json": b"[1,2,3,4]",
            "prompt_tokens": 4,
            "max_new_tokens": 100_000_000,
            **fields,
        }
    )


async def never(_: Exchange) -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def client(server: Server, **settings: Any) -> AsyncIterator[Engine]:
    engine = Engine(server.url, **{"clock": asyncio.get_running_loop().time, **settings})
    try:
        yield engine
    finally:
        await engine.aclose()


async def failure(engine: Engine, *, streamed: bool = False) -> DomainError:
    clock = asyncio.get_running_loop().time
    with pytest.raises(DomainError) as caught:
        await engine.generate(request(), (lambda chunk: None) if streamed else None, clock=clock)
    return caught.value


def long_reply(count: int) -> dict[str, Any]:
    source = random.Random(count)
    ids = [source.randrange(100_000) for _ in range(count)]
    spans = [{"version": "3", "start": 0, "end": 7}, {"version": "4", "start": 7, "end": count}]
    made = reply(ids, weight_versions=spans)
    made["meta_info"]["output_token_logprobs"] = [[-source.random(), id, None] for id in ids]
    return made


async def send_in_pieces(exchange: Exchange, data: bytes) -> None:
    """So that a server in the client's own loop does little at a time."""
    for place in range(0, len(data), 1 << 16):
        await exchange.send(data[place : place + (1 << 16)])
        await asyncio.sleep(0)


def event(made: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(made) + b"\n\n"


async def send_with_payload(exchange: Exchange, made: dict[str, Any], *, nbytes: int, streamed: bool) -> None:
    """A reply with so many bytes of expert routing in it, as SGLang gives them with return_routed_experts."""
    before, after = msgspec.json.encode(made)[:-2], b"}}"
    await exchange.begin_stream()
    await exchange.send((b"data: " if streamed else b"") + before + b',"routed_experts":"')
    block = b"AAECAwQF" * (1 << 14)
    for _ in range(nbytes // len(block)):
        await exchange.send(block)
    await exchange.send(b'"' + after + (b"\n\ndata: [DONE]\n\n" if streamed else b""))
    await exchange.send(b"")
