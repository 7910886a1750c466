"""One turn's rounds at a simulated engine: cut, continued and joined, ended early, and never made up."""

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.unit.engine.serving import engine_here
from tests.unit.proxy.engine.exchanges import both
from tests.unit.proxy.engine.stages import PROMPT, TOKENS, Stage
from tests.unit.proxy.services import open_weights
from tests.unit.proxy.stores import InlineStore
from tests.waiting import PATIENCE, comes_true

from rolloutfleet.errors import ENGINE_ERROR, ENGINE_TIMEOUT
from rolloutfleet_engine.faults import SPOILERS
from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_proxy.domain.errors import DomainError, EngineUnreachable, GenerationCut
from rolloutfleet_proxy.domain.weights import Recovery
from rolloutfleet_proxy.engine.client import Engine
from rolloutfleet_proxy.engine.errors import ConnectionLost
from rolloutfleet_proxy.engine.evidence import Evidence, Reason, Refused, Span
from rolloutfleet_proxy.engine.generation import MOST_LOST, ROUNDS
from rolloutfleet_proxy.http.errors import status_of

LONG = 150
HOLD = 60.0
"""Seconds that a call is held at the most."""
SLOWLY = 1.0
"""Seconds from a token to the next: whatever is to happen after the first happens before the second."""


@asynccontextmanager
async def stage(*, silence: float = 600.0, **options: Any) -> AsyncIterator[Stage]:
    clock = asyncio.get_running_loop().time
    async with engine_here(EngineOptions(weight_version="1", **options)) as running:
        weights = await open_weights(InlineStore(), max_hold=HOLD, clock=clock)
        await weights.advance(1)
        engine = running.engine
        made = Stage(running.url, running.url, weights, counters=engine.totals, silence=silence, clock=clock)
        try:
            yield made
        finally:
            await made.close()


def joined(entries: list[dict[str, Any]], name: str) -> list[Any]:
    return [value for entry in entries for value in entry[name]]


async def check_against_log(stage: Stage, evidence: Evidence) -> list[dict[str, Any]]:
    """Every token and log-probability is the engine's own, and each round was asked for what the ones before made."""
    entries = await stage.log()
    assert evidence.output_ids.tolist() == joined(entries, "output_ids")
    assert evidence.logprobs == array("f", joined(entries, "output_logprobs"))
    made: list[int] = []
    for entry in entries:
        assert entry["input_ids"] == PROMPT + made
        made += entry["output_ids"]
    assert stage.rounds == len(entries)
    return entries


# Whole turns


@both
async def test_a_turn_of_one_round(streamed: bool) -> None:
    async with stage() as on:
        evidence = await on.turn(streamed=streamed)
        [entry] = await check_against_log(on, evidence)
        assert (entry["rid"], entry["routing_key"]) == ("turn.0.", "s0-abc")
    assert (len(evidence.output_ids), evidence.finish_reason) == (TOKENS, "length")
    assert evidence.spans == (Span(1, 0, TOKENS),)
    assert not evidence.version_differs
    assert on.shown == (evidence.output_ids.tolist() if streamed else [])


async def test_new_tokens_are_handed_over_before_the_last_is_made() -> None:
    async with stage(token_latency=SLOWLY) as on:
        turn = asyncio.ensure_future(on.turn(streamed=True))
        await on.until_shown()
        assert not turn.done()
        assert len(on.shown) < TOKENS
        evidence = await turn
    assert on.shown == evidence.output_ids.tolist()


# Prefix caches


async def test_each_round_has_the_key_of_the_weights_that_it_was_sent_to() -> None:
    async with stage() as on:
        await on.stand_after(5)
        turn = asyncio.ensure_future(on.turn())
        await on.until(running=1)
        await on.pause("abort")
        await on.go_on(2)
        await turn
        assert [entry["extra_key"] for entry in await on.log()] == ["0.1", "0.2"]
        assert not on.mixed_cache
        await on.weights.recover(Recovery(run=4, version=0, newer="drop"))
        await on.turn(rid="later")
        assert (await on.log())[-1]["extra_key"] == "4.0"


async def test_a_round_at_other_weights_than_its_key_says_is_marked() -> None:
    async with stage() as on:
        (await on.http.post("/update_weight_version", json={"new_version": "7"})).raise_for_status()
        await on.turn()
        assert on.mixed_cache
        await on.weights.advance(7)
        await on.turn(rid="known")
        assert not on.mixed_cache


