"""Only `Committed` says that a call went well, and only the store makes the turn that it holds."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import rolloutfleet_proxy
from rolloutfleet_proxy.domain.events import Delta, Reasoning, Text, Tokens, ToolCall, size_of

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
