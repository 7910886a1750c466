"""A stream says what the turn says, as the engine makes it, and says how it ended once the turn is on disk."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from tests.fleets import Fleet, ProxyProcess, running_fleet
from tests.integration.proxy import judge
from tests.integration.proxy.answers import Joined
from tests.integration.proxy.calls import opened
from tests.waiting import eventually

COMMENTS_EVERY = 0.25
GRACE = 2.0
SEEDS = 150
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 100, "stream": True}
LONG: dict[str, Any] = {**HELLO, "max_tokens": 500, "ignore_eos": True}
"""5 s with the slow engine: it goes on when a busy machine stood still for a while."""
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name}, whatever it takes",
            "parameters": {
                "type": "object",
                "properties": {
                    "where": {"type": "string"},
                    "days": {"type": "array", "items": {"type": "integer"}},
                    "options": {"type": "object", "properties": {"deep": {"type": "boolean"}, "note": {}}},
                },
                "required": ["where", "days"],
            },
        },
    }
    for name in ("look_up", "go_there")
]

Json = Any


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet whose engine takes 10 ms a token, and whose proxy has little patience."""
    settings = {
        "stream_comment": COMMENTS_EVERY,
        "engine_timeout": 3.0,
        "sessions": {"retryGrace": f"{GRACE}s"},
    }
    options = ("--token-latency", "0.01")
    with running_fleet(tmp_path_factory.mktemp("slow"), engine_options=options, settings=settings) as running:
        yield running


async def data(reply: httpx.Response) -> AsyncIterator[Json]:
    """The events' data, `[DONE]` among them; comments are left out."""
    async for line in reply.aiter_lines():
        if line.startswith("data: "):
            text = line.removeprefix("data: ")
            yield text if text == "[DONE]" else json.loads(text)


def says(event: Json) -> bool:
    """Whether it holds content, reasoning or a tool call."""
    delta = event["choices"][0]["delta"]
    return any(delta.get(name) for name in ("content", "reasoning_content", "tool_calls"))


async def test_the_first_delta_comes_before_the_engines_last_token(slow: Fleet) -> None:
    session = slow.proxy.start_session()
    finished = slow.engine.counters()["finished"]
    async with opened(session, {**HELLO, "max_tokens": 500, "ignore_eos": True}) as reply:
        events = data(reply)
        async for event in events:
            if says(event):
                break
        counted = slow.engine.counters()
        assert counted["finished"] == finished and counted["running"] == 1
        assert session.turns() == []
        rest = [event async for event in events]
    assert rest[-1] == "[DONE]" and rest[-2]["choices"][0]["finish_reason"] in ("stop", "length")
    assert len([event for event in rest[:-2] if says(event)]) > 10, "and more come one by one"
    assert len(session.turns()) == 1


async def test_what_the_deltas_say_is_the_committed_message(fleet: Fleet, proxy: ProxyProcess) -> None:
    """Over many seeds, with reasoning, content, one tool call and several; cut at every token."""
    session = proxy.start_session()
    streamed: dict[str, Joined] = {}
    async with session.async_client() as client:
        for seed in range(SEEDS):
            joined = Joined()
            async with await client.chat.completions.create(
                model="simulated",
                messages=[{"role": "user", "content": "Plan a journey"}],
                tools=TOOLS,
                seed=seed,
                max_tokens=400 if seed % 10 else 30,
                logprobs=seed % 2 == 0,
                stream=True,
                stream_options={"include_usage": True},
            ) as events:
                async for event in events:
                    joined.add(event)
            streamed[joined.turn_id] = joined
    turns = {turn["turn_id"]: turn for turn in session.turns()}
    assert session.post("reward", {"reward": 1.0}).status_code == 200
    with proxy.admin() as admin:
        exported = admin.post("/export", json={"session_ids": [session.session_id]}).raise_for_status().json()
    messages = {turn["turn_id"]: turn["message"] for turn in exported["trajectories"][0]["turns"]}
    assert streamed.keys() == turns.keys() == messages.keys() and len(streamed) == SEEDS
    for number, (name, joined) in enumerate(streamed.items()):
        turn = turns[name]
        assert judge.said(joined.message) == judge.said(messages[name])
        assert joined.finish_reason == turn["finish_reason"]
        assert joined.logprobs == (turn["logprobs"] if number % 2 == 0 else [])
        assert joined.usage.completion_tokens == len(turn["output_ids"])
        assert joined.usage.prompt_tokens == turn["prompt_tokens"]
    calls = [len(message.get("tool_calls") or []) for message in messages.values()]
    assert {0, 1, 2, 3} <= set(calls)
    assert any(message.get("reasoning_content") for message in messages.values())
    assert {turn["finish_reason"] for turn in turns.values()} == {"stop", "length", "tool_calls"}
    judge.assert_the_engines_own(turns.values(), judge.joined_notes(fleet))


