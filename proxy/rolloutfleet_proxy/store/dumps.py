"""What a dump holds of the store: one closed trajectory, or what is open, and what those turns extend.

Each read is short and for itself: a turn never changes but for its reward, so a session that takes no calls and no
rewards meanwhile can be read turn by turn. `encode` of `rolloutfleet.dumps` makes a file of it. Also which files there
are in the folder of dumps, and since when.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import asdict

from rolloutfleet.dumps.form import DumpedTrajectory, DumpHead, StreamedTensor, StreamedTensors, StreamedTurn
from rolloutfleet.tensors import REMOTE_TENSOR
from rolloutfleet_proxy.domain.errors import TurnDamaged
from rolloutfleet_proxy.domain.ledger import LIVE
from rolloutfleet_proxy.domain.matching import Matching
from rolloutfleet_proxy.domain.trajectory import trajectory_name
from rolloutfleet_proxy.domain.turn import Delivery
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.store import annotations
from rolloutfleet_proxy.store.checksums import SOUND
from rolloutfleet_proxy.store.dumped_session import load_session
from rolloutfleet_proxy.store.transaction import Source, Transaction, named_row
from rolloutfleet_proxy.store.turns import by_token


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
        session=(dumped := load_session(connection, session, aborted=reason)),
        trajectory=None if number is None else _load_trajectory(connection, session, number, dumped.session_id),
    )


class _Reward(NamedTuple):
    turn: int
    trajectory: int | None
    is_episodes: bool


def load_turn_numbers(connection: sqlite3.Connection, session: int, number: int | None) -> dict[int, bool]:
    """Which turns the dump of trajectory `number`, or of what is open, holds, in order of commit: those of its own that
    are live, and as context others that they extend, or that an export needs to know of rewards. Says of each whether
    it is context.
    """
    parents: dict[int, int | None] = {}
    live: dict[int | None, list[int]] = {}
    rewards: list[_Reward] = []
    for turn, parent, trajectory, state, is_rewarded, is_episodes in connection.execute(
        "SELECT number, parent, trajectory, state, reward IS NOT NULL, number IN (SELECT value FROM json_each("
        "(SELECT coalesce(episode_turns, '[]') FROM sessions WHERE id = ?1))) FROM turns WHERE session = ?1"
        " ORDER BY number",
        (session,),
    ):
        parents[turn] = parent
        if state == LIVE:
            live.setdefault(trajectory, []).append(turn)
        if is_rewarded:
            rewards.append(_Reward(turn, trajectory, is_episodes))
    own = live.get(number, [])
    is_context = dict.fromkeys(own, False)
    for turn in (*map(parents.get, own), *_of_rewards(rewards, live, number)):
        at = turn
        while at is not None and at not in is_context:
            is_context[at] = True
            at = parents.get(at)  # of one that is not found it is not known
    return dict(sorted(is_context.items()))


def _of_rewards(
    rewards: Sequence[_Reward], live: Mapping[int | None, Sequence[int]], number: int | None
) -> Sequence[int]:
    """Turns by which an export of one trajectory alone knows of rewards what it would know with the whole session: the
    trajectory whose row has the episode's return, else any rewarded turn, as the session is trained for that.
    """
    own = live.get(number)
    known = [reward for reward in rewards if number is None or reward.trajectory is not None]
    if not own or not known:
        return ()
    episodes = [reward for reward in known if reward.is_episodes and reward.turn <= own[-1]]
    if episodes:
        return live.get(episodes[-1].trajectory, ())
    return () if any(reward.trajectory == number for reward in known) else [known[-1].turn]


def load_dumped_turn(connection: sqlite3.Connection, session: int, number: int, *, context: bool) -> StreamedTurn:
    """One turn, whole; what is JSON in its row stays as it is. Raises LookupError where it is not there, and
    TurnDamaged."""
    asked = f"SELECT {SOUND} AS sound, turns.* FROM turns WHERE session = ? AND number = ?"
    row = named_row(connection, asked, (session, number))
    if row is None:
        raise LookupError(f"turn {number} is gone")
    if not row["sound"]:
        raise TurnDamaged(number)
    kept = Matching.decode(row["matching"])
    series = annotations.load(connection, session, number)
    return StreamedTurn(
        {
            "turn_id": row["name"],
            "number": number,
            "parent": row["parent"],
            "context": context,
            "discarded": row["state"] != LIVE,
            "trajectory": row["trajectory"],
            "run": row["run"],
            "finish_reason": row["finish_reason"],
            "reward": row["reward"],
            "mixed_cache": bool(row["mixed_cache"]),
            "delivered": Delivery.of_row(row["delivered"]) is not Delivery.LOST,
            "created_at": row["created_at"],
            "prompt_tokens": row["prompt_tokens"],
            "matching": _matching(row, kept),
            "branch_reason": None if kept.branch_reason is None else asdict(kept.branch_reason),
            "lineage": asdict(kept.lineage),
            "note": annotations.load_note(connection, session, number),
        },
        {name: row[name] or b"null" for name in ("messages", "tools", "output", "extras")},
        {
            "new_prompt_ids": _tensor(row["prompt_ids"], "int32"),
            "output_ids": _tensor(row["output_ids"], "int32"),
            "logprobs": _tensor(row["logprobs"], "float32"),
            "versions": _tensor(by_token(row["versions"]).tobytes(), "int32"),
            "annotations": StreamedTensors({name: _tensor(numbers, "float32") for name, numbers in series.items()}),
        },
    )


def metadata_with_shards(connection: sqlite3.Connection, sessions: Sequence[int]) -> dict[int, Any]:
    """The metadata of those of the sessions that have shards, or refer to some, by row id."""
    rows = connection.execute(
        "SELECT id, metadata FROM sessions WHERE id IN (SELECT value FROM json_each(?)) AND"
        " (instr(metadata, ?) OR EXISTS (SELECT 1 FROM shards WHERE session = sessions.id))",
        (json.dumps(sessions), REMOTE_TENSOR),
    )
    return {session: None if metadata is None else json.loads(metadata) for session, metadata in rows}


def turn_ids(connection: sqlite3.Connection, session: int) -> frozenset[str]:
    """The turn_id of each of a session's turns, without those that are here only because imported ones extend them."""
    rows = connection.execute(
        "SELECT name FROM turns WHERE session = ?1 AND (trajectory IS NULL OR trajectory NOT IN"
        " (SELECT number FROM trajectories WHERE session = ?1 AND state IN ('elsewhere', 'importing')))",
        (session,),
    )
    return frozenset(name for (name,) in rows)


