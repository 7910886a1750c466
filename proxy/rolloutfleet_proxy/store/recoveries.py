"""What recoveries there were, what they did, and which trajectories they mark (`domain.recovery` judges)."""

import json
from dataclasses import asdict

from rolloutfleet_proxy.domain.recovery import Counts, Mark, judge
from rolloutfleet_proxy.store.transaction import Transaction

_RECOVERIES = "recoveries"
_COUNTS = "recovered"


def mark(transaction: Transaction, session: int, number: int) -> Mark | None:
    """Judge a trajectory, and note what it is marked with; None where nothing is against it.

    Counts it where it was not marked before. The caller discards it, and says so by `count_dropped`, where the mark
    says `drop`.
    """
    recoveries = load_recoveries(transaction)
    if not recoveries:
        return None
    newest = transaction.rows(
        "SELECT run, max(version.value ->> 0) FROM turns, json_each(CAST(versions AS TEXT)) AS version"
        " WHERE session = ? AND trajectory = ? AND state = 'live' GROUP BY run",
        (session, number),
    )
    found = judge(newest, recoveries)
    if found is None:
        return None
    before, turns = transaction.rows(
        "SELECT marked, turns FROM trajectories WHERE session = ? AND number = ?", (session, number)
    )[0]
    if before is None:
        transaction.execute(
            "UPDATE trajectories SET marked = ? WHERE session = ? AND number = ?", (found.why, session, number)
        )
        _count(transaction, found.run, Counts(marked_trajectories=1, marked_turns=turns))
    return found


def count_dropped(transaction: Transaction, session: int, number: int, found: Mark) -> None:
    """Note that a marked trajectory has been discarded."""
    turns = transaction.value("SELECT turns FROM trajectories WHERE session = ? AND number = ?", (session, number))
    _count(transaction, found.run, Counts(dropped_trajectories=1, dropped_turns=turns))


def count_ended(transaction: Transaction, run: int, sessions: int) -> None:
    """Note that the recovery ended sessions that were open."""
    _count(transaction, run, Counts(ended_sessions=sessions))


def counts(transaction: Transaction, run: int) -> Counts:
    """What the recovery that began this run has done so far."""
    return Counts(**json.loads(transaction.fact(_COUNTS, "{}")).get(str(run), {}))


def add_recovery(transaction: Transaction, run: int, version: int, newer: str) -> None:
    """Judge by this recovery too from now on."""
    others = [known for known in load_recoveries(transaction) if known[0] != run]
    transaction.set_fact(_RECOVERIES, json.dumps(sorted([*others, (run, version, newer)])))


def load_recoveries(transaction: Transaction) -> list[tuple[int, int, str]]:
    """(run, version, drop or keep) of every recovery, by run."""
    return [(run, version, newer) for run, version, newer in json.loads(transaction.fact(_RECOVERIES, "[]"))]


def _count(transaction: Transaction, run: int, more: Counts) -> None:
    all_counts = json.loads(transaction.fact(_COUNTS, "{}"))
    known = all_counts.get(str(run), {})
    all_counts[str(run)] = {**known, **{name: known.get(name, 0) + n for name, n in asdict(more).items() if n}}
    transaction.set_fact(_COUNTS, json.dumps(all_counts))
