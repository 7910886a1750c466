"""A choice of tools is kept by the engine's grammar, behind the real gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.fleets import AgentSession, Fleet, ProxyProcess, running_fleet
from tests.integration.proxy import test_interleaved_thinking as dialects
from tests.integration.proxy.calls import named
from tests.unit.proxy.dialects.conversations import CHAT, MESSAGES, RESPONSES, USER, answered, sent_back

from rolloutfleet_proxy.dialects.base import Dialect


def tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
    return {"type": "function", "function": {"name": name, "parameters": {**parameters, "required": ["city"]}}}


TOOLS = [tool("weather"), tool("traffic"), tool("news")]
REQUIRED: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required"}
NEWS: dict[str, Any] = {"type": "function", "function": {"name": "news"}}
STRUCTURAL_TAG = "structural_tag"
SEEDS = range(3)


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[ProxyProcess]:
    settings = {"compatibility": {"requests": "strict"}}
    with running_fleet(tmp_path_factory.mktemp("strict"), beside=shared, settings=settings) as fleet:
        yield fleet.proxy


def ask(session: AgentSession, *, seed: int, **fields: Any) -> dict[str, Any]:
    """The one choice of an answer that names no ignored field."""
    messages = [{"role": "user", "content": f"What is new in city {seed}?"}]
    reply = session.raw_chat({"messages": messages, "max_tokens": 600, "seed": seed, **fields})
    assert named(reply) == []
    choice: dict[str, Any] = reply.json()["choices"][0]
    return choice


def called(choice: dict[str, Any]) -> list[str]:
    calls = choice["message"].get("tool_calls") or []
    for call in calls:
        arguments = json.loads(call["function"]["arguments"])
        assert isinstance(arguments["city"], str) and set(arguments) <= {"city", "days"}
    assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    return [call["function"]["name"] for call in calls]


THINKING: list[dict[str, Any]] = [{}, {"chat_template_kwargs": {"enable_thinking": False}}]


@pytest.mark.parametrize("thinking", THINKING, ids=["thinking", "no thinking"])
@pytest.mark.parametrize(
    ("choice", "may", "must", "most"),
    [
        ({"tool_choice": "required"}, {"weather", "traffic", "news"}, True, 3),
        ({"tool_choice": "required", "parallel_tool_calls": False}, {"weather", "traffic", "news"}, True, 1),
        ({"tool_choice": NEWS}, {"news"}, True, 3),
        ({"tool_choice": allowed("required", "news", "traffic")}, {"news", "traffic"}, True, 3),
        ({"tool_choice": allowed("auto", "news")}, {"news"}, False, 3),
        ({"tool_choice": allowed("auto", "news"), "parallel_tool_calls": False}, {"news"}, False, 1),
        ({"parallel_tool_calls": False}, {"weather", "traffic", "news"}, False, 1),
        ({"tool_choice": allowed("auto")}, set(), False, 0),
    ],
)
def test_a_choice_of_tools_is_kept_and_named_nowhere(
    strict: ProxyProcess, choice: dict[str, Any], may: set[str], must: bool, most: int, thinking: dict[str, Any]
) -> None:
    session = strict.start_session()
    for seed in SEEDS:
        names = called(ask(session, seed=seed, tools=TOOLS, **choice, **thinking))
        assert set(names) <= may and int(must) <= len(names) <= most
    assert {turn["constrained"] for turn in session.turns()} == {STRUCTURAL_TAG}


def test_a_free_choice_is_sampled_under_no_grammar(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    for choice in ("auto", "none", allowed("auto", "weather", "traffic", "news")):
        ask(session, seed=1, tools=TOOLS, tool_choice=choice)
    assert {turn["constrained"] for turn in session.turns()} == {None}


def test_a_stream_of_a_required_call_joins_to_one(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    messages: list[Any] = [{"role": "user", "content": "What is new?"}]
    create = session.client().chat.completions.create
    chunks = list(create(model="m", messages=messages, tools=TOOLS, tool_choice=NEWS, stream=True))  # type: ignore[call-overload]
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert {call.function.name for call in deltas if call.function.name} == {"news"}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_the_turns_after_a_required_call_extend_it(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is new?"}]
    for _ in range(3):
        reply = session.raw_chat({"messages": messages, "max_tokens": 600, **REQUIRED})
        message = reply.json()["choices"][0]["message"]
        messages.append(message)
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": "Nothing."} for call in message["tool_calls"]
        ]
    turns = session.turns()
    assert [turn["parent_id"] for turn in turns] == [None, *(turn["turn_id"] for turn in turns[:2])]
    assert [turn["branch_reason"] for turn in turns] == [None] * 3


def test_a_call_that_the_limit_cuts_is_text_and_ends_with_length(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    closed = {"chat_template_kwargs": {"enable_thinking": False}}
    choice = ask(session, seed=1, **(REQUIRED | closed | {"max_tokens": 6}))
    assert choice["finish_reason"] == "length" and not choice["message"].get("tool_calls")
    assert session.turns()[0]["completion_tokens"] == 6


def test_beside_a_response_format_a_reply_is_calls_or_json(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    assert called(ask(session, seed=1, **REQUIRED, response_format=form))
    kinds = set()
    for seed in range(10):
        free = ask(session, seed=seed, tools=TOOLS, parallel_tool_calls=False, response_format=form)
        assert called(free) or "a" in json.loads(free["message"]["content"])
        kinds.add(free["finish_reason"])
    assert kinds == {"tool_calls", "stop"}
    assert {turn["constrained"] for turn in session.turns()} == {STRUCTURAL_TAG}


def test_beside_a_grammar_of_the_requests_own_the_choice_is_a_wish(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    reply = session.raw_chat(
        {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 50, "regex": "[ab]{6}", **REQUIRED}
    )
    assert named(reply) == ["tool_choice"]
    assert set(reply.json()["choices"][0]["message"]["content"]) <= {"a", "b"}


REFUSING: dict[str, tuple[str, ...]] = {
    "llguidance": ("structural_tag",),
    "outlines": ("ebnf", "structural_tag"),
    "none": ("json_schema", "regex", "ebnf", "structural_tag"),
}
"""What SGLang does not take with a grammar backend that isn't xgrammar."""
OWN: dict[str, Any] = {
    "json_schema": {"response_format": {"type": "json_object"}},
    "regex": {"regex": "[ab]{6}"},
    "ebnf": {"ebnf": "root ::= [ab] [ab]"},
    "structural_tag": {"structural_tag": {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}},
}
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "What is new?"}], "max_tokens": 600}


