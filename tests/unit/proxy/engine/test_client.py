"""The gateway's client against a server that does exactly as told: what is sent, what comes back, what goes wrong."""

import asyncio
import tracemalloc
from array import array
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.unit.proxy.engine.exchanges import (
    IDS,
    Behaviour,
    Exchange,
    Server,
    both,
    client,
    event,
    failure,
    long_reply,
    never,
    reply,
    request,
    send_with_payload,
    serving,
)
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
from rolloutfleet_proxy.engine.connections import MOST_INTERIM, _Bounded
from rolloutfleet_proxy.engine.errors import ConnectionLost
from rolloutfleet_proxy.engine.evidence import Evidence, Expected, Reason, Refused, check, decode
from rolloutfleet_proxy.engine.reply_stream import Chunk
from rolloutfleet_proxy.engine.request import extended_json, ids_json, passed_on
from rolloutfleet_proxy.http.errors import status_of


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as server:
        yield server


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
            await exchange.send(event(some))
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


@pytest.mark.parametrize(("status", "code"), [(500, "call_upstream_request_error"), (504, "call_upstream_timeout")])
async def test_a_connection_that_the_gateway_lost_is_lost(server: Server, status: int, code: str) -> None:
    said = {"error": {"type": "server_error", "code": code, "message": "error sending request", "param": None}}
    server.behaviour = lambda exchange: exchange.answer(said, status)
    async with client(server) as engine:
        assert isinstance(await failure(engine), ConnectionLost)


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
        error = await failure(engine, streamed=streamed)
        assert (status_of(error), error.code) == (504, ENGINE_TIMEOUT)
        await asyncio.wait_for(server.left.wait(), PATIENCE)
        # Long enough for what would be sent again to have come.
        await asyncio.sleep(60.0)
    assert len(server.seen) == 1


async def test_silence_in_mid_stream_is_504(server: Server) -> None:
    async def behave(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.send(event(reply(IDS[:1], finish_reason=None)))
        await asyncio.Event().wait()

    server.behaviour = behave
    async with client(server, silence=0.1) as engine:
        assert status_of(await failure(engine, streamed=True)) == 504
        await asyncio.wait_for(server.left.wait(), PATIENCE)
    assert len(server.seen) == 1


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
        error = await asyncio.wait_for(failure(engine, streamed=True), PATIENCE)
        assert (status_of(error), error.code) == (504, ENGINE_TIMEOUT)
        await asyncio.wait_for(server.left.wait(), PATIENCE)
    assert len(server.seen) == 1


async def test_a_stream_that_goes_on_slowly_is_read_to_its_end(server: Server) -> None:
    """Each gap is shorter than the silence, all together are longer."""

    async def behave(exchange: Exchange) -> None:
        await exchange.begin_stream()
        for made in range(1, 6):
            await asyncio.sleep(0.08)
            await exchange.send(event(reply([5] * made, **({} if made == 5 else {"finish_reason": None}))))
        await exchange.send(b"data: [DONE]\n\n")
        await exchange.send(b"")

    server.behaviour = behave
    clock = asyncio.get_running_loop().time
    async with client(server, silence=0.1) as engine:
        evidence = await engine.generate(request(), lambda chunk: None, clock=clock)
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
        await asyncio.sleep(60.0)
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
    server: Server, streamed: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    feed_data = _Bounded.feed_data

    def counted(connection: _Bounded, data: Any, size: int = 0) -> None:
        nonlocal read
        read += 1
        feed_data(connection, data, size)

    async def behave(exchange: Exchange) -> None:
        for _ in range(10):
            exchange.writer.write(b"HTTP/1.1 %d X\r\n\r\n" % code * 10_000)
            await exchange.writer.drain()
        await never(exchange)

    monkeypatch.setattr(_Bounded, "feed_data", counted)
    server.behaviour = behave
    async with client(server, silence=30.0) as engine:
        error = await asyncio.wait_for(failure(engine, streamed=streamed), PATIENCE)
        assert (status_of(error), error.code) == (502, ENGINE_ERROR)
        with pytest.raises(DomainError):
            await engine.engines()
    assert MOST_INTERIM < read < 1000, "a flood is not read to its end"


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
    await exchange.send(event(reply(IDS[:1], finish_reason=None)))
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


async def test_no_gateway_is_503(server: Server) -> None:
    await server.stop()
    async with client(server) as engine:
        error = await failure(engine)
    assert (status_of(error), error.code) == (503, ENGINE_UNREACHABLE)
    assert error.retry_after


@both
async def test_cancelled_it_closes_the_connection(server: Server, streamed: bool) -> None:
    arrived = asyncio.Event()

    async def behave(exchange: Exchange) -> None:
        if streamed:
            await exchange.begin_stream()
            await exchange.send(event(reply(IDS[:1], finish_reason=None)))
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


async def test_an_engine_that_loads_no_weights_is_named_with_its_words_but_not_the_key(
    server: Server, others: list[Server]
) -> None:
    refused, quiet = others
    refused.behaviour = lambda exchange: exchange.answer({"success": False, "message": "no file; key s3cret"}, 400)
    quiet.behaviour = lambda exchange: exchange.answer({"success": False, "message": "rolled back"})
    urls = [other.url for other in others]
    async with client(server, engine_urls=urls, api_key="s3cret") as engine:
        failed = await engine.load("step-8", 8, flush_cache=False, timeout=60)
    assert failed == {
        refused.url: "it answered with status 400: no file; key [key]",
        quiet.url: "it answered with status 200: rolled back",
    }
    assert [(seen.path, seen.json()) for seen in refused.seen] == [
        ("/update_weights_from_disk", {"model_path": "step-8", "weight_version": "8", "flush_cache": False})
    ]


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


PAYLOAD = 32 << 20


@both
async def test_payloads_of_many_replies_at_once_are_never_in_memory(server: Server, streamed: bool) -> None:
    made = long_reply(1000)
    server.behaviour = lambda exchange: send_with_payload(exchange, made, nbytes=PAYLOAD, streamed=streamed)
    expected = check(decode(msgspec.json.encode(made)), request().expected())
    tracemalloc.start()
    try:
        async with client(server) as engine:
            asking = [engine.generate(request(), (lambda chunk: None) if streamed else None) for _ in range(3)]
            found = await asyncio.gather(*asking)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == [expected] * 3
    # 4 MiB of each before it is called big, and what is on its way.
    assert most < PAYLOAD, most


async def read_here(reply: AsyncIterator[bytes], expected: Expected) -> Evidence:
    """In the place of the process that reads big replies."""
    return check(decode(b"".join([piece async for piece in reply])), expected)


async def test_few_replies_are_read_apart_at_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, most = 0, 0

    async def counted(reply: AsyncIterator[bytes], expected: Expected) -> Evidence:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        try:
            await asyncio.sleep(1.0)  # until all replies are here
            return await read_here(reply, expected)
        finally:
            reading -= 1

    monkeypatch.setattr(big_reply, "read", counted)
    server.behaviour = lambda exchange: exchange.answer(long_reply(1000))
    async with client(server, big_reply=1000) as engine:
        await asyncio.gather(*(engine.generate(request()) for _ in range(engine_module.READERS + 3)))
    assert most == engine_module.READERS


async def test_a_big_last_event_must_begin_with_what_was_sent(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(big_reply, "read", read_here)
    server.behaviour = lambda exchange: exchange.stream(reply([1, 2], finish_reason=None), long_reply(100))
    async with client(server, big_reply=1000) as engine:
        with pytest.raises(Refused) as caught:
            await engine.generate(request(), lambda chunk: None)
    assert caught.value.reason == Reason.STREAM_ORDER
