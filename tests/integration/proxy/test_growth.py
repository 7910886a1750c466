"""A long session grows with its new text alone."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from tests.fleets import AgentSession, ProxyProcess
from tests.printing import say

TURNS = 200
GROUP = 50
"""Turns that are compared as one: an index page more or less is nothing."""


def test_a_long_session_grows_with_its_new_text_alone(proxy: ProxyProcess, request: pytest.FixtureRequest) -> None:
    session = proxy.start_session()
    pages = [store_pages(proxy)]
    messages: list[Any] = [{"role": "user", "content": "Tell me something"}]
    for number in range(TURNS):
        answer = session.raw_chat({"messages": messages, "max_tokens": 12, "ignore_eos": True}).json()
        messages += [answer["choices"][0]["message"], {"role": "user", "content": f"And question {number:03}?"}]
        if (number + 1) % GROUP == 0:
            pages.append(store_pages(proxy))
    turns = stored_bytes(session)
    assert len(turns) == TURNS and all(turn.extends for turn in turns[1:])
    groups = [turns[start : start + GROUP] for start in range(0, TURNS, GROUP)]
    costs = [sum(turn.stored for turn in group) / sum(turn.new_tokens for turn in group) for group in groups]
    grown = [after - before for before, after in pairwise(pages)]
    say(request, f"{TURNS} turns: bytes stored a new token {[round(cost, 1) for cost in costs]}, pages {grown}")
    assert max(costs) <= 1.2 * costs[0]
    # Few pages, and the sweep of what other tests left takes some of its own.
    assert max(grown) <= 2 * max(grown[0], 1)


@dataclass(frozen=True, slots=True)
class Stored:
    """A turn's row."""

    extends: bool
    new_tokens: int
    stored: int
    """Bytes of all its columns."""


def stored_bytes(session: AgentSession) -> list[Stored]:
    with closing(sqlite3.connect(session.proxy.store_file)) as connection:
        columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(turns)")]
        size = " + ".join(f"coalesce(length(CAST(turns.{name} AS BLOB)), 0)" for name in columns)
        rows = connection.execute(
            f"SELECT parent, (length(prompt_ids) + length(output_ids)) / 4, {size} FROM turns"
            " JOIN sessions ON sessions.id = turns.session WHERE sessions.name = ? ORDER BY turns.number",
            (session.session_id,),
        )
        return [Stored(parent is not None, tokens, stored) for parent, tokens, stored in rows]


def store_pages(proxy: ProxyProcess) -> int:
    """Of the whole file: tables and indexes."""
    with closing(sqlite3.connect(proxy.store_file)) as connection:
        pages: int = connection.execute("PRAGMA page_count").fetchone()[0]
        return pages