@pytest.fixture(scope="module", params=REFUSING)
def refusing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    options = ("--grammar-backend", request.param)
    with running_fleet(tmp_path_factory.mktemp(request.param), engine_options=options) as fleet:
        yield fleet


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_where_the_engines_take_no_grammar_of_calls_the_choice_is_a_named_wish(refusing: Fleet, stream: bool) -> None:
    session = refusing.proxy.start_session()
    refused = refusing.engine.counters()["refused"]
    for seed, choice in enumerate(("required", NEWS, allowed("auto", "news"))):
        fields = {"tools": TOOLS, "tool_choice": choice, "stream": stream, "seed": seed}
        assert named(session.raw_chat(ASKED | fields)) == ["tool_choice"]
    fields = {**REQUIRED, "parallel_tool_calls": False, "stream": stream}
    for _ in range(2):
        again = session.raw_chat(ASKED | fields, idempotency_key="again")
        assert named(again) == ["tool_choice", "parallel_tool_calls"]
    assert {turn["constrained"] for turn in session.turns()} == {None} and len(session.turns()) == 4
    # The engines were asked once; it is remembered.
    assert refusing.engine.counters()["refused"] - refused <= 1


def test_a_grammar_of_the_requests_own_that_the_engines_refuse_is_a_400(refusing: Fleet) -> None:
    backend = refusing.engine.command[-1]
    session = refusing.proxy.start_session()
    for kind, fields in OWN.items():
        for stream in (False, True):
            reply = session.raw_chat(ASKED | fields | {"stream": stream})
            assert reply.status_code == (400 if kind in REFUSING[backend] else 200), reply.text
            if reply.status_code == 400:
                assert "grammar" in reply.json()["error"]["message"].lower()


