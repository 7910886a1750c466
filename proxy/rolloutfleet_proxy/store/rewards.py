"""A reward for a turn, and the trajectory that it closes."""

import json
from collections.abc import Iterable
from typing import Final

from rolloutfleet.wire import GiveReward, Rewarded
from rolloutfleet_proxy.domain.errors import NoTurnYet, RewardFrozen, TurnNotFound
from rolloutfleet_proxy.domain.ledger import DISCARDED, LIVE
from rolloutfleet_proxy.domain.trajectory import BY_REWARD, trajectory_name
from rolloutfleet_proxy.store import waiting
from rolloutfleet_proxy.store.sessions import load_undeleted, touch
from rolloutfleet_proxy.store.summaries import OF_MAIN, add_reward
from rolloutfleet_proxy.store.trajectories import close_turns
from rolloutfleet_proxy.store.transaction import Row, Transaction

_MEANT: Final = "SELECT number, name, trajectory, reward, state FROM turns WHERE session = ?"


def give_reward(transaction: Transaction, session: int, asked: GiveReward) -> Rewarded:
    """Give a turn its reward: the one named, else the newest of the main loop; where that has none, the newest of all.
    Where `asked.closes`, all open turns become a trajectory; a call in flight goes on into the next one.

    Given without naming a turn, it is the episode's: rows of this trajectory and of later ones that have none of their
    own get its return (`exports.rows`). One that names the turn makes it the turn's alone.

    A reward again replaces the first, until the trajectory's first lease freezes it; the same value again always
    answers as it did. Sessions that have been closed still take rewards. Raises NoTurnYet, TurnNotFound,
    RewardFrozen, and SessionDeleted or SessionClosed where the session is gone.
    """
    name, _, newest = load_undeleted(
        transaction, session, gone_message="The session is gone: nothing of it is left to be rewarded."
    )
    number, turn_id, trajectory, before = _turn(transaction, session, newest, asked.turn_id)
    episode_turns = _episode_turns(transaction, session)
    for_episode = asked.turn_id is None
    why = _why_frozen(transaction, session, trajectory)
    if before != asked.reward:
        if why is not None:
            raise RewardFrozen(f"Turn {turn_id} can't be rewarded now: its trajectory was {why}.")
        transaction.execute(
            "UPDATE turns SET reward = ? WHERE session = ? AND number = ?", (asked.reward, session, number)
        )
        add_reward(transaction, session, number, first=before is None)
    if for_episode != (number in episode_turns) and why is None:
        _set_episode_turns(transaction, session, episode_turns ^ {number})
    if trajectory is not None:
        is_episodes = for_episode and (why is None or number in episode_turns)
        waiting.end(transaction, session, trajectory, later_too=is_episodes)
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


def _turn(transaction: Transaction, session: int, newest: int, turn_id: str | None) -> Row:
    """(number, turn_id, trajectory, reward) of the turn that is meant."""
    if newest == 0 and turn_id is None:
        raise NoTurnYet()
    if turn_id is None:
        row = transaction.row(f"{_MEANT} AND number = ?", (session, _last_of_main(transaction, session, newest)))
    else:
        row = transaction.row(f"{_MEANT} AND name = ?", (session, turn_id))
    if row is None:
        raise TurnNotFound(f"The session has no turn {turn_id!r}.")
    *found, state = row
    if state != LIVE:
        raise RewardFrozen(f"Turn {row[1]} was discarded: it can't be rewarded any more.")
    return tuple(found)


def _last_of_main(transaction: Transaction, session: int, newest: int) -> int:
    """Of an imported session the newest turn may not be here: then nobody knows whose it was, and it is meant."""
    row = transaction.row(f"SELECT {OF_MAIN} FROM turns WHERE session = ? AND number = ?", (session, newest))
    if row is None or row[0]:
        return newest
    found = transaction.row(
        f"SELECT number FROM turns WHERE session = ? AND number < ? AND {OF_MAIN} ORDER BY number DESC LIMIT 1",
        (session, newest),
    )
    return newest if found is None else int(found[0])


def _episode_turns(transaction: Transaction, session: int) -> set[int]:
    found = transaction.value("SELECT episode_turns FROM sessions WHERE id = ?", (session,))
    return set() if found is None else set(json.loads(found))


def add_episode_turns(transaction: Transaction, session: int, numbers: Iterable[int]) -> None:
    """Note rewards of turns as the whole episode's."""
    _set_episode_turns(transaction, session, _episode_turns(transaction, session).union(numbers))


def _set_episode_turns(transaction: Transaction, session: int, numbers: Iterable[int]) -> None:
    text = json.dumps(sorted(numbers))
    transaction.execute("UPDATE sessions SET episode_turns = ? WHERE id = ?", (text, session))


def _why_frozen(transaction: Transaction, session: int, trajectory: int | None) -> str | None:
    """The reason why a trajectory's rewards stay as they are; None where they may change.

    Later ones, whose rows may have the return of an episode's reward, are never leased without it.
    """
    row = transaction.row(
        "SELECT frozen, state FROM trajectories WHERE session = ? AND number = ?", (session, trajectory)
    )
    if row is None or not (row[0] or row[1] == DISCARDED):
        return None
    return "discarded" if row[1] == DISCARDED else "leased to a trainer, which freezes its rewards"
