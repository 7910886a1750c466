"""Trainers that read token ids in the answers of agents get the stored ones: whole, streamed and given again."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.fleets import AgentSession, Fleet, ProxyProcess
from tests.integration.proxy.test_turns import TOOLS, engine_made
from tests.waiting import PATIENCE

Json = Any
ASKED: Json = {"model": "m", "return_token_ids": True}


def post(session: AgentSession, path: str, body: Json, *, key: str | None = None) -> bytes:
    headers = {"authorization": f"Bearer {session.api_key}"} | ({"idempotency-key": key} if key else {})
    reply = httpx.post(f"{session.base_url}{path}", json=ASKED | body, headers=headers, timeout=PATIENCE)
    assert "x-rolloutfleet-ignored" not in reply.raise_for_status().headers
    return reply.content


def events(data: bytes) -> list[Json]:
    lines = [line.removeprefix("data: ") for line in data.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def chat(session: AgentSession, body: Json, *, stream: bool, key: str | None = None) -> tuple[Json, Json]:
    """(the answer's end, its choice)."""
    data = post(session, "/chat/completions", {**body, "stream": stream, "logprobs": True}, key=key)
    if not stream:
        answer = json.loads(data)
        return answer, answer["choices"][0]
    [end] = [chunk for chunk in events(data) if chunk["choices"] and chunk["choices"][0]["finish_reason"]]
    return end, end["choices"][0]


def response(session: AgentSession, body: Json, *, stream: bool, key: str | None = None) -> Json:
    data = post(session, "/responses", {**body, "stream": stream}, key=key)
    return events(data)[-1]["response"] if stream else json.loads(data)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_chat_tells_what_the_engine_was_given_and_made(fleet: Fleet, proxy: ProxyProcess, stream: bool) -> None:
    """A child's prompt is told whole, though its turn keeps what is new alone."""
    session = proxy.start_session()
    messages: list[Json] = [{"role": "user", "content": "What is the weather in Paris?"}]
    for number in range(3):
        end, choice = chat(session, {"messages": messages, "tools": TOOLS, "max_tokens": 60}, stream=stream)
        turn = session.turns()[-1]
        assert (turn["parent_id"] is None) == (number == 0)
        made = engine_made(fleet, turn)
        assert end["prompt_token_ids"] == choice["prompt_token_ids"] == made["input_ids"]
        assert choice["token_ids"] == choice["response_token_ids"] == made["output_ids"]
        sibling = session.client().chat.completions.create(model="m", messages=messages, tools=TOOLS, max_tokens=60)
        messages += [sibling.choices[0].message.to_dict(), {"role": "user", "content": f"And {number}?"}]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_responses_tell_what_the_engine_was_given_and_made(fleet: Fleet, proxy: ProxyProcess, stream: bool) -> None:
    session = proxy.start_session()
    items: list[Json] = [{"role": "user", "content": "Hello?"}]
    for number in range(2):
        answer = response(session, {"input": items, "max_output_tokens": 60}, stream=stream)
        [turn] = session.turns()[number:]
        made, last = engine_made(fleet, turn), answer["output"][-1]
        assert (last["prompt_token_ids"], last["generation_token_ids"]) == (made["input_ids"], made["output_ids"])
        assert last["generation_log_probs"] == turn["logprobs"] == made["output_logprobs"]
        items += [*answer["output"], {"role": "user", "content": "And now?"}]
    assert session.turns()[1]["parent_id"] == session.turns()[0]["turn_id"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_answer_given_again_tells_the_same(proxy: ProxyProcess, stream: bool) -> None:
    session = proxy.start_session()
    chat_body: Json = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 9}
    for ask, body in ((chat, chat_body), (response, {"input": "Hello", "max_output_tokens": 9})):
        first, again = (ask(session, body, stream=stream, key=ask.__name__) for _ in range(2))
        assert first == again
    assert len(session.turns()) == 2


def test_they_are_told_again_after_a_restart_from_the_rows_alone(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    first: Json = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 9}
    end, choice = chat(session, first, stream=False)
    messages = [*first["messages"], end["choices"][0]["message"], {"role": "user", "content": "More"}]
    body = {"messages": messages, "max_tokens": 9}
    told = chat(session, body, stream=False, key="k")
    proxy.kill()
    proxy.start()
    assert chat(session, body, stream=False, key="k") == told
    assert told[0]["prompt_token_ids"][: len(choice["prompt_token_ids"])] == choice["prompt_token_ids"]