class Draft(NamedTuple):
    """A dump file that was begun, and whose session is not freed yet."""

    file: str
    dumped_at: float
    abandoned: int = 0
    """1: the sweep that began it is over."""


def note_drafts(transaction: Transaction, drafts: Iterable[Draft]) -> None:
    """Remember files before any of them is written."""
    transaction.executemany("INSERT OR REPLACE INTO drafts (file, dumped_at, abandoned) VALUES (?, ?, ?)", drafts)


def forget_drafts(transaction: Transaction, drafts: Iterable[Draft]) -> None:
    """Their sessions are freed, or the files removed."""
    transaction.executemany(
        "DELETE FROM drafts WHERE file = ? AND dumped_at = ?", [(draft.file, draft.dumped_at) for draft in drafts]
    )


def load_drafts(connection: sqlite3.Connection) -> list[Draft]:
    return list(map(Draft._make, connection.execute("SELECT file, dumped_at, abandoned FROM drafts")))


def is_draft(source: Source, file: str, dumped_at: float) -> bool:
    found = source.execute("SELECT 1 FROM drafts WHERE file = ? AND dumped_at = ?", (file, dumped_at)).fetchone()
    return found is not None


def abandon_drafts(transaction: Transaction) -> None:
    """The sweep that began them is over."""
    transaction.execute("UPDATE drafts SET abandoned = 1 WHERE NOT abandoned")


def load_files(connection: sqlite3.Connection) -> dict[str, float]:
    """Since when each file in the folder of dumps is known, in served seconds."""
    return dict(connection.execute("SELECT file, since FROM dump_files"))


def note_files(transaction: Transaction, files: Iterable[str], *, since: float) -> None:
    """Remember that a sweep wrote these files. One that was written again is as new as that."""
    transaction.executemany(
        "INSERT INTO dump_files (file, since) VALUES (?, ?) ON CONFLICT DO UPDATE SET since = excluded.since",
        [(file, since) for file in files],
    )


def keep_files(transaction: Transaction, files: Mapping[str, float]) -> None:
    """Know these files, each since then, and no others. Those that are known stay as they are."""
    transaction.executemany("INSERT OR IGNORE INTO dump_files (file, since) VALUES (?, ?)", files.items())
    transaction.execute(
        "DELETE FROM dump_files WHERE file NOT IN (SELECT value FROM json_each(?))",
        (json.dumps(list(files)),),
    )


def _load_trajectory(connection: sqlite3.Connection, session: int, number: int, session_id: str) -> DumpedTrajectory:
    row = named_row(
        connection,
        "SELECT number, closed_by, reward_turn, closed_at, frozen, marked FROM trajectories"
        " WHERE session = ? AND number = ?",
        (session, number),
    )
    if row is None:
        raise LookupError(f"trajectory {number} is gone")
    return DumpedTrajectory(trajectory_id=trajectory_name(session_id, number), **row | {"frozen": bool(row["frozen"])})


def _matching(row: dict[str, Any], kept: Matching) -> dict[str, Any]:
    return {
        "start": row["start"],
        "length": row["length"],
        "history": row["history"].hex(),
        "request": row["request"].hex(),
        "reasonings": [(index, digest.hex()) for index, digest in kept.reasonings],
        "rules": kept.rules,
        "call_ids": list(kept.call_ids),
    }


def _tensor(data: bytes, dtype: str) -> StreamedTensor:
    return StreamedTensor(dtype, (len(data) // 4,), [data])
