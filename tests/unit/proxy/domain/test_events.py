"""Only `Committed` says that a call went well, and only the store makes the turn that it holds."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.proxy.dialects.openai_responses.responses import turn

import rolloutfleet_proxy
from rolloutfleet_proxy.domain.events import Delta, Reasoning, Text, Tokens, ToolCall, events_of, size_of
from rolloutfleet_proxy.domain.turn import Extras

PROXY = Path(rolloutfleet_proxy.__file__).parent


def calls_of(name: str) -> Iterator[str]:
    """The files in which a class is instantiated."""
    for file in PROXY.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                yield str(file.relative_to(PROXY))


def test_the_store_alone_makes_turns() -> None:
    assert set(calls_of("Turn")) == {"store/turns.py"}


def test_what_is_committed_comes_from_the_calls_end_or_from_a_row() -> None:
    assert set(calls_of("Committed")) == {"sessions/calls.py", "domain/events.py", "capture/answering.py"}


@pytest.mark.parametrize(
    "delta", [Text("a" * 1000), Reasoning("a" * 1000), ToolCall(0, "call", "find", "a" * 1000), Text("é" * 1000)]
)
def test_a_delta_counts_with_its_text_and_its_tokens(delta: Delta) -> None:
    assert size_of(delta) >= 1000
    assert size_of(Text("", Tokens(range(10_000), [0.0] * 10_000))) >= 10_000 * 28


def test_a_committed_turn_is_given_in_the_order_in_which_it_came() -> None:
    made = turn(
        output={"content": "Hello there", "reasoning_content": "So. Or not."}, extras=Extras(parts=[0, 5, 11, 6])
    )
    assert list(events_of(made))[1:-1] == [Text("Hello"), Reasoning("So. Or not."), Text(" there")]


@given(st.none() | st.lists(st.integers(0, 9)), st.text(), st.text())
def test_whatever_an_imported_turn_says_of_its_order_nothing_of_it_is_lost(
    parts: list[int] | None, reasoning: str, content: str
) -> None:
    made = turn(output={"content": content, "reasoning_content": reasoning}, extras=Extras(parts=parts))
    given_back = list(events_of(made))[1:-1]
    assert "".join(event.text for event in given_back if isinstance(event, Reasoning)) == reasoning
    assert "".join(event.text for event in given_back if isinstance(event, Text)) == content
