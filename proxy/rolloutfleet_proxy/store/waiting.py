"""Trajectories that wait for a reward before a trainer may have them: those of sessions with `await_reward`.

The time runs on the served clock, from the moment a trajectory was closed, or came in again with an import. A reward
ends the wait for good; so does the time, and then the trajectory is exported without one.
"""

from typing import Final

from rolloutfleet_proxy.store.transaction import Transaction

_REWARDED: Final = """
EXISTS (
    SELECT 1 FROM turns JOIN sessions ON sessions.id = session WHERE session = :session AND turns.reward IS NOT NULL
    AND (trajectory = :number
        OR trajectory < :number AND turns.number IN (SELECT value FROM json_each(coalesce(episode_turns, '[]'))))
)
"""
"""Whether a turn of a trajectory has a reward, or an earlier one has the whole episode's, which is its rows', too."""


def begin(transaction: Transaction, session: int, number: int) -> None:
    """Let a trajectory wait as its session says, unless it is rewarded already, or a trainer has had it."""
    transaction.execute(
        "UPDATE trajectories SET waits_until = :served + await_reward FROM sessions WHERE sessions.id = session"
        f" AND session = :session AND number = :number AND await_reward IS NOT NULL AND NOT frozen AND NOT {_REWARDED}",
        {"session": session, "number": number, "served": transaction.served},
    )


def end(transaction: Transaction, session: int, number: int, *, later_too: bool) -> None:
    """A trajectory was rewarded; with a reward of the whole episode, so were the later ones."""
    transaction.execute(
        "UPDATE trajectories SET waits_until = ?1 WHERE session = ?2 AND waits_until > ?1"
        " AND (number = ?3 OR ?4 AND number > ?3)",
        (transaction.served, session, number, later_too),
    )
