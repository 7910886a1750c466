"""One turn's rounds at a simulated engine: cut, continued and joined, ended early, and never made up."""

import asyncio
import subprocess
import time
from array import array
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import httpx
import pytest
from tests.gateways import gateway_command
from tests.unit.proxy.services import open_weights
from tests.unit.proxy.stores import InlineStore
from tests.waiting import PATIENCE

from rolloutfleet.backoff import Backoff
from rolloutfleet.errors import ENGINE_ERROR, ENGINE_TIMEOUT, ENGINE_UNREACHABLE
from rolloutfleet_engine.call import Call
from rolloutfleet_engine.faults import SPOILERS
from rolloutfleet_engine.generation import Pace
from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_engine.testing import running_engine
from rolloutfleet_proxy.domain.errors import DomainError, GenerationCut
from rolloutfleet_proxy.engine import generation as generation_module
from rolloutfleet_proxy.engine.client import Engine
from rolloutfleet_proxy.engine.evidence import Evidence, Reason, Refused, Span
from rolloutfleet_proxy.engine.generation import Generation
from rolloutfleet_proxy.engine.reply_stream import Chunk
from rolloutfleet_proxy.engine.request import GenerateRequest, ids_json
from rolloutfleet_proxy.http.errors import status_of
from rolloutfleet_proxy.services.weights import WeightService

T = TypeVar("T")
PROMPT = list(range(20, 60))
TOKENS = 60
LONG = 150
ONE_AT_FIRST = 3600.0
"""Seconds from a token to the next: whatever is to happen after the first happens before the second."""

both = pytest.mark.parametrize("streamed", [False, True])


class Stage:
    """A simulated engine, a proxy's weights, and turns made of both."""

    def __init__(self, engine_url: str, gateway_url: str, weights: WeightService, **settings: Any) -> None:
        self.http = httpx.AsyncClient(base_url=engine_url, timeout=PATIENCE)
        self.engine = Engine(gateway_url, engine_urls=[engine_url], **settings)
        self.weights = weights
        self.calls: Mapping[str, Call] = {}
        """Those at the engine, where that is an engine of our own."""
        self.chunks: list[Chunk] = []
        self.rounds = 0

    async def close(self) -> None:
        await self.engine.aclose()
        await self.http.aclose()

    async def turn(
        self, *, streamed: bool = False, tokens: int = TOKENS, max_rounds: int = 20, rid: str = "turn", **sampling: Any
    ) -> Evidence:
        """Make a turn of exactly `tokens` tokens, unless it is ended before."""
        request = GenerateRequest(
            rid=rid,
            routing_key="s0-abc",
            prompt_json=ids_json(PROMPT),
            prompt_tokens=len(PROMPT),
            max_new_tokens=tokens,
            sampling={"ignore_eos": True, **sampling},
            vocab_size=100_000,
        )
        async with self.weights.gate.submission() as submission:
            generation = Generation(
                engine=self.engine,
                weights=self.weights.gate,
                submission=submission,
                on_chunk=self.chunks.append if streamed else None,
                max_rounds=max_rounds,
                on_round=self._count,
            )
            return await generation.run(request)

    def _count(self) -> None:
        self.rounds += 1

    @property
    def shown(self) -> list[int]:
        return [id for chunk in self.chunks for id in chunk.output_ids]

    async def log(self) -> list[dict[str, Any]]:
        requests: list[dict[str, Any]] = (await self.http.get("/log")).json()["requests"]
        return requests

    async def until(self, **counts: int) -> None:
        """Wait until the engine counts so."""
        async with asyncio.timeout(PATIENCE):
            while not counts.items() <= (await self.http.get("/counters")).json().items():
                await asyncio.sleep(0.01)

    async def until_shown(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while not self.shown:
                await asyncio.sleep(0.005)

    def hurry(self) -> None:
        """Let calls make all that they lack as soon as the engine goes on. It must be paused, so that nothing in its
        thread looks at their pace meanwhile."""
        for call in list(self.calls.values()):
            if call.generation is not None:
                call.generation.pace = Pace(first=0.0, each=0.0)

    async def stand_after(self, tokens: int, *, rounds: int = 1) -> None:
        """The next rounds make so many tokens at once, and no more until they are cut."""
        await self.fault(kind="never", after_tokens=tokens, count=rounds)

    async def fault(self, **fault: Any) -> None:
        (await self.http.post("/faults", json=fault)).raise_for_status()

    async def pause(self, mode: Any, *, settle: bool = True) -> None:
        """As a fleet does it: hold, pause the engine, wait until nothing generates."""
        await self.weights.hold(epoch=self.weights.gate.epoch + 1, mode=mode)
        assert await self.engine.pause(mode) == {}
        if settle:
            await self.weights.gate.settled(epoch=self.weights.gate.epoch, timeout=PATIENCE)

    async def go_on(self, version: int) -> None:
        """New weights, then the engine goes on, then the proxy."""
        answer = await self.http.post(
            "/update_weights_from_disk", json={"model_path": "x", "weight_version": str(version)}
        )
        assert answer.status_code in (200, 400)
        await self.weights.advance(version)
        assert await self.engine.resume() == {}
        await self.weights.release(epoch=self.weights.gate.epoch)


@asynccontextmanager
async def stage(gateway_url: str | None = None, **options: Any) -> AsyncIterator[Stage]:
    settings = options.pop("settings", {})
    clock = options.pop("clock", time.monotonic)
    with running_engine(EngineOptions(weight_version="1", **options)) as running:
        weights = await open_weights(InlineStore(), max_hold=60.0, clock=clock)
        await weights.advance(1)
        made = Stage(running.url, gateway_url or running.url, weights, **settings)
        made.calls = running.engine.calls
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
    async with stage(token_latency=ONE_AT_FIRST) as on:
        turn = asyncio.ensure_future(on.turn(streamed=True))
        await on.until_shown()
        assert not turn.done()
        assert len(on.shown) < TOKENS
        assert await on.engine.pause("in_place") == {}
        on.hurry()
        assert await on.engine.resume() == {}
        evidence = await turn
    assert on.shown == evidence.output_ids.tolist()


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
    async with stage(token_latency=ONE_AT_FIRST) as on:
        turn = asyncio.ensure_future(on.turn(streamed=streamed, tokens=LONG))
        await on.until(running=1)
        await on.pause(mode)
        on.hurry()
        await on.go_on(2)
        evidence = await turn
        await check_against_log(on, evidence)
    assert on.rounds == 1
    assert evidence.spans is not None
    assert [span.version for span in evidence.spans] == [1, 2]
    assert not evidence.version_differs


async def test_an_engine_without_versions_leaves_them_to_the_proxy_by_chunk() -> None:
    async with stage(token_latency=ONE_AT_FIRST) as on:
        await on.fault(kind="missing_version")
        turn = asyncio.ensure_future(on.turn(streamed=True, tokens=LONG))
        await on.until_shown()
        assert await on.engine.pause("in_place") == {}
        await on.weights.advance(2)
        on.hurry()
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
    monkeypatch.setattr(generation_module, "PAUSED_POLL", 0.02)
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


async def test_never_a_token_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_module, "ROUNDS", Backoff(first=0.001, longest=2.0))
    async with stage() as on:
        await on.fault(kind="bare_abort", count=3)
        with pytest.raises(DomainError) as caught:
            await on.turn(max_rounds=3)
    assert (status_of(caught.value), caught.value.code) == (502, ENGINE_ERROR)


