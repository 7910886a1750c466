"""A reply that ends its turn within a thought, through each API: what is sent back goes on from its end token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.fleets import Fleet, running_fleet
from tests.integration.proxy.test_interleaved_thinking import ask, first_body, next_body
from tests.integration.proxy.test_turns import assert_exact
from tests.unit.proxy.dialects.conversations import CHAT, MESSAGES, RESPONSES
from tests.unit.proxy.tokens.models.families import FAMILIES, write_model

from rolloutfleet_proxy.dialects.base import Dialect

FAMILY = "glm-4.5"
THOUGHT = "So it is"
REPLIES = [{"text": f"\n<think>{THOUGHT}"}, {"text": "\n<think>Well.</think>\nDone."}]
"""The engine puts its end token behind each."""


@pytest.fixture(scope="module")
def glm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("glm")
    model, cues = write_model(folder / "model", FAMILIES[FAMILY]), folder / "cues.json"
    cues.write_text(json.dumps([{"cue": "Think", "replies": REPLIES}]))
    options = ("--model-path", str(model), "--cues", str(cues))
    settings = {"tokenizer": {"path": str(model), "renderer": FAMILY}}
    with running_fleet(folder / "fleet", engine_options=options, settings=settings) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("dialect", [CHAT, MESSAGES, RESPONSES], ids=lambda dialect: dialect.name)
def test_an_open_thought_that_comes_back_is_extended(glm: Fleet, dialect: Dialect[Any], stream: bool) -> None:
    session = glm.proxy.start_session()
    answer = ask(session, dialect, first_body(dialect), stream=stream)
    assert THOUGHT in json.dumps(answer)
    ask(session, dialect, next_body(dialect, answer), stream=stream)
    first, second = session.turns()
    assert (second["parent_id"], second["branch_reason"]) == (first["turn_id"], None)
    assert_exact(glm, [first, second])


@pytest.mark.parametrize("content", ["", None, []])
def test_an_open_thought_that_an_agent_leaves_out_is_extended(glm: Fleet, content: Any) -> None:
    session = glm.proxy.start_session()
    answer = ask(session, CHAT, first_body(CHAT), stream=False)
    body = next_body(CHAT, answer)
    assert body["messages"][1]["reasoning_content"] == THOUGHT and not body["messages"][1]["content"]
    body["messages"][1] = {"role": "assistant", "content": content}
    ask(session, CHAT, body, stream=False)
    first, second = session.turns()
    assert (second["parent_id"], second["branch_reason"]) == (first["turn_id"], None)
