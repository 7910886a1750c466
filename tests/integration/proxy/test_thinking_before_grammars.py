"""Structured output where the prompt opens a thought: the model thinks, and then its answer is what was asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from tests.fleets import Fleet, running_fleet
from tests.integration.proxy.test_interleaved_thinking import ask
from tests.integration.proxy.test_turns import assert_exact
from tests.unit.proxy.dialects.conversations import CHAT, MESSAGES, RESPONSES, USER, answered, sent_back
from tests.unit.proxy.tokens.models.families import FAMILIES, write_model

from rolloutfleet_proxy.dialects.base import Dialect

FAMILY = "qwen3.5"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
BODIES: dict[str, dict[str, Any]] = {
    CHAT.name: {
        "messages": [USER],
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    },
    MESSAGES.name: {
        "messages": [USER],
        "max_tokens": 2000,
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    },
    RESPONSES.name: {
        "input": [USER],
        "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}},
    },
}
HELLO: dict[str, Any] = {"messages": [USER], "max_tokens": 2000}
CLOSED = {"chat_template_kwargs": {"enable_thinking": False}}


class Trip(BaseModel):
    city: str
    days: int


@pytest.fixture(scope="module", params=["xgrammar", "llguidance"])
def thinking(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Engines of the second kind take no structural tags."""
    folder = tmp_path_factory.mktemp("thinking")
    model = write_model(folder / "model", FAMILIES[FAMILY])
    options = ("--model-path", str(model), "--grammar-backend", request.param)
    settings = {"tokenizer": {"path": str(model), "renderer": FAMILY}}
    with running_fleet(folder / "fleet", engine_options=options, settings=settings) as running:
        yield running


def takes_tags(fleet: Fleet) -> bool:
    return fleet.engine.command[-1] == "xgrammar"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", [CHAT, MESSAGES, RESPONSES], ids=lambda dialect: dialect.name)
def test_an_answer_comes_behind_a_thought(thinking: Fleet, dialect: Dialect[Any], stream: bool) -> None:
    session, body = thinking.proxy.start_session(), BODIES[dialect.name]
    answer = ask(session, dialect, body, stream=stream)
    message = answered(dialect, answer)
    if not takes_tags(thinking):  # Then the grammar holds from the first token on, within the thought.
        assert not message["content"] and json.loads(message["reasoning_content"])["city"]
        return
    said = json.loads(message["content"])
    assert isinstance(said["city"], str) and set(said) <= {"city", "days"}
    assert message["reasoning_content"]
    ask(session, dialect, body | sent_back(dialect, answer), stream=stream)
    first, second = session.turns()
    assert (second["parent_id"], second["branch_reason"]) == (first["turn_id"], None)
    assert {first["constrained"], second["constrained"]} == {"json_schema"}
    assert_exact(thinking, [first, second])


def test_other_grammars_come_behind_a_thought_too(thinking: Fleet) -> None:
    if not takes_tags(thinking):
        return
    session = thinking.proxy.start_session()
    grammars: dict[str, tuple[dict[str, Any], set[str]]] = {
        "json_schema": ({"response_format": {"type": "json_object"}}, {"{}"}),
        "regex": ({"regex": "[ab]/x"}, {"a/x", "b/x"}),
        "ebnf": ({"ebnf": 'root ::= "yes" | "no"'}, {"yes", "no"}),
    }
    for fields, may in grammars.values():
        message = ask(session, CHAT, HELLO | fields, stream=False)["choices"][0]["message"]
        assert message["content"] in may or json.loads(message["content"]) == {}
        assert message["reasoning_content"]
        closed = ask(session, CHAT, HELLO | fields | CLOSED, stream=False)["choices"][0]["message"]
        assert closed["content"] and "reasoning_content" not in closed
    kinds = [kind for kind in grammars for _ in range(2)]
    assert [turn["constrained"] for turn in session.turns()] == kinds


def test_a_wrong_grammar_behind_a_thought_is_a_400_that_says_so(thinking: Fleet) -> None:
    session = thinking.proxy.start_session()
    for stream in (False, True):
        reply = session.raw_chat(HELLO | {"ebnf": "root ::= nowhere", "stream": stream})
        assert (reply.status_code, session.turns()) == (400, [])
        assert "grammar" in reply.json()["error"]["message"]


def test_parse_gives_its_form_behind_a_thought(thinking: Fleet) -> None:
    if not takes_tags(thinking):
        return
    client = thinking.proxy.start_session().client()
    messages: list[Any] = [USER]
    completion = client.chat.completions.parse(model="m", messages=messages, response_format=Trip)
    assert isinstance(completion.choices[0].message.parsed, Trip)
