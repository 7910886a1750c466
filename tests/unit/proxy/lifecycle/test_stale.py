"""The rule of what is stale decides alone: the store hands it enough to choose what it would of all sessions."""

import math
import sqlite3
from collections.abc import Iterator
from itertools import count
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet_proxy.domain.ledger import ACKNOWLEDGED, DISCARDED, LEASED
from rolloutfleet_proxy.domain.session import CLOSED, DELETED, OPEN
from rolloutfleet_proxy.domain.stale import Due, Group, GroupMember, Held, Patience, due, shortest_wait
from rolloutfleet_proxy.domain.trajectory import IMPORTING, READY, fate
from rolloutfleet_proxy.services.sweeping import look
from rolloutfleet_proxy.store import groups, schema

GROUPS = 30
STATES = [READY] * 5 + [ACKNOWLEDGED, DISCARDED, LEASED, IMPORTING]


def a_wait(random: Random) -> float:
    return random.choice([0.1, 3600.0, random.uniform(0.1, 1e5)])


def a_member(random: Random, now: float, patience: Patience) -> GroupMember:
    """A session whose last use lies now and then at the very edge of what is waited for."""
    state = random.choice([OPEN, OPEN, CLOSED, DELETED])
    own = random.choice([None, None, a_wait(random)])
    waited = patience.unclaimed_after if state != OPEN else patience.stale_after if own is None else own
    edge = now - waited
    at = random.choice([edge, math.nextafter(edge, now), edge - 5, edge + 0.05, random.uniform(0, now)])
    held = random.choices(STATES, k=random.choice([0, 1, 1, 2]))
    return GroupMember(
        id=0,
        name="",
        state=state,
        touched=at if state == OPEN else random.uniform(0, now),
        ended=None if state == OPEN else at,
        stale_after=own,
        turns=len(held),
        shards="0 to 0",
        trajectories=tuple(Held(number, of, None) for number, of in enumerate(held, 1)),
    )


@pytest.fixture(scope="module")
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection)
    yield connection
    connection.close()


def write(connection: sqlite3.Connection, house: list[list[GroupMember]]) -> list[Group]:
    """The groups as the store has them, members of all mixed."""
    for table in ("trajectories", "sessions"):
        connection.execute(f"DELETE FROM {table}")
    numbers = count()
    for place in range(3):
        for group, of in enumerate(house):
            for member in of[place : place + 1]:
                name = f"s{next(numbers)}"
                held = [(each.state, None) for each in reversed(member.trajectories)]
                term, _ = fate(state=member.state, turns=member.turns, trajectories=held)
                row = connection.execute(
                    "INSERT INTO sessions (name, key_hash, group_name, agent_may, stale_after, state, fate, turns,"
                    " created_at, touched, ended) VALUES (?, ?, ?, '[]', ?, ?, ?, ?, 0, ?, ?)",
                    (
                        *(name, name.encode(), f"g{group}", member.stale_after, member.state, term, member.turns),
                        *(member.touched, member.ended),
                    ),
                ).lastrowid
                connection.executemany(
                    "INSERT INTO trajectories (session, number, closed_by, turns, state, closed_at)"
                    " VALUES (?, ?, 'close', 1, ?, 0)",
                    [(row, each.number, each.state) for each in member.trajectories],
                )
    return [groups.load_group(connection, f"g{group}") for group in range(len(house))]


@given(st.integers(0, 2**32).map(Random), st.booleans())
def test_what_is_chosen_is_what_the_rule_says_of_all_sessions(
    connection: sqlite3.Connection, random: Random, at_once: bool
) -> None:
    now = random.uniform(1e5, random.choice([1.2e5, 1e7]))
    patience = Patience(a_wait(random), a_wait(random), at_once=at_once and random.random() < 0.2)
    sizes = random.choices([1, 1, 2, 3], k=GROUPS)
    every = write(connection, [[a_member(random, now, patience) for _ in range(size)] for size in sizes])

    def rule(group: Group) -> Due | None:
        return due(group, now=now, patience=patience, busy=lambda name: False)

    looked: list[Group] = []
    candidates: set[str] = set()
    after: int | None = 0
    with pytest.MonkeyPatch.context() as small:
        small.setattr(groups, "PAGE", 7)
        while after is not None:
            page, _ = groups.load_candidates(connection, after=after, now=now, shortest_wait=shortest_wait(patience))
            candidates |= {each.group for each in page}
            found, after = look(connection, after=after, now=now, patience=patience)
            looked += found
    chosen = {group.name: rule(group) for group in looked if rule(group)}
    assert chosen == {group.name: rule(group) for group in every if rule(group)}
    assert candidates >= chosen.keys()
