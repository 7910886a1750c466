"""References to tensors: JSON and back, and found wherever they are in JSON."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet.tensors import CODES, DTYPES, Form, RemoteTensor, form_of, itemsize, remote_tensors

REFERENCES = st.builds(
    RemoteTensor,
    shard_id=st.text(max_size=20),
    owner=st.text(max_size=20),
    shape=st.lists(st.integers(0, 2**40), max_size=5).map(tuple),
    dtype=st.sampled_from(sorted(CODES)),
)
PLAIN = st.none() | st.booleans() | st.integers() | st.text(max_size=5)


@given(REFERENCES)
def test_a_reference_survives_json(reference: RemoteTensor) -> None:
    assert RemoteTensor.from_json(json.loads(json.dumps(reference.as_json()))) == reference


@given(st.data())
def test_references_are_found_in_order_wherever_they_are(data: st.DataObject) -> None:
    put: list[RemoteTensor] = []

    def grow(depth: int) -> Any:
        kind = data.draw(st.sampled_from(["plain", "reference", "list", "object"] if depth else ["plain", "reference"]))
        if kind == "plain":
            return data.draw(PLAIN)
        if kind == "reference":
            put.append(data.draw(REFERENCES))
            return put[-1].as_json()
        size = range(data.draw(st.integers(0, 3)))
        return [grow(depth - 1) for _ in size] if kind == "list" else {str(at): grow(depth - 1) for at in size}

    assert list(remote_tensors(grow(4))) == put


def test_deep_json_is_searched_without_recursion() -> None:
    value: Any = RemoteTensor("x", "http://a", (1,), "bool").as_json()
    for _ in range(100_000):
        value = [value]
    assert len(list(remote_tensors(value))) == 1


GOOD = RemoteTensor("x", "http://a", (2,), "int64").as_json()


@pytest.mark.parametrize(
    "changed",
    [
        {"type": "tensor"},
        {"shard_id": 3},
        {"shard_id": None},
        {"owner": None},
        {"dtype": "torch.int64"},
        {"dtype": "I64"},
        {"dtype": None},
        {"shape": 2},
        {"shape": [-1]},
        {"shape": [True]},
        {"shape": [1.0]},
        {"shape": ["1"]},
        {"shape": [2**48]},
        {"shape": [1] * 65},
    ],
    ids=str,
)
def test_what_only_looks_like_a_reference_is_none(changed: dict[str, Any]) -> None:
    assert RemoteTensor.from_json(GOOD).shape == (2,)
    with pytest.raises(ValueError):
        RemoteTensor.from_json(GOOD | changed)
    assert list(remote_tensors([GOOD | changed, GOOD])) == [RemoteTensor.from_json(GOOD)]


def test_sizes_are_those_of_the_types() -> None:
    assert {DTYPES[code] for code in CODES.values()} == set(CODES)
    unknown_to_numpy = {"bfloat16": 2, "float8_e5m2": 1, "float8_e4m3fn": 1, "float8_e8m0fnu": 1}
    for dtype in CODES:
        assert itemsize(dtype) == (unknown_to_numpy.get(dtype) or np.dtype(dtype).itemsize), dtype
    assert form_of("bfloat16", []) == Form("bfloat16", ())
    assert Form("bfloat16", ()).nbytes == 2 and Form("int64", (3, 0)).nbytes == 0
    assert Form("float32", (2, 3)).nbytes == 4 * math.prod((2, 3))
