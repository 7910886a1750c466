"""How long a prompt would be: counted as the call's own is, and nothing is changed by it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from tests.fleets import AgentSession, Fleet, ProxyProcess
from tests.integration.proxy.in_process import proxy_in_process
from tests.integration.proxy.test_anthropic import LOOK_UP, QUESTION, SYSTEM, address, answer, client, talk, told
from tests.waiting import PATIENCE

from rolloutfleet_proxy.app import ProxyApp
from rolloutfleet_proxy.capture.counting import AT_ONCE

Json = Any
COUNT = "/v1/messages/count_tokens?beta=true"


def count(session: AgentSession, path: str = COUNT, **body: Json) -> httpx.Response:
    asked = {"model": "simulated", "messages": [QUESTION], **body}
    return httpx.post(address(session) + path, json=asked, headers={"x-api-key": session.api_key}, timeout=PATIENCE)


def counted(session: AgentSession, **body: Json) -> int:
    reply = count(session, **body).raise_for_status().json()
    assert set(reply) == {"input_tokens"}
    tokens: int = reply["input_tokens"]
    return tokens


def test_a_conversation_that_extends_a_turn_counts_as_the_prompt_that_goes_on_from_it(
    fleet: Fleet, proxy: ProxyProcess
) -> None:
    session, stranger = proxy.start_session(), proxy.start_session()
    said = talk(session, turns=3, stream=False, tools=[LOOK_UP])
    # What the model reasoned comes back from some agents without it: the turn's own prompt keeps it.
    for message in said:
        if message["role"] == "assistant":
            message["content"] = [block for block in message["content"] if block["type"] != "thinking"]
    asked: Json = {"model": "simulated", "system": SYSTEM, "messages": said, "tools": [LOOK_UP]}
    with client(session) as agent, client(stranger) as other:
        here, elsewhere = (each.messages.count_tokens(**asked).input_tokens for each in (agent, other))
        beta = agent.beta.messages.count_tokens(**asked, betas=["token-counting-2024-11-01"])
    assert beta.input_tokens == here > elsewhere
    for each, tokens in ((session, here), (stranger, elsewhere)):
        answer(each, max_tokens=9, **asked)
        assert each.turns()[-1]["prompt_tokens"] == tokens


def test_to_count_changes_nothing_and_asks_no_engine(fleet: Fleet, proxy: ProxyProcess) -> None:
    session = proxy.start_session(limits={"turns": 2})
    talk(session, turns=2, stream=False)
    idle = session.show()["idle_seconds"]
    before = proxy.audit(), session.turns(), fleet.engine.counters()["received"]
    for headers in ({}, {"x-claude-code-agent-id": "a-sub-agent"}):
        reply = httpx.post(
            address(session) + COUNT,
            json={"messages": [QUESTION], "some_field": 1},
            headers={"x-api-key": session.api_key, **headers},
        )
        assert reply.status_code == 200 and reply.headers["x-rolloutfleet-ignored"] == "some_field"
    proxy.start_session()  # What a call writes of its session without waiting for it is written before this.
    assert session.show()["idle_seconds"] > idle
    after = proxy.audit(), session.turns(), fleet.engine.counters()["received"]
    assert after[1:] == before[1:] and after[0]["turns"] == before[0]["turns"]


def test_a_count_is_of_what_the_trainer_has_rendered(proxy: ProxyProcess) -> None:
    session = proxy.start_session(sampling={"overrides": {"chat_template_kwargs": {"enable_thinking": False}}})
    tokens = counted(session)
    answer(session, model="simulated", max_tokens=9, messages=[QUESTION])
    assert session.turns()[0]["prompt_tokens"] == tokens != counted(proxy.start_session())


def test_neither_a_pause_nor_a_drain_delays_a_count(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    with proxy.admin() as admin:
        admin.post("/pause", json={}).raise_for_status()
        try:
            assert counted(session) > 0
        finally:
            admin.post("/continue", json={}).raise_for_status()
        assert proxy.drain("hold", mode="quiesce").is_success
        try:
            assert counted(session) > 0
        finally:
            admin.delete("/drain").raise_for_status()


def test_what_a_call_would_be_refused_for_a_count_is_refused_for_in_the_same_words(proxy: ProxyProcess) -> None:
    session, other = proxy.start_session(), proxy.start_session()
    assert told(httpx.post(f"{address(session)}{COUNT}", json={})) == (401, "authentication_error", "invalid_key")
    strange = httpx.post(f"{address(session)}{COUNT}", json={}, headers={"x-api-key": other.api_key})
    assert told(strange) == (403, "permission_error", "forbidden_scope")
    image = {"type": "image", "source": {"type": "url", "url": "https://a.example/a.png"}}
    for mistake, param in (
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [image]}]}, "messages[0].content[0].type"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"model": 5}, "model"),
    ):
        refused = count(session, **mistake)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == param, refused.text
    by_key = httpx.post(
        f"{proxy.url}/v1/messages/count_tokens",
        json={"messages": [QUESTION]},
        headers={"authorization": f"Bearer {session.api_key}"},
    )
    assert by_key.json() == {"input_tokens": counted(session)}
    with proxy.admin() as admin:
        admin.post(f"/sessions/{session.session_id}/close").raise_for_status()
    assert told(count(session)) == (410, "not_found_error", "session_closed")


def test_a_last_message_of_the_assistants_counts_and_so_does_a_prompt_that_fills_the_context(
    proxy: ProxyProcess,
) -> None:
    session = proxy.start_session()
    said = {"role": "assistant", "content": "Let me look that up."}
    assert counted(session, messages=[QUESTION, said]) > counted(session)
    assert counted(session, messages=[{"role": "user", "content": "word " * 140_000}]) > 131_072
    endless = [{"role": "user", "content": "word " * 4_000_000}]
    assert counted(session, messages=endless) > 131_072, "a lower bound: nobody encodes so much to tell how long it is"


@pytest.fixture
async def opened(fleet: Fleet, tmp_path: Path) -> AsyncIterator[tuple[ProxyApp, anthropic.AsyncAnthropic]]:
    async with proxy_in_process(fleet, tmp_path) as (app, admin):
        started = (await admin.post("/sessions", json={})).raise_for_status().json()
        base = f"{admin.base_url}/sessions/{started['session_id']}"
        async with anthropic.AsyncAnthropic(base_url=base, api_key=started["api_key"], max_retries=0) as agent:
            yield app, agent


async def test_more_than_four_at_once_are_sent_away_for_a_second(
    opened: tuple[ProxyApp, anthropic.AsyncAnthropic],
) -> None:
    app, agent = opened
    assert app.opened is not None
    asked: Json = {"model": "simulated", "messages": [QUESTION]}
    async with AsyncExitStack() as others:
        for _ in range(AT_ONCE):
            assert (await agent.messages.count_tokens(**asked)).input_tokens > 0
            await others.enter_async_context(app.opened.counting.places)
        with pytest.raises(anthropic.RateLimitError) as refused:
            await agent.messages.count_tokens(**asked)
        assert refused.value.response.headers["retry-after"] == "1"
        told_so: Json = refused.value.body
        assert (told_so["error"]["type"], told_so["error"]["code"]) == ("rate_limit_error", "no_room")
        made = await agent.messages.create(max_tokens=9, **asked)
        assert made.usage.output_tokens == 9, "turns go on"
    assert (await agent.messages.count_tokens(**asked)).input_tokens > 0


async def test_a_long_prompt_is_counted_in_the_process_that_renders_long_ones(
    opened: tuple[ProxyApp, anthropic.AsyncAnthropic],
) -> None:
    app, agent = opened
    assert app.opened is not None
    tokenizing = app.opened.counting.prompting.tokenizing
    assert tokenizing._helper.pid is None
    long: Json = {"role": "user", "content": "word " * 210_000}
    tokens = (await agent.messages.count_tokens(model="simulated", messages=[long])).input_tokens
    assert tokens > 210_000 and tokenizing._helper.pid is not None


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_whoever_looks_whether_anybody_is_there_is_greeted_with_a_key_or_without(
    proxy: ProxyProcess, method: str
) -> None:
    session = proxy.start_session()
    before = session.show()["in_flight"], proxy.audit()
    for base in (address(session), proxy.url, f"{proxy.url}/sessions/s7-000000000000-0000000000000000"):
        for headers in ({}, {"x-api-key": session.api_key}, {"x-api-key": "of nobody"}):
            reply = httpx.request(method, f"{base}/api/hello?beta=true", headers=headers)
            assert (reply.status_code, reply.content) == (200, b"")
    assert (session.show()["in_flight"], proxy.audit()) == before
    refused = httpx.post(f"{address(session)}/api/hello")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
