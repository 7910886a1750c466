"""Programs and SDKs over a format whose prompt opens a thought, and whose calls are tags: qwen3.5's.

What the model writes between two tags is what a tool gets, blanks and line breaks included; and what a reply was held
to comes behind the thought.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agents.fleet import fleet_on_cue
from tests.agents.install import python_of
from tests.agents.judging import assert_one_conversation, judged
from tests.agents.loops.told import QUESTION, TOOL, Weather
from tests.agents.programs import ClaudeCode
from tests.agents.running import TIMEOUT, told_by
from tests.agents.test_claude_code import CONTEXT, last_words
from tests.fleets import AgentSession, Fleet
from tests.integration.proxy.calls import named
from tests.unit.proxy.tokens.models.families import xml_calls

from rolloutfleet_engine.model import Model, model_path

pytestmark = pytest.mark.timeout(TIMEOUT + 60)
Json = Any

EDIT, DONE = "TASK-EDIT", "Both files are written."
BEFORE = 'def sign(x):\n    return 1\n\n\nprint("return 1")\n'
"""Without its blanks, what is to be replaced is there twice."""
OLD, NEW = "    return 1\n", "    if x < 0:\n        return -1\n    return 1\n"
WRITTEN = "\n\t- a list\n    within it\n\n"
THOUGHT, ANSWER = "It is 17° there.", '{"city": "Oslo", "degrees": 17}'
FORM = Weather(city="Oslo", degrees=17)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Claude Code's; its tools take absolute paths."""
    return tmp_path_factory.mktemp("claude-code")


@pytest.fixture(scope="module")
def fleet(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    edited, written = (str(folder / "work" / name) for name in ("sign.py", "list.md"))
    replies = [
        _calling("Read", file_path=edited),
        _calling("Edit", file_path=edited, old_string=OLD, new_string=NEW, replace_all=False),
        _calling("Write", file_path=written, content=WRITTEN),
        {"reasoning": "All is there.", "text": DONE},
    ]
    cues: dict[str, list[Json]] = {EDIT: replies, QUESTION: [{"reasoning": THOUGHT, "text": ANSWER}]}
    place = tmp_path_factory.mktemp("qwen3.5")
    with fleet_on_cue(place, cues, context=CONTEXT, chat_format="qwen3.5") as running:
        yield running


@pytest.fixture
def session(fleet: Fleet) -> AgentSession:
    return fleet.proxy.start_session(task_id="qwen3.5")


def test_claude_code_edits_and_writes_files_to_the_byte(fleet: Fleet, session: AgentSession, folder: Path) -> None:
    work = folder / "work"
    work.mkdir()
    (work / "sign.py").write_text(BEFORE)
    ended = ClaudeCode(folder=folder, base_url=session.base_url, api_key=session.api_key).run(f"{EDIT}, please.")
    assert last_words(ended) == DONE, ended.shown
    assert (work / "sign.py").read_bytes().decode() == BEFORE.replace(OLD, NEW), ended.shown
    assert (work / "list.md").read_bytes().decode() == WRITTEN, ended.shown
    turns = judged(fleet, session)
    assert len(turns) == 4
    assert_one_conversation(turns)


def test_native_output_of_pydantic_ai_validates_behind_a_thought(session: AgentSession) -> None:
    environment = {**os.environ, "OPENAI_BASE_URL": session.base_url, "OPENAI_API_KEY": session.api_key}
    told = told_by("pydantic_ai_native", python_of("pydantic-ai"), environment)
    assert Weather(**told["structured"]) == FORM
    assert_thought_under_a_grammar(session, "structural_tag")  # of its tool's calls, or the form


def test_form_beside_tools_is_behind_a_thought_where_the_grammar_of_calls_is_refused(
    fleet: Fleet, session: AgentSession
) -> None:
    fleet.engine.fault("abort_with_status", status=400, message="Failed to compile structural_tag grammar: a reason")
    form = {"type": "json_schema", "json_schema": {"name": "w", "schema": Weather.model_json_schema()}}
    messages = [{"role": "user", "content": QUESTION}]
    reply = session.raw_chat({"messages": messages, "tools": [TOOL], "response_format": form})
    assert named(reply) == ["tools"]
    assert_thought_under_a_grammar(session)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_parse_of_chat_completions_validates_behind_a_thought(session: AgentSession, stream: bool) -> None:
    client, messages = session.client(), [{"role": "user", "content": QUESTION}]
    asked: Json = {"model": "gpt-4o", "messages": messages, "response_format": Weather}
    if stream:
        with client.chat.completions.stream(**asked) as events:
            completion = events.get_final_completion()
    else:
        completion = client.chat.completions.parse(**asked)
    assert completion.choices[0].message.parsed == FORM
    assert_thought_under_a_grammar(session)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_parse_of_responses_validates_behind_a_thought(session: AgentSession, stream: bool) -> None:
    client = session.client()
    asked: Json = {"model": "gpt-4o", "input": QUESTION, "text_format": Weather}
    if stream:
        with client.responses.stream(**asked) as events:
            response = events.get_final_response()
    else:
        response = client.responses.parse(**asked)
    assert response.output_parsed == FORM
    assert_thought_under_a_grammar(session)


def assert_thought_under_a_grammar(session: AgentSession, kind: str = "json_schema") -> None:
    [turn] = session.turns()
    said = Model(model_path()).decode(turn["output_ids"])
    assert (turn["constrained"], said) == (kind, f"{THOUGHT}\n</think>\n\n{ANSWER}")


def _calling(name: str, **arguments: Json) -> Json:
    return {"reasoning": f"Now I {name.lower()}.", "text": xml_calls([(name, arguments)]).lstrip()}
