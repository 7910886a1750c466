"""The real Claude Code, and the Claude Agent SDK that starts it, run whole tasks on a fleet; everything is captured.

Whatever happens, its sessions end well, the tokens of their turns are the engine's own, and one export trains each
token that was sampled once (`judged`). A turn that only appends extends the one before it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agents.breaking import DONE, TASK, Breaking
from tests.agents.fleet import call, fleet_on_cue, weather_rounds
from tests.agents.install import python_of
from tests.agents.judging import assert_one_conversation, assert_rolls_out, by_lineage, judged
from tests.agents.loops.told import QUESTION
from tests.agents.programs import UNASKED, ClaudeCode, Ended, claude_code
from tests.agents.running import TIMEOUT, told_by
from tests.fleets import AgentSession, Fleet
from tests.integration.proxy.metrics import samples

from rolloutfleet import Command

Json = Any

CONTEXT = 45_000
"""Its first prompt has 35,000 tokens of the shipped model, and it asks for 32,000 more."""
AFTER = "Go on after the summary."

CUES: dict[str, list[Json]] = {
    "TASK-TOOLS": [
        {"reasoning": "I look around first.", "calls": [call("Bash", command="echo one > a.txt; ls")]},
        {
            "text": "Now two at once.",
            "calls": [call("Bash", command="cat a.txt"), call("Bash", command="echo zwei ✓")],
        },
        {"reasoning": "Nearly.", "calls": [call("Bash", command="cat none.txt")]},
        {"reasoning": "All is there.", "text": DONE},
    ],
    "TASK-AGENTS": [
        {
            "reasoning": "Two helpers.",
            "calls": [
                call("Agent", description="first", prompt="SUBTASK-ONE", subagent_type="general-purpose"),
                call("Agent", description="second", prompt="SUBTASK-TWO", subagent_type="general-purpose"),
            ],
        },
        {"text": "I wait for them."},
    ],
    "SUBTASK-ONE": [{"calls": [call("Bash", command="echo sub one")]}, {"text": "RESULT-ONE"}],
    "SUBTASK-TWO": [{"calls": [call("Bash", command="echo sub two")]}, {"text": "RESULT-TWO"}],
    "TASK-LONG": [{"text": "one two three four five six seven eight nine ten " * 4}, {"text": "and the end."}],
    "TASK-BIG": [
        {"calls": [call("Bash", command="echo one")]},
        {"calls": [call("Bash", command="seq 1 3000")]},
        {"text": "Never said."},
    ],
    "TASK-SEARCH": [
        {"calls": [call("ToolSearch", query="select:WebFetch", max_results=3)]},
        {"calls": [call("Bash", command="echo found")]},
        {"text": "Found."},
    ],
    "TEXT ONLY": [{"text": "<analysis>Short.</analysis>\n<summary>We listed a file.</summary>"}],
    QUESTION: weather_rounds("mcp__weather__look_up"),
    AFTER: [{"calls": [call("Bash", command="echo after")]}, {"text": "After the summary."}],
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_on_cue(tmp_path_factory.mktemp("claude-code"), CUES, context=CONTEXT) as running:
        yield running


@pytest.fixture
def session(fleet: Fleet) -> AgentSession:
    return fleet.proxy.start_session(task_id="claude-code")


@pytest.fixture
def agent(session: AgentSession, tmp_path: Path) -> ClaudeCode:
    return ClaudeCode(folder=tmp_path, base_url=session.base_url, api_key=session.api_key)


def test_tool_rounds_and_calls_at_once_are_one_conversation(
    fleet: Fleet, session: AgentSession, agent: ClaudeCode
) -> None:
    ended = agent.run(TASK)
    assert last_words(ended) == DONE, ended.shown
    assert {result["content"] for result in tool_results(ended)} > {"a.txt", "one", "zwei ✓"}
    turns = judged(fleet, session)
    assert len(turns) == 4
    assert_one_conversation(turns)


def test_a_rollout_runs_it_as_a_command(fleet: Fleet, tmp_path: Path) -> None:
    own = {"HOME": str(tmp_path), "CLAUDE_CONFIG_DIR": str(tmp_path / "config"), "IS_SANDBOX": "1"}
    line = [str(claude_code()), "--print", "{task}", UNASKED]
    assert_rolls_out(fleet, Command(line, for_="claude-code", cwd=tmp_path, env=own), TASK, turns=4)


def test_sub_agents_at_work_together_have_lineages_of_their_own(
    fleet: Fleet, session: AgentSession, agent: ClaudeCode
) -> None:
    ended = agent.run("TASK-AGENTS, please.")
    assert ended.status == 0, ended.shown
    lineages = by_lineage(judged(fleet, session))
    assert {name: own[0]["lineage"]["parent"] for name, own in lineages.items()} == {
        "main": None,
        "subagent": "main",
        "subagent-2": "main",
    }
    for own in lineages.values():
        assert_one_conversation(own)
    assert [len(own) for name, own in lineages.items() if name != "main"] == [2, 2]
    assert len(lineages["main"]) >= 3


def test_a_conversation_that_was_compacted_goes_on(fleet: Fleet, session: AgentSession, agent: ClaudeCode) -> None:
    for prompt, options in (("TASK-TOOLS", ()), ("/compact", ("--continue",)), (AFTER, ("--continue",))):
        ended = agent.run(prompt, *options)
        assert ended.status == 0, ended.shown
    assert last_words(ended) == "After the summary."
    turns = judged(fleet, session)
    before, compaction, after = turns[:4], turns[4], turns[5:]
    assert_one_conversation(before)
    # Claude Code leaves the last answer out of what is to be summarised.
    assert compaction["parent_id"] == before[2]["turn_id"]
    assert len(after) == 2
    assert_one_conversation(after)


def test_slash_context_counts_the_parts_of_its_prompt_and_makes_no_turn(
    fleet: Fleet, session: AgentSession, agent: ClaudeCode
) -> None:
    assert last_words(agent.run(TASK)) == DONE
    before = counts(fleet)
    informed = replace(agent, settings={"CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(CONTEXT)})
    ended = informed.run("/context", "--continue")
    assert ended.status == 0, ended.shown
    [usage] = [event["context_usage"] for event in ended.events if "context_usage" in event]
    assert usage["raw_max_tokens"] == CONTEXT
    tokens = {part["name"]: part["tokens"] for part in usage["categories"]}
    assert tokens["System tools"] > tokens["System prompt"] > 0
    now = counts(fleet)
    assert now["200"] - before["200"] >= 5 and now.keys() <= {"200", "429"}
    turns = judged(fleet, session)
    assert len(turns) == 4
    assert_one_conversation(turns)


def counts(fleet: Fleet) -> Counter[str]:
    """Prompts that were counted, by status."""
    route = ("rolloutfleet_requests_total", "POST", "/sessions/{session_id}/v1/messages/count_tokens")
    found = samples(fleet.proxy).items()
    return Counter({labels[2]: int(value) for (name, labels), value in found if (name, *labels[:2]) == route})


def test_without_the_documented_settings_only_a_changed_list_of_tools_branches(
    fleet: Fleet, session: AgentSession, tmp_path: Path
) -> None:
    usual = {"CLAUDE_CODE_ATTRIBUTION_HEADER": "1", "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "0"}
    agent = ClaudeCode(folder=tmp_path, base_url=session.base_url, api_key=session.api_key, settings=usual)
    ended = agent.run("TASK-SEARCH, please.")
    assert last_words(ended) == "Found.", ended.shown
    first, *others = turns = judged(fleet, session)
    assert all(set(turn["stripped"]) >= {"x-anthropic-billing-header"} for turn in turns)
    assert first["parent_id"] is None and others[0]["branch_reason"] == {"message": None, "field": "tools"}
    assert_one_conversation(others)


def test_an_answer_at_its_token_limit_is_gone_on_with(fleet: Fleet, session: AgentSession, tmp_path: Path) -> None:
    limit = {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": "50"}
    agent = ClaudeCode(folder=tmp_path, base_url=session.base_url, api_key=session.api_key, settings=limit)
    ended = agent.run("TASK-LONG, please.")
    assert last_words(ended) == "and the end.", ended.shown
    turns = judged(fleet, session)
    assert [turn["finish_reason"] for turn in turns] == ["length", "stop"]
    assert_one_conversation(turns)


def test_a_conversation_that_outgrows_the_context_ends_and_is_kept(
    fleet: Fleet, session: AgentSession, agent: ClaudeCode
) -> None:
    ended = agent.run("TASK-BIG, please.")
    assert ended.status == 1 and ended.events[-1]["terminal_reason"] == "prompt_too_long", ended.shown
    # It tries a compaction, too: a turn more, or none.
    assert_one_conversation(judged(fleet, session)[:2])


@pytest.mark.timeout(TIMEOUT + 60)
def test_the_agent_sdk_and_its_own_tool_are_one_conversation(
    fleet: Fleet, session: AgentSession, agent: ClaudeCode
) -> None:
    told = told_by("claude_agent_sdk_query", python_of("claude-agent-sdk"), agent.environment)
    assert (told["calls"], told["answer"]) == (3, "Sunny everywhere.")
    turns = judged(fleet, session)
    assert len(turns) == 3
    assert_one_conversation(turns)


def last_words(ended: Ended) -> Json:
    """The answer of a run that ended well."""
    return ended.events[-1].get("result") if ended.status == 0 else None


def tool_results(ended: Ended) -> list[Json]:
    told = (event["message"]["content"] for event in ended.events if event["type"] == "user")
    return [block for content in told for block in content if block["type"] == "tool_result"]


class TestBreaking(Breaking):
    delta = b"text_delta"

    def last_words(self, ended: Ended) -> Json:
        return last_words(ended)
