"""What a dump holds of the store: one closed trajectory, or what is open, and what those turns extend.

Each read is short and for itself: a turn never changes but for its reward, so a session that takes no calls and no
rewards meanwhile can be read turn by turn. `encode` of `rolloutfleet.dumps` makes a file of it.
"""

import sqlite3
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import asdict

from rolloutfleet.dumps import DumpedSession, DumpedTrajectory, DumpHead, StreamedTensor, StreamedTurn
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.sessions.trajectories import trajectory_name
from rolloutfleet_proxy.store.transaction import LIVE
from rolloutfleet_proxy.turns.matching import Matching

_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class TurnNumbers:
    """Which turns go into a dump, in order of commit."""

    own: list[int]
    """The live turns of the trajectory; of an open one, all that is open."""
    context: list[int]
    """Earlier ones that they extend."""

    @property
    def all(self) -> list[int]:
        return sorted([*self.own, *self.context])


def load_head(
    connection: sqlite3.Connection, session: int, number: int | None, *, owner: Owner, reason: str, dumped_at: float
) -> DumpHead:
    """The head of the dump of trajectory `number`, or of what is open. `dumped_at` is in seconds since the epoch.

    Raises LookupError where the session or the trajectory is not there.
    """
    return DumpHead(
        reason=reason,
        dumped_at=dumped_at,
        ordinal=owner.ordinal,
        store_id=owner.store_id,
        session=(dumped := _load_session(connection, session)),
        trajectory=None if number is None else _load_trajectory(connection, session, number, dumped.session_id),
    )


def load_turn_numbers(connection: sqlite3.Connection, session: int, number: int | None) -> TurnNumbers:
    """Which turns the dump of trajectory `number`, or of what is open, holds."""
    own: list[int] = []
    parents: dict[int, int | None] = {}
    for turn, parent, trajectory, state in connection.execute(
        "SELECT number, parent, trajectory, state FROM turns WHERE session = ? ORDER BY number", (session,)
    ):
        parents[turn] = parent
        if trajectory == number and state == LIVE:
            own.append(turn)
    context: set[int] = set()
    for turn in own:
        at = parents[turn]
        while at is not None and at not in context:
            context.add(at)
            at = parents[at]
    return TurnNumbers(own, sorted(context - set(own)))


def load_dumped_turn(connection: sqlite3.Connection, session: int, number: int, *, context: bool) -> StreamedTurn:
    """One turn, whole; what is JSON in its row stays as it is. Raises LookupError where it is not there."""
    row = connection.execute(_SELECT_TURN, (session, number)).fetchone()
    if row is None:
        raise LookupError(f"turn {number} is gone")
    named = dict(zip(_TURN_COLUMNS, row, strict=True))
    kept = Matching.decode(named["matching"])
    return StreamedTurn(
        {
            "turn_id": named["name"],
            "number": number,
            "parent": named["parent"],
            "context": context,
            "discarded": named["state"] != LIVE,
            "trajectory": named["trajectory"],
            "run": named["run"],
            "finish_reason": named["finish_reason"],
            "reward": named["reward"],
            "mixed_cache": bool(named["mixed_cache"]),
            "delivered": bool(named["delivered"]),
            "created_at": named["created_at"],
            "prompt_tokens": named["prompt_tokens"],
            "matching": _matching(named, kept),
            "branch_reason": None if kept.branch_reason is None else asdict(kept.branch_reason),
        },
        {name: named[name] or b"null" for name in ("messages", "tools", "output", "extras")},
        {
            "new_prompt_ids": _tensor(named["prompt_ids"], "int32"),
            "output_ids": _tensor(named["output_ids"], "int32"),
            "logprobs": _tensor(named["logprobs"], "float32"),
            "versions": _tensor(_versions(named["versions"]).tobytes(), "int32"),
        },
    )


_TURN_COLUMNS = (
    *("name", "parent", "state", "trajectory", "run", "finish_reason", "reward", "mixed_cache", "delivered"),
    *("created_at", "prompt_tokens", "start", "length", "history", "request", "matching", "messages", "tools"),
    *("output", "extras", "prompt_ids", "output_ids", "logprobs", "versions"),
)
_SELECT_TURN = f"SELECT {', '.join(_TURN_COLUMNS)} FROM turns WHERE session = ? AND number = ?"


def _load_session(connection: sqlite3.Connection, session: int) -> DumpedSession:
    row = connection.execute(
        "SELECT name, group_name, task_id, metadata, limits, agent_may, stale_after, created_at, turns, tokens,"
        " trajectories FROM sessions WHERE id = ?",
        (session,),
    ).fetchone()
    if row is None:
        raise LookupError("the session is gone")
    return DumpedSession(
        session_id=row[0],
        group_id=row[1],
        task_id=row[2],
        metadata=_json(row[3]),
        limits=_decode(row[4]),
        agent_may=_decode(row[5]),
        stale_after=row[6],
        created_at=row[7],
        place=session,
        turns=row[8],
        tokens=row[9],
        trajectories=row[10],
    )


def _load_trajectory(connection: sqlite3.Connection, session: int, number: int, session_id: str) -> DumpedTrajectory:
    row = connection.execute(
        "SELECT closed_by, reward_turn, closed_at, frozen, marked FROM trajectories WHERE session = ? AND number = ?",
        (session, number),
    ).fetchone()
    if row is None:
        raise LookupError(f"trajectory {number} is gone")
    return DumpedTrajectory(
        trajectory_id=trajectory_name(session_id, number),
        number=number,
        closed_by=row[0],
        reward_turn=row[1],
        closed_at=row[2],
        frozen=bool(row[3]),
        marked=row[4],
    )


def _matching(named: dict[str, Any], kept: Matching) -> dict[str, Any]:
    return {
        "start": named["start"],
        "length": named["length"],
        "history": named["history"].hex(),
        "request": named["request"].hex(),
        "reasonings": [(index, digest.hex()) for index, digest in kept.reasonings],
        "rules": kept.rules,
        "call_ids": list(kept.call_ids),
    }


def _tensor(data: bytes, dtype: str) -> StreamedTensor:
    return StreamedTensor(dtype, (len(data) // 4,), [data])


def _versions(spans: bytes) -> Any:
    return np.repeat(*np.array(_decode(spans), np.int32).reshape(-1, 2).T)


def _json(text: bytes | str | None) -> Any:
    return None if text is None else _decode(text)
