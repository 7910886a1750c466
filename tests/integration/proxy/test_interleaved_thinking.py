"""A model that thinks again behind its text: every answer has its parts in the order in which they came, streamed,
whole and given again, and what is sent back is the turn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.fleets import AgentSession, Fleet, running_fleet
from tests.integration.proxy.calls import RETRY
from tests.integration.proxy.dialect_calls import assembled, post
from tests.integration.proxy.test_turns import assert_exact
from tests.unit.proxy.dialects.conversations import CHAT, MESSAGES, RESPONSES, USER, sent_back
from tests.unit.proxy.tokens.models.families import FAMILIES, write_model

from rolloutfleet_proxy.dialects.base import Dialect

Json = Any
CUE = "Think twice."
REPLIES = [
    {"text": "\n<think>So it is.</think>\nHello<think> Or is it?</think> there"},
    {"text": "\n<think>Well.</think>\nDone."},
]
PARTS = [("reasoning", "So it is."), ("text", "Hello"), ("reasoning", " Or is it?"), ("text", " there")]
ASKED: Json = {"role": "user", "content": CUE}
FAMILY = "glm-4.5"


@pytest.fixture(scope="module")
def glm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("glm")
    model, cues = write_model(folder / "model", FAMILIES[FAMILY]), folder / "cues.json"
    cues.write_text(json.dumps([{"cue": CUE, "replies": REPLIES}]))
    options = ("--model-path", str(model), "--cues", str(cues))
    settings = {"tokenizer": {"path": str(model), "renderer": FAMILY}}
    with running_fleet(folder / "fleet", engine_options=options, settings=settings) as running:
        yield running


def ask(session: AgentSession, dialect: Dialect[Any], body: Json, *, stream: bool, **headers: str) -> Json:
    """The answer, assembled where it is streamed."""
    reply = post(session, dialect, body, stream=stream, **headers)
    return assembled(dialect, reply.content) if stream else reply.json()


def first_body(dialect: Dialect[Any]) -> Json:
    return {"input": [ASKED]} if dialect is RESPONSES else {"max_tokens": 200, "messages": [ASKED]}


def next_body(dialect: Dialect[Any], answer: Json) -> Json:
    """The conversation goes on from the answer, as a client has got it."""
    body = sent_back(dialect, answer)
    said = body["input" if dialect is RESPONSES else "messages"]
    assert (said[0], said[-1]) == (USER, USER)
    said[0] = ASKED
    return body


def parts_in(dialect: Dialect[Any], answer: Json) -> list[tuple[str, str]]:
    if dialect is MESSAGES:
        kinds = {"thinking": "reasoning", "text": "text"}
        return [(kinds[block["type"]], block[block["type"]]) for block in answer["content"]]
    kinds = {"reasoning": "reasoning", "message": "text"}
    return [(kinds[item["type"]], item["content"][0]["text"]) for item in answer["output"]]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", [MESSAGES, RESPONSES], ids=lambda dialect: dialect.name)
def test_parts_keep_their_order_and_come_back_as_the_turn(glm: Fleet, dialect: Dialect[Any], stream: bool) -> None:
    session, body = glm.proxy.start_session(), first_body(dialect)
    answer = ask(session, dialect, body, stream=stream)
    assert parts_in(dialect, answer) == PARTS
    for other in (not stream, stream):
        assert ask(session, dialect, body, stream=other, **RETRY) == answer
    glm.proxy.kill()
    glm.proxy.start()
    for other in (not stream, stream):
        assert ask(session, dialect, body, stream=other, **RETRY) == answer
    if dialect is RESPONSES:
        headers = {"authorization": f"Bearer {session.api_key}"}
        shown = httpx.get(f"{session.base_url}/responses/{answer['id']}", headers=headers).raise_for_status().json()
        assert shown["output"] == answer["output"]

    ask(session, dialect, next_body(dialect, answer), stream=stream)
    first, second = session.turns()
    assert (second["parent_id"], second["branch_reason"]) == (first["turn_id"], None)
    assert_exact(glm, [first, second])


def test_chat_has_the_reasoning_and_the_text_as_before(glm: Fleet) -> None:
    session = glm.proxy.start_session()
    answer = ask(session, CHAT, first_body(CHAT), stream=False)
    [choice] = answer["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "Hello there",
        "reasoning_content": "So it is. Or is it?",
    }
    streamed = ask(session, CHAT, first_body(CHAT), stream=True, **RETRY)
    assert streamed["choices"][0]["message"] == choice["message"]
    ask(session, CHAT, next_body(CHAT, answer), stream=False)
    first, second = session.turns()
    assert (second["parent_id"], second["branch_reason"]) == (first["turn_id"], None)