@pytest.mark.parametrize(("choice", "field"), [("required", "tool_choice"), ("auto", "tools")])
def test_a_response_format_holds_where_the_grammar_of_the_calls_does_not(
    refusing: Fleet, choice: str, field: str
) -> None:
    session = refusing.proxy.start_session()
    reply = session.raw_chat({**ASKED, "tools": TOOLS, "tool_choice": choice, **OWN["json_schema"]})
    if "json_schema" in REFUSING[refusing.engine.command[-1]]:
        assert reply.status_code == 400
    else:
        assert named(reply) == [field]
        json.loads(reply.json()["choices"][0]["message"]["content"])
        assert [turn["constrained"] for turn in session.turns()] == ["json_schema"]


def test_strictly_read_a_choice_that_the_engines_cannot_keep_is_a_400(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings = {"compatibility": {"requests": "strict"}}
    options = ("--grammar-backend", "none")
    with running_fleet(tmp_path_factory.mktemp("refusing"), engine_options=options, settings=settings) as fleet:
        session = fleet.proxy.start_session()
        for _ in range(2):
            reply = session.raw_chat(ASKED | REQUIRED)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tool_choice")
        assert session.turns() == [] and session.raw_chat(ASKED).status_code == 200


def test_a_grammar_that_is_wrong_frees_no_other_call(proxy: ProxyProcess, fleet: Fleet) -> None:
    session = proxy.start_session()
    fleet.engine.fault("abort_with_status", status=400, message="Failed to compile structural_tag grammar: a reason")
    assert named(session.raw_chat(ASKED | REQUIRED)) == ["tool_choice"]
    assert named(session.raw_chat(ASKED | REQUIRED | {"seed": 1})) == []
    assert [turn["constrained"] for turn in session.turns()] == [None, STRUCTURAL_TAG]


UNWANTED = 'Look:\n<tool_call>\n{"name": "news", "arguments": {"city": "Oslo"}}\n</tool_call>'
NO_CALLS: dict[str, dict[str, Any]] = {
    CHAT.name: {"messages": [USER], "tools": [tool("news")], "tool_choice": "none"},
    MESSAGES.name: {
        "messages": [USER],
        "max_tokens": 200,
        "tool_choice": {"type": "none"},
        "tools": [{"name": "news", "input_schema": {"type": "object"}}],
    },
    RESPONSES.name: {
        "input": [USER],
        "tool_choice": "none",
        "tools": [{"type": "function", "name": "news", "parameters": {"type": "object"}}],
    },
}
ENDED = {
    MESSAGES.name: ("stop_reason", "end_turn"),
    RESPONSES.name: ("status", "completed"),
}


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The model writes a call, asked or not."""
    folder = tmp_path_factory.mktemp("calling")
    (folder / "cues.json").write_text(json.dumps([{"cue": USER["content"], "replies": [{"text": UNWANTED}] * 2}]))
    with running_fleet(folder / "fleet", engine_options=("--cues", str(folder / "cues.json"))) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("with_tools", [True, False], ids=["none wanted", "none there"])
@pytest.mark.parametrize("dialect", [CHAT, MESSAGES, RESPONSES], ids=lambda dialect: dialect.name)
def test_a_call_that_nobody_wanted_is_text(
    calling: Fleet, dialect: Dialect[Any], with_tools: bool, stream: bool
) -> None:
    session, body = calling.proxy.start_session(), NO_CALLS[dialect.name]
    if not with_tools:
        body = {field: value for field, value in body.items() if not field.startswith("tool")}
    answer = dialects.ask(session, dialect, body, stream=stream)
    message = answered(dialect, answer)
    assert (message["content"], message.get("tool_calls")) == (UNWANTED, None)
    if dialect.name in ENDED:
        field, ended = ENDED[dialect.name]
        assert answer[field] == ended
    dialects.ask(session, dialect, body | sent_back(dialect, answer), stream=stream)
    first, second = session.turns()
    assert (first["finish_reason"], second["parent_id"]) == ("stop", first["turn_id"])
