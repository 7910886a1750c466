"""What an export reads of the store: the shape of a trajectory first, its long columns when they are needed.

Each read is short and for itself. That is safe because nothing of what it reads changes: turns never do, and rewards
are frozen once leased. What can happen is that the rows are gone, where the lease ended and another was acknowledged
meanwhile.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rolloutfleet.wire import Outcome
from rolloutfleet_proxy.domain.ledger import LIVE
from rolloutfleet_proxy.domain.matching import Matching
from rolloutfleet_proxy.domain.trajectory import ExportTurn
from rolloutfleet_proxy.domain.turn import Extras
from rolloutfleet_proxy.store.leases import Member
from rolloutfleet_proxy.store.transaction import named_row, named_rows
from rolloutfleet_proxy.store.turns import by_token, extras_without

_EXTRAS: Final = extras_without("top_logprobs", "kept", "parts", "timing", "cached_tokens", "stop_sequence")
"""A safetensors export holds those of all its turns: no more than what it shows."""


class ExportGone(Exception):
    """Rows that an export was reading are no longer there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedTrajectory:
    """A trajectory without its tokens and messages."""

    member: Member
    group_id: str
    task_id: str | None
    metadata: str | None
    """JSON object."""
    marked: str | None
    outcome: Outcome | None
    outcome_reason: str | None
    rewarded: bool
    """Some turn of its session has a reward."""
    oldest_version: int | None
    """The smallest weight version of a token of its own turns; None where they have none."""
    turns: dict[int, ExportTurn]
    """Those of its session up to its own newest."""
    kept: list[int]
    """Numbers of its own turns in order of commit, orphans left out."""
    episode: "Episode | None"
    """The source of a return for rows without one of their own; None where there is none."""


@dataclass(frozen=True, slots=True)
class Episode:
    """The newest turn, up to a trajectory's end, that was rewarded for the whole episode."""

    number: int
    kept: list[int]
    """Numbers of the turns of its own trajectory."""


def load_trajectory(connection: sqlite3.Connection, member: Member) -> LeasedTrajectory:
    """Raises ExportGone."""
    found = named_row(
        connection,
        "SELECT group_name AS group_id, task_id, metadata, marked, outcome, outcome_reason, episode_turns,"
        " episode_turns != '[]'"
        " OR EXISTS (SELECT 1 FROM turns WHERE session = sessions.id AND reward IS NOT NULL) AS rewarded"
        " FROM sessions JOIN trajectories ON session = id"
        " WHERE id = ? AND number = ?",
        (member.session, member.number),
    )
    if found is None:
        raise ExportGone(member.trajectory_id)
    turns, live = _load_turns(connection, member)
    kept, episodes = live[member.number], json.loads(found.pop("episode_turns") or "[]")
    (oldest,) = connection.execute(
        "SELECT min(version.value ->> 0) FROM turns, json_each(CAST(versions AS TEXT)) AS version"
        " WHERE session = ? AND number IN (SELECT value FROM json_each(?)) AND version.value ->> 1 > 0",
        (member.session, json.dumps(kept)),
    ).fetchone()
    found["rewarded"] = bool(found["rewarded"])
    return LeasedTrajectory(
        member=member, **found, oldest_version=oldest, turns=turns, kept=kept, episode=_episode(turns, live, episodes)
    )


def _episode(turns: Mapping[int, ExportTurn], live: Mapping[int, list[int]], episodes: Sequence[int]) -> Episode | None:
    """`live` are the turns of each trajectory; of an imported session some may be elsewhere."""
    there = {number: of_it for of_it in live.values() for number in of_it if turns[number].reward is not None}
    number = max(there.keys() & set(episodes), default=None)
    return None if number is None else Episode(number, there[number])


def load_messages(connection: sqlite3.Connection, member: Member, numbers: Iterable[int]) -> dict[int, bytes]:
    """The assistant message of each of a trajectory's turns, as JSON. Raises ExportGone."""
    return dict(_columns(connection, member, numbers, "output"))


