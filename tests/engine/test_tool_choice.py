"""A choice of tools is kept by the real engine's grammar, and what it draws is read as the calls that were wanted."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.engine.engines import Engine
from tests.engine.request_log import RequestLog
from tests.engine.sglang.drawing import drawn
from tests.engine.sglang.places import Installed
from tests.fleets import AgentSession, ProxyProcess
from tests.integration.proxy.calls import named
from tests.unit.proxy.tokens.models.call_replies import HELD
from tests.unit.proxy.tokens.test_call_grammar import ALL, SCHEMA, Holding, called, wanted

NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
CHOICES = [
    *((ALL, required, single, None) for required, single in product((True, False), repeat=2)),
    *((("look_up",), required, not required, None) for required in (True, False)),
    *((("stop",), required, required, None) for required in (True, False)),
    ((), False, False, None),
    *((names, False, False, SCHEMA) for names in (ALL, ("look_up",), ())),
]
"""The functions that may be called, whether one must be, whether one at the most, and the schema of a reply without."""


def tool(name: str, *kinds: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"kind": {"enum": kinds}}, "required": ["kind"]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("weather", "rain", "sun"), tool("news", "sport", "art")]
NEWS = {"type": "function", "function": {"name": "news"}}


@pytest.fixture
def session(real_proxy: ProxyProcess, real_engine: Engine) -> AgentSession:
    return real_proxy.start_session()


def ask(session: AgentSession, number: int, **fields: Any) -> dict[str, Any]:
    """An answer that names no ignored field."""
    messages = [{"role": "user", "content": f"What is new in city {number}?"}]
    reply = session.raw_chat({"messages": messages, "max_tokens": 400, "tools": TOOLS, **fields})
    assert named(reply) == []
    choice: dict[str, Any] = reply.json()["choices"][0]
    return choice


def calls_of(choice: dict[str, Any]) -> list[tuple[str, str]]:
    calls = choice["message"].get("tool_calls") or []
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])["kind"]) for call in calls]


KINDS = {("weather", "rain"), ("weather", "sun"), ("news", "sport"), ("news", "art")}


@pytest.mark.parametrize(
    ("choice", "may"),
    [
        ({"tool_choice": "required", "parallel_tool_calls": False}, KINDS),
        ({"tool_choice": NEWS, "parallel_tool_calls": False}, {("news", "sport"), ("news", "art")}),
    ],
    ids=["required", "named"],
)
def test_a_required_call_comes_from_a_model_that_would_make_none(
    session: AgentSession, request_log: RequestLog, choice: dict[str, Any], may: set[tuple[str, str]]
) -> None:
    assert calls_of(ask(session, 0, **NO_THINKING)) == []
    for number in range(1, 4):
        answer = ask(session, number, **choice, **NO_THINKING)
        (call,) = calls_of(answer)
        assert call in may and answer["finish_reason"] == "tool_calls" and not answer["message"]["content"]
    turns, answered = session.turns(), request_log.answered(session.session_id)
    assert [turn["constrained"] for turn in turns] == [None, *["structural_tag"] * 3]
    assert [turn["output_ids"] for turn in turns] == [made.output for made in answered]


def test_at_most_one_call_comes_where_none_is_required(session: AgentSession) -> None:
    for number in range(3):
        answer = ask(session, number, parallel_tool_calls=False, **NO_THINKING)
        assert len(calls_of(answer)) <= 1 and set(calls_of(answer)) <= KINDS
    assert {turn["constrained"] for turn in session.turns()} == {"structural_tag"}


def test_several_required_calls_are_each_of_them_wanted(session: AgentSession) -> None:
    for number in range(2):
        answer = ask(session, number, tool_choice="required", **NO_THINKING)
        # Between the second call and the third this model knows no end.
        calls = calls_of(answer)
        assert calls and set(calls) <= KINDS
        assert answer["finish_reason"] in ("tool_calls", "length")


def test_a_model_that_thinks_first_calls_after_it(session: AgentSession) -> None:
    for number in range(3):
        answer = ask(session, number, tool_choice=NEWS, parallel_tool_calls=False)
        if answer["finish_reason"] == "length":
            assert calls_of(answer) == [] and answer["message"]["reasoning_content"]
        else:
            assert len(calls_of(answer)) == 1 and answer["finish_reason"] == "tool_calls"


def test_a_call_that_the_limit_cuts_ends_with_length(session: AgentSession) -> None:
    answer = ask(session, 0, tool_choice="required", max_tokens=6, **NO_THINKING)
    assert answer["finish_reason"] == "length" and calls_of(answer) == []


def test_replies_of_the_engines_compiler_are_read_as_the_calls_of_every_format(
    sglang: Installed, tmp_path: Path
) -> None:
    holdings = [
        [
            Holding(
                held, tmp_path, wanted(names, required=required, single=single), thinking=thinking, json_schema=schema
            )
            for thinking, (names, required, single, schema) in product(held.openings, CHOICES)
        ]
        for held in HELD.values()
    ]
    cases = [
        {
            "tokenizer": str(tmp_path / each[0].held.name.replace(".", "-") / "tokenizer.json"),
            "stop": each[0].format.stop_token_ids[0],
            "marks": sorted({mark for holding in each for mark in holding.excluded}),
            "ends": each[0].held.ends,
            "tags": [{"tag": holding.tag, "written": [each.ids for each in holding.samples()]} for holding in each],
        }
        for each in holdings
    ]
    for each, tags in zip(holdings, drawn(sglang, cases, tmp_path), strict=True):
        for holding, tag in zip(each, tags, strict=True):
            assert tag["taken"] == [each.allowed for each in holding.samples()], (holding.held.name, holding.tag)
            for ids in tag["drawn"]:
                parsed = holding.read(ids)
                names, wish = called(parsed), holding.wanted
                assert set(names) <= {function.name for function in wish.functions}
                assert len(names) >= wish.required and (len(names) <= 1 or not wish.single)
                if holding.json_schema is not None:
                    assert not parsed["content"] if names else isinstance(json.loads(parsed["content"])["city"], str)
