"""Digests that other rules made are made anew from what is stored, and are then those of a request made today."""

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.proxy.stores import SyncStore, new_turn

from rolloutfleet_proxy.domain.lineage import MAIN, Lineage
from rolloutfleet_proxy.domain.matching import Matching
from rolloutfleet_proxy.domain.messages import PLAIN_RULES, Rules, TemplateArgs, append, conversation
from rolloutfleet_proxy.store.turns import commit_turn, load_comparable, load_nodes

TOOLS = [{"type": "function", "function": {"name": "find"}}]
NAMES = Rules(frozenset({("tool", "name")}))


def says(*ids: str, thought: str | None = None) -> dict[str, Any]:
    calls = [{"id": each, "type": "function", "function": {"name": "find", "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": "So.", "reasoning_content": thought, "tool_calls": calls}


def found(*ids: str) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": each, "name": "find", "content": "found"} for each in ids]


FIRST = [{"role": "user", "content": "Hello?"}, says("a", "b", thought=" hm\n")]
SECOND = [*FIRST, *found("b", "a"), says("c")]
OTHER = [*FIRST, *found("b", "b"), says("d", thought="no")]
THIRD = [*SECOND, *found("c"), says("e")]


def commit(store: SyncStore, session: int, said: list[dict[str, Any]], **given: Any) -> None:
    start: int = given["start"]
    made = new_turn(session, name=f"turn-{given}", length=len(said), messages=said[start:-1], **given)
    store.run(lambda transaction: commit_turn(transaction, replace(made, output=said[-1])))


def commit_four(store: SyncStore, session: int, *, matching: Matching) -> None:
    """The third is another continuation of the first."""
    tools = {"tools": TOOLS, "template_kwargs": None}
    commit(store, session, FIRST, start=0, tools=tools, matching=matching)
    commit(store, session, SECOND, start=2, parent=1, matching=matching)
    commit(store, session, OTHER, start=2, parent=1, matching=matching, delivered=False)
    commit(store, session, THIRD, start=5, parent=2, matching=matching)


@pytest.mark.parametrize("rules", [PLAIN_RULES, NAMES], ids=["plain", "names"])
def test_turns_that_older_rules_recorded_are_found_as_if_they_were_recorded_today(
    store: SyncStore, rules: Rules
) -> None:
    [(session, _)] = store.start()
    commit_four(store, session, matching=Matching("1"))
    made = [node for node, _ in store.read(lambda connection: load_nodes(connection, session, rules))]
    for node, said in zip(made, (FIRST, SECOND, OTHER, THIRD), strict=True):
        asked = conversation(said[:-1], TemplateArgs(TOOLS), rules)
        assert node.history == append(asked.chains[-1], said[-1], rules)
    assert [node.call_ids for node in made] == [("a", "b"), ("c",), ("d",), ("e",)]
    assert [[index for index, _ in node.reasonings] for node in made] == [[1], [], [4], []]


def test_a_session_is_read_once(store: SyncStore) -> None:
    [(session, _)] = store.start()
    commit_four(store, session, matching=Matching(PLAIN_RULES.name))
    reads: list[str] = []
    store.connection.set_trace_callback(reads.append)
    made = store.read(lambda connection: load_nodes(connection, session, PLAIN_RULES))
    assert len(made) == 4 and len(reads) == 1


def test_turns_of_different_rules_are_compared_by_those_of_the_newest(store: SyncStore) -> None:
    [(session, _)] = store.start()
    commit_four(store, session, matching=Matching("1"))
    asked = conversation(SECOND[:-1], TemplateArgs(TOOLS), NAMES)
    commit(store, session, SECOND, start=2, parent=1, request=asked.chains[-1], matching=Matching(NAMES.name))
    made = store.read(lambda connection: load_comparable(connection, session))
    assert made[2].request == made[5].request != made[3].request


def test_rows_of_the_oldest_rules_hold_reasonings_alone() -> None:
    assert Matching.decode(b'[[1,"00ff"]]') == Matching("1", ((1, b"\x00\xff"),))
    kept = Matching(NAMES.name, ((3, b"\x01"),), ("a", None))
    assert Matching.decode(kept.encode()) == kept


@pytest.mark.parametrize("rules", ["1", PLAIN_RULES.name])
def test_whose_turns_they_are_is_read_back_also_where_digests_are_made_anew(store: SyncStore, rules: str) -> None:
    [(session, _)] = store.start()
    agent = Lineage("a", "subagent", "main")
    for name, lineage in (("1", MAIN), ("2", agent)):
        turn = new_turn(session, name=name, matching=Matching(rules, lineage=lineage))
        store.run(partial(commit_turn, turn=turn))
    nodes = store.read(lambda connection: load_nodes(connection, session, PLAIN_RULES))
    assert [node.lineage for node, _ in nodes] == [MAIN, agent]
