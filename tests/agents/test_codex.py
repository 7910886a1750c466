"""The real Codex, and openai-agents, run whole tasks on a fleet over the Responses API; everything is captured.

Whatever happens, its sessions end well, the tokens of their turns are the engine's own, and one export trains each
token that was sampled once (`judged`). A turn that only appends extends the one before it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agents.breaking import DONE, TASK, Breaking
from tests.agents.fleet import call, fleet_on_cue, weather_rounds
from tests.agents.install import python_of
from tests.agents.judging import assert_one_conversation, assert_rolls_out, by_lineage, judged
from tests.agents.loops.told import QUESTION
from tests.agents.programs import FREE, Codex, Ended, bare_environment, codex, documented_variables
from tests.agents.running import TIMEOUT, told_by
from tests.fleets import AgentSession, Fleet

from rolloutfleet import Command

Json = Any

CONTEXT = 24_000
"""Its first prompt has 15,600 tokens of the shipped model."""

CUES: dict[str, list[Json]] = {
    "TASK-TOOLS": [
        {"reasoning": "I look around first.", "calls": [call("exec_command", cmd="echo one > a.txt; ls")]},
        {
            "text": "Now two at once.",
            "calls": [call("exec_command", cmd="cat a.txt"), call("exec_command", cmd="echo zwei ✓")],
        },
        {"reasoning": "Nearly.", "calls": [call("exec_command", cmd="cat none.txt")]},
        {"reasoning": "All is there.", "text": DONE},
    ],
    "TASK-AGENT": [
        {"reasoning": "A helper.", "calls": [call("multi_agent_v1__spawn_agent", message="SUBTASK")]},
        {"calls": [call("multi_agent_v1__wait_agent", targets=["{{agent_id}}"], timeout_ms=30_000)]},
        {"text": "It told me."},
    ],
    "SUBTASK": [{"calls": [call("exec_command", cmd="echo sub")]}, {"text": "RESULT"}],
    "TASK-BIG": [
        {"calls": [call("exec_command", cmd="echo one")]},
        {"calls": [call("exec_command", cmd="seq 1 3000")]},
        {"text": "Never said."},
    ],
    "TASK-LONG": [{"calls": [call("exec_command", cmd="seq 1 400")]}, {"text": "Never said."}],
    "And Quito?": [{"calls": [call("look_up", city="Quito")]}, {"text": "Sunny in Quito."}],
    QUESTION: weather_rounds("look_up"),
    "CONTEXT CHECKPOINT COMPACTION": [{"text": "We counted. AFTER-THE-SUMMARY"}],
    "AFTER-THE-SUMMARY": [{"calls": [call("exec_command", cmd="echo after")]}, {"text": "After the summary."}],
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_on_cue(tmp_path_factory.mktemp("codex"), CUES, context=CONTEXT) as running:
        yield running


@pytest.fixture
def session(fleet: Fleet) -> AgentSession:
    return fleet.proxy.start_session(task_id="codex")


@pytest.fixture
def agent(session: AgentSession, tmp_path: Path) -> Codex:
    return Codex(folder=tmp_path, base_url=session.base_url, api_key=session.api_key)


def test_tool_rounds_and_calls_at_once_are_one_conversation(fleet: Fleet, session: AgentSession, agent: Codex) -> None:
    ended = agent.run(TASK)
    assert last_words(ended) == DONE, ended.shown
    assert sorted(outputs(ended)) == ["a.txt\n", "cat: none.txt: No such file or directory\n", "one\n", "zwei ✓\n"]
    turns = judged(fleet, session)
    assert len(turns) == 4
    assert_one_conversation(turns)


def test_a_rollout_runs_it_as_a_command(fleet: Fleet, tmp_path: Path) -> None:
    line = [str(codex()), "exec", *FREE, "{task}"]
    assert_rolls_out(fleet, Command(line, for_="codex", cwd=tmp_path, env={"HOME": str(tmp_path)}), TASK, turns=4)


def test_a_sub_agent_has_a_lineage_of_its_own(fleet: Fleet, session: AgentSession, agent: Codex) -> None:
    ended = agent.run("TASK-AGENT, please.")
    assert last_words(ended) == "It told me.", ended.shown
    lineages = by_lineage(judged(fleet, session))
    assert {name: (own[0]["lineage"]["parent"], len(own)) for name, own in lineages.items()} == {
        "main": (None, 3),
        "subagent": ("main", 2),
    }
    for own in lineages.values():
        assert_one_conversation(own)


def test_a_conversation_that_was_compacted_goes_on(fleet: Fleet, session: AgentSession, agent: Codex) -> None:
    ended = agent.run("TASK-LONG, please.", "-c", "model_auto_compact_token_limit=16000")
    assert last_words(ended) == "After the summary.", ended.shown
    lineages = by_lineage(judged(fleet, session))
    assert {name: len(own) for name, own in lineages.items()} == {"main": 3, "compaction": 1}
    before, *after = lineages["main"]
    assert before["parent_id"] is None
    assert_one_conversation(after)
    # Without the tools its prompt parts from the others at its head, which is no fork of theirs.
    [compaction] = lineages["compaction"]
    assert (compaction["parent_id"], compaction["branch_reason"]) == (None, None)


def test_a_conversation_that_outgrows_the_context_ends_and_is_kept(
    fleet: Fleet, session: AgentSession, agent: Codex
) -> None:
    ended = agent.run("TASK-BIG, please.")
    assert ended.status == 1 and "context_length_exceeded" in str(ended.events[-1]), ended.shown
    turns = judged(fleet, session)
    assert len(turns) == 2
    assert_one_conversation(turns)


@pytest.mark.timeout(TIMEOUT + 60)
def test_openai_agents_branches_only_for_a_form(fleet: Fleet, session: AgentSession, tmp_path: Path) -> None:
    python = python_of("openai-agents")
    url = session.base_url.removesuffix("/v1")
    settings = documented_variables("openai-agents.md", url=url, key=session.api_key)
    told = told_by("openai_agents_responses", python, {**bare_environment(tmp_path), **settings})
    assert (told["calls"], told["answer"]) == (4, "Sunny in Quito.") and told["structured"]
    *conversation, form = judged(fleet, session)
    assert len(conversation) == 5
    assert_one_conversation(conversation)
    # It is asked without tools, which come first in the prompt.
    assert form["branch_reason"] == {"message": None, "field": "tools"} and form["constrained"] == "json_schema"


def last_words(ended: Ended) -> Json:
    """The answer of a run that ended well."""
    said = [event["item"]["text"] for event in completed(ended) if event["item"]["type"] == "agent_message"]
    return said[-1] if said and ended.status == 0 else None


def outputs(ended: Ended) -> list[str]:
    """What the commands printed."""
    commands = (event["item"] for event in completed(ended) if event["item"]["type"] == "command_execution")
    return [command["aggregated_output"] for command in commands]


def completed(ended: Ended) -> list[Json]:
    return [event for event in ended.events if event["type"] == "item.completed"]


class TestBreaking(Breaking):
    delta = b"response.output_text.delta"

    def last_words(self, ended: Ended) -> Json:
        return last_words(ended)
