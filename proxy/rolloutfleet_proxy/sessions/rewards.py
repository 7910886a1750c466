"""A reward for a turn, and the trajectory that it closes."""

from rolloutfleet.errors import NO_TURN, REWARD_FROZEN, SESSION_CLOSED, SESSION_DELETED, TURN_UNKNOWN
from rolloutfleet.wire import GiveReward, Rewarded
from rolloutfleet_proxy.errors import ApiError
from rolloutfleet_proxy.sessions.sessions import DELETED, touch
from rolloutfleet_proxy.sessions.trajectories import BY_REWARD, close_turns, trajectory_name
from rolloutfleet_proxy.store.transaction import DISCARDED, LIVE, Row, Transaction


def give_reward(transaction: Transaction, session: int, asked: GiveReward) -> Rewarded:
    """Give a turn its reward: the one named, else the newest committed. Where `asked.closes`, all open turns become
    a trajectory; a call in flight goes on into the next one.

    A reward again replaces the first, until the trajectory's first lease freezes it; the same value again always
    answers as it did. Sessions that have been closed still take rewards. Raises ApiError: 400 no turn yet, 404 no
    such turn, 409 frozen or discarded, 410 session deleted or gone.
    """
    name, newest = _session(transaction, session)
    number, turn_id, trajectory, before = _turn(transaction, session, newest, asked.turn_id)
    if before != asked.reward:
        _refuse_frozen(transaction, session, trajectory, turn_id)
        transaction.execute(
            "UPDATE turns SET reward = ? WHERE session = ? AND number = ?", (asked.reward, session, number)
        )
    touch(transaction, session)
    if asked.closes:
        closed = close_turns(transaction, session, closed_by=BY_REWARD, reward_turn=number)
        trajectory = closed if trajectory is None else trajectory
    return Rewarded(
        session_id=name,
        turn_id=turn_id,
        reward=asked.reward,
        trajectory_id=None if trajectory is None else trajectory_name(name, trajectory),
    )


def _session(transaction: Transaction, session: int) -> tuple[str, int]:
    row = transaction.row("SELECT name, turns, state FROM sessions WHERE id = ?", (session,))
    if row is None:
        raise ApiError(410, SESSION_CLOSED, "The session is gone: nothing of it is left to be rewarded.")
    name, turns, state = row
    if state == DELETED:
        raise ApiError(410, SESSION_DELETED, f"Session {name} has been deleted.")
    return name, turns


def _turn(transaction: Transaction, session: int, newest: int, turn_id: str | None) -> Row:
    """(number, turn_id, trajectory, reward) of the turn that is meant."""
    if newest == 0 and turn_id is None:
        raise ApiError(400, NO_TURN, "The session has no completed turn to reward yet.")
    column, value = ("number", newest) if turn_id is None else ("name", turn_id)
    row = transaction.row(
        f"SELECT number, name, trajectory, reward, state FROM turns WHERE session = ? AND {column} = ?",
        (session, value),
    )
    if row is None:
        raise ApiError(404, TURN_UNKNOWN, f"The session has no turn {turn_id!r}.", param="turn_id")
    *found, state = row
    if state != LIVE:
        raise ApiError(
            409, REWARD_FROZEN, f"Turn {row[1]} was discarded: it can't be rewarded any more.", should_retry=False
        )
    return tuple(found)


def _refuse_frozen(transaction: Transaction, session: int, trajectory: int | None, turn_id: str) -> None:
    row = transaction.row(
        "SELECT frozen, state FROM trajectories WHERE session = ? AND number = ?", (session, trajectory)
    )
    if row is not None and (row[0] or row[1] == DISCARDED):
        why = "discarded" if row[1] == DISCARDED else "leased to a trainer, which freezes its rewards"
        raise ApiError(
            409, REWARD_FROZEN, f"Turn {turn_id} can't be rewarded now: its trajectory was {why}.", should_retry=False
        )
