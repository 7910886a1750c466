"""Chat completions, Messages and Responses are forms of one session: one prompt, one tree, the engine's own tokens.

What comes back is read by the SDKs' own types, strictly, with no field that they do not know.
"""

from __future__ import annotations

from itertools import cycle, islice, permutations
from typing import Any

import anthropic.types
import httpx
import openai.types.responses
import pytest
from tests.fleets import AgentSession, Fleet, ProxyProcess
from tests.integration.proxy.dialect_calls import assembled, post
from tests.integration.proxy.test_turns import assert_exact, engine_made
from tests.unit.proxy.dialects.anthropic_messages import test_encoder as messages_streams
from tests.unit.proxy.dialects.conversations import (
    MESSAGES,
    RESPONSES,
    WRITTEN,
    answered,
    by_messages,
    by_responses,
    call,
)
from tests.unit.proxy.dialects.openai_responses import responses as responses_streams

Json = Any
SYSTEM: Json = {"role": "system", "content": "You are a careful assistant."}
USER: Json = {"role": "user", "content": "What is the weather in Paris?"}


def prompt(fleet: Fleet, session: AgentSession) -> list[int]:
    """Of the session's last turn."""
    ids: list[int] = engine_made(fleet, session.turns()[-1])["input_ids"]
    return ids


def test_one_conversation_has_the_same_prompt_by_each_dialect(fleet: Fleet, proxy: ProxyProcess) -> None:
    arguments = '{"q": "Größe ✓", "n": [1, 2.5], "deep": {"b": null, "a": true}}'
    conversation = [
        *(SYSTEM, USER),
        {"role": "assistant", "content": None, "reasoning_content": "I look.", "tool_calls": [call("find", arguments)]},
        {"role": "tool", "tool_call_id": "call_a", "content": "Sunny.\n"},
        {"role": "assistant", "content": "It is sunny."},
        {"role": "user", "content": "And there?\n"},
        {
            "role": "assistant",
            "content": "Both.",
            "tool_calls": [call("find", "{}", "call_b"), call("look", "{}", "call_c")],
        },
        *({"role": "tool", "tool_call_id": each, "content": ""} for each in ("call_b", "call_c")),
        {"role": "user", "content": "Well?"},
    ]
    prompts = []
    for dialect, write in WRITTEN:
        session = proxy.start_session()
        post(session, dialect, write(conversation))
        prompts.append(prompt(fleet, session))
    assert prompts == prompts[:1] * 3


@pytest.mark.parametrize("order", list(permutations(range(3)))[:3], ids=str)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_session_goes_on_in_any_dialect(
    fleet: Fleet, proxy: ProxyProcess, order: tuple[int, ...], stream: bool
) -> None:
    session, conversation = proxy.start_session(), [SYSTEM, USER]
    for number, place in enumerate(islice(cycle(order), 7)):
        dialect, write = WRITTEN[place]
        reply = post(session, dialect, write(conversation), stream=stream)
        said = answered(dialect, assembled(dialect, reply.content) if stream else reply.json())
        conversation.append(said)
        results = [
            {"role": "tool", "tool_call_id": each["id"], "content": f"{number} degrees."}
            for each in said.get("tool_calls", ())
        ]
        conversation += results or [{"role": "user", "content": f"And question {number}?"}]
    turns = session.turns()
    assert [turn["parent_id"] for turn in turns] == [None, *(turn["turn_id"] for turn in turns[:-1])]
    assert [turn["branch_reason"] for turn in turns] == [None] * 7
    assert_exact(fleet, turns)


def test_a_response_may_follow_a_turn_of_another_dialect(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    first = post(session, MESSAGES, by_messages([SYSTEM, USER])).json()
    said = answered(MESSAGES, first)
    results = [{"role": "tool", "tool_call_id": each["id"], "content": "Cold."} for each in said.get("tool_calls", ())]
    body = by_responses([SYSTEM, *(results or [USER])]) | {"previous_response_id": f"resp_{first['id']}"}
    second = post(session, RESPONSES, body | {"instructions": None}).json()
    turn = session.turns()[-1]
    assert second["id"] == f"resp_{turn['turn_id']}"
    assert (turn["parent_id"], turn["branch_reason"]) == (first["id"], None)


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 5, "max_output_tokens": 5}, {"tool_choice": "none"}], ids=str)
def test_every_answer_and_event_is_what_the_sdks_types_say(proxy: ProxyProcess, fields: Json) -> None:
    """`events` reads each event by its type."""
    session = proxy.start_session()
    strictly: Json = {"strict": True, "extra": "forbid"}
    said = {name: value for name, value in fields.items() if name != "max_output_tokens"}
    if "tool_choice" in said:
        said["tool_choice"] = {"type": "none"}
    body = by_messages([SYSTEM, USER]) | said
    anthropic.types.Message.model_validate_json(post(session, MESSAGES, body).content, **strictly)
    assert messages_streams.events(post(session, MESSAGES, body, stream=True).content)
    body = by_responses([SYSTEM, USER]) | {name: value for name, value in fields.items() if name != "max_tokens"}
    for more in ({}, {"top_logprobs": 2, "include": ["message.output_text.logprobs"], "metadata": {"a": "b"}}):
        whole = post(session, RESPONSES, body | more)
        openai.types.responses.Response.model_validate_json(whole.content, **strictly)
        assert responses_streams.events(post(session, RESPONSES, body | more, stream=True).content)
        headers = {"authorization": f"Bearer {session.api_key}"}
        shown = httpx.get(f"{session.base_url}/responses/{whole.json()['id']}", headers=headers).raise_for_status()
        openai.types.responses.Response.model_validate_json(shown.content, **strictly)
