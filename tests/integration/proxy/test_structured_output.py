"""Structured output with the stock SDK: what `parse()` is told to expect is what the engine's grammar makes."""

from typing import Any

import httpx
import pytest
from pydantic import BaseModel
from tests.fleets import Fleet, ProxyProcess
from tests.waiting import PATIENCE


class Weather(BaseModel):
    city: str
    degrees: int
    tags: list[str]


def test_parse_gives_what_its_form_says_and_the_turn_is_kept(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    client = session.client()
    messages = [{"role": "user", "content": "The weather in Oslo?"}]
    for stored in (1, 2):
        completion = client.chat.completions.parse(model="simulated", messages=messages, response_format=Weather)  # type: ignore[arg-type]
        parsed = completion.choices[0].message.parsed
        assert isinstance(parsed, Weather)
        messages += [
            {"role": "assistant", "content": completion.choices[0].message.content or ""},
            {"role": "user", "content": "And tomorrow?"},
        ]
        turns = session.turns()
        assert len(turns) == stored
    assert turns[1]["parent_id"] == turns[0]["turn_id"]


def test_a_turn_sampled_under_a_grammar_says_so(proxy: ProxyProcess) -> None:
    grammars: list[tuple[dict[str, Any], str | None]] = [
        ({}, None),
        ({"response_format": {"type": "json_object"}}, "json_schema"),
        ({"regex": "[ab]{6}"}, "regex"),
        ({"ebnf": "root ::= [ab] [ab]"}, "ebnf"),
    ]
    session = proxy.start_session()
    for asked, _ in grammars:
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 60, **asked}
        assert session.raw_chat(body).status_code == 200
    kinds = [kind for _, kind in grammars]
    assert [turn["constrained"] for turn in session.turns()] == kinds
    assert session.post("close").status_code == 200
    with proxy.admin() as admin:
        exported = admin.post("/export", json={"session_ids": [session.session_id]}).raise_for_status().json()
    assert [turn["constrained"] for turn in exported["trajectories"][0]["turns"]] == kinds


ENDLESS = {"type": "object", "properties": {"x": {"type": "array", "minItems": 1e9}}}
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("route", "asked", "path"),
    [
        (
            "chat/completions",
            {"messages": HELLO, "response_format": {"type": "json_schema", "json_schema": {"schema": ENDLESS}}},
            "response_format.json_schema.schema",
        ),
        (
            "messages",
            {"messages": HELLO, "output_config": {"format": {"type": "json_schema", "schema": ENDLESS}}},
            "output_config.format.schema",
        ),
        (
            "responses",
            {"input": HELLO, "text": {"format": {"type": "json_schema", "name": "x", "schema": ENDLESS}}},
            "text.format.schema",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_no_turn_can_come_to_reaches_no_engine(
    fleet: Fleet, proxy: ProxyProcess, route: str, asked: dict[str, Any], path: str, stream: bool
) -> None:
    session, before = proxy.start_session(), len(fleet.engine.log())
    limit = "max_output_tokens" if route == "responses" else "max_tokens"
    reply = httpx.post(
        f"{session.base_url}/{route}",
        json={"model": "simulated", limit: 9, "stream": stream, **asked},
        headers={"authorization": f"Bearer {session.api_key}"},
        timeout=PATIENCE,
    )
    assert reply.status_code == 400
    assert f"{path}.properties.x.minItems" in reply.json()["error"]["message"]
    assert session.turns() == [] and len(fleet.engine.log()) == before
