"""SGLang's own sampling fields arrive at the engine behind the gateway, and what they did is kept as it was."""

import json
import re
from typing import Any

import pytest
from tests.fleets import AgentSession, Fleet, ProxyProcess
from tests.integration.proxy.calls import named
from tests.integration.proxy.test_turns import TOOLS
from tests.unit.proxy.tokens.models.families import shipped

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12}
TAG = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"type": "object"}}}
Json = Any


def arrived(fleet: Fleet, session: AgentSession) -> Json:
    """What the engine was asked for the session's last turn, as far as it is sampling."""
    turn = session.turns()[-1]
    [entry] = [each for each in fleet.engine.log() if each["rid"].startswith(turn["turn_id"])]
    assert entry["output_ids"] == turn["output_ids"]
    return entry["sampling_params"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {"5": -100.0, "2047": 0.5}),
        ("stop_regex", ["x{3}", "[.!?]$"]),
        ("custom_params", {"thinking_budget": 3, "ids": [1, 2], "of": {"a": None, "b": 0.5}}),
        ("structural_tag", json.dumps(TAG)),
    ],
)
def test_a_field_arrives_as_it_was_sent(
    fleet: Fleet, proxy: ProxyProcess, field: str, value: Json, stream: bool
) -> None:
    session = proxy.start_session()
    assert named(session.raw_chat({**CHAT, field: value, "stream": stream})) == []
    assert arrived(fleet, session)[field] == value


def test_a_structural_tag_as_a_response_format_arrives_too(fleet: Fleet, proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    assert named(session.raw_chat({**CHAT, "response_format": TAG})) == []
    assert json.loads(arrived(fleet, session)["structural_tag"]) == TAG
    assert session.turns()[0]["constrained"] == "structural_tag"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_bias_is_honoured_and_the_turn_says_so(proxy: ProxyProcess, stream: bool) -> None:
    session = proxy.start_session()
    session.raw_chat({**CHAT, "logit_bias": {"300": 100}, "stream": stream}).raise_for_status()
    [turn] = session.turns()
    assert turn["output_ids"] == [300] * 12
    assert turn["biased_by"] == ["logit_bias"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_what_a_stop_pattern_matched_is_kept_in_text_and_tokens(
    fleet: Fleet, proxy: ProxyProcess, stream: bool
) -> None:
    """Also where the pattern's own letters stand in the text, at which the engine would cut its own."""
    session = proxy.start_session()
    asked = {**CHAT, "max_tokens": 400, "seed": 5, "chat_template_kwargs": {"enable_thinking": False}}
    whole = session.raw_chat(asked).json()["choices"][0]["message"]["content"]
    word = re.findall("[a-z]{4}", whole)[-1]
    for pattern in (word, word[:3] + "[a-z]"):
        reply = session.raw_chat({**asked, "stop_regex": pattern, "stream": stream})
        shown = said_in(reply.text) if stream else reply.json()["choices"][0]["message"]["content"]
        turn = session.turns()[-1]
        assert turn["finish_reason"] == "stop"
        assert re.search(pattern, shown) and whole.startswith(shown) and len(shown) < len(whole)
        assert arrived(fleet, session)["stop_regex"] == [pattern]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_stop_token_ends_the_text_before_it_and_is_kept_in_the_tokens(proxy: ProxyProcess, stream: bool) -> None:
    session = proxy.start_session()
    asked = {**CHAT, "max_tokens": 400, "seed": 5, "chat_template_kwargs": {"enable_thinking": False}}
    whole = session.raw_chat(asked).json()["choices"][0]["message"]["content"]
    ids = session.turns()[-1]["output_ids"]
    stop = ids[len(ids) // 2]
    reply = session.raw_chat({**asked, "stop_token_ids": [stop], "stream": stream})
    shown = said_in(reply.text) if stream else reply.json()["choices"][0]["message"]["content"]
    turn = session.turns()[-1]
    assert (turn["finish_reason"], turn["output_ids"]) == ("stop", ids[: ids.index(stop) + 1])
    assert shown == shipped().vocabulary.decode(turn["output_ids"][:-1]) and whole.startswith(shown)


def said_in(events: str) -> str:
    chunks = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])


def test_what_changed_the_distribution_is_named_in_turns_exports_and_dumps(proxy: ProxyProcess) -> None:
    asked: list[tuple[dict[str, Any], list[str] | None]] = [
        ({}, None),
        ({"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "stop_regex": "x"}, None),
        ({"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "min_tokens": 0}, None),
        ({"logit_bias": {}, "custom_params": {}}, None),
        ({"logit_bias": {"7": 1}, "presence_penalty": 0.5}, ["presence_penalty", "logit_bias"]),
        ({"frequency_penalty": -1, "min_tokens": 3}, ["frequency_penalty", "min_new_tokens"]),
        ({"repetition_penalty": 1.1, "custom_params": {"a": 1}}, ["repetition_penalty", "custom_params"]),
    ]
    session = proxy.start_session()
    for fields, _ in asked:
        session.raw_chat(CHAT | fields).raise_for_status()
    expected = [names for _, names in asked]
    assert [turn["biased_by"] for turn in session.turns()] == expected
    session.post("close").raise_for_status()
    with proxy.admin() as admin:
        exported = admin.post("/export", json={"session_ids": [session.session_id]}).raise_for_status().json()
    assert [turn["biased_by"] for turn in exported["trajectories"][0]["turns"]] == expected


def test_a_token_that_the_model_lacks_is_refused_before_the_engine_is_asked(fleet: Fleet, proxy: ProxyProcess) -> None:
    before = len(fleet.engine.log())
    session = proxy.start_session()
    reply = session.raw_chat({**CHAT, "logit_bias": {"2048": 1}})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "logit_bias.2048")
    assert session.turns() == [] and len(fleet.engine.log()) == before


def test_a_bias_and_a_pattern_hold_beside_tools_and_along_a_session(fleet: Fleet, proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    messages: list[Json] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    for number in range(3):
        body = {"messages": messages, "tools": TOOLS, "logit_bias": {"300": -100}, "stop_regex": "zz{1,9}"}
        message = session.raw_chat(body).raise_for_status().json()["choices"][0]["message"]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "Rain."} for call in message.get("tool_calls") or []
        ]
        messages += [message, *results, {"role": "user", "content": f"And {number}?"}]
        assert arrived(fleet, session)["logit_bias"] == {"300": -100}
    turns = session.turns()
    assert [turn["parent_id"] for turn in turns] == [None, turns[0]["turn_id"], turns[1]["turn_id"]]
