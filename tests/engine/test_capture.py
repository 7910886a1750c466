"""Sessions of the stock SDK through a proxy, the real gateway and a real engine: what is kept is what the engine did.

The judge is the engine's own log of requests. Its weights are random, and so are its words; every id comes back.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from tests.engine.engines import Engine, is_healthy
from tests.engine.request_log import Answered, RequestLog
from tests.engine.sglang.places import Installed
from tests.fleets import AgentSession, ProxyProcess
from tests.processes import Server
from tests.waiting import PATIENCE, eventually

JSON = Any
LONG = 2400
ENDLESS = 7000
"""Tokens that take the engine far longer than any test waits for it to stop."""

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


@pytest.fixture
def session(real_proxy: ProxyProcess, real_engine: Engine) -> Iterator[AgentSession]:
    """A session on an engine that is idle, goes on and has its first weights."""
    yield real_proxy.start_session()


def ask(session: AgentSession, messages: list[JSON], *, stream: bool, **options: JSON) -> JSON:
    """One model call; the assistant's message as an agent appends it."""
    create = session.client().chat.completions.create
    wanted = {"model": "tiny", "messages": messages, "max_tokens": 40, **options}
    if not stream:
        return create(**wanted).choices[0].message.model_dump(exclude_none=True)
    content, reasoning = "", ""
    for chunk in create(**wanted, stream=True):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        reasoning += getattr(delta, "reasoning_content", None) or ""
    return {"role": "assistant", "content": content} | ({"reasoning_content": reasoning} if reasoning else {})


def as_float32(values: list[float]) -> list[float]:
    kept: list[float] = np.asarray(values, dtype=np.float32).tolist()
    return kept


def assert_kept(turn: JSON, answered: Answered) -> None:
    assert turn["output_ids"] == answered.output
    assert as_float32(turn["logprobs"]) == as_float32(answered.logprobs)
    assert turn["versions"] == answered.versions
    assert turn["prompt_tokens"] == len(answered.prompt)
    assert turn["completion_tokens"] == len(answered.output)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_session_with_tools_keeps_every_id_and_extends_its_parent_at_every_turn(
    session: AgentSession, request_log: RequestLog, stream: bool
) -> None:
    messages: list[JSON] = [
        {"role": "system", "content": "You are a careful assistant."},
        {"role": "user", "content": "What is the weather in Paris?"},
    ]
    for number in range(6):
        messages.append(ask(session, messages, stream=stream, tools=TOOLS))
        messages.append({"role": "user", "content": f"And in city {number}?"})

    turns, answered = session.turns(), request_log.answered(session.session_id)
    assert len(turns) == len(answered) == 6
    for turn, made in zip(turns, answered, strict=True):
        assert_kept(turn, made)
        assert set(turn["versions"]) == {1}
    for number in range(1, 6):
        parent, child = answered[number - 1], answered[number]
        history = parent.prompt + parent.output
        assert child.prompt[: len(history)] == history
        assert turns[number]["parent_id"] == turns[number - 1]["turn_id"]


def test_no_key_goes_upstream(session: AgentSession, request_log: RequestLog) -> None:
    ask(session, [{"role": "user", "content": "Hello"}], stream=False)
    assert request_log.answered(session.session_id)
    assert session.api_key not in request_log.text()


def test_log_probabilities_come_in_the_form_of_the_openai_api(session: AgentSession, request_log: RequestLog) -> None:
    reply = session.client().chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=20,
        logprobs=True,
        top_logprobs=3,
    )
    [made] = request_log.answered(session.session_id)
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert as_float32([entry.logprob for entry in logprobs.content]) == as_float32(made.logprobs)
    assert [len(entry.top_logprobs) for entry in logprobs.content] == [3] * len(made.output)


def test_what_the_engine_refuses_is_a_400_and_no_turn(session: AgentSession) -> None:
    """Longer than its context: the proxy was told of the model's own length, the engine runs with a shorter one."""
    with pytest.raises(openai.BadRequestError) as refusal:
        ask(session, [{"role": "user", "content": "word " * 9000}], stream=False)
    assert refusal.value.code == "context_length_exceeded"
    assert session.turns() == []


