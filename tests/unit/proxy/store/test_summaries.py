"""What a session's row says of its turns is what they say, whatever the order of commits and rewards."""

import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.proxy.stores import SyncStore
from tests.unit.proxy.summing import said, summed

from rolloutfleet.wire import ChosenSessions, GiveReward
from rolloutfleet_proxy.domain.lineage import MAIN, Lineage
from rolloutfleet_proxy.store import filling, summaries
from rolloutfleet_proxy.store.listing import Listing, list_sessions
from rolloutfleet_proxy.store.rewards import give_reward
from rolloutfleet_proxy.store.sessions import touch

SUBAGENT = Lineage("agent-1", "subagent", "main")
VERSIONS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), max_size=3)
COMMIT = st.tuples(st.just("commit"), st.integers(0, 5), VERSIONS, st.booleans())
"""How many turns back the parent is (0: none), versions, whether a sub-agent's."""
REWARD = st.tuples(st.just("reward"), st.integers(1, 9), st.sampled_from([-1.0, 0.0, 0.5]))
"""Which turn, counted from the newest."""


ROOT = ("commit", 0, [(3, 1)], False)
CHILD = ("commit", 1, [(3, 2)], False)
SIBLING = ("commit", 2, [(4, 1)], True)


def do(store: SyncStore, session: int, step: Any) -> None:
    newest = store.rows("SELECT turns FROM sessions WHERE id = ?", session)[0][0]
    match step:
        case "commit", back, versions, by_subagent:
            parent = newest + 1 - back if 0 < back <= newest else None
            tokens = sum(tokens for _, tokens in versions)
            store.commit(
                session,
                name=f"{session}-{newest + 1}",
                parent=parent,
                output=range(tokens),
                versions=versions,
                lineage=SUBAGENT if by_subagent else MAIN,
            )
        case "reward", back, value if back <= newest:
            asked = GiveReward(reward=value, turn_id=f"{session}-{newest + 1 - back}")
            store.run(lambda transaction: give_reward(transaction, session, asked))


@settings(max_examples=40, deadline=None)
@example(before=[ROOT, ("reward", 1, 0.5), ("reward", 1, -1.0)], after=[("reward", 1, 0.0)], filled=True)
@example(before=[ROOT, CHILD, SIBLING, ROOT], after=[CHILD, SIBLING], filled=True)
@given(before=st.lists(COMMIT | REWARD, max_size=12), after=st.lists(COMMIT | REWARD, max_size=6), filled=st.booleans())
def test_the_columns_are_what_the_turns_say(before: list[Any], after: list[Any], filled: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = SyncStore(Path(folder))
        try:
            [(session, _)] = store.start()
            for step in before:
                do(store, session, step)
                assert said(store) == summed(store)
            store.reopen(after_version=6)
            if filled:
                store.run(summaries.fill_some)
            for step in after:
                do(store, session, step)
                assert said(store) == (summed(store) if filled else {session: (None,) * 6})
            store.wait(filling.fill(store.store))
            assert said(store) == summed(store)
        finally:
            store.close()


def test_what_an_earlier_version_left_is_summed_up_a_few_at_a_time_the_newest_first(store: SyncStore) -> None:
    sessions = [session for session, _ in store.start(7)]
    for session in sessions:
        for _ in range(3):
            do(store, session, ("commit", 1, [(session, 2)], False))
    store.reopen(after_version=6)
    fresh = store.start()[0][0]
    assert said(store)[fresh] == (0, 0, 0, None, None, None)
    with patch.object(summaries, "SESSIONS_AT_ONCE", 3), patch.object(summaries, "TURNS_AT_ONCE", 5):
        left = []
        while store.rows("SELECT 1 FROM facts WHERE name = 'not_summed_up'"):
            left.append([session for session, columns in said(store).items() if columns[0] is None])
            store.run(summaries.fill_some)
            store.reopen()
    assert left[:4] == [sessions, sessions[:-2], sessions[:-4], sessions[:-6]]
    assert said(store) == summed(store)
    assert store.rows("SELECT DISTINCT last_activity_at FROM sessions") == [(1e9,)]


def test_a_session_says_when_it_was_last_used(store: SyncStore) -> None:
    [(session, _)] = store.start()
    seen = []
    for use in (
        lambda: do(store, session, ("commit", 0, [], False)),
        lambda: do(store, session, ("reward", 1, 1.0)),
        lambda: store.run(lambda transaction: touch(transaction, session)),
    ):
        store.advance(5)
        use()
        seen += store.rows("SELECT last_activity_at FROM sessions")
    assert seen == [(1e9 + 5,), (1e9 + 10,), (1e9 + 15,)]


def test_what_is_not_summed_up_yet_fulfils_no_condition_on_it(store: SyncStore) -> None:
    [(session, _)] = store.start()
    do(store, session, ("commit", 0, [(3, 1)], False))
    store.reopen(after_version=6)

    def found(**chosen: Any) -> int:
        asked = Listing(chosen=ChosenSessions(**chosen), limit=10)
        return len(store.read(lambda connection: list_sessions(connection, asked, served=0.0)))

    conditions: list[dict[str, Any]] = [
        {"rewarded": False},
        {"min_branches": 0},
        {"min_version": 0},
        {"max_version": 9},
    ]
    assert [found(**each) for each in (*conditions, {})] == [0, 0, 0, 0, 1]
    store.run(summaries.fill_some)
    assert [found(**each) for each in conditions] == [1, 1, 1, 1]