@pytest.mark.parametrize(("kind", "mixed"), [("cached", True), ("missing_cached_tokens", True), (None, False)])
async def test_a_shared_cache_marks_what_may_have_met_it_until_it_is_flushed(kind: str | None, mixed: bool) -> None:
    async with stage() as on:
        on.cache_by_version = False
        if kind is not None:
            await on.fault(kind=kind, count=3)
        for flush_cache, marked in ((None, False), (False, mixed), (True, False)):
            await on.weights.advance(2 if flush_cache is not None else 1, flush_cache=flush_cache)
            await on.turn(rid=f"turn {flush_cache}")
            assert on.mixed_cache == marked
        assert {entry["extra_key"] for entry in await on.log()} == {None}


# Pauses


@both
async def test_a_turn_cut_by_a_weight_update_goes_on(streamed: bool) -> None:
    async with stage() as on:
        await on.stand_after(5, rounds=2)
        turn = asyncio.ensure_future(on.turn(streamed=streamed, tokens=LONG, min_new_tokens=LONG))
        for version in (2, 3):
            await on.until(running=1)
            await on.pause("abort")
            assert on.weights.gate.in_flight == 0
            await on.go_on(version)
        evidence = await turn
        entries = await check_against_log(on, evidence)
    assert [entry["rid"] for entry in entries] == ["turn.0.", "turn.1.", "turn.2."]
    assert (len(evidence.output_ids), evidence.finish_reason) == (LONG, "length")
    assert evidence.spans == (Span(1, 0, 5), Span(2, 5, 10), Span(3, 10, LONG))
    assert not evidence.version_differs
    if streamed:
        assert on.shown == evidence.output_ids.tolist()


@both
@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_turn_that_the_engine_keeps_has_a_version_for_each_token(mode: str, streamed: bool) -> None:
    async with stage(token_latency=SLOWLY) as on:
        turn = asyncio.ensure_future(on.turn(streamed=streamed, tokens=LONG))
        await on.until(running=1)
        await on.pause(mode)
        await on.go_on(2)
        evidence = await turn
        await check_against_log(on, evidence)
    assert on.rounds == 1
    assert evidence.spans is not None
    assert [span.version for span in evidence.spans] == [1, 2]
    assert not evidence.version_differs


async def test_an_engine_without_versions_leaves_them_to_the_proxy_by_chunk() -> None:
    async with stage(token_latency=SLOWLY) as on:
        await on.fault(kind="missing_version")
        turn = asyncio.ensure_future(on.turn(streamed=True, tokens=LONG))
        await on.until_shown()
        assert await on.engine.pause("in_place") == {}
        await on.weights.advance(2)
        assert await on.engine.resume() == {}
        evidence = await turn
    assert evidence.spans is not None
    assert [span.version for span in evidence.spans] == [1, 2]
    assert (evidence.spans[0].start, evidence.spans[-1].end) == (0, LONG)


async def test_a_version_that_the_proxy_does_not_know_is_marked() -> None:
    async with stage() as on:
        (await on.http.post("/update_weight_version", json={"new_version": "7"})).raise_for_status()
        evidence = await on.turn()
    assert evidence.spans == (Span(7, 0, TOKENS),)
    assert evidence.version_differs


@both
async def test_a_round_behind_a_pause_is_sent_again_when_it_is_over(streamed: bool) -> None:
    """The paused engine holds what comes; nothing of the proxy is in flight once the pause has settled."""
    async with stage() as on:
        assert await on.engine.pause("abort") == {}
        turn = asyncio.ensure_future(on.turn(streamed=streamed))
        await on.until(held=1)
        await on.pause("abort")
        assert on.weights.gate.in_flight == 0
        await on.until(held=0, running=0)
        await on.go_on(2)
        evidence = await turn
    assert on.rounds == 2
    assert evidence.spans == (Span(2, 0, TOKENS),)