def load_conversation(
    connection: sqlite3.Connection, member: Member, numbers: Sequence[int]
) -> list[tuple[bytes, bytes]]:
    """(messages that its request added, its output) of each turn as JSON, in order of commit. Raises ExportGone."""
    found = _columns(connection, member, numbers, "messages, output")
    return [(added, output) for _, added, output in sorted(found)]


def load_conversation_sizes(connection: sqlite3.Connection, member: Member, numbers: Iterable[int]) -> dict[int, int]:
    """Bytes of what each turn has of its conversation: its messages, its output, tools. Raises ExportGone."""
    size = "length(messages) + length(output) + coalesce(length(tools), 0)"
    return dict(_columns(connection, member, numbers, size))


def load_tools(connection: sqlite3.Connection, member: Member, number: int) -> bytes | None:
    """Tools and template arguments of the first turn of a conversation, as JSON; None of one without them. Raises
    ExportGone."""
    [(_, tools)] = _columns(connection, member, [number], "tools")
    return tools  # type: ignore[no-any-return]


def load_ids(connection: sqlite3.Connection, member: Member, numbers: Iterable[int]) -> dict[int, bytes]:
    """The new prompt and the output of each turn, as int32. Raises ExportGone."""
    return {
        number: prompt + output
        for number, prompt, output in _columns(connection, member, numbers, "prompt_ids, output_ids")
    }


def load_logprobs(connection: sqlite3.Connection, member: Member, numbers: Iterable[int]) -> dict[int, Any]:
    """The log-probabilities of each turn's output. Raises ExportGone."""
    return {
        number: np.frombuffer(logprobs, np.float32)
        for number, logprobs in _columns(connection, member, numbers, "logprobs")
    }


def load_versions(connection: sqlite3.Connection, member: Member, numbers: Iterable[int]) -> dict[int, Any]:
    """The weight version of each token of each turn's output. Raises ExportGone."""
    return {number: by_token(spans) for number, spans in _columns(connection, member, numbers, "versions")}


def _load_turns(connection: sqlite3.Connection, member: Member) -> tuple[dict[int, ExportTurn], dict[int, list[int]]]:
    """Turns up to the trajectory's newest, and the numbers of those that are live, by trajectory."""
    found = named_rows(
        connection,
        "SELECT number, name, parent, prompt_tokens, length(output_ids) / 4 AS output_tokens, reward, finish_reason,"
        f" {_EXTRAS}, mixed_cache, matching, trajectory, state FROM turns"
        " WHERE session = ? AND number <= (SELECT max(number) FROM turns WHERE session = ? AND trajectory = ?)"
        " ORDER BY number",
        (member.session, member.session, member.number),
    )
    turns: dict[int, ExportTurn] = {}
    live: dict[int, list[int]] = {member.number: []}
    for row in found:
        mixed_cache, matching, extras = row.pop("mixed_cache"), row.pop("matching"), row.pop("extras")
        trajectory, state = row.pop("trajectory"), row.pop("state")
        of_matching = Matching.decode(matching)
        turn = ExportTurn(
            **row,
            mixed_cache=bool(mixed_cache),
            branch_reason=of_matching.branch_reason,
            lineage=of_matching.lineage,
            extras=Extras.decode(extras),
        )
        turns[turn.number] = turn
        if trajectory is not None and state == LIVE:
            live.setdefault(trajectory, []).append(turn.number)
    return turns, live


def _columns(
    connection: sqlite3.Connection, member: Member, numbers: Iterable[int], columns: str
) -> list[tuple[Any, ...]]:
    wanted = sorted(numbers)
    found = connection.execute(
        f"SELECT number, {columns} FROM turns WHERE session = ? AND number IN (SELECT value FROM json_each(?))",
        (member.session, json.dumps(wanted)),
    ).fetchall()
    if len(found) != len(wanted):
        raise ExportGone(member.trajectory_id)
    return found