@pytest.mark.parametrize("with_usage", [False, True])
def test_a_stream_ends_with_its_finish_reason_usage_where_asked_for_and_done(
    proxy: ProxyProcess, with_usage: bool
) -> None:
    session = proxy.start_session()
    options = {"stream_options": {"include_usage": True}} if with_usage else {}
    reply = session.raw_chat({**HELLO, **options})
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    (turn,) = session.turns()
    if with_usage:
        last = chunks.pop()
        assert last["choices"] == [] and last["usage"]["completion_tokens"] == turn["completion_tokens"]
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert not any("usage" in chunk for chunk in chunks)
    assert {(chunk["id"], chunk["object"], chunk["model"]) for chunk in chunks} == {
        (turn["turn_id"], "chat.completion.chunk", "simulated")
    }
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [turn["finish_reason"]]
    assert chunks[-1]["choices"][0]["delta"] == {}


async def test_a_silent_stream_gets_comments_before_and_between_its_events(slow: Fleet) -> None:
    session = slow.proxy.start_session()
    slow.engine.fault("slow", seconds=10 * COMMENTS_EVERY)
    async with opened(session, HELLO) as reply:
        assert reply.status_code == 200
        lines = [line async for line in reply.aiter_lines() if line]
    first = next(number for number, line in enumerate(lines) if line.startswith("data: "))
    assert first >= 2 and all(line.startswith(":") for line in lines[:first])
    assert lines[-1] == "data: [DONE]" and len(session.turns()) == 1

    slow.engine.fault("never", after_tokens=30)
    async with opened(session, HELLO) as reply:
        lines = []
        async for line in reply.aiter_lines():
            lines += [line] if line else []
            if any(line.startswith("data: ") for line in lines) and all(line.startswith(":") for line in lines[-3:]):
                break
        else:
            pytest.fail("it ended")


# What fails midway, and what fails before the first byte

SPOILS_ANY_TOKEN = (
    *("wrong_length", "extra_logprob", "nan", "null_logprob", "infinity", "sentinel", "positive", "bool"),
    *("string_logprob", "other_id_in_logprobs", "bad_id", "huge_id", "bool_id", "missing_ids", "missing_logprobs"),
    *("missing_meta", "unknown_finish_reason", "missing_finish_reason", "wrong_count"),
)
BREAKS_OFF = {
    "abort_with_status": "engine_error",
    "never": "engine_timeout",
}


@pytest.mark.parametrize("kind", [*SPOILS_ANY_TOKEN, "garbage_json", *BREAKS_OFF])
async def test_an_engine_that_fails_midway_ends_the_stream_with_an_error_and_leaves_nothing(
    slow: Fleet, kind: str
) -> None:
    session = slow.proxy.start_session()
    before, refused = slow.proxy.audit(), slow.proxy.stats()["refused"]
    # What is made while somebody stands still comes at once, as one delta.
    slow.engine.fault(kind, after_tokens=100)
    async with opened(session, LONG) as reply:
        assert reply.status_code == 200
        events = [event async for event in data(reply)]
    slow.engine.clear_faults()
    *chunks, last = events
    assert len([chunk for chunk in chunks if says(chunk)]) > 5
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert last["error"]["code"] == BREAKS_OFF.get(kind, "evidence_refused") and last["error"]["message"]
    assert slow.proxy.stats()["refused"][last["error"]["code"]] > refused.get(last["error"]["code"], 0)
    assert session.turns() == [] and slow.proxy.audit() == before
    await eventually(lambda: slow.engine.counters()["running"] == 0)
    await eventually(lambda: slow.proxy.stats()["in_flight"] == 0)


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        ("error_500", 502, "engine_error"),
        ("error_429", 429, "engine_overloaded"),
        ("context_length", 400, "context_length_exceeded"),
        ("abort_with_status", 502, "engine_error"),
        ("garbage_json", 502, "evidence_refused"),
        ("nan", 502, "evidence_refused"),
        ("missing_meta", 502, "evidence_refused"),
    ],
)
def test_what_fails_before_the_first_byte_is_an_ordinary_error(
    fleet: Fleet, proxy: ProxyProcess, kind: str, status: int, code: str
) -> None:
    session = proxy.start_session()
    fleet.engine.fault(kind)
    reply = session.raw_chat(HELLO)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code), reply.text
    assert reply.headers["content-type"] == "application/json"
    assert session.turns() == []


