"""What a recovery does to the trajectories that are there: see `lineage` for which, and for those to come."""

from rolloutfleet_proxy.sessions.trajectories import READY, drop_marked, settle
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.turns import lineage
from rolloutfleet_proxy.weights.state import Recovery

_SUSPECT = """
SELECT DISTINCT turns.session, turns.trajectory, trajectories.state
FROM turns JOIN trajectories ON trajectories.session = turns.session AND trajectories.number = turns.trajectory
    AND trajectories.state IN ('ready', 'leased')
WHERE turns.state = 'live' AND turns.run < ?
    AND EXISTS (SELECT 1 FROM json_each(CAST(turns.versions AS TEXT)) AS version WHERE version.value ->> 0 > ?)
ORDER BY turns.session, turns.trajectory
"""


def apply(transaction: Transaction, recovery: Recovery) -> tuple[str, ...]:
    """Mark what is of weights that no longer are, and discard of it what is ready, where the recovery drops.

    Returns the sessions whose rows were freed.
    """
    lineage.add_recovery(transaction, recovery.run, recovery.version, recovery.newer)
    touched = set()
    for session, number, state in transaction.rows(_SUSPECT, (recovery.run, recovery.version)):
        mark = lineage.mark(transaction, session, number)
        if state == READY and drop_marked(transaction, session, number, mark):
            touched.add(session)
    freed: tuple[str, ...] = ()
    for session in sorted(touched):
        # Settling one member of a group may free all of it.
        if transaction.row("SELECT 1 FROM sessions WHERE id = ?", (session,)):
            freed += settle(transaction, session)
    return freed
