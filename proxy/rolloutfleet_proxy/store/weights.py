"""The rows of versions, runs and pauses, and what a recovery does to trajectories (`recoveries` says to which), and to
sessions that were left open."""

from dataclasses import dataclass
from typing import Any

import msgspec

from rolloutfleet.wire import LAST_EPOCH, LAST_RUN, CloseSession
from rolloutfleet_proxy.domain.ledger import LEASED
from rolloutfleet_proxy.domain.recovery import RECOVERED
from rolloutfleet_proxy.domain.session import CLOSED, DELETED, OPEN
from rolloutfleet_proxy.domain.trajectory import READY
from rolloutfleet_proxy.domain.weights import Recovery, WeightState
from rolloutfleet_proxy.store import recoveries
from rolloutfleet_proxy.store.trajectories import close_session, delete_session, drop_marked, settle_all
from rolloutfleet_proxy.store.transaction import Transaction

_RUN = "run"
_VERSION = "version"
_FLUSHED = "flushed"
_EPOCH = "epoch"
_PAUSE = "pause"
_LEFT_OPEN = "recoveries_left_open"

_NEWER = """
FROM turns JOIN sessions ON sessions.id = turns.session
LEFT JOIN trajectories ON trajectories.session = turns.session AND trajectories.number = turns.trajectory
WHERE turns.state = 'live' AND turns.run < ?
    AND EXISTS (SELECT 1 FROM json_each(CAST(turns.versions AS TEXT)) AS version WHERE version.value ->> 0 > ?)
"""
_SUSPECT = f"""
SELECT DISTINCT turns.session, turns.trajectory, trajectories.state {_NEWER}
    AND trajectories.state IN ('ready', 'leased')
ORDER BY turns.session, turns.trajectory
"""
_AT_STAKE = f"""
SELECT state, count(*) FROM (
    SELECT DISTINCT turns.session, turns.trajectory, coalesce(trajectories.state, 'open') AS state {_NEWER}
        AND CASE WHEN trajectories.state IS NULL THEN sessions.state = 'open'
            ELSE trajectories.state IN ('ready', 'leased') END
) GROUP BY state
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtStake:
    """How many trajectories a recovery would drop, at once or later."""

    ready: int = 0
    leased: int = 0
    """They go when they are given back."""
    open: int = 0
    """What is open of as many sessions: it goes when it is closed."""

    @property
    def trajectories(self) -> int:
        return self.ready + self.leased + self.open


@dataclass(frozen=True, slots=True)
class Applied:
    """What recoveries did to sessions, for what memory holds of them."""

    ended: tuple[tuple[str, str], ...] = ()
    """Those that were open: (name, the state that they are in now)."""
    freed: tuple[str, ...] = ()
    """Those whose rows are gone."""


def load(transaction: Transaction) -> tuple[WeightState, float]:
    """The state, and for how many served seconds it has been paused."""
    pause: dict[str, Any] = msgspec.json.decode(transaction.fact(_PAUSE, "{}"))
    state = WeightState.from_json(
        {
            # An earlier release took a larger run, and a larger epoch.
            "run": min(transaction.fact(_RUN, 0), LAST_RUN),
            "version": (version := transaction.fact(_VERSION, 0)),
            "flushed": transaction.fact(_FLUSHED, version),
            "recoveries": [(min(run, LAST_RUN), *how) for run, *how in recoveries.load_recoveries(transaction)],
            "open": {
                str(min(int(run), LAST_RUN)): how
                for run, how in msgspec.json.decode(transaction.fact(_LEFT_OPEN, "{}")).items()
            },
            "epoch": min(transaction.fact(_EPOCH, 0), LAST_EPOCH),
            "mode": pause.get("mode"),
            "since": pause.get("since", 0.0),
        }
    )
    return state, transaction.served - pause.get("served", transaction.served)


def save(transaction: Transaction, *, before: WeightState, after: WeightState) -> Applied:
    """Write what changed, and do what recoveries say; returns what that did to sessions."""
    form = after.as_json()
    transaction.set_fact(_RUN, form["run"])
    transaction.set_fact(_VERSION, form["version"])
    transaction.set_fact(_FLUSHED, form["flushed"])
    if after.gate != before.gate:
        pause = {"mode": form["mode"], "since": form["since"], "served": transaction.served}
        transaction.set_fact(_EPOCH, form["epoch"])
        transaction.set_fact(_PAUSE, msgspec.json.encode(pause).decode())
    heard = [one for one in after.versions.recoveries if one not in before.versions.recoveries]
    if heard:
        transaction.set_fact(_LEFT_OPEN, msgspec.json.encode(form["open"]).decode())
    ended = tuple(session for one in heard for session in apply(transaction, one))
    return Applied(ended, tuple(transaction.freed))


def at_stake(transaction: Transaction, *, run: int, version: int) -> AtStake:
    """What a recovery to this version would drop here."""
    found: dict[str, int] = dict(transaction.rows(_AT_STAKE, (run, version)))
    return AtStake(ready=found.get(READY, 0), leased=found.get(LEASED, 0), open=found.get(OPEN, 0))


def apply(transaction: Transaction, recovery: Recovery) -> list[tuple[str, str]]:
    """Mark what is of weights that no longer are, and discard of it what is ready, where the recovery drops.

    Then end the sessions that are open, where it says so: they are of runs that are over. Returns them as `Applied` has
    them.
    """
    recoveries.add_recovery(transaction, recovery.run, recovery.version, recovery.newer)
    dropped = set()
    for session, number, state in transaction.rows(_SUSPECT, (recovery.run, recovery.version)):
        mark = recoveries.mark(transaction, session, number)
        if state == READY and drop_marked(transaction, session, number, mark):
            dropped.add(session)
    settle_all(transaction, dropped)
    return [] if recovery.open == "keep" else _end_open(transaction, recovery)


def _abort(transaction: Transaction, session: int) -> None:
    close_session(transaction, session, CloseSession(outcome="aborted", reason=RECOVERED))


def _end_open(transaction: Transaction, recovery: Recovery) -> list[tuple[str, str]]:
    end, state = (_abort, CLOSED) if recovery.open == "close" else (delete_session, DELETED)
    left = transaction.rows("SELECT id, name FROM sessions WHERE state = 'open' ORDER BY id")
    for session, _ in left:
        end(transaction, session)
    recoveries.count_ended(transaction, recovery.run, len(left))
    return [(name, state) for _, name in left]
