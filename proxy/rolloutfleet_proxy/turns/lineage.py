"""Which tokens are of weights that no longer are, because the trainer went back to an older checkpoint.

A recovery begins run R at version v. What an earlier run made with a version above v is of no lineage that goes on;
what it made up to v is, since the new run stands on it. A trajectory with such a token is marked: `newer` where its
run was the one that was left, `older_run` where that was over by then, and dropped or kept as the recovery says.
Turns still open are judged when their trajectory closes, and what is leased when it is given back.
"""

import json
from dataclasses import asdict, dataclass
from typing import Final

from rolloutfleet_proxy.store.transaction import Transaction

RECOVERED: Final = "recovered"
"""Why a trajectory was discarded that a recovery dropped."""
NEWER: Final = "newer"
OLDER_RUN: Final = "older_run"
DROP: Final = "drop"

_RECOVERIES = "recoveries"
_COUNTS = "recovered"


@dataclass(frozen=True, slots=True)
class Mark:
    """What recoveries say of a trajectory; `run` is the latest that excludes it."""

    why: str
    run: int
    drop: bool


@dataclass(slots=True)
class Counts:
    """What a recovery did, and does to what closes or is given back later. Of what is kept some may be leased."""

    marked_trajectories: int = 0
    marked_turns: int = 0
    dropped_trajectories: int = 0
    dropped_turns: int = 0
    ended_sessions: int = 0
    """That earlier runs had left open."""


def mark(transaction: Transaction, session: int, number: int) -> Mark | None:
    """Judge a trajectory, and note what it is marked with; None where nothing is against it.

    Counts it where it was not marked before. The caller discards it, and says so by `count_dropped`, where the mark
    says `drop`.
    """
    recoveries = load_recoveries(transaction)
    if not recoveries:
        return None
    found = _judged(transaction, session, number, recoveries)
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
    (turns,) = transaction.rows("SELECT turns FROM trajectories WHERE session = ? AND number = ?", (session, number))[0]
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


def _judged(transaction: Transaction, session: int, number: int, recoveries: list[tuple[int, int, str]]) -> Mark | None:
    newest = transaction.rows(
        "SELECT run, max(version.value ->> 0) FROM turns, json_each(CAST(versions AS TEXT)) AS version"
        " WHERE session = ? AND trajectory = ? AND state = 'live' GROUP BY run",
        (session, number),
    )
    against = [
        (run, newer, made_in, before)
        for before, (run, version, newer) in zip([0, *(run for run, _, _ in recoveries)], recoveries, strict=False)
        for made_in, newest_version in newest
        if made_in < run and newest_version > version
    ]
    if not against:
        return None
    # A run was left by the first recovery after it; all later ones find it over.
    left = any(made_in >= before for _, _, made_in, before in against)
    return Mark(NEWER if left else OLDER_RUN, max(run for run, *_ in against), any(n == DROP for _, n, _, _ in against))


def _count(transaction: Transaction, run: int, more: Counts) -> None:
    all_counts = json.loads(transaction.fact(_COUNTS, "{}"))
    known = all_counts.get(str(run), {})
    all_counts[str(run)] = {**known, **{name: known.get(name, 0) + n for name, n in asdict(more).items() if n}}
    transaction.set_fact(_COUNTS, json.dumps(all_counts))