async def test_a_gateway_that_has_lost_its_engine_for_a_moment_loses_no_part() -> None:
    async with stage() as on:
        await on.fault(kind="bare_abort", after_tokens=5)
        await on.fault(kind="error_503")
        evidence = await on.turn()
        assert (on.rounds, len(evidence.output_ids)) == (3, TOKENS)
        await on.fault(kind="error_503")
        with pytest.raises(DomainError):
            await on.turn(rid="another")


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

HARMLESS = {"missing_version", "routed_experts"}


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
    async with stage(settings={"silence": 0.3}) as on:
        await on.fault(kind="never", after_tokens=3)
        with pytest.raises(DomainError) as caught:
            await on.turn(streamed=streamed)
        assert (status_of(caught.value), caught.value.code) == (504, ENGINE_TIMEOUT)
        await on.until(received=1, running=0, held=0)
    assert on.rounds == 1


async def test_what_was_passed_on_before_a_cut_is_not_made_again() -> None:
    """Lately resumed, a call is sent again; but its caller has tokens that another round would not make."""
    async with stage() as on:
        await on.pause("abort")
        await on.go_on(2)
        assert on.weights.gate.lately_resumed
        await on.stand_after(5)
        turn = asyncio.ensure_future(on.turn(streamed=True, tokens=LONG))
        await on.until_shown()
        on.weights.gate._cut()
        with pytest.raises(GenerationCut):
            await turn
    assert on.rounds == 1 and on.shown


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_pause_longer_than_an_engine_may_be_silent_ends_no_stream(mode: str) -> None:
    silence, now = 0.2, 0.0
    async with stage(token_latency=ONE_AT_FIRST, settings={"silence": silence}, clock=lambda: now) as on:
        turn = asyncio.ensure_future(on.turn(streamed=True, tokens=LONG))
        await on.until(running=1)
        await on.pause(mode)
        # Its clock runs in the pause alone, so that being held up is no silence. It is looked at as time really passes.
        now += 2 * silence
        await asyncio.sleep(2 * silence)
        assert not turn.done()
        on.hurry()
        await on.go_on(2)
        assert len((await turn).output_ids) == LONG
    assert on.rounds == 1


