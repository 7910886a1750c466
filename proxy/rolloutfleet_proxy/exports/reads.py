"""What an export reads of the store: the shape of a trajectory first, its long columns when they are needed.

Each read is short and for itself. That is safe because nothing of what it reads changes: turns never do, and rewards
are frozen once leased. What can happen is that the rows are gone, where the lease ended and another was acknowledged
meanwhile.
"""

import json
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import msgspec
import numpy as np

from rolloutfleet.wire import AskExport, ExportStyle
from rolloutfleet_proxy.exports.leases import Member
from rolloutfleet_proxy.exports.rows import ExportTurn, Row, path, rows
from rolloutfleet_proxy.turns.matching import Matching

T = TypeVar("T")
Read = Callable[[Callable[[sqlite3.Connection], T]], T]
"""Runs a query in one snapshot; called from a worker thread."""

_decode = msgspec.json.Decoder().decode


class ExportGone(Exception):
    """Rows that an export was reading are no longer there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A trajectory about to be exported, without its tokens and messages."""

    member: Member
    group_id: str
    task_id: str | None
    metadata: str | None
    """JSON object."""
    marked: str | None
    oldest_version: int | None
    """The smallest weight version of a token of its own turns; None where they have none."""
    style: ExportStyle
    turns: dict[int, ExportTurn]
    """Its own turns, and all that they extend."""
    kept: list[int]
    """Numbers of its own turns in order of commit, orphans left out."""
    rows: list[Row]
    first_index: int
    """The place of its first turn among the export's."""

    @property
    def tokens(self) -> int:
        """Of all rows."""
        return sum(self.turns[row.last].tokens for row in self.rows)


def load_plan(connection: sqlite3.Connection, member: Member, asked: AskExport, *, first_index: int) -> Plan:
    """Raises ExportGone."""
    found = connection.execute(
        "SELECT group_name, task_id, metadata, marked FROM sessions JOIN trajectories ON session = id"
        " WHERE id = ? AND number = ?",
        (member.session, member.number),
    ).fetchone()
    if found is None:
        raise ExportGone(member.trajectory_id)
    turns, kept = _load_turns(connection, member)
    (oldest,) = connection.execute(
        "SELECT min(version.value ->> 0) FROM turns, json_each(CAST(versions AS TEXT)) AS version"
        " WHERE session = ? AND number IN (SELECT value FROM json_each(?)) AND version.value ->> 1 > 0",
        (member.session, json.dumps(kept)),
    ).fetchone()
    return Plan(
        member=member,
        group_id=found[0],
        task_id=found[1],
        metadata=found[2],
        marked=found[3],
        oldest_version=oldest,
        style=asked.style,
        turns=turns,
        kept=kept,
        rows=rows(turns, kept, style=asked.style, discount=asked.discount),
        first_index=first_index,
    )


def load_messages(connection: sqlite3.Connection, plan: Plan) -> dict[int, bytes]:
    """The assistant message of each kept turn, as JSON. Raises ExportGone."""
    return dict(_columns(connection, plan, plan.kept, "output"))


def load_ids(connection: sqlite3.Connection, plan: Plan) -> dict[int, bytes]:
    """The new prompt and the output of every turn that a row covers, as int32. Raises ExportGone."""
    return {
        number: prompt + output
        for number, prompt, output in _columns(connection, plan, plan.turns, "prompt_ids, output_ids")
    }


def load_logprobs(connection: sqlite3.Connection, plan: Plan) -> dict[int, Any]:
    """The log-probabilities of each kept turn's output. Raises ExportGone."""
    return {
        number: np.frombuffer(logprobs, np.float32)
        for number, logprobs in _columns(connection, plan, plan.kept, "logprobs")
    }


def load_versions(connection: sqlite3.Connection, plan: Plan) -> dict[int, Any]:
    """The weight version of each token of each kept turn's output. Raises ExportGone."""
    return {
        number: np.repeat(*np.array(_decode(spans), np.int32).reshape(-1, 2).T)
        for number, spans in _columns(connection, plan, plan.kept, "versions")
    }


def _load_turns(connection: sqlite3.Connection, member: Member) -> tuple[dict[int, ExportTurn], list[int]]:
    found = connection.execute(
        "SELECT number, name, parent, prompt_tokens, length(output_ids) / 4, reward, finish_reason, mixed_cache,"
        " matching, json_extract(CAST(extras AS TEXT), '$.constrained'),"
        " json_extract(CAST(extras AS TEXT), '$.biased_by'), trajectory, state FROM turns"
        " WHERE session = ? AND number <= (SELECT max(number) FROM turns WHERE session = ? AND trajectory = ?)"
        " ORDER BY number",
        (member.session, member.session, member.number),
    )
    turns: dict[int, ExportTurn] = {}
    kept = []
    for (
        number,
        name,
        parent,
        prompt_tokens,
        output_tokens,
        reward,
        finish_reason,
        mixed_cache,
        matching,
        constrained,
        biased_by,
        trajectory,
        state,
    ) in found:
        turns[number] = ExportTurn(
            number=number,
            name=name,
            parent=parent,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            reward=reward,
            finish_reason=finish_reason,
            mixed_cache=bool(mixed_cache),
            branch_reason=Matching.decode(matching).branch_reason,
            constrained=constrained,
            biased_by=None if biased_by is None else _decode(biased_by),
        )
        if trajectory == member.number and state == "live":
            kept.append(number)
    covered = set(chain.from_iterable(path(turns, number) for number in _ends(turns, kept)))
    return {number: turn for number, turn in turns.items() if number in covered}, kept


def _ends(turns: dict[int, ExportTurn], kept: list[int]) -> set[int]:
    return set(kept) - {turns[number].parent for number in kept}


def _columns(connection: sqlite3.Connection, plan: Plan, numbers: Iterable[int], columns: str) -> list[tuple[Any, ...]]:
    wanted = sorted(numbers)
    found = connection.execute(
        f"SELECT number, {columns} FROM turns WHERE session = ? AND number IN (SELECT value FROM json_each(?))",
        (plan.member.session, json.dumps(wanted)),
    ).fetchall()
    if len(found) != len(wanted):
        raise ExportGone(plan.member.trajectory_id)
    return found