@both
async def test_a_pause_that_the_proxy_was_not_told_of_cuts_no_turn_short(
    streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage() as on:
        any_paused, asked = on.engine.any_paused, asyncio.Semaphore(0)

        async def ask() -> bool:
            asked.release()
            return await any_paused()

        monkeypatch.setattr(on.engine, "any_paused", ask)
        await on.stand_after(5)
        turn = asyncio.ensure_future(on.turn(streamed=streamed, tokens=LONG))
        await on.until(running=1)
        assert await on.engine.pause("abort") == {}
        async with asyncio.timeout(PATIENCE):
            for _ in range(3):
                await asked.acquire()
        assert on.rounds == 1, "an engine that says that it is paused is sent nothing"
        assert not turn.done()
        assert await on.engine.resume() == {}
        evidence = await turn
        await check_against_log(on, evidence)
    assert (on.rounds, len(evidence.output_ids), evidence.finish_reason) == (2, LONG, "length")


async def test_cut_too_often_a_turn_ends_with_length() -> None:
    async with stage() as on:
        await on.fault(kind="bare_abort", after_tokens=5, count=3)
        evidence = await on.turn(max_rounds=3)
        await check_against_log(on, evidence)
    assert (len(evidence.output_ids), evidence.finish_reason) == (15, "length")


@both
async def test_an_abort_that_nobody_asked_for_is_a_round(streamed: bool) -> None:
    async with stage() as on:
        await on.fault(kind="bare_abort", after_tokens=5)
        await on.fault(kind="bare_abort")
        evidence = await on.turn(streamed=streamed)
        entries = await check_against_log(on, evidence)
    assert [len(entry["output_ids"]) for entry in entries] == [5, 0, TOKENS - 5]
    if streamed:
        assert on.shown == evidence.output_ids.tolist()


async def test_a_part_that_used_the_budget_up_is_the_turn() -> None:
    async with stage() as on:
        await on.fault(kind="bare_abort", after_tokens=TOKENS)
        evidence = await on.turn()
    assert (on.rounds, len(evidence.output_ids), evidence.finish_reason) == (1, TOKENS, "length")


async def test_never_a_token_is_an_error() -> None:
    async with stage() as on:
        await on.fault(kind="bare_abort", count=3)
        with pytest.raises(DomainError) as caught:
            await on.turn(max_rounds=3)
    assert (status_of(caught.value), caught.value.code) == (502, ENGINE_ERROR)


# Gateways and engines that are away


@both
async def test_an_engine_that_is_away_is_waited_for_and_no_part_lost(streamed: bool) -> None:
    async with stage() as on:
        await on.fault(kind="bare_abort", after_tokens=5)
        await on.fault(kind="error_503", count=5)
        evidence = await on.turn(streamed=streamed)
        assert (on.rounds, len(evidence.output_ids)) == (7, TOKENS)
    assert on.outages == [True] * 5 + [False]


async def test_an_engine_that_stays_away_is_an_error_after_the_longest_hold() -> None:
    async with stage() as on:
        await on.fault(kind="error_503", count=1000)
        began = asyncio.get_running_loop().time()
        with pytest.raises(EngineUnreachable):
            await on.turn()
        assert HOLD <= asyncio.get_running_loop().time() - began < HOLD + 2 * ROUNDS.longest


async def test_a_pause_is_no_outage_for_those_who_wait() -> None:
    async with stage() as on:
        await on.fault(kind="error_503", count=3)
        turn = asyncio.ensure_future(on.turn())
        await comes_true(lambda: on.outages == [True])
        await on.pause("abort", settle=False)
        await comes_true(lambda: not on.outages[-1])
        assert on.weights.gate.in_flight == 0
        await on.go_on(2)
        assert len((await turn).output_ids) == TOKENS


async def test_a_gateway_that_comes_in_time_is_reached() -> None:
    async with stage() as on:
        away = on.engine
        on.engine = Engine("http://127.0.0.1:8080")
        turn = asyncio.ensure_future(on.turn())
        await comes_true(lambda: on.outages == [True])
        async with engine_here(EngineOptions(weight_version="1"), port=8080):
            assert len((await turn).output_ids) == TOKENS
        await away.aclose()


async def test_request_lost_before_a_token_is_sent_again_under_another_rid() -> None:
    async with stage() as on:
        await on.fault(kind="cut_stream", count=MOST_LOST)
        evidence = await on.turn()
        entries = await on.log()
    assert len({entry["rid"] for entry in entries}) == len(entries) == MOST_LOST + 1
    assert [entry["input_ids"] for entry in entries] == [PROMPT] * len(entries)
    assert evidence.output_ids.tolist() == entries[-1]["output_ids"]


async def test_request_lost_again_and_again_is_an_error() -> None:
    """It may be what ends the engines."""
    async with stage() as on:
        await on.fault(kind="cut_stream", count=1000)
        with pytest.raises(ConnectionLost):
            await on.turn()
    assert on.rounds == MOST_LOST + 1


async def test_a_stream_that_is_lost_goes_on_behind_what_came() -> None:
    async with stage() as on:
        await on.fault(kind="cut_stream", after_tokens=5)
        evidence = await on.turn(streamed=True)
        first, second = await on.log()
    part = len(second["input_ids"]) - len(PROMPT)
    assert 0 < part <= 5 and second["input_ids"] == PROMPT + first["output_ids"][:part]
    assert on.shown == evidence.output_ids.tolist() == first["output_ids"][:part] + second["output_ids"]
    assert evidence.logprobs == array("f", first["output_logprobs"][:part] + second["output_logprobs"])


async def test_under_a_grammar_a_stream_that_is_lost_is_an_error() -> None:
    async with stage() as on:
        await on.fault(kind="cut_stream", after_tokens=1)
        with pytest.raises(ConnectionLost):
            await on.turn(streamed=True, regex=SAMPLED_UNDER["regex"])
    assert on.rounds == 1


SAMPLED_UNDER: dict[str, Any] = {
    "json_schema": '{"type":"object"}',
    "regex": "[a-z ]{40,}",
    "ebnf": "root ::= [a-z ]+",
    "structural_tag": '{"type":"structural_tag","format":{"type":"any_text"}}',
}


@pytest.mark.parametrize("grammar", SAMPLED_UNDER)
async def test_under_a_grammar_a_turn_begins_again(grammar: str) -> None:
    async with stage() as on:
        await on.fault(kind="bare_abort", after_tokens=5)
        evidence = await on.turn(**{grammar: SAMPLED_UNDER[grammar]})
        entries = await on.log()
    assert [entry["input_ids"] for entry in entries] == [PROMPT, PROMPT]
    assert evidence.output_ids.tolist() == entries[1]["output_ids"]


@pytest.mark.parametrize("grammar", SAMPLED_UNDER)
async def test_under_a_grammar_what_was_shown_cannot_be_taken_back(grammar: str) -> None:
    async with stage() as on:
        await on.fault(kind="bare_abort", after_tokens=5)
        with pytest.raises(DomainError) as caught:
            await on.turn(streamed=True, **{grammar: SAMPLED_UNDER[grammar]})
    assert (status_of(caught.value), caught.value.retry_after) == (503, 1.0)


# Promise 2

HARMLESS = {"missing_version", "routed_experts", "cached", "missing_cached_tokens"}


@both
@pytest.mark.parametrize("kind", sorted(set(SPOILERS) - HARMLESS))
async def test_a_spoiled_reply_is_refused(kind: str, streamed: bool) -> None:
    async with stage() as on:
        await on.fault(kind=kind)
        with pytest.raises(Refused) as caught:
            await on.turn(streamed=streamed, tokens=6)
        assert caught.value.reason in vars(Reason).values()
        assert on.rounds == 1
        # The next one is fine.
        assert len((await on.turn(streamed=streamed, tokens=6, rid="next")).output_ids) == 6


async def test_a_reply_without_tokens_is_refused() -> None:
    async with stage(max_context=len(PROMPT) + 2) as on:
        with pytest.raises(Refused) as caught:
            await on.turn(tokens=1)
    assert caught.value.reason == Reason.EMPTY


# Errors and silence


@both
async def test_an_abort_with_an_error_is_not_continued(streamed: bool) -> None:
    async with stage() as on:
        await on.fault(kind="abort_with_status", after_tokens=5, status=500, message="out of memory")
        with pytest.raises(DomainError) as caught:
            await on.turn(streamed=streamed)
    assert (status_of(caught.value), caught.value.code, on.rounds) == (502, ENGINE_ERROR, 1)


@both
async def test_a_silent_engine_is_told_to_stop_and_not_asked_again(streamed: bool) -> None:
    async with stage(silence=0.3) as on:
        await on.fault(kind="never", after_tokens=3)
        with pytest.raises(DomainError) as caught:
            await on.turn(streamed=streamed)
        assert (status_of(caught.value), caught.value.code) == (504, ENGINE_TIMEOUT)
        await on.until(received=1, running=0, held=0)
    assert on.rounds == 1


async def test_what_was_passed_on_before_a_cut_is_not_made_again() -> None:
    """What is cut behind a pause is sent again; but its caller has tokens that another round would not make."""
    async with stage() as on:
        await on.stand_after(5)
        turn = asyncio.ensure_future(on.turn(streamed=True, tokens=LONG))
        await on.until_shown()
        on.weights.gate._cut()
        with pytest.raises(GenerationCut):
            await turn
    assert on.rounds == 1 and on.shown


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_pause_longer_than_an_engine_may_be_silent_ends_no_stream(mode: str) -> None:
    silence = 2 * SLOWLY
    async with stage(token_latency=SLOWLY, silence=silence) as on:
        turn = asyncio.ensure_future(on.turn(streamed=True, tokens=LONG))
        await on.until(running=1)
        await on.pause(mode)
        await asyncio.sleep(2 * silence)
        assert not turn.done()
        await on.go_on(2)
        assert len((await turn).output_ids) == LONG
    assert on.rounds == 1