# Cancellation, through the real gateway


@pytest.fixture(scope="module")
def slow_engine() -> Iterator[str]:
    with running_engine(EngineOptions(latency=0.3, token_latency=0.05, weight_version="1")) as running:
        yield running.url


@pytest.fixture(scope="module")
def gateway(slow_engine: str) -> Iterator[str]:
    command = gateway_command([slow_engine])
    process = subprocess.Popen(command.argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_ready(command.url)
        yield command.url
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(url: str) -> None:
    _wait_until(f"{url}/readiness")


def _wait_until(url: str) -> None:
    until = time.monotonic() + PATIENCE
    with httpx.Client() as client:
        while time.monotonic() < until:
            with suppress(httpx.TransportError):
                if client.get(url).status_code == 200:
                    return
            time.sleep(0.05)
    raise AssertionError(f"{url} did not answer within {PATIENCE:g} s")


@asynccontextmanager
async def through(gateway: str, engine: str) -> AsyncIterator[Stage]:
    weights = await open_weights(InlineStore(), max_hold=60.0)
    await weights.advance(1)
    made = Stage(engine, gateway, weights)
    try:
        yield made
    finally:
        await made.close()


async def left(on: Stage, turn: "asyncio.Future[Evidence]") -> None:
    """Cancel, and see that the engine stops, before it would have finished."""
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    async with asyncio.timeout(PATIENCE):
        await on.until(running=0, held=0)


async def test_the_gateway_passes_a_turn_through(gateway: str, slow_engine: str) -> None:
    async with through(gateway, slow_engine) as on:
        for streamed in (False, True):
            evidence = await on.turn(streamed=streamed, tokens=4, rid=f"whole-{streamed}")
            assert (await on.log())[-1]["output_ids"] == evidence.output_ids.tolist()
        assert await on.engine.engines() == (slow_engine,)


async def test_a_gateway_without_an_engine_is_no_engine_and_not_an_unknown_model() -> None:
    """smg answers 404 `model_not_found` to a request that names no model; later calls find an engine again."""
    command = gateway_command([])
    process = subprocess.Popen(command.argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until(f"{command.url}/liveness")
        async with through(command.url, "http://127.0.0.1:9") as on:
            for streamed in (False, True):
                with pytest.raises(DomainError) as caught:
                    await on.turn(streamed=streamed, tokens=4, rid=f"none-{streamed}")
                error = caught.value
                assert (status_of(error), error.code) == (503, ENGINE_UNREACHABLE)
                assert error.retry_after and "model" not in error.message
    finally:
        process.kill()
        process.wait()


@both
async def test_cancelled_while_silent_the_engine_stops(gateway: str, slow_engine: str, streamed: bool) -> None:
    async with through(gateway, slow_engine) as on:
        await on.fault(kind="slow", seconds=3600.0)
        turn = asyncio.ensure_future(on.turn(streamed=streamed, tokens=400, rid=f"silent-{streamed}"))
        await on.until(running=1)
        assert not on.chunks
        await left(on, turn)
        assert (await on.log())[-1]["outcome"] in ("aborted_by_request", "aborted_by_caller")


async def test_cancelled_while_it_flows_the_engine_stops(gateway: str, slow_engine: str) -> None:
    async with through(gateway, slow_engine) as on:
        turn = asyncio.ensure_future(on.turn(streamed=True, tokens=400, rid="flowing"))
        async with asyncio.timeout(PATIENCE):
            while len(on.shown) < 3:
                await asyncio.sleep(0.01)
        await left(on, turn)
        assert len((await on.log())[-1]["output_ids"]) < 300


async def test_cancelled_in_mid_generation_the_engine_stops(gateway: str, slow_engine: str) -> None:
    async with through(gateway, slow_engine) as on:
        turn = asyncio.ensure_future(on.turn(tokens=400, rid="whole"))
        await on.until(running=1)
        # Of a call that isn't streamed the engine says nothing before its end; its first token comes after 0.3 s.
        await asyncio.sleep(0.5)
        await left(on, turn)
        assert 0 < len((await on.log())[-1]["output_ids"]) < 300