def test_what_is_wrong_with_a_request_for_a_stream_is_an_ordinary_error(fleet: Fleet, proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    received = fleet.engine.counters()["received"]
    assert session.raw_chat({**HELLO, "model": 7}).status_code == 400
    assert session.raw_chat({**HELLO, "n": 2}).status_code == 400
    assert session.raw_chat({**HELLO, "max_tokens": 10_000_000}).status_code == 400
    assert session.raw_chat(HELLO, authorization="Bearer none").status_code == 401
    assert fleet.engine.counters()["received"] == received and session.turns() == []


def test_a_generation_that_the_engine_cuts_by_itself_goes_on_in_the_same_stream(
    fleet: Fleet, proxy: ProxyProcess
) -> None:
    session = proxy.start_session()
    whole = session.raw_chat({**HELLO, "seed": 1})
    fleet.engine.fault("bare_abort", after_tokens=10)
    cut = session.raw_chat({**HELLO, "seed": 1})
    first, second = session.turns()
    assert second["output_ids"] == first["output_ids"] and second["logprobs"] == first["logprobs"]
    assert _text(cut) == _text(whole)


def _text(reply: httpx.Response) -> str:
    chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    return "".join((delta.get("reasoning_content") or "") + (delta.get("content") or "") for delta in deltas)


# Clients that leave


async def test_a_client_that_leaves_midway_ends_the_engines_work_after_the_grace(slow: Fleet) -> None:
    session = slow.proxy.start_session()
    slow.engine.fault("never", after_tokens=40)
    async with opened(session, HELLO) as reply:
        async for event in data(reply):
            if says(event):
                break
    await eventually(lambda: slow.engine.counters()["running"] == 0)
    await eventually(lambda: slow.proxy.stats()["in_flight"] == 0)
    assert session.turns() == []


async def test_a_client_that_leaves_and_asks_again_gets_the_stream_from_its_first_delta(slow: Fleet) -> None:
    session = slow.proxy.start_session()
    received = slow.engine.counters()["received"]
    seen = []
    async with opened(session, LONG) as reply:
        async for event in data(reply):
            seen.append(event)
            if len(seen) == 8:
                break
    async with opened(session, LONG, **{"x-stainless-retry-count": "1"}) as reply:
        again = [event async for event in data(reply)]
    assert again[: len(seen)] == seen and again[-1] == "[DONE]"
    assert slow.engine.counters()["received"] == received + 1
    (turn,) = session.turns()
    assert turn["turn_id"] == seen[0]["id"]


async def test_many_clients_that_come_and_leave_leave_nothing_behind(slow: Fleet) -> None:
    """Some at their first delta, some later, some stay: those have their turns, and nothing runs on."""
    session = slow.proxy.start_session()

    async def visit(number: int) -> str | None:
        body = {**HELLO, "seed": number, "max_tokens": 60}
        name = None
        async with opened(session, body) as reply:
            left = number % 4 * 15 if number % 4 else 1000
            async for event in data(reply):
                if event == "[DONE]":
                    return name
                name = event["id"]
                left -= 1
                if not left:
                    return None
        raise AssertionError("the stream ended without [DONE]")

    stayed = {name for name in await asyncio.gather(*(visit(number) for number in range(24))) if name}
    await eventually(lambda: slow.proxy.stats()["in_flight"] == 0)
    await eventually(lambda: slow.engine.counters()["running"] == 0)
    turns = {turn["turn_id"] for turn in session.turns()}
    assert len(stayed) >= 6 and stayed <= turns
    assert slow.proxy.audit()["balanced"]