class Talk:
    """A long streamed turn, under way; how it ended once it has."""

    def __init__(self, client: openai.AsyncOpenAI, engine: Engine, tokens: int) -> None:
        self._engine = engine
        self._task = asyncio.create_task(self._run(client, tokens))

    async def _run(self, client: openai.AsyncOpenAI, tokens: int) -> str | None:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "Tell me everything."}],
            max_tokens=tokens,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        finish_reason = None
        async for chunk in stream:
            finish_reason = chunk.choices[0].finish_reason
        return finish_reason

    async def begun(self, *, tokens: int = 100) -> None:
        """The engine is asked, as text is held back where random words happen to begin a tool call."""
        await eventually(lambda: self._task.done() or self._engine.tokens_held() > tokens)
        if self._task.done():
            raise AssertionError(f"it has ended: {await self._task}")

    async def leave(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def finish_reason(self) -> str | None:
        """Return it once there is one. Raises TimeoutError where the engine stands still: a busy one takes minutes."""
        while not self._task.done():
            held = await asyncio.to_thread(self._engine.tokens_held)
            await eventually(partial(self._has_gone_on, held))
        return await self._task

    def _has_gone_on(self, held: int) -> bool:
        return self._task.done() or self._engine.tokens_held() != held


@pytest.fixture
async def talk(session: AgentSession, real_engine: Engine) -> AsyncIterator[Talk]:
    async with talking(session, real_engine, LONG) as talk:
        yield talk


@pytest.fixture
async def endless_talk(session: AgentSession, real_engine: Engine) -> AsyncIterator[Talk]:
    async with talking(session, real_engine, ENDLESS) as talk:
        yield talk


@contextlib.asynccontextmanager
async def talking(session: AgentSession, engine: Engine, tokens: int) -> AsyncIterator[Talk]:
    async with session.async_client() as client:
        talk = Talk(client, engine, tokens)
        await talk.begun()
        yield talk
        with contextlib.suppress(openai.APIError):
            await talk.leave()


async def pause_update_continue(
    session: AgentSession, engine: Engine, sglang: Installed, *, mode: str, until: Callable[[], object] = lambda: True
) -> None:
    """What a trainer does: pause, new weights into the engines, tell the version, go on. `until`: paused so long."""
    with session.proxy.admin() as admin:
        assert (await asyncio.to_thread(admin.post, "/pause", json={"mode": mode})).status_code == 200
        weights = {"model_path": str(sglang.model("second")), "weight_version": "2", "flush_cache": mode != "in_place"}
        assert (await engine.post("/update_weights_from_disk", weights)).status == 200
        await eventually(until)
        assert (await asyncio.to_thread(admin.put, "/version", json={"version": 2})).status_code == 200
        assert (await asyncio.to_thread(admin.post, "/continue", json={})).status_code == 200


@pytest.fixture
def version_one_again(real_proxy: ProxyProcess) -> Iterator[None]:
    """Back to version 1 after the test, which takes a new run: versions never go backwards in one."""
    yield
    with real_proxy.admin() as admin:
        known = admin.get("/version").raise_for_status().json()
        run = known["run"]
        assert admin.post("/recover", json={"version": 1, "run": run + 1}).status_code == 200


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
async def test_each_token_of_a_turn_has_the_version_it_was_made_with(
    session: AgentSession,
    talk: Talk,
    real_engine: Engine,
    request_log: RequestLog,
    sglang: Installed,
    version_one_again: None,
    mode: str,
) -> None:
    await pause_update_continue(session, real_engine, sglang, mode=mode)
    assert await talk.finish_reason() == "length"

    [turn] = session.turns()
    rounds = request_log.answered(session.session_id)
    assert len(rounds) == (2 if mode == "abort" else 1)
    assert turn["output_ids"] == [token for made in rounds for token in made.output]
    assert as_float32(turn["logprobs"]) == as_float32([value for made in rounds for value in made.logprobs])
    assert turn["versions"] == [version for made in rounds for version in made.versions]
    assert turn["completion_tokens"] == LONG
    cut = turn["versions"].index(2)
    assert 0 < cut < LONG
    assert turn["versions"] == [1] * cut + [2] * (LONG - cut)
    assert turn["mixed_cache"] is (mode == "in_place")
    if mode == "abort":
        first, second = rounds
        assert second.prompt == first.prompt + first.output


async def test_a_pause_so_long_that_the_gateway_takes_the_engine_for_dead_loses_nothing(
    session: AgentSession,
    talk: Talk,
    real_engine: Engine,
    real_gateway: Server,
    sglang: Installed,
    version_one_again: None,
) -> None:
    """Neither the turn that it cuts nor a call that comes meanwhile, with the retries that an SDK makes by default."""
    held = asyncio.create_task(held_by_the_pause(real_engine, session.proxy.start_session()))
    await pause_update_continue(
        session, real_engine, sglang, mode="abort", until=lambda: not is_healthy(real_gateway.url)
    )
    assert await talk.finish_reason() == "length"
    [turn] = session.turns()
    assert turn["completion_tokens"] == LONG
    assert set(turn["versions"]) == {1, 2}
    assert await asyncio.wait_for(held, PATIENCE)


async def held_by_the_pause(engine: Engine, session: AgentSession) -> str | None:
    await eventually(lambda: httpx.get(f"{engine.url}/ready", timeout=PATIENCE).status_code == 503)
    async with session.async_client(max_retries=openai.DEFAULT_MAX_RETRIES) as client:
        reply = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hello"}], max_tokens=5
        )
    return reply.choices[0].finish_reason


async def test_a_deleted_session_ends_the_work_at_the_engine(
    session: AgentSession, endless_talk: Talk, real_engine: Engine
) -> None:
    assert await asyncio.to_thread(real_engine.running_requests) == 1
    with session.proxy.admin() as admin:
        assert (await asyncio.to_thread(admin.delete, f"/sessions/{session.session_id}")).status_code == 204
    await nothing_runs(real_engine)
    with pytest.raises(openai.APIError) as told:
        await endless_talk.finish_reason()
    assert told.value.code == "session_deleted"


async def test_a_client_that_leaves_ends_the_work_at_the_engine(
    session: AgentSession, endless_talk: Talk, real_engine: Engine
) -> None:
    assert await asyncio.to_thread(real_engine.running_requests) == 1
    await endless_talk.leave()
    await nothing_runs(real_engine)
    assert session.turns() == []


async def nothing_runs(engine: Engine) -> None:
    await eventually(lambda: engine.running_requests() == 0)
