"""Big replies, which a process of their own reads."""

from array import array
from typing import Any

import msgspec
import pytest
from tests.unit.proxy.engine.exchanges import (
    Exchange,
    both,
    client,
    event,
    failure,
    long_reply,
    reply,
    request,
    send_in_pieces,
    serving,
)

from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.engine import client as engine_module
from rolloutfleet_proxy.engine.evidence import Reason, Refused, check, decode
from rolloutfleet_proxy.engine.reply_stream import Chunk
from rolloutfleet_proxy.http.errors import status_of


@both
async def test_a_big_reply_is_checked_in_another_process(streamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = long_reply(150_000)
    whole = msgspec.json.encode(made)
    expected = check(decode(whole), request().expected())
    start = reply(made["output_ids"][:2], finish_reason=None)
    start["meta_info"]["output_token_logprobs"] = made["meta_info"]["output_token_logprobs"][:2]

    async def behave(exchange: Exchange) -> None:
        await exchange.begin_stream()
        for piece in [event(start), event(made), b"data: [DONE]\n\n"] if streamed else [whole]:
            await send_in_pieces(exchange, piece)
        await exchange.send(b"")

    def never_here(*_: Any) -> None:
        raise AssertionError("a big reply is checked on the loop")

    monkeypatch.setattr(engine_module, "check", never_here)
    chunks: list[Chunk] = []
    async with serving() as server, client(server) as engine:
        server.behaviour = behave
        evidence = await engine.generate(request(with_logprobs=True), chunks.append if streamed else None)
    assert len(whole) > engine_module.BIG_REPLY
    assert evidence == expected
    if streamed:
        assert [id for chunk in chunks for id in chunk.output_ids] == made["output_ids"]
        assert array("f", [lp for chunk in chunks for lp in chunk.logprobs or ()]) == evidence.logprobs


@both
@pytest.mark.parametrize(
    ("change", "raised"),
    [
        ({"prompt_tokens": 5}, Refused),
        ({"finish_reason": {"type": "abort", "message": "broke", "status_code": 500}}, DomainError),
    ],
)
async def test_a_big_reply_is_refused_for_the_same_reasons(
    streamed: bool, change: dict[str, Any], raised: type[Exception]
) -> None:
    made = long_reply(100)
    made["meta_info"] |= change
    async with serving() as server, client(server, big_reply=1000) as engine:
        server.behaviour = lambda exchange: exchange.stream(made) if streamed else exchange.answer(made)
        with pytest.raises(raised) as caught:
            await engine.generate(request(), (lambda chunk: None) if streamed else None)
    if isinstance(caught.value, Refused):
        assert caught.value.reason == Reason.PROMPT_MISMATCH
    else:
        assert "broke" in str(caught.value)


async def test_a_big_reply_that_breaks_off_is_502() -> None:
    async def behave(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.send(b"{" * 5000)
        exchange.writer.close()

    async with serving() as server, client(server, big_reply=1000) as engine:
        server.behaviour = behave
        assert status_of(await failure(engine)) == 502
