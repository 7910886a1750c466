"""What a session's row says of its turns as a whole, so that lists of sessions need not read them.

It changes in the transaction that commits a turn, rewards one or imports some. In rows of an earlier version nothing of
it stands, until `filling` has summed their turns up, a few at a time.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from rolloutfleet_proxy.domain.lineage import MAIN
from rolloutfleet_proxy.domain.outcome import LENGTH
from rolloutfleet_proxy.domain.turn import NewTurn
from rolloutfleet_proxy.store.sessions import touch
from rolloutfleet_proxy.store.transaction import Transaction

OF_MAIN: Final = "json_extract(CAST(matching AS TEXT), '$.lineage') IS NULL"
"""Whether a turn is of the main loop, by `Matching.encode`."""
_TELLING: Final = f"ORDER BY {OF_MAIN} DESC, number DESC LIMIT 1"
"""Which of the rewarded turns is the one whose reward is shown: the newest of the main loop, else the newest of all."""

SESSIONS_AT_ONCE: Final = 64
TURNS_AT_ONCE: Final = 256
"""As many of each, or a session more, are summed up in one operation."""

NOT_YET: Final = "not_summed_up"
"""The fact that says which sessions an earlier version left."""


class Known(NamedTuple):
    """What a row says of the turns so far."""

    branches: int | None
    """None: nothing yet."""
    version_min: int | None
    version_max: int | None


_ADD: Final = (
    ", turns = ?, tokens = tokens + ?, output_tokens = output_tokens + ?"
    ", branches = ?, version_min = ?, version_max = ?, met_limit = iif(?, ?, met_limit)"
)


def add_turn(transaction: Transaction, turn: NewTurn, number: int, before: Known) -> None:
    """Count a turn that was committed, and note that somebody needs its session."""
    after = before if before.branches is None else _with(transaction, turn, number, before)
    limit = turn.matching.lineage == MAIN, LENGTH if turn.finish_reason == LENGTH else None
    touch(transaction, turn.session, also=_ADD, values=(number, turn.new_tokens, len(turn.output_ids), *after, *limit))


def _with(transaction: Transaction, turn: NewTurn, number: int, before: Known) -> Known:
    assert before.branches is not None
    extends = turn.parent is not None and not _is_extended(transaction, turn.session, turn.parent, before=number)
    versions = [version for version, tokens in turn.versions if tokens]
    versions += [version for version in before[1:] if version is not None]
    return Known(before.branches + (not extends), min(versions, default=None), max(versions, default=None))


def _is_extended(transaction: Transaction, session: int, number: int, *, before: int) -> bool:
    """Whether a turn with a number below `before` extends this one. Nearly always there is no turn between the two."""
    if number + 1 == before:
        return False
    asked = "SELECT 1 FROM turns WHERE session = ? AND number > ? AND number < ? AND parent = ? LIMIT 1"
    return transaction.row(asked, (session, number, before, number)) is not None


_REWARD: Final = (
    "UPDATE sessions SET rewarded = rewarded + :more, (reward, reward_turn) ="
    f" (SELECT reward, number FROM turns WHERE session = sessions.id AND number IN (:number, reward_turn) {_TELLING})"
    " WHERE id = :session AND rewarded IS NOT NULL"
)


def add_reward(transaction: Transaction, session: int, number: int, *, first: bool) -> None:
    """Follow a turn's new reward. `first`: it had none."""
    transaction.execute(_REWARD, {"session": session, "number": number, "more": first})


_SUM_UP: Final = f"""
UPDATE sessions SET
    (branches, output_tokens, rewarded) = (
        SELECT count(*) - count(DISTINCT parent), coalesce(sum(length(output_ids)), 0) / 4, count(reward)
        FROM turns WHERE session = sessions.id),
    (version_min, version_max) = (
        SELECT min(span.value ->> 0), max(span.value ->> 0) FROM turns, json_each(CAST(versions AS TEXT)) AS span
        WHERE session = sessions.id AND span.value ->> 1),
    (reward, reward_turn) = (
        SELECT reward, number FROM turns WHERE session = sessions.id AND reward IS NOT NULL {_TELLING}),
    last_activity_at = coalesce(last_activity_at, max(created_at, coalesce(imported_at, 0),
        (SELECT coalesce(max(created_at), 0) FROM turns WHERE session = sessions.id)))
WHERE id = ?
"""


def sum_up(transaction: Transaction, sessions: Iterable[int]) -> None:
    """Count all turns of these sessions anew."""
    transaction.executemany(_SUM_UP, [(session,) for session in sorted(set(sessions))])


def fill_some(transaction: Transaction) -> None:
    """Sum up the newest of the sessions that an earlier version left."""
    newest = transaction.fact(NOT_YET, 0)
    found = transaction.rows(
        "SELECT id, turns FROM sessions WHERE id <= ? ORDER BY id DESC LIMIT ?", (newest, SESSIONS_AT_ONCE)
    )
    taken = _piece(found)
    sum_up(transaction, taken)
    if len(taken) == len(found) < SESSIONS_AT_ONCE:
        transaction.forget_fact(NOT_YET)
    else:
        transaction.set_fact(NOT_YET, taken[-1] - 1)


def _piece(found: Iterable[tuple[int, int]]) -> list[int]:
    taken: list[int] = []
    total = 0
    for session, turns in found:
        if total >= TURNS_AT_ONCE:
            break
        taken.append(session)
        total += turns
    return taken
