"""Which line of work of an agent run a turn is of, from a client's headers to what a trainer gets."""

from typing import Any

import pytest
from tests.fleets import AgentSession, ProxyProcess
from tests.integration.proxy.calls import named

from rolloutfleet_proxy.domain.lineage import LABEL_LENGTH

Messages = list[dict[str, Any]]
MAIN = {"id": "main", "kind": "main", "parent": None}
CLAUDE_AGENT = {"x_claude_code_agent_id": "a1"}
CODEX = {"session_id": "s", "thread_id": "s", "x_codex_turn_metadata": '{"request_kind":"turn"}'}
CODEX_AGENT = {
    "session_id": "s",
    "thread_id": "t",
    "x_codex_parent_thread_id": "s",
    "x_openai_subagent": "collab_spawn",
}
COMPACTION = CODEX | {"x_codex_turn_metadata": '{"request_kind":"compaction"}'}


def say(session: AgentSession, messages: Messages, **headers: str) -> Messages:
    """The messages with the answer behind them."""
    reply = session.raw_chat({"messages": messages, "max_tokens": 20}, **headers)
    assert reply.status_code == 200, reply.text
    return [*messages, reply.json()["choices"][0]["message"]]


def asks(text: str) -> Messages:
    return [{"role": "user", "content": text}]


def test_turns_say_who_made_them_also_in_an_export(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    main = say(session, asks("Do it."))
    agent = say(session, asks("Find it."), **CLAUDE_AGENT)
    say(session, agent + asks("And?"), **CLAUDE_AGENT)
    say(session, main + asks("Go on."), **CODEX)
    say(session, asks("Look there."), **CODEX_AGENT)
    say(session, main + asks("Summarise."), **COMPACTION)
    expected = [
        MAIN,
        *[{"id": "a1", "kind": "subagent", "parent": "main"}] * 2,
        MAIN,
        {"id": "t", "kind": "subagent", "parent": "main"},
        {"id": "s", "kind": "compaction", "parent": "main"},
    ]
    turns = session.turns()
    assert [turn["lineage"] for turn in turns] == expected
    assert session.post("reward", {"reward": 1.0}).json()["turn_id"] == turns[3]["turn_id"]
    with proxy.admin() as admin:
        exported = admin.post("/export", json={"session_ids": [session.session_id]}).raise_for_status().json()
        admin.post(f"/leases/{exported['lease_id']}/ack", json={}).raise_for_status()
    (trajectory,) = exported["trajectories"]
    assert [turn["lineage"] for turn in trajectory["turns"]] == expected


def test_of_equal_turns_that_of_the_same_agent_goes_on(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    said = [say(session, asks("Begin."), **headers) for headers in ({}, CLAUDE_AGENT, CODEX_AGENT)]
    assert said[0] == said[1] == said[2]
    for headers in (CODEX_AGENT, {}, CLAUDE_AGENT):
        say(session, said[0] + asks("Go on."), **headers)
    turns = session.turns()
    begun = {turn["lineage"]["id"]: turn["turn_id"] for turn in turns[:3]}
    assert [begun[turn["lineage"]["id"]] for turn in turns[3:]] == [turn["parent_id"] for turn in turns[3:]]


@pytest.mark.parametrize("stream", [False, True])
def test_a_label_that_can_not_be_kept_is_named_and_refuses_nothing(proxy: ProxyProcess, stream: bool) -> None:
    session = proxy.start_session()
    body = {"messages": asks("Hello"), "max_tokens": 5, "stream": stream}
    assert named(session.raw_chat(body, **CLAUDE_AGENT)) == []
    too_long = {"x_claude_code_agent_id": "a" * (LABEL_LENGTH + 1), "x_codex_turn_metadata": "{"}
    assert named(session.raw_chat(body, **too_long)) == ["x-codex-turn-metadata", "x-claude-code-agent-id"]
    assert session.turns()[1]["lineage"] == {"id": None, "kind": "subagent", "parent": "main"}
