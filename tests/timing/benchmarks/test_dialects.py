"""Each dialect is measured beside the same prompts by chat completions."""

import pytest
from benchmarks.rigs import binaries, dialects
from benchmarks.rigs.dialects import CONVERSATIONS
from benchmarks.rigs.plan import Plan

PLAN = Plan(pairs=1, dialect_sessions=2, dialect_turns=3)


def test_the_same_prompts_are_sent_both_ways_and_every_turn_extends() -> None:
    binaries.build()
    outcome = dialects.dialects(PLAN)
    figures = {figure.name: figure for figure in outcome.figures}
    assert [figure.line for figure in outcome.figures if figure.check and not figure.met] == []
    sent = [(run["conversation"], run["dialect"]) for run in outcome.runs]
    assert sent == [(name, dialect) for name in CONVERSATIONS for dialect in ("chat", "own")]
    for name in CONVERSATIONS:
        own, chat = (figures[f"{name}{each}_cpu_per_turn"].median for each in ("", "_as_chat"))
        assert figures[f"{name}_cpu_vs_chat"].median == pytest.approx(own / chat)
