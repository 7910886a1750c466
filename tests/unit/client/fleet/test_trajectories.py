"""Both forms of an export say the same, and what is none is an error."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from rolloutfleet.fleet import FleetError, read_export
from rolloutfleet.fleet.trajectories import TYPES, Page
from rolloutfleet.tensors import RemoteTensor
from rolloutfleet.wire import JSON_MEDIA_TYPE, TENSORS_MEDIA_TYPE

TENSORS = {"input_ids": 7, "loss_mask": 1, "logprobs": -0.5, "versions": 3}


def said_of(turn: str, *, reward: float | None = None) -> dict[str, Any]:
    named = {"turn_id": turn, "parent_id": None, "reward": reward}
    return {**named, "finish_reason": "stop", "mixed_cache": False, "message": {}}


@st.composite
def exports(draw: st.DrawFn) -> dict[str, Any]:
    """Trajectories of a few turns; each row trains some of them, after a prompt."""
    trajectories: list[dict[str, Any]] = []
    before = 0
    for index in range(draw(st.integers(0, 3))):
        turns = draw(st.integers(1, 3))
        rows = []
        for _ in range(draw(st.integers(1, 2))):
            trained = draw(st.lists(st.integers(0, turns - 1), min_size=0, max_size=4))
            prompt = draw(st.integers(0, 3))
            ids = [-1] * prompt + [before + turn for turn in trained]
            versions = [-1] * prompt + [draw(st.integers(0, 2**31 - 1)) for _ in trained]
            tensors = {
                "input_ids": [draw(st.integers(0, 2**40)) for _ in ids],
                "loss_mask": [0] * prompt + [1] * len(trained),
                "logprobs": [0.0] * prompt + [draw(st.floats(-50, 0, width=32)) for _ in trained],
                "versions": versions,
                "turn_ids": ids,
            }
            reward = draw(st.none() | st.floats(-10, 10, width=32))
            rows.append({"turn_ids": [f"t{turn}" for turn in range(turns)], "reward": reward, "tensors": tensors})
        trajectories.append(
            {
                "trajectory_id": f"s0-trajectory-{index}",
                "session_id": "s0",
                "group_id": "g0",
                "task_id": None,
                "metadata": {},
                "marked": None,
                "oldest_version": draw(st.none() | st.integers(0, 9)),
                "turns": [said_of(f"t{turn}") for turn in range(turns)],
                "rows": rows,
            }
        )
        before += turns
    head = {"lease_id": "l0-1", "expires_in": 600.0, "run": 1, "version": 5, "sessions": [], "ordinals": [0]}
    return {**head, "failed": [], "trajectories": trajectories}


def as_safetensors(export: dict[str, Any]) -> bytes:
    rows = [row for trajectory in export["trajectories"] for row in trajectory["rows"]]
    flat = {
        name: np.array([value for row in rows for value in row["tensors"][name]], dtype=kind)
        for name, kind in TYPES.items()
    }
    ends = np.cumsum([0, *(len(row["tensors"]["input_ids"]) for row in rows)], dtype=np.int64)
    bare = json.loads(json.dumps(export))
    for trajectory in bare["trajectories"]:
        for row in trajectory["rows"]:
            del row["tensors"]
    return save({**flat, "cu_seqlens": ends}, metadata={"export": json.dumps(bare)})


def as_lists(page: Page) -> list[list[dict[str, list[Any]]]]:
    return [
        [{name: np.asarray(tensor).tolist() for name, tensor in row.tensors.items()} for row in each.rows]
        for each in page.trajectories
    ]


@given(exports())
def test_both_forms_bring_the_same(export: dict[str, Any]) -> None:
    flat = read_export(as_safetensors(export), media_type=TENSORS_MEDIA_TYPE)
    listed = read_export(json.dumps(export).encode(), media_type=f"{JSON_MEDIA_TYPE}; charset=utf-8")
    assert as_lists(flat) == as_lists(listed)
    for page in (flat, listed):
        for each, given_ in zip(page.trajectories, export["trajectories"], strict=True):
            assert each.oldest_version == given_["oldest_version"]
            for row, given_row in zip(each.rows, given_["rows"], strict=True):
                assert {name: np.asarray(value).dtype for name, value in row.tensors.items()} == TYPES
                turns = np.asarray(row.tensors["turn_ids"])
                assert turns.size == len(given_row["tensors"]["turn_ids"])
                assert ((turns >= -1) & (turns < len(each.turns))).all()


def test_a_row_is_its_own_memory_and_may_be_changed() -> None:
    tensors = {name: [value] * 4 for name, value in TENSORS.items()} | {"turn_ids": [0] * 4}
    row = {"turn_ids": ["t"], "reward": 1.0, "tensors": tensors}
    turns = [said_of("t", reward=1.0)]
    trajectory = {"trajectory_id": "a", "session_id": "s", "group_id": "g", "turns": turns, "rows": [row, row]}
    export = {"lease_id": "l", "expires_in": 1.0, "run": 0, "version": 3, "sessions": [], "trajectories": [trajectory]}
    first, second = read_export(as_safetensors(export), media_type=TENSORS_MEDIA_TYPE).trajectories[0].rows
    changed = np.asarray(first.tensors["input_ids"])
    changed[:] = 0
    assert changed.base is None
    assert np.asarray(second.tensors["input_ids"]).tolist() == [7] * 4


def test_shards_are_references() -> None:
    reference = RemoteTensor("t0-1", "http://p", (3,), "int64")
    row = {"turn_ids": ["t"], "reward": None, "tensors": {"input_ids": reference.as_json()}}
    trajectory = {"trajectory_id": "a", "session_id": "s", "group_id": "g", "turns": [], "rows": [row]}
    export = {"lease_id": "l", "expires_in": 1.0, "run": 0, "version": 0, "sessions": [], "trajectories": [trajectory]}
    (found,) = read_export(json.dumps(export).encode(), media_type=JSON_MEDIA_TYPE).trajectories
    assert found.rows[0].tensors == {"input_ids": reference}
    assert (found.tokens, found.oldest_version, found.reward) == (3, None, None)


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b"\x08\0\0\0\0\0\0\0{}      ", b"\xff" * 40])
@pytest.mark.parametrize("media_type", [JSON_MEDIA_TYPE, TENSORS_MEDIA_TYPE])
def test_what_is_no_export_is_an_error(content: bytes, media_type: str) -> None:
    with pytest.raises(FleetError, match="not an export"):
        read_export(content, media_type=media_type)
