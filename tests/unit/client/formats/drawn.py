"""Rollouts as an export has them: with sub-agents, compactions, rewritten histories, failures, several trajectories."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from rolloutfleet.fleet.trajectories import TYPES, Row, Trajectory
from rolloutfleet.wire import ExportedTurn, LineageKind, Outcome
from rolloutfleet.wire.sessions import Lineage

OUTCOMES: tuple[Outcome | None, ...] = (None, "completed", "truncated", "failed", "aborted")
KINDS: tuple[LineageKind, ...] = ("main", "main", "subagent", "compaction", "other")


@dataclass(frozen=True)
class Turn:
    """A turn of a session: what its prompt adds to its parent's, and what was sampled, each with log-probability and
    version."""

    parent: int | None
    prompt: Sequence[int]
    output: Sequence[tuple[int, float, int]]
    kind: LineageKind = "main"
    reward: float | None = None


def turn(parent: int | None, kind: LineageKind = "main", *, tokens: int = 2, version: int = 3) -> Turn:
    """One whose tokens differ from those of others."""
    first = 10 * (0 if parent is None else parent + 1) + len(kind)
    return Turn(parent, [first], [(first + 1 + at, -0.25 * (at + 1), version) for at in range(tokens)], kind)


def rollout(
    turns: Sequence[Turn],
    *,
    session: str = "s0-a",
    ends: Sequence[int] = (),
    outcome: Outcome | None = "completed",
    reward: float | None = 1.0,
) -> list[Trajectory]:
    """A session's trajectories; the turns before each of `ends` make one, the rest the last. Each turn is trained in
    the first row that has it, those of a failed session without a reward in none."""
    trained = outcome in ("completed", "truncated", None) or reward is not None
    made = []
    for number, (begin, end) in enumerate(pairwise([0, *ends, len(turns)]), 1):
        own = range(begin, end)
        if not own:
            continue
        parents = {turns[each].parent for each in own}
        untrained = set(own) if trained else set()
        rows = []
        for leaf in (each for each in own if each not in parents):
            path = _path(turns, leaf)
            rows.append(_row(turns, path, [each for each in path if each in untrained], begin, reward))
            untrained -= set(path)
        told = tuple(_told(session, each, turns[each]) for each in own)
        made.append(
            Trajectory(
                trajectory_id=f"{session}-trajectory-{number}",
                session_id=session,
                group_id="g0-a",
                task_id=None,
                metadata={},
                marked=None,
                turns=told,
                rows=tuple(rows),
                run=0,
                version=9,
                lease_id=f"l0-{number}",
                outcome=outcome,
            )
        )
    return made


def _path(turns: Sequence[Turn], leaf: int) -> list[int]:
    at: int | None = leaf
    found = []
    while at is not None:
        found.append(at)
        at = turns[at].parent
    return found[::-1]


def _row(turns: Sequence[Turn], path: Sequence[int], trained: Sequence[int], begin: int, reward: float | None) -> Row:
    columns: dict[str, list[Any]] = {name: [] for name in TYPES}
    for each in path:
        context = [(token, 0, 0.0, -1, -1) for token in turns[each].prompt]
        for token, logprob, version in turns[each].output:
            sampled = (token, 1, logprob, version, each - begin)
            context.append(sampled if each in trained else (token, 0, 0.0, -1, -1))
        for entry in context:
            for name, value in zip(TYPES, entry, strict=True):
                columns[name].append(value)
    tensors = {name: np.array(columns[name], dtype=kind) for name, kind in TYPES.items()}
    for values in tensors.values():
        values.flags.writeable = False
    return Row(tuple(f"t{each}" for each in path), reward, {**tensors})


def _told(session: str, number: int, turn: Turn) -> ExportedTurn:
    parent = None if turn.parent is None else f"t{turn.parent}"
    lineage = Lineage(id="main" if turn.kind == "main" else f"{turn.kind}-{number}", kind=turn.kind)
    said: dict[str, Any] = {"finish_reason": "stop", "mixed_cache": False, "message": {}}
    return ExportedTurn(turn_id=f"t{number}", parent_id=parent, reward=turn.reward, lineage=lineage, **said)


TOKENS = st.lists(st.integers(0, 2**17), min_size=1, max_size=3)
SAMPLED = st.lists(
    st.tuples(st.integers(0, 2**17), st.floats(-50, 0, width=32), st.integers(0, 9)), min_size=1, max_size=3
)
REWARDS = st.none() | st.floats(-10, 10)


@st.composite
def rollouts(draw: st.DrawFn, session: str = "s0-a") -> list[Trajectory]:
    """A session of up to six turns, in up to three trajectories, in any order."""
    count = draw(st.integers(0, 6))
    parents = [draw(st.none() | st.integers(0, at - 1)) if at else None for at in range(count)]
    turns = [Turn(parent, draw(TOKENS), draw(SAMPLED), draw(st.sampled_from(KINDS))) for parent in parents]
    ends = sorted(draw(st.lists(st.integers(0, count), max_size=2)))
    outcome = draw(st.sampled_from(OUTCOMES))
    made = rollout(turns, session=session, ends=ends, outcome=outcome, reward=draw(REWARDS))
    return draw(st.permutations(made))


@st.composite
def batches(draw: st.DrawFn) -> list[list[Trajectory]]:
    """Rollouts of several sessions."""
    return [draw(rollouts(f"s0-{letter}")) for letter in "abc"[: draw(st.integers(0, 3))]]


def column(row: Row, name: str) -> NDArray[Any]:
    """A tensor of a row."""
    return np.asarray(row.tensors[name])


def same(found: Any, row: Row, name: str, *, begin: int = 0) -> bool:
    """Compare numbers with a row's tensor from `begin` on, bit for bit."""
    values = column(row, name)[begin:]
    return np.asarray(found, dtype=values.dtype).tobytes() == values.tobytes()


SIX = [turn(None), turn(0), turn(None, "subagent"), turn(2, "subagent"), turn(1, "compaction"), turn(None), turn(5)]
"""A main loop with a sub-agent and a compaction: of its leaves the last is of the loop after the compaction."""
