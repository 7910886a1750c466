"""Dumps for tests: whole ones with any turns, and what hypothesis makes of them."""

import io
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rolloutfleet.dumps.files import DumpName
from rolloutfleet.dumps.form import DumpedSession, DumpedShard, DumpedTrajectory, DumpedTurn, DumpHead, Matching, encode
from rolloutfleet.dumps.tensors import Tensor
from rolloutfleet.tensors import CODES, itemsize

SESSION = "s3-0123456789ab-00112233445566ff"
NAME = str(DumpName(SESSION, 2))


def head(**given: Any) -> DumpHead:
    """Of the second trajectory of `SESSION`."""
    session = DumpedSession(
        session_id=SESSION,
        group_id="g3-0123456789ab-0000000000000000",
        task_id="tâche",
        metadata={"nested": [1, 2.5, {"x": None}]},
        limits={"turns": 9},
        agent_may=["reward"],
        stale_after=12.5,
        created_at=1e9,
        place=7,
        turns=20,
        tokens=300,
        trajectories=2,
    )
    trajectory = DumpedTrajectory(
        trajectory_id=f"{SESSION}-trajectory-2",
        number=2,
        closed_by="reward",
        reward_turn=3,
        closed_at=1e9 + 0.1,
        frozen=False,
        marked=None,
    )
    fields: dict[str, Any] = {
        "reason": "stale",
        "dumped_at": 1e9 + 1,
        "ordinal": 3,
        "store_id": "0123456789ab",
        "session": session,
        "trajectory": trajectory,
    }
    return DumpHead(**(fields | given))


def turn(number: int, *, parent: DumpedTurn | None = None, new: int = 2, sampled: int = 3, **given: Any) -> DumpedTurn:
    """A turn that stands on its parent's tokens."""
    behind = 0 if parent is None else parent.prompt_tokens + parent.output_ids.shape[0]
    fields: dict[str, Any] = {
        "turn_id": f"chatcmpl-{number}",
        "number": number,
        "parent": None if parent is None else parent.number,
        "context": False,
        "discarded": False,
        "trajectory": 2,
        "run": 0,
        "finish_reason": "stop",
        "reward": 0.1,
        "mixed_cache": False,
        "delivered": True,
        "created_at": 1e9 + number / 10,
        "prompt_tokens": behind + new,
        "matching": Matching(start=0, length=2, history="00ff", request="", reasonings=[(1, "ab")]),
        "messages": [{"role": "user", "content": "line\nbreak  \U0001f600"}],
        "tools": None,
        "output": {"role": "assistant", "content": '],"shards":[\n'},
        "extras": None,
        "new_prompt_ids": Tensor.of(np.arange(new, dtype=np.int32)),
        "output_ids": Tensor.of(np.arange(sampled, dtype=np.int32)),
        "logprobs": Tensor.of(np.full(sampled, -0.1, np.float32)),
        "versions": Tensor.of(np.zeros(sampled, np.int32)),
    }
    return DumpedTurn(**(fields | given))


def sample_turns() -> list[DumpedTurn]:
    """A context turn, and two own ones that extend it."""
    first = turn(1, context=True, trajectory=1)
    second = turn(3, parent=first)
    return [first, second, turn(4, parent=second, sampled=0)]


def sample() -> bytes:
    """A whole dump, with a shard."""
    shards = [DumpedShard(shard_id="shard-1", tensor=Tensor.of(np.arange(6.0).reshape(2, 3)))]
    return b"".join(encode(head(), sample_turns(), shards))


def opened(content: bytes) -> io.BytesIO:
    return io.BytesIO(content)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Of every type and of few dimensions, empty ones and single elements too."""
    dtype = draw(st.sampled_from(sorted(CODES)))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    size = int(np.prod(shape)) * itemsize(dtype)
    return Tensor(dtype=dtype, shape=tuple(shape), data=draw(st.binary(min_size=size, max_size=size)))
