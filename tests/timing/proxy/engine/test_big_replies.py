"""The loop of a proxy is held by no reply, however big."""

import asyncio
import gc
import time

import msgspec
from tests.unit.proxy.engine.exchanges import (
    Exchange,
    both,
    client,
    event,
    long_reply,
    reply,
    request,
    send_in_pieces,
    send_with_payload,
    serving,
)

from rolloutfleet_proxy.engine.evidence import check, decode

PAYLOAD = 100_000_000


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
async def test_a_big_reply_does_not_hold_the_loop(streamed: bool) -> None:
    count = 1_000_000
    made = long_reply(count)
    whole = msgspec.json.encode(made)
    began = time.thread_time()
    expected = check(decode(whole), request().expected())
    # Some 0.4 s of work, more on a slow machine, where all else takes longer as well.
    on_the_loop = time.thread_time() - began
    start = reply(made["output_ids"][:2], finish_reason=None)
    start["meta_info"]["output_token_logprobs"] = made["meta_info"]["output_token_logprobs"][:2]
    pieces = [event(start), b"data: " + whole + b"\n\n", b"data: [DONE]\n\n"] if streamed else [whole]

    async def behave(exchange: Exchange) -> None:
        await exchange.begin_stream()
        for piece in pieces:
            await send_in_pieces(exchange, piece)
        await exchange.send(b"")

    async with serving() as server, client(server) as engine, Ticker() as ticker:
        server.behaviour = behave
        evidence = await engine.generate(request(with_logprobs=True), (lambda chunk: None) if streamed else None)
    assert evidence == expected
    assert len(whole) > 30_000_000
    assert ticker.longest < max(0.05, on_the_loop / 6), on_the_loop


@both
async def test_payloads_of_many_replies_at_once_do_not_hold_the_loop(streamed: bool) -> None:
    made = long_reply(1000)
    async with serving() as server, client(server) as engine, Ticker() as ticker:
        server.behaviour = lambda exchange: send_with_payload(exchange, made, nbytes=PAYLOAD, streamed=streamed)
        asking = [engine.generate(request(), (lambda chunk: None) if streamed else None) for _ in range(3)]
        await asyncio.gather(*asking)
    assert ticker.longest < 0.05
