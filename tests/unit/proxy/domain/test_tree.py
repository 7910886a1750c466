"""Which turn a request continues."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from rolloutfleet_proxy.domain.lineage import MAIN, Lineage
from rolloutfleet_proxy.domain.messages import NO_ARGS, TemplateArgs, append, conversation, reasoning_digest
from rolloutfleet_proxy.domain.tree import Node, Tree

Messages = list[dict[str, Any]]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str, reasoning: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "reasoning_content": reasoning}


def node(turn: int, request: Messages, answer: dict[str, Any], parent: Node | None = None) -> Node:
    asked = conversation(request, NO_ARGS)
    start = parent.length if parent else 0
    own = list(enumerate([*asked.reasonings, reasoning_digest(answer)]))[start:]
    return Node(
        turn=turn,
        parent=parent.turn if parent else None,
        start=start,
        length=len(request) + 1,
        history=append(asked.chains[-1], answer),
        reasonings=tuple((index, given) for index, given in own if given is not None),
    )


def matched(tree: Tree, request: Messages) -> list[int]:
    return [found.turn for found in tree.matches(conversation(request, NO_ARGS))]


FIRST = [user("hello")]
SECOND = [*FIRST, says("hi", "greet back"), user("more")]


def chain_of_three() -> tuple[Tree, Node, Node]:
    one = node(1, FIRST, says("hi", "greet back"))
    two = node(2, SECOND, says("ok", "so be it"), one)
    return Tree([one, two]), one, two


def test_the_deepest_comes_first() -> None:
    tree, _, _ = chain_of_three()
    assert matched(tree, [*SECOND, says("ok", "so be it"), user("end")]) == [2, 1]
    assert matched(tree, SECOND) == [1]
    assert matched(tree, FIRST) == []
    assert matched(tree, [user("other")]) == []


def test_reasoning_left_out_matches_and_changed_does_not() -> None:
    tree, _, _ = chain_of_three()
    assert matched(tree, [*FIRST, says("hi"), user("more"), says("ok"), user("end")]) == [2, 1]
    assert matched(tree, [*SECOND, says("ok", "something else"), user("end")]) == [1]
    assert matched(tree, [*FIRST, says("hi", "changed"), user("more"), says("ok"), user("end")]) == []


def test_reasoning_that_was_never_there_is_a_change() -> None:
    tree = Tree([node(1, FIRST, says("hi"))])
    assert matched(tree, [*FIRST, says("hi"), user("more")]) == [1]
    assert matched(tree, [*FIRST, says("hi", "made up"), user("more")]) == []


def test_reasoning_after_a_turn_is_not_its_concern() -> None:
    tree, _, _ = chain_of_three()
    later = [*SECOND, says("ok"), user("end"), says("bye", "new"), user("?")]
    assert matched(tree, later) == [2, 1]


def test_ties_go_to_the_newest() -> None:
    one = node(1, FIRST, says("hi", "a"))
    two = node(2, FIRST, says("hi", "b"))
    tree = Tree([one, two])
    assert matched(tree, [*FIRST, says("hi"), user("more")]) == [2, 1]
    assert matched(tree, [*FIRST, says("hi", "a"), user("more")]) == [1]


def test_other_tools_are_another_conversation() -> None:
    tree, _, _ = chain_of_three()
    tools = [{"type": "function", "function": {"name": "find"}}]
    assert tree.matches(conversation(SECOND, TemplateArgs(tools))) == []


def test_children_are_the_turns_that_continue_one() -> None:
    one = node(1, FIRST, says("hi"))
    again = node(2, FIRST, says("hello there"))
    child = node(3, [*FIRST, says("hi"), user("more")], says("ok"), one)
    tree = Tree([one, again, child])
    assert [other.turn for other in tree.children(1)] == [3]
    assert tree.children(3) == []


def test_among_equal_turns_those_of_the_same_lineage_come_first() -> None:
    agent, other = Lineage("a", "subagent", "main"), Lineage("b", "subagent", "main")
    turns = [replace(node(number, FIRST, says("hi")), lineage=each) for number, each in enumerate([agent, MAIN] * 2)]
    deeper = replace(node(9, [*FIRST, says("hi"), user("more")], says("ok"), turns[0]), lineage=other)
    tree = Tree([*turns, deeper])
    asked = conversation([*FIRST, says("hi"), user("more"), says("ok"), user("end")], NO_ARGS)
    found = {each: [turn.turn for turn in tree.matches(asked, each)] for each in (MAIN, agent, other)}
    assert found == {MAIN: [9, 3, 1, 2, 0], agent: [9, 2, 0, 3, 1], other: [9, 3, 2, 1, 0]}


def test_what_does_not_fit_is_refused() -> None:
    tree, one, two = chain_of_three()
    with pytest.raises(ValueError, match="in the tree already"):
        tree.add(two)
    orphan = node(4, SECOND, says("x"), Node(9, None, 0, 2, b""))
    with pytest.raises(ValueError, match="unknown parent"):
        tree.add(orphan)
    with pytest.raises(ValueError, match="its parent ends at 2"):
        tree.add(Node(5, one.turn, 0, 4, b""))
    assert [tree.children(turn) for turn in (None, one.turn, two.turn, 9)] == [[one], [two], [], []]


def test_its_size_grows_with_its_turns() -> None:
    tree, _, two = chain_of_three()
    before = tree.nbytes
    tree.add(node(3, [*SECOND, says("ok"), user("end")], says("bye"), two))
    assert tree.nbytes > before


words = st.sampled_from(["a", "b"])
reasons = st.sampled_from([None, "r", "s"])


@st.composite
def exchanges(draw: st.DrawFn) -> Messages:
    request: Messages = [user(draw(words))]
    for _ in range(draw(st.integers(0, 3))):
        request += [says(draw(words), draw(reasons)), user(draw(words))]
    return request


@given(st.lists(st.tuples(exchanges(), words, reasons), max_size=12), exchanges())
def test_against_a_search_through_whole_messages(
    turns: list[tuple[Messages, str, str | None]], request: Messages
) -> None:
    """The tree finds what a comparison of whole message lists finds, whatever parents the turns got."""
    tree = Tree()
    histories: dict[int, Messages] = {}
    for number, (asked, word, reason) in enumerate(turns):
        found = tree.matches(conversation(asked, NO_ARGS))
        tree.add(node(number, asked, says(word, reason), found[0] if found else None))
        # What a parent reasoned stands, also where the request left it out.
        stood = histories[found[0].turn] if found else []
        histories[number] = [*stood, *asked[len(stood) :], says(word, reason)]

    def is_prefix(history: Messages) -> bool:
        return len(history) <= len(request) and all(
            ours["role"] == theirs["role"]
            and ours["content"] == theirs["content"]
            and theirs.get("reasoning_content") in (None, ours.get("reasoning_content"))
            for ours, theirs in zip(history, request, strict=False)
        )

    expected = sorted(
        (number for number, history in histories.items() if is_prefix(history)),
        key=lambda number: (len(histories[number]), number),
        reverse=True,
    )
    assert matched(tree, request) == expected
