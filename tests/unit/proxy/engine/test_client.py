"""The gateway's client against a server that does exactly as told: what is sent, what comes back, what goes wrong."""

import asyncio
import gc
import json
import random
import time
import tracemalloc
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
from tests.processes import free_port
from tests.waiting import PATIENCE

from rolloutfleet.errors import (
    CONTEXT_LENGTH_EXCEEDED,
    ENGINE_ERROR,
    ENGINE_OVERLOADED,
    ENGINE_TIMEOUT,
    ENGINE_UNREACHABLE,
    INVALID_REQUEST,
)
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.engine import big_reply
from rolloutfleet_proxy.engine import client as engine_module
from rolloutfleet_proxy.engine.client import Engine
from rolloutfleet_proxy.engine.connections import MOST_INTERIM
from rolloutfleet_proxy.engine.evidence import Reason, Refused, check, decode
from rolloutfleet_proxy.engine.reply_stream import Chunk
from rolloutfleet_proxy.engine.request import GenerateRequest, extended_json, ids_json, passed_on
from rolloutfleet_proxy.http.errors import status_of

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
        self._first_at = 0.0
        self.connections = 0
        self.left = asyncio.Event()
        """A client closed its connection while a request was open."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url = ""

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def since_first(self) -> float:
        """Seconds since the first request came; 0 as long as none has."""
        return time.monotonic() - self._first_at if self.seen else 0.0

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
                self._first_at = self._first_at or time.monotonic()
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


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    await server.start()
    yield server
    await server.stop()


@asynccontextmanager
async def client(server: Server, **settings: Any) -> AsyncIterator[Engine]:
    engine = Engine(server.url, **settings)
    try:
        yield engine
    finally:
        await engine.aclose()


async def failure(
    engine: Engine, *, streamed: bool = False, clock: Callable[[], float] = time.monotonic
) -> DomainError:
    with pytest.raises(DomainError) as caught:
        await engine.generate(request(), (lambda chunk: None) if streamed else None, clock=clock)
    return caught.value


both = pytest.mark.parametrize("streamed", [False, True])


# What is sent


async def test_the_body_of_a_request(server: Server) -> None:
    async with client(server) as engine:
        await engine.generate(request(sampling={"temperature": 0.5, "stop": ["é"]}, max_new_tokens=9))
    [seen] = server.seen
    assert (seen.path, seen.headers["content-type"]) == ("/generate", "application/json")
    assert seen.json() == {
        "rid": "turn.0.",
        "return_logprob": True,
        "top_logprobs_num": 0,
        "sampling_params": {"temperature": 0.5, "stop": ["é"], "max_new_tokens": 9},
        "input_ids": [1, 2, 3, 4],
    }


async def test_headers_go_up_only_as_meant(server: Server) -> None:
    sent = {"authorization": "Bearer rf-0-secret", "x-api-key": "rf-0-secret", "cookie": "a=b", "traceparent": "00-1"}
    headers = passed_on({**sent, "x-request-id": "q1"})
    async with client(server, api_key="gateway-key") as engine:
        await engine.generate(request(headers=headers))
    [seen] = server.seen
    assert seen.headers["x-smg-routing-key"] == "s0-abc"
    assert seen.headers["authorization"] == "Bearer gateway-key"
    assert (seen.headers["x-request-id"], seen.headers["traceparent"]) == ("q1", "00-1")
    assert "secret" not in str(seen.headers)

    async with client(server) as engine:
        await engine.generate(request(headers=headers))
    assert "authorization" not in server.seen[-1].headers


@pytest.mark.parametrize("value", ["", "a\r\nx-evil: 1", "a\x00", "\xe9", "a\x7f"])
def test_a_header_that_cannot_go_upstream_is_left_out(value: str) -> None:
    assert passed_on({"x-request-id": value, "tracestate": "a=b"}) == {"tracestate": "a=b"}


def test_ids_as_json() -> None:
    assert ids_json(array("i", [1, 2])) == ids_json([1, 2]) == b"[1,2]"
    assert extended_json(b"[1,2]", [3]) == b"[1,2,3]"
    assert extended_json(b"[]", [3]) == b"[3]"
    assert extended_json(b"[1]", []) == b"[1]"


async def test_a_long_prompt_is_sent_whole(server: Server) -> None:
    ids = list(range(300_000))
    server.behaviour = lambda exchange: exchange.answer(reply(prompt_tokens=len(exchange.json()["input_ids"])))
    async with client(server) as engine:
        await engine.generate(request(prompt_json=ids_json(ids), prompt_tokens=len(ids)))
    assert server.seen[0].json()["input_ids"] == ids


# What comes back


@both
async def test_a_reply_becomes_evidence(server: Server, streamed: bool) -> None:
    async def behave(exchange: Exchange) -> None:
        if not exchange.json().get("stream"):
            await exchange.answer(reply())
            return
        await exchange.stream(reply(IDS[:1], finish_reason=None), reply(IDS[:2], finish_reason=None), reply())

    server.behaviour = behave
    chunks: list[Chunk] = []
    async with client(server) as engine:
        evidence = await engine.generate(request(), chunks.append if streamed else None)
    assert evidence.output_ids.tolist() == IDS
    assert (evidence.finish_reason, evidence.matched) == ("stop", 13)
    assert [id for chunk in chunks for id in chunk.output_ids] == (IDS if streamed else [])


async def test_chunks_of_many_streams_are_read_together(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """One stream counts for many here, and so rests as long as any."""
    monkeypatch.setattr("rolloutfleet_proxy.engine.client.STREAM_READS", 1.0)
    monkeypatch.setattr("rolloutfleet_proxy.engine.client.LONGEST_REST", 0.5)
    count = 60

    async def behave(exchange: Exchange) -> None:
        await exchange.begin_stream()
        for made in range(1, count + 1):
            some = reply([5] * made, finish_reason=None) if made < count else reply([5] * made)
            await exchange.send(b"data: " + json.dumps(some, separators=(",", ":")).encode() + b"\n\n")
            await asyncio.sleep(0.005)
        await exchange.send(b"data: [DONE]\n\n")
        await exchange.send(b"")

    server.behaviour = behave
    chunks: list[Chunk] = []
    async with client(server) as engine:
        evidence = await engine.generate(request(), chunks.append)
    assert evidence.output_ids.tolist() == [id for chunk in chunks for id in chunk.output_ids] == [5] * count
    assert len(chunks) < count / 2


@both
async def test_a_connection_is_used_again(server: Server, streamed: bool) -> None:
    server.behaviour = lambda exchange: exchange.stream(reply()) if streamed else exchange.answer(reply())
    async with client(server) as engine:
        for _ in range(3):
            await engine.generate(request(), (lambda chunk: None) if streamed else None)
        server.behaviour = lambda exchange: exchange.answer({"error": "no"}, 400)
        await failure(engine, streamed=streamed)
        await failure(engine, streamed=streamed)
    assert (len(server.seen), server.connections) == (5, 1)


@both
async def test_what_is_no_evidence_is_refused(server: Server, streamed: bool) -> None:
    bad = reply(prompt_tokens=5)
    server.behaviour = lambda exchange: exchange.stream(bad) if streamed else exchange.answer(bad)
    chunks: list[Chunk] = []
    async with client(server) as engine:
        with pytest.raises(Refused) as caught:
            await engine.generate(request(), chunks.append if streamed else None)
    assert caught.value.reason == Reason.PROMPT_MISMATCH
    assert not chunks


async def test_garbage_is_refused(server: Server) -> None:
    server.behaviour = lambda exchange: exchange.answer(b'{"output_ids": [1')
    async with client(server) as engine:
        with pytest.raises(Refused) as caught:
            await engine.generate(request())
    assert caught.value.reason == Reason.MALFORMED


# What goes wrong

TOO_LONG = "The input (9 tokens) is longer than the model's context length (8 tokens)."
TOO_MANY = "Requested token count exceeds the model's maximum context length of 8 tokens. You requested 9."
POOL = "Input length (9 tokens) exceeds the maximum allowed length (8 tokens). Use a shorter input."
NO_WORKERS = {
    "error": {"type": "Service Unavailable", "code": "no_available_workers", "message": "No available workers"}
}


@pytest.mark.parametrize(
    ("status", "body", "expected", "code", "says"),
    [
        (400, {"error": {"message": TOO_LONG}}, 400, CONTEXT_LENGTH_EXCEEDED, TOO_LONG),
        (400, {"error": {"message": TOO_MANY}}, 400, CONTEXT_LENGTH_EXCEEDED, "8 tokens"),
        (400, {"object": "error", "message": POOL}, 400, CONTEXT_LENGTH_EXCEEDED, "8 tokens"),
        (400, {"error": "`input_ids`: expected an array"}, 400, INVALID_REQUEST, "expected an array"),
        (422, b"Failed to deserialize the JSON body", 400, INVALID_REQUEST, "Failed to deserialize"),
        (429, {"object": "error", "message": "Too many requests"}, 429, ENGINE_OVERLOADED, "Too many requests"),
        (500, {"object": "error", "message": "Internal Server Error"}, 502, ENGINE_ERROR, "Internal Server Error"),
        (500, b"", 502, ENGINE_ERROR, "status 500"),
        (502, b"<html>\xff</html>", 502, ENGINE_ERROR, "html"),
        (503, NO_WORKERS, 503, ENGINE_UNREACHABLE, "No available workers"),
        (504, {"detail": "slow"}, 504, ENGINE_TIMEOUT, "slow"),
        (408, b"{}", 504, ENGINE_TIMEOUT, "{}"),
        (401, {"error": "no key"}, 502, ENGINE_ERROR, "no key"),
        (404, {"detail": "Not Found"}, 502, ENGINE_ERROR, "Not Found"),
    ],
)
@both
async def test_an_error_status_is_mapped(
    server: Server, streamed: bool, status: int, body: Any, expected: int, code: str, says: str
) -> None:
    server.behaviour = lambda exchange: exchange.answer(body, status)
    async with client(server) as engine:
        error = await failure(engine, streamed=streamed)
    assert (status_of(error), error.code) == (expected, code)
    assert says in error.message
    assert len(server.seen) == 1


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_comes_through(server: Server, status: int) -> None:
    async with client(server) as engine:
        server.behaviour = lambda exchange: exchange.answer(b"", status, "Retry-After: 7\r\n")
        assert (await failure(engine)).retry_after == 7
        server.behaviour = lambda exchange: exchange.answer(b"", status, "Retry-After: Sat, 21 Nov 2026\r\n")
        assert (await failure(engine)).retry_after == 1.0


async def test_an_error_event_of_a_stream_is_mapped(server: Server) -> None:
    server.behaviour = lambda exchange: exchange.stream({"error": {"message": TOO_LONG, "code": 400}})
    async with client(server) as engine:
        error = await failure(engine, streamed=True)
    assert (status_of(error), error.code) == (400, CONTEXT_LENGTH_EXCEEDED)


@both
async def test_an_abort_with_a_status_is_mapped(server: Server, streamed: bool) -> None:
    bad = reply(finish_reason={"type": "abort", "message": "out of memory", "status_code": 500})
    server.behaviour = lambda exchange: exchange.stream(bad) if streamed else exchange.answer(bad)
    async with client(server) as engine:
        error = await failure(engine, streamed=streamed)
    assert (status_of(error), error.code) == (502, ENGINE_ERROR)
    assert "out of memory" in error.message


@both
async def test_silence_is_504_and_the_generation_is_never_sent_again(server: Server, streamed: bool) -> None:
    server.behaviour = never
    async with client(server, silence=0.1) as engine:
        error = await failure(engine, streamed=streamed, clock=server.since_first)
        assert (status_of(error), error.code) == (504, ENGINE_TIMEOUT)
        await asyncio.wait_for(server.left.wait(), PATIENCE)
        # Long enough for what would be sent again to have come.
        await asyncio.sleep(0.3)
    assert len(server.seen) == 1


async def test_silence_in_mid_stream_is_504(server: Server) -> None:
    async def behave(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.send(b"data: " + json.dumps(reply(IDS[:1], finish_reason=None)).encode() + b"\n\n")
        await asyncio.Event().wait()

    server.behaviour = behave
    async with client(server, silence=0.1) as engine:
        assert status_of(await failure(engine, streamed=True, clock=server.since_first)) == 504
        await asyncio.wait_for(server.left.wait(), PATIENCE)
    assert len(server.seen) == 1


def event(made: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(made, separators=(",", ":")).encode() + b"\n\n"


@pytest.mark.parametrize("incremental", [False, True])
async def test_a_stream_past_its_budget_is_refused_and_none_of_it_is_passed_on(
    server: Server, incremental: bool
) -> None:
    async def behave(exchange: Exchange) -> None:
        await exchange.begin_stream()
        made = 0
        while True:
            made += 1
            ids = [5] if incremental else [5] * made
            await exchange.send(event(reply(ids, completion_tokens=made, finish_reason=None)))
            await asyncio.sleep(0.001)

    server.behaviour = behave
    shown: list[int] = []
    async with client(server, silence=5.0) as engine:
        with pytest.raises(Refused) as caught:
            await engine.generate(request(max_new_tokens=20), lambda chunk: shown.extend(chunk.output_ids))
        assert caught.value.reason == Reason.TOO_MANY_TOKENS
        await asyncio.wait_for(server.left.wait(), PATIENCE)
    assert 0 < len(shown) <= 20


def empty_incremental(made: dict[str, Any]) -> bytes:
    return event({**made, "output_ids": [], "meta_info": {**made["meta_info"], "output_token_logprobs": []}})


NO_TOKENS = {
    "comments": b": still here\n\n",
    "the same tokens again": event(reply(IDS[:1], finish_reason=None)),
    "no tokens": empty_incremental(reply(IDS[:1], finish_reason=None)),
    "other events": b"event: ping\n\n",
    "one endless line": b"data: ",
}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("said", NO_TOKENS.values(), ids=NO_TOKENS)
async def test_a_stream_without_a_new_token_is_504(server: Server, said: bytes, first: bool) -> None:
    async def behave(exchange: Exchange) -> None:
        await exchange.begin_stream()
        if first:
            await exchange.send(event(reply(IDS[:1], finish_reason=None)))
        elif b"output_ids" in said:
            await asyncio.Event().wait()
        while True:
            await exchange.send(said)
            await asyncio.sleep(0.01)

    server.behaviour = behave
    async with client(server, silence=0.4) as engine:
        error = await asyncio.wait_for(failure(engine, streamed=True, clock=server.since_first), PATIENCE)
        assert (status_of(error), error.code) == (504, ENGINE_TIMEOUT)
        await asyncio.wait_for(server.left.wait(), PATIENCE)
    assert len(server.seen) == 1


async def test_a_stream_that_goes_on_slowly_is_read_to_its_end(server: Server) -> None:
    """Each gap is shorter than the silence, all together are longer, by a clock that moves once it was looked at."""
    now = 0.0
    looked, shown = asyncio.Event(), asyncio.Event()

    async def behave(exchange: Exchange) -> None:
        nonlocal now
        await exchange.begin_stream()
        for made in range(1, 6):
            now += 0.08
            looked.clear()
            await looked.wait()
            shown.clear()
            await exchange.send(event(reply([5] * made, **({} if made == 5 else {"finish_reason": None}))))
            await shown.wait()
        await exchange.send(b"data: [DONE]\n\n")
        await exchange.send(b"")

    def clock() -> float:
        looked.set()
        return now

    server.behaviour = behave
    async with asyncio.timeout(PATIENCE), client(server, silence=0.1) as engine:
        evidence = await engine.generate(request(), lambda chunk: shown.set(), clock=clock)
    assert len(evidence.output_ids) == 5


async def test_a_pause_is_no_silence_of_a_stream(server: Server) -> None:
    now = 0.0
    came = asyncio.Event()

    async def behave(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.send(event(reply(IDS[:1], finish_reason=None)))
        came.set()
        await asyncio.Event().wait()

    server.behaviour = behave
    async with client(server, silence=0.2) as engine:
        call = asyncio.ensure_future(engine.generate(request(), lambda chunk: None, clock=lambda: now))
        await came.wait()
        await asyncio.sleep(1.0)
        assert not call.done(), "the clock stands still"
        now = 0.21
        with pytest.raises(DomainError) as caught:
            await asyncio.wait_for(call, PATIENCE)
    assert caught.value.code == ENGINE_TIMEOUT


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(server: Server, others: list[Server], status: int) -> None:
    elsewhere = others[0]
    server.behaviour = lambda exchange: exchange.answer(b"", status, f"Location: {elsewhere.url}/x\r\n")
    async with client(server, api_key="k") as engine:
        for streamed in (False, True):
            assert status_of(await failure(engine, streamed=streamed)) == 502
        with pytest.raises(DomainError):
            await engine.engines()
    async with client(server, engine_urls=[server.url]) as engine:
        assert str(status) in (await engine.pause("abort"))[server.url]
        assert not await engine.any_paused()
    assert not elsewhere.seen


@both
@pytest.mark.parametrize("code", [100, 102, 103])
async def test_a_flood_of_interim_responses_is_ended_and_holds_nothing(
    server: Server, streamed: bool, code: int
) -> None:
    sent = 0

    async def behave(exchange: Exchange) -> None:
        nonlocal sent
        while True:
            exchange.writer.write(b"HTTP/1.1 %d X\r\n\r\n" % code * 10_000)
            sent += 10_000
            await exchange.writer.drain()
            await asyncio.sleep(0)

    server.behaviour = behave
    async with client(server, silence=30.0) as engine, Ticker() as ticker:
        error = await asyncio.wait_for(failure(engine, streamed=streamed), PATIENCE)
        assert (status_of(error), error.code) == (502, ENGINE_ERROR)
        with pytest.raises(DomainError):
            await engine.engines()
    assert ticker.longest < 0.05


async def test_some_interim_responses_are_passed_over(server: Server) -> None:
    async def behave(exchange: Exchange) -> None:
        exchange.writer.write(b"HTTP/1.1 102 Processing\r\n\r\n" * MOST_INTERIM)
        await exchange.answer(reply())

    server.behaviour = behave
    async with client(server) as engine:
        for _ in range(3):
            assert (await engine.generate(request())).output_ids.tolist() == IDS
    assert server.connections == 1


async def close(exchange: Exchange) -> None:
    exchange.writer.close()


async def cut_body(exchange: Exchange) -> None:
    exchange.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{")
    exchange.writer.close()


async def cut_stream(exchange: Exchange) -> None:
    await exchange.begin_stream()
    await exchange.send(b"data: " + json.dumps(reply(IDS[:1], finish_reason=None)).encode() + b"\n\n")
    exchange.writer.close()


async def stream_without_end(exchange: Exchange) -> None:
    await exchange.stream(reply(IDS[:1], finish_reason=None))


@pytest.mark.parametrize("behaviour", [close, cut_body, cut_stream, stream_without_end])
async def test_a_broken_reply_is_502_and_not_sent_again(server: Server, behaviour: Behaviour) -> None:
    server.behaviour = behaviour
    streamed = behaviour in (cut_stream, stream_without_end)
    async with client(server) as engine:
        error = await failure(engine, streamed=streamed)
    assert (status_of(error), error.code) == (502, ENGINE_ERROR)
    assert len(server.seen) == 1


async def test_no_gateway_is_503(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "CONNECT_DELAYS", (0.01, 0.01))
    await server.stop()
    async with client(server) as engine:
        error = await failure(engine)
    assert (status_of(error), error.code) == (503, ENGINE_UNREACHABLE)
    assert error.retry_after


async def test_a_gateway_that_comes_in_time_is_reached() -> None:
    port = free_port()
    server = Server()
    server.url = f"http://127.0.0.1:{port}"
    async with client(server) as engine:
        waiting = asyncio.ensure_future(engine.generate(request()))
        await asyncio.sleep(0.02)
        await server.start(port)
        assert (await waiting).output_ids.tolist() == IDS
    assert len(server.seen) == 1
    await server.stop()


@both
async def test_cancelled_it_closes_the_connection(server: Server, streamed: bool) -> None:
    arrived = asyncio.Event()

    async def behave(exchange: Exchange) -> None:
        if streamed:
            await exchange.begin_stream()
            await exchange.send(b"data: " + json.dumps(reply(IDS[:1], finish_reason=None)).encode() + b"\n\n")
        arrived.set()
        await asyncio.Event().wait()

    server.behaviour = behave
    async with client(server) as engine:
        task = asyncio.ensure_future(engine.generate(request(), (lambda chunk: None) if streamed else None))
        await asyncio.wait_for(arrived.wait(), PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.left.wait(), PATIENCE)


# Engines


@pytest.fixture
async def others() -> AsyncIterator[list[Server]]:
    """Two engines that answer everything with 200."""
    servers = [Server(), Server()]
    for server in servers:
        server.behaviour = lambda exchange: exchange.answer(b"{}")
        await server.start()
    yield servers
    for server in servers:
        await server.stop()


async def test_every_engine_is_told_directly(server: Server, others: list[Server]) -> None:
    async with client(server, engine_urls=[other.url for other in others], api_key="k") as engine:
        assert await engine.abort("turn.0.") == {}
        assert await engine.pause("retract") == {}
        assert await engine.resume() == {}
    for other in others:
        assert [(seen.path, seen.json()) for seen in other.seen] == [
            ("/abort_request", {"rid": "turn.0."}),
            ("/pause_generation", {"mode": "retract"}),
            ("/continue_generation", {}),
        ]
        assert other.seen[0].headers["authorization"] == "Bearer k"
    assert not server.seen


async def test_an_engine_that_does_not_confirm_is_named(server: Server, others: list[Server]) -> None:
    broken, silent = others
    broken.behaviour = lambda exchange: exchange.answer(b"", 500)
    silent.behaviour = never
    async with client(server, engine_urls=[other.url for other in others]) as engine:
        failed = await engine.pause("abort", timeout=2)
    assert set(failed) == {broken.url, silent.url}
    assert "500" in failed[broken.url]
    assert "2 s" in failed[silent.url]


async def test_the_gateway_knows_the_engines(server: Server, others: list[Server]) -> None:
    listed = {"workers": [{"url": f"{other.url}/", "is_healthy": True} for other in others], "total": 2}
    server.behaviour = lambda exchange: exchange.answer(listed)
    now = [0.0]
    async with client(server, clock=lambda: now[0]) as engine:
        urls = tuple(other.url for other in others)
        assert await engine.engines() == urls
        assert await engine.engines() == urls
        assert [seen.path for seen in server.seen] == ["/workers"]
        now[0] = engine_module.WORKERS_FRESH
        server.behaviour = lambda exchange: exchange.answer({"workers": []})
        assert await engine.engines() == ()


@pytest.mark.parametrize("body", [b"x", b"[]", b'{"workers": [{}]}', b'{"workers": [{"url": 1}]}'])
async def test_a_gateway_that_does_not_say_is_503(server: Server, body: bytes) -> None:
    server.behaviour = lambda exchange: exchange.answer(body)
    async with client(server) as engine:
        with pytest.raises(DomainError) as caught:
            await engine.engines()
        assert (status_of(caught.value), caught.value.code) == (503, ENGINE_UNREACHABLE)


BROKEN = {
    "no HTTP": b"220 ready\r\n",
    "no answer": b"",
    "a bad length": b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
    "a bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a bad header": b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
    "half an answer": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{",
    "an error": b"HTTP/1.1 500 the-key-of-the-gateway\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
async def test_a_request_that_fails_is_told_in_our_own_words(server: Server, data: bytes) -> None:
    async def behave(exchange: Exchange) -> None:
        exchange.writer.write(data)
        await exchange.writer.drain()
        exchange.writer.close()

    server.behaviour = behave
    key = "the-key-of-the-gateway"
    said: list[str] = []
    async with client(server, api_key=key) as engine:
        for streamed in (False, True):
            said.append((await failure(engine, streamed=streamed)).message)
        with pytest.raises(DomainError) as caught:
            await engine.engines()
        said.append(caught.value.message)
    # A user and password in an address are kept to ourselves, too.
    named = server.url.replace("http://", "http://user:the-password@")
    async with client(server, engine_urls=[named]) as engine:
        failed = await engine.pause("abort")
        assert set(failed) == {server.url}
        said += failed.values()
    assert not [text for text in said if key in text or "password" in text or "aiohttp" in text or "Error(" in text]


async def test_what_an_engine_says_of_a_request_is_told_without_the_key(server: Server) -> None:
    keys = ["the-key-of-the-gateway", 'a "newer" key']

    async def behave(exchange: Exchange) -> None:
        said = f"{'x' * 480} you sent {exchange.headers['authorization']}"
        await exchange.answer({"error": {"message": said}}, 400)

    server.behaviour = behave
    async with client(server, api_key=keys[0]) as engine:
        for key in keys:
            engine.use_key(key)
            error = await failure(engine)
            assert f"Bearer {key}" == server.seen[-1].headers["authorization"]
            assert "x you sent Bearer" in error.message and key[:4] not in error.message


async def test_an_engine_that_is_not_ready_is_paused(server: Server, others: list[Server]) -> None:
    async with client(server, engine_urls=[other.url for other in others]) as engine:
        assert not await engine.any_paused()
        others[1].behaviour = lambda exchange: exchange.answer(b"", 503)
        assert await engine.any_paused()
        # Older engines have no such route.
        others[1].behaviour = lambda exchange: exchange.answer(b"", 404)
        assert not await engine.any_paused()


async def test_an_abort_under_way_ends_before_the_client_closes(server: Server, others: list[Server]) -> None:
    async with client(server, engine_urls=[others[0].url]) as engine:
        engine.abort_soon("turn.0.")
    assert [seen.path for seen in others[0].seen] == ["/abort_request"]


# Big replies


def long_reply(count: int) -> dict[str, Any]:
    source = random.Random(count)
    ids = [source.randrange(100_000) for _ in range(count)]
    spans = [{"version": "3", "start": 0, "end": 7}, {"version": "4", "start": 7, "end": count}]
    made = reply(ids, weight_versions=spans)
    made["meta_info"]["output_token_logprobs"] = [[-source.random(), id, None] for id in ids]
    return made


class Ticker:
    """Measures the longest time for which the event loop did one thing, as seconds of its thread's own work: how
    busy the machine is doesn't count. Nor does the collector of cycles, which here finds what all other tests left;
    a proxy keeps it from looking at everything while it serves."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def __aenter__(self) -> "Ticker":
        gc.disable()
        self._task = asyncio.ensure_future(self._tick())
        await asyncio.sleep(0.05)
        self.longest = 0.0
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0)
        self._task.cancel()
        gc.enable()

    async def _tick(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest = max(self.longest, now - before)
            before = now


@both
async def test_a_big_reply_does_not_hold_the_loop(server: Server, streamed: bool) -> None:
    count = 1_000_000
    made = long_reply(count)
    whole = msgspec.json.encode(made)
    began = time.thread_time()
    expected = check(decode(whole), request().expected())
    # Some 0.4 s of work, more on a slow machine, where all else takes longer as well.
    on_the_loop = time.thread_time() - began
    start = reply(made["output_ids"][:2], finish_reason=None)
    start["meta_info"]["output_token_logprobs"] = made["meta_info"]["output_token_logprobs"][:2]
    early = b"data: " + json.dumps(start).encode() + b"\n\n"
    pieces = [early, b"data: " + whole + b"\n\n", b"data: [DONE]\n\n"] if streamed else [whole]

    async def behave(exchange: Exchange) -> None:
        # Piece by piece, so that the server in this loop isn't what is measured.
        await exchange.begin_stream()
        for piece in pieces:
            for place in range(0, len(piece), 1 << 16):
                await exchange.send(piece[place : place + (1 << 16)])
                await asyncio.sleep(0)
        await exchange.send(b"")

    server.behaviour = behave
    chunks: list[Chunk] = []
    async with client(server) as engine, Ticker() as ticker:
        evidence = await engine.generate(request(with_logprobs=True), chunks.append if streamed else None)
    assert evidence == expected
    if streamed:
        assert [id for chunk in chunks for id in chunk.output_ids] == made["output_ids"]
        assert array("f", [lp for chunk in chunks for lp in chunk.logprobs or ()]) == evidence.logprobs
    assert len(whole) > 30_000_000
    assert ticker.longest < max(0.05, on_the_loop / 6), on_the_loop


PAYLOAD = 100_000_000


async def send_with_payload(exchange: Exchange, made: dict[str, Any], *, streamed: bool) -> None:
    """A reply with 100 MB of expert routing in it, as SGLang gives them with return_routed_experts."""
    before, after = msgspec.json.encode(made)[:-2], b"}}"
    await exchange.begin_stream()
    await exchange.send((b"data: " if streamed else b"") + before + b',"routed_experts":"')
    block = b"AAECAwQF" * (1 << 14)
    for _ in range(PAYLOAD // len(block)):
        await exchange.send(block)
    await exchange.send(b'"' + after + (b"\n\ndata: [DONE]\n\n" if streamed else b""))
    await exchange.send(b"")


@both
async def test_payloads_of_many_replies_at_once_are_never_in_memory(server: Server, streamed: bool) -> None:
    made = long_reply(1000)
    server.behaviour = lambda exchange: send_with_payload(exchange, made, streamed=streamed)
    expected = check(decode(msgspec.json.encode(made)), request().expected())
    tracemalloc.start()
    try:
        async with client(server) as engine, Ticker() as ticker:
            asking = [engine.generate(request(), (lambda chunk: None) if streamed else None) for _ in range(3)]
            found = await asyncio.gather(*asking)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == [expected] * 3
    # 4 MiB of each before it is called big, and what is on its way.
    assert most < 64 << 20, most
    assert ticker.longest < 0.05


async def test_few_replies_are_read_apart_at_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, most = 0, 0
    read = big_reply.read

    async def counted(*given: Any) -> Any:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        try:
            return await read(*given)
        finally:
            reading -= 1

    monkeypatch.setattr(big_reply, "read", counted)
    server.behaviour = lambda exchange: exchange.answer(long_reply(1000))
    async with client(server, big_reply=1000) as engine:
        await asyncio.gather(*(engine.generate(request()) for _ in range(engine_module.READERS + 3)))
    assert most == engine_module.READERS


@both
@pytest.mark.parametrize(
    ("change", "raised"),
    [
        ({"prompt_tokens": 5}, Refused),
        ({"finish_reason": {"type": "abort", "message": "broke", "status_code": 500}}, DomainError),
    ],
)
async def test_a_big_reply_is_refused_for_the_same_reasons(
    server: Server, streamed: bool, change: dict[str, Any], raised: type[Exception]
) -> None:
    made = long_reply(100)
    made["meta_info"] |= change
    server.behaviour = lambda exchange: exchange.stream(made) if streamed else exchange.answer(made)
    async with client(server, big_reply=1000) as engine:
        with pytest.raises(raised) as caught:
            await engine.generate(request(), (lambda chunk: None) if streamed else None)
    if isinstance(caught.value, Refused):
        assert caught.value.reason == Reason.PROMPT_MISMATCH
    else:
        assert "broke" in str(caught.value)


async def test_a_big_last_event_must_begin_with_what_was_sent(server: Server) -> None:
    server.behaviour = lambda exchange: exchange.stream(reply([1, 2], finish_reason=None), long_reply(100))
    async with client(server, big_reply=1000) as engine:
        with pytest.raises(Refused) as caught:
            await engine.generate(request(), lambda chunk: None)
    assert caught.value.reason == Reason.STREAM_ORDER


async def test_a_big_reply_that_breaks_off_is_502(server: Server) -> None:
    async def behave(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.send(b"{" * 5000)
        exchange.writer.close()

    server.behaviour = behave
    async with client(server, big_reply=1000) as engine:
        assert status_of(await failure(engine)) == 502
