"""How a session ended: what says it, until when, and what of it is trained."""

import sqlite3
from typing import Any

import pytest
from tests.unit.proxy.exports.test_rows_and_forms import as_json, as_safetensors, leased, reward
from tests.unit.proxy.stores import SyncStore

from rolloutfleet.wire import CloseSession, Outcome
from rolloutfleet_proxy.domain.errors import OutcomeFrozen
from rolloutfleet_proxy.domain.lineage import Lineage
from rolloutfleet_proxy.domain.weights import Recovery
from rolloutfleet_proxy.store import dumps
from rolloutfleet_proxy.store.leases import release
from rolloutfleet_proxy.store.sessions import touch
from rolloutfleet_proxy.store.trajectories import close_session
from rolloutfleet_proxy.store.weights import apply

OUTCOMES: list[Outcome] = ["completed", "truncated", "failed", "aborted"]


def close(store: SyncStore, session: int, **asked: Any) -> None:
    store.run(lambda transaction: close_session(transaction, session, CloseSession(**asked)))


def meet_limit(store: SyncStore, session: int, code: str) -> None:
    store.run(lambda transaction: touch(transaction, session, also=", met_limit = ?", values=(code,)))


def ended(store: SyncStore, **asked: Any) -> int:
    """A session of two turns that has been closed."""
    [(session, _)] = store.start()
    store.commit(session, name="first")
    store.commit(session, name="second", parent=1)
    close(store, session, **asked)
    return session


def ending(store: SyncStore) -> tuple[str | None, str | None]:
    [row] = store.rows("SELECT outcome, outcome_reason FROM sessions")
    return row[0], row[1]


def masks(store: SyncStore, **asked: Any) -> list[list[int]]:
    """The loss mask of each row; what was leased is given back."""
    granted = leased(store, **asked)
    rows = [row for each in as_json(store, granted)["trajectories"] for row in each["rows"]]
    store.run(lambda transaction: release(transaction, str(granted.lease)))
    return [row["tensors"]["loss_mask"] for row in rows]


TRAINED, UNTRAINED = [[0, 0, 1, 1, 0, 0, 1, 1]], [[0] * 8]


def test_a_session_that_is_closed_completed(store: SyncStore) -> None:
    ended(store)
    assert ending(store) == ("completed", None)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_outcome_and_a_reason_that_are_given_stand(store: SyncStore, outcome: Outcome) -> None:
    ended(store, outcome=outcome, reason="said so")
    assert ending(store) == (outcome, "said so")


def test_a_session_whose_newest_call_met_a_limit_is_truncated(store: SyncStore) -> None:
    [(session, _)] = store.start()
    store.commit(session, name="first")
    meet_limit(store, session, "turn_limit")
    close(store, session)
    assert ending(store) == ("truncated", "turn_limit")


def test_a_limit_that_the_agent_got_over_is_none(store: SyncStore) -> None:
    [(session, _)] = store.start()
    meet_limit(store, session, "context_length_exceeded")
    store.commit(session, name="compacted")
    close(store, session)
    assert ending(store) == ("completed", None)


def test_a_main_turn_that_was_cut_last_truncates_and_a_helpers_does_not(store: SyncStore) -> None:
    [(cut, _), (helped, _)] = store.start(2)
    store.commit(cut, name="cut", finish_reason="length")
    store.commit(cut, name="helper", lineage=Lineage("a", "subagent"))
    store.commit(helped, name="first", finish_reason="length")
    store.commit(helped, name="second", parent=1)
    store.commit(helped, name="title", finish_reason="length", lineage=Lineage(None, "other"))
    for session in (cut, helped):
        close(store, session)
    found = store.rows("SELECT outcome, outcome_reason FROM sessions ORDER BY id")
    assert found == [("truncated", "length"), ("completed", None)]


def test_an_outcome_changes_until_the_first_lease_and_closing_again_keeps_it(store: SyncStore) -> None:
    session = ended(store)
    close(store, session, outcome="failed", reason="the grader found nothing")
    close(store, session)
    assert ending(store) == ("failed", "the grader found nothing")
    granted = leased(store)
    store.run(lambda transaction: release(transaction, str(granted.lease)))
    close(store, session, outcome="failed", reason="the grader found nothing")
    with pytest.raises(OutcomeFrozen, match="freezes its outcome"):
        close(store, session, outcome="completed")
    assert ending(store) == ("failed", "the grader found nothing")


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_unrewarded_session_is_exported_whole_and_trained_by_its_outcome(store: SyncStore, outcome: Outcome) -> None:
    ended(store, outcome=outcome, reason="why")
    assert masks(store) == (TRAINED if outcome in ("completed", "truncated") else UNTRAINED)
    assert masks(store, train=[outcome]) == TRAINED
    assert masks(store, train=[other for other in OUTCOMES if other != outcome]) == UNTRAINED
    [trajectory] = as_json(store, leased(store))["trajectories"]
    assert (trajectory["outcome"], trajectory["outcome_reason"]) == (outcome, "why")
    assert [turn["turn_id"] for turn in trajectory["turns"]] == ["first", "second"]


def test_a_row_that_is_not_trained_has_ids_and_nothing_of_what_was_sampled(store: SyncStore) -> None:
    ended(store, outcome="failed")
    _, tensors = as_safetensors(store, leased(store))
    assert tensors["input_ids"].tolist() == [1, 2, 3, 4, 1, 2, 3, 4]
    assert {name: set(tensors[name].tolist()) for name in ("loss_mask", "logprobs", "versions", "turn_ids")} == {
        "loss_mask": {0},
        "logprobs": {0.0},
        "versions": {-1},
        "turn_ids": {-1},
    }
    assert tensors["rewarded"].tolist() == [0]


@pytest.mark.parametrize("asked", [{}, {"turn_id": "first"}], ids=["the episode", "a turn"])
def test_a_rewarded_session_is_always_trained(store: SyncStore, asked: dict[str, str]) -> None:
    session = ended(store, outcome="failed")
    reward(store, session, -1.0, **asked)
    assert masks(store) == TRAINED


def test_a_session_that_ended_under_an_earlier_version_is_trained(store: SyncStore) -> None:
    ended(store)
    store.reopen(after_version=9)
    assert ending(store) == (None, None)
    assert masks(store, train=[]) == TRAINED


def test_a_recovery_that_closes_what_was_left_open_aborts_it(store: SyncStore) -> None:
    [(session, _)] = store.start()
    store.commit(session, name="first")
    recovery = Recovery(version=0, run=1, newer="keep", open="close")
    store.run(lambda transaction: apply(transaction, recovery))
    assert ending(store) == ("aborted", "recovered")


def test_a_dump_of_an_open_session_says_aborted_and_why(store: SyncStore) -> None:
    [(session, _), (closed, _)] = store.start(2)
    store.commit(session, name="first")
    store.commit(closed, name="second")
    close(store, closed, outcome="failed", reason="error")

    def said(connection: sqlite3.Connection, session: int) -> tuple[str | None, str | None]:
        head = dumps.load_head(connection, session, None, owner=store.owner, reason="stale", dumped_at=1.0)
        return head.session.outcome, head.session.outcome_reason

    assert store.read(lambda connection: said(connection, session)) == ("aborted", "stale")
    assert store.read(lambda connection: said(connection, closed)) == ("failed", "error")
