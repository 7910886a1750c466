"""The Anthropic API, spoken by the stock `anthropic` SDK: captured as exactly as chat, and retold the same way."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import pytest
from tests.fleets import AgentSession, Fleet, ProxyProcess
from tests.integration.proxy.test_turns import TOOLS, assert_exact, engine_made
from tests.waiting import PATIENCE

Json = Any
QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
SYSTEM = "You are a careful assistant."
LOOK_UP = {
    "name": TOOLS[0]["function"]["name"],
    "description": TOOLS[0]["function"]["description"],
    "input_schema": TOOLS[0]["function"]["parameters"],
}
CACHED = {"cache_control": {"type": "ephemeral"}}
BILLING = "x-anthropic-billing-header: cc_version=2.1.330.{}; cc_entrypoint=sdk-cli;"


def address(session: AgentSession) -> str:
    return session.base_url.removesuffix("/v1")


def client(session: AgentSession) -> anthropic.Anthropic:
    made = anthropic.Anthropic(base_url=address(session), api_key=session.api_key, max_retries=0, timeout=PATIENCE)
    session.proxy.clients.append(made)
    return made


def post(session: AgentSession, path: str = "/v1/messages?beta=true", **body: Json) -> httpx.Response:
    asked = {"model": "simulated", "max_tokens": 30, "messages": [QUESTION], **body}
    headers = {"x-api-key": session.api_key, "anthropic-version": "2023-06-01"}
    return httpx.post(address(session) + path, json=asked, headers=headers, timeout=PATIENCE)


def told(reply: httpx.Response) -> tuple[int, str, str]:
    error = reply.json()["error"]
    return reply.status_code, error["type"], error["code"]


def answer(session: AgentSession, *, stream: bool = False, **asked: Json) -> Any:
    with client(session) as agent:
        if not stream:
            return agent.messages.create(**asked)
        with agent.messages.stream(**asked) as events:
            return events.get_final_message()


def talk(session: AgentSession, *, turns: int, stream: bool, **options: Json) -> list[Json]:
    """An append-only agent: runs the tools it is told to, and asks on."""
    messages: list[Json] = [QUESTION]
    for number in range(turns):
        asked: Json = {"model": "simulated", "max_tokens": 200, "system": SYSTEM, "messages": messages, **options}
        message = answer(session, stream=stream, **asked)
        blocks = [block.model_dump(exclude_none=True) for block in message.content]
        calls = [block for block in blocks if block["type"] == "tool_use"]
        assert message.stop_reason == ("tool_use" if calls else "end_turn")
        messages.append({"role": "assistant", "content": blocks})
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": f"Sunny, {number} degrees."} for call in calls
        ]
        messages.append({"role": "user", "content": results or f"And question {number}?"})
    return messages


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_append_only_agent_extends_its_parent_at_every_turn(fleet: Fleet, proxy: ProxyProcess, stream: bool) -> None:
    session = proxy.start_session()
    said = talk(session, turns=6, stream=stream, tools=[LOOK_UP])
    turns = session.turns()
    assert [turn["parent_id"] for turn in turns] == [None, *(turn["turn_id"] for turn in turns[:-1])]
    assert_exact(fleet, turns)
    kinds = {block["type"] for message in said if message["role"] == "assistant" for block in message["content"]}
    assert "tool_use" in kinds and proxy.audit()["balanced"]


def test_the_sdks_own_loop_goes_on_with_the_whole_conversation(fleet: Fleet, proxy: ProxyProcess) -> None:
    """It would send no more than what is new, where a server keeps the conversation."""
    session = proxy.start_session()
    messages: list[Json] = [QUESTION]
    with client(session) as agent:
        run = agent.beta.messages.tool_runner(
            model="simulated", max_tokens=400, tools=[look_up], messages=messages, max_iterations=4
        )
        answers = [message.id for message in run]
    turns = session.turns()
    assert len(answers) > 1 and [turn["turn_id"] for turn in turns] == answers
    assert [turn["parent_id"] for turn in turns] == [None, *answers[:-1]]
    assert_exact(fleet, turns)


@anthropic.beta_tool
def look_up(city: str) -> str:
    """Look the weather of a city up."""
    return f"Sunny in {city}."


def test_the_same_conversation_by_chat_has_the_same_prompts_and_goes_on_in_either(
    fleet: Fleet, proxy: ProxyProcess
) -> None:
    session, other = proxy.start_session(), proxy.start_session()
    said = talk(session, turns=3, stream=False, tools=[LOOK_UP])
    by_chat: list[Json] = [{"role": "system", "content": SYSTEM}]
    for message in said:
        by_chat += _as_chat(message)
    body = {"messages": by_chat, "tools": TOOLS, "max_tokens": 20}
    other.raw_chat(body).raise_for_status()
    post(proxy.start_session(), messages=said, system=SYSTEM, tools=[LOOK_UP]).raise_for_status()
    chat = engine_made(fleet, other.turns()[0])["input_ids"]
    assert [entry["input_ids"] for entry in fleet.engine.log()[-2:]] == [chat, chat]

    session.raw_chat(body).raise_for_status()
    turns = session.turns()
    assert turns[-1]["parent_id"] == turns[-2]["turn_id"] and turns[-1]["branch_reason"] is None


def _as_chat(message: Json) -> list[Json]:
    content = message["content"]
    if isinstance(content, str):
        return [message]
    if message["role"] == "user":
        return [{"role": "tool", "tool_call_id": each["tool_use_id"], "content": each["content"]} for each in content]
    form: Json = {"role": "assistant", "content": "".join(each["text"] for each in content if each["type"] == "text")}
    form["reasoning_content"] = "".join(each["thinking"] for each in content if each["type"] == "thinking")
    form["tool_calls"] = [
        {
            "id": each["id"],
            "type": "function",
            "function": {"name": each["name"], "arguments": json.dumps(each["input"])},
        }
        for each in content
        if each["type"] == "tool_use"
    ]
    return [form]


def test_noise_that_differs_with_every_request_makes_no_branch_and_is_named_on_the_turn(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    reminder = "Remember."

    def ask(messages: list[Json], noise: str) -> Json:
        system = [{"type": "text", "text": BILLING.format(noise)}, {"type": "text", "text": SYSTEM, **CACHED}]
        return post(session, system=system, messages=messages).raise_for_status().json()

    later = {"role": "system", "content": [{"type": "text", "text": reminder, **CACHED}]}
    first = ask([{"role": "user", "content": [{"type": "text", "text": "Hello?"}]}, later], "c3f")
    asked = [
        {"role": "user", "content": "Hello?"},
        {"role": "system", "content": reminder},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [{"type": "text", "text": "And now?", **CACHED}]},
    ]
    second = ask(asked, "0a1")
    turns = session.turns()
    assert [turn["turn_id"] for turn in turns] == [first["id"], second["id"]]
    assert turns[1]["parent_id"] == first["id"]
    assert [set(turn["stripped"]) for turn in turns] == [{"cache_control", "x-anthropic-billing-header"}] * 2


def test_a_token_limit_is_an_upper_bound_and_a_prompt_that_leaves_no_room_is_refused_in_known_words(
    fleet: Fleet, proxy: ProxyProcess
) -> None:
    session = proxy.start_session()
    post(session, max_tokens=128_000_000).raise_for_status()
    before = fleet.engine.counters()["received"]
    reply = post(session, messages=[{"role": "user", "content": "word " * 140_000}])
    assert told(reply) == (400, "invalid_request_error", "context_length_exceeded")
    assert reply.json()["error"]["message"].startswith("prompt is too long: ")
    assert reply.json()["error"]["message"].endswith(" tokens > 131071 maximum")
    assert fleet.engine.counters()["received"] == before and len(session.turns()) == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_stop_sequence_that_ended_the_answer_is_told(proxy: ProxyProcess, stream: bool) -> None:
    session = proxy.start_session()
    reply = post(session, stop_sequences=[" "], stream=stream, max_tokens=200).raise_for_status()
    said = json.loads(reply.text.split("data: ")[-2].split("\n")[0])["delta"] if stream else reply.json()
    assert (said["stop_reason"], said["stop_sequence"]) == ("stop_sequence", " ")


def test_a_silent_stream_opens_and_pings(fleet: Fleet, proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    fleet.engine.fault("slow", seconds=5)
    stream = post(session, stream=True).raise_for_status().text
    names = [line.removeprefix("event: ") for line in stream.splitlines() if line.startswith("event: ")]
    assert names[:3] == ["message_start", "ping", "ping"] and names[-1] == "message_stop"


def test_errors_have_the_apis_form(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    nobody = httpx.post(f"{address(session)}/v1/messages", json={})
    assert told(nobody) == (401, "authentication_error", "invalid_key")
    assert told(post(session, messages=[])) == (400, "invalid_request_error", "invalid_request")
    image = {"type": "image", "source": {"type": "url", "url": "https://a.example/a.png"}}
    refused = post(session, messages=[{"role": "user", "content": [image]}])
    assert told(refused) == (400, "invalid_request_error", "unsupported_parameter")
    assert refused.json()["error"]["param"] == "messages[0].content[0].type"
    bearer = {"authorization": f"Bearer {session.api_key}"}
    by_key = httpx.post(f"{proxy.url}/v1/messages", json={"max_tokens": 9, "messages": [QUESTION]}, headers=bearer)
    assert by_key.raise_for_status().json()["id"] == session.turns()[0]["turn_id"]
    with proxy.admin() as admin:
        admin.delete(f"/sessions/{session.session_id}").raise_for_status()
    assert told(post(session)) == (410, "not_found_error", "session_deleted")
