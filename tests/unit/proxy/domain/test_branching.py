"""Where a request parts from the turns that it might have continued."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.proxy.stores import SyncStore, new_turn

from rolloutfleet_proxy.domain.branching import Asked, BranchReason, follows_another, parting
from rolloutfleet_proxy.domain.matching import Matching
from rolloutfleet_proxy.domain.messages import NO_ARGS, PLAIN_RULES, Rules, TemplateArgs, call_ids
from rolloutfleet_proxy.store.turns import commit_turn, load_branch_reason, load_nodes

Messages = list[dict[str, Any]]

TOOLS = [{"type": "function", "function": {"name": "find"}}]
CALL = {"id": "a", "type": "function", "function": {"name": "find", "arguments": "{}"}}
SAID: Messages = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello?"},
    {"role": "assistant", "content": "So.", "reasoning_content": "hm", "tool_calls": [CALL, {**CALL, "id": "b"}]},
    {"role": "tool", "tool_call_id": "a", "content": "found", "name": "find"},
    {"role": "tool", "tool_call_id": "b", "content": "found"},
    {"role": "assistant", "content": "Done."},
]
NEXT = {"role": "user", "content": "More?"}


def asked(messages: Messages, *, args: TemplateArgs = NO_ARGS, rules: Rules = PLAIN_RULES, start: int = 0) -> Asked:
    return Asked(messages, args, rules, start, call_ids(messages[:start]))


def changed(index: int, **fields: Any) -> Messages:
    return [*SAID[:index], {**SAID[index], **fields}, *SAID[index + 1 :], NEXT]


OTHER_CALL = {**CALL, "function": {"name": "find", "arguments": '{"q": 1}'}}
DIFFERENCES: dict[str, tuple[Messages, tuple[int, str]]] = {
    "role": (changed(0, role="user"), (0, "role")),
    "content": (changed(5, content="Done!"), (5, "content")),
    "reasoning": (changed(2, reasoning_content="no"), (2, "reasoning")),
    "reasoning that was never there": (changed(5, reasoning_content="no"), (5, "reasoning")),
    "tool calls": (changed(2, tool_calls=[OTHER_CALL]), (2, "tool_calls")),
    "the call that is answered": (changed(3, tool_call_id="b"), (3, "tool_call_id")),
    "a message that is gone": ([*SAID[:1], *SAID[2:], NEXT], (1, "role")),
    "the first of several": ([*changed(1, content="Hi!")[:-2], NEXT], (1, "content")),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_the_first_difference_is_named(name: str) -> None:
    messages, (message, field) = DIFFERENCES[name]
    assert parting(asked(messages), SAID, NO_ARGS) == BranchReason(message, field)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_results_in_another_order_are_no_difference(order: str) -> None:
    def history(order: str, said: str) -> Messages:
        calling = {"role": "assistant", "tool_calls": [{**CALL, "id": each} for each in "ab"]}
        results = [{"role": "tool", "tool_call_id": each, "content": each} for each in order]
        return [calling, *results, {"role": "assistant", "content": said}]

    known, given = history(order, "So."), [*history(order[::-1], "Or so."), NEXT]
    assert parting(asked(given), known, NO_ARGS) == BranchReason(3, "content")


def test_what_no_format_writes_is_no_difference() -> None:
    messages = [{**message, "extra": 1} for message in changed(2, reasoning_content=None)]
    assert parting(asked(messages), SAID, NO_ARGS) is None


def test_a_field_that_the_format_writes_is_named() -> None:
    rules = Rules(frozenset({("tool", "name")}))
    assert parting(asked(changed(3, name="look_up"), rules=rules), SAID, NO_ARGS) == BranchReason(3, "name")
    assert parting(asked(changed(3, name="look_up")), SAID, NO_ARGS) is None


def test_a_difference_of_tools_or_template_arguments_is_no_messages() -> None:
    for args, field in ((TemplateArgs(TOOLS), "tools"), (TemplateArgs(kwargs={"a": 1}), "template")):
        assert parting(asked([*SAID, NEXT], args=args), SAID, NO_ARGS) == BranchReason(None, field)
        assert parting(asked([*SAID, NEXT], args=args), SAID, None) is None
        assert parting(asked(changed(1, content="Hi!"), args=args), SAID, NO_ARGS) == BranchReason(1, "content")


def test_only_what_stands_behind_the_parent_is_compared() -> None:
    messages = changed(3, tool_call_id="b")
    assert parting(asked(messages, start=3), SAID[3:], None) == BranchReason(3, "tool_call_id")
    assert parting(asked([*SAID, NEXT], start=3), SAID[3:], None) is None


def test_a_fork_holds_answers_that_its_parent_does_not_cover() -> None:
    assert not follows_another([*SAID, NEXT], 6)
    assert follows_another([*SAID, NEXT], 3)
    assert follows_another([*SAID, NEXT], 0)
    assert not follows_another([NEXT], 0)


def reason(store: SyncStore, session: int, request: Asked) -> BranchReason | None:
    nodes = [node for node, _ in store.read(lambda connection: load_nodes(connection, session, PLAIN_RULES))]
    return store.read(lambda connection: load_branch_reason(connection, session, nodes, request))


def commit(store: SyncStore, session: int, said: Messages) -> None:
    made = new_turn(session, name=f"turn-{said}"[:200], length=len(said), messages=said[:-1], matching=Matching("2"))
    store.run(lambda transaction: commit_turn(transaction, replace(made, output=said[-1])))


def test_of_several_turns_it_is_compared_with_the_one_that_it_follows_longest(store: SyncStore) -> None:
    [(session, _)] = store.start()
    assert reason(store, session, asked([*SAID, NEXT])) is None
    commit(store, session, SAID)
    for number in range(12):
        commit(store, session, [{"role": "system", "content": f"Agent {number}."}, *SAID[1:]])
    assert reason(store, session, asked(changed(4, content="lost"))) == BranchReason(4, "content")
    agent = [{"role": "system", "content": "Agent 10."}, *changed(5, content="No.")[1:]]
    assert reason(store, session, asked(agent)) == BranchReason(5, "content")
    assert reason(store, session, asked([{"role": "user", "content": "Hello?"}])) == BranchReason(0, "role")


def test_a_request_that_is_made_again_parts_from_nothing(store: SyncStore) -> None:
    [(session, _)] = store.start()
    commit(store, session, SAID)
    assert reason(store, session, asked(SAID[:-1])) is None
