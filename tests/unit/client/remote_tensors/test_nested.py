"""Tensors and references are found and replaced wherever they are; columns of padding are cut."""

import json
import pickle
from collections import OrderedDict, namedtuple
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet.remote_tensors.arrays import is_array
from rolloutfleet.remote_tensors.nested import RemoteTensorDict, as_reference, leaves, mapped, tensor_dict, trimmed
from rolloutfleet.tensors import RemoteTensor

Pair = namedtuple("Pair", ["left", "right"])


@dataclass(frozen=True)
class Held:
    what: Any
    name: str = "held"


class TensorDict(Mapping[str, Any]):
    """Has what tensordict's has, which is a mapping."""

    def __init__(self, source: dict[str, Any], *, batch_size: Any = ()) -> None:
        self._source = dict(source)
        self.batch_size = tuple(batch_size)
        for value in self._source.values():
            assert is_array(value) or isinstance(value, TensorDict), "only tensors can be in it"

    def __getitem__(self, name: str) -> Any:
        return self._source[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._source)

    def __len__(self) -> int:
        return len(self._source)


REFERENCE = RemoteTensor("a", "http://a", (2,), "int64")
ARRAYS = st.integers(0, 9).map(lambda number: np.full(2, number))
LEAVES = ARRAYS | st.none() | st.integers() | st.text(max_size=2) | st.floats(allow_nan=False)
NESTED: Any = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.tuples(inner, inner).map(lambda pair: Pair(*pair))
        | inner.map(Held)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), ARRAYS, max_size=3).map(lambda of: TensorDict(of, batch_size=[2]))
    ),
    max_leaves=12,
)


def shape_of(value: Any) -> Any:
    """The structure without what is in it."""
    if isinstance(value, TensorDict):
        return "TensorDict", value.batch_size, {name: shape_of(item) for name, item in value.items()}
    if isinstance(value, dict):
        return {name: shape_of(item) for name, item in value.items()}
    if isinstance(value, Held):
        return "Held", shape_of(value.what), value.name
    if isinstance(value, list | tuple):
        return type(value).__name__, [shape_of(item) for item in value]
    return value.tolist() if is_array(value) else value


@given(NESTED)
def test_out_and_in_again_is_the_same_structure(value: Any) -> None:
    kept: list[Any] = []

    def keep(leaf: Any) -> Any:
        if not is_array(leaf):
            return leaf
        kept.append(leaf)
        return RemoteTensor(str(len(kept) - 1), "http://a", leaf.shape, leaf.dtype.name)

    away = mapped(value, keep, tensor_dict=RemoteTensorDict)
    found = [leaf for leaf in leaves(away) if isinstance(leaf, RemoteTensor)]
    assert [int(reference.shard_id) for reference in found] == list(range(len(kept)))
    assert not any(is_array(leaf) for leaf in leaves(away))

    def bring(leaf: Any) -> Any:
        reference = as_reference(leaf)
        return leaf if reference is None else kept[int(reference.shard_id)]

    back = mapped(pickle.loads(pickle.dumps(away)), bring, tensor_dict=tensor_dict)
    assert shape_of(back) == shape_of(value)


def test_references_are_known_as_objects_and_as_json() -> None:
    there = {"rows": [{"tensors": {"x": json.loads(json.dumps(REFERENCE.as_json()))}}, REFERENCE], "plain": "text"}
    assert list(leaves(there)) == [REFERENCE, REFERENCE, "text"]
    assert list(leaves({"type": "remote_tensor", "shard_id": 3})) == ["remote_tensor", 3]


def test_a_reference_is_small() -> None:
    reference = RemoteTensor(
        "t0-0123456789ab-0123456789abcdef0123456789abcdef", "http://10.0.0.1:8080", (512, 4096), "int64"
    )
    assert len(pickle.dumps(reference)) < 300 and len(json.dumps(reference.as_json())) < 200
    assert pickle.loads(pickle.dumps(reference)) == reference
    assert hash(reference) == hash(RemoteTensor.from_json(reference.as_json()))


def test_other_mappings_become_plain_dicts() -> None:
    assert type(mapped(OrderedDict(a=1), lambda leaf: leaf, tensor_dict=tensor_dict)) is dict


def padded(*lengths: int, columns: int) -> "np.ndarray[Any, Any]":
    return (np.arange(columns) < np.array(lengths)[:, None]).astype(np.int64)


def test_columns_that_nothing_attends_to_are_cut() -> None:
    mask = padded(3, 5, 1, columns=8)
    ids = np.arange(24).reshape(3, 8)
    batch: dict[str, Any] = {
        "attention_mask": mask,
        "input_ids": ids,
        "logits": np.zeros((3, 8, 2)),
        "rewards": np.zeros(3),
        "images": np.zeros((3, 7)),
        "name": "text",
    }
    cut = trimmed([{"inner": (batch, 1)}])[0]["inner"][0]
    assert {name: item.shape for name, item in cut.items() if is_array(item)} == {
        "attention_mask": (3, 5),
        "input_ids": (3, 5),
        "logits": (3, 5, 2),
        "rewards": (3,),
        "images": (3, 7),
    }
    np.testing.assert_array_equal(cut["input_ids"], ids[:, :5])
    assert batch["input_ids"].shape == (3, 8)


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=4))
def test_nothing_that_is_attended_to_is_cut(rows: list[list[bool]]) -> None:
    mask = np.array(rows)
    cut = trimmed({"attention_mask": mask, "x": np.arange(mask.size).reshape(mask.shape)})
    assert cut["attention_mask"].sum() == mask.sum()
    assert cut["x"].shape == cut["attention_mask"].shape
    assert cut["x"].shape[1] == 0 or cut["attention_mask"][:, -1].any()


@pytest.mark.parametrize("mask", [None, [[1, 0]], np.ones(4), np.zeros((2, 2, 2)), REFERENCE], ids=repr)
def test_what_is_no_mask_cuts_nothing(mask: Any) -> None:
    assert trimmed({"attention_mask": mask, "x": np.zeros((2, 2))})["x"].shape == (2, 2)


def test_beside_a_tensor_dict_of_all_columns_nothing_is_cut() -> None:
    inner = TensorDict({"y": np.zeros((2, 6))}, batch_size=(2, 6))
    held = TensorDict({"attention_mask": padded(4, 1, columns=6), "inner": inner}, batch_size=(2, 6))
    assert trimmed(held).batch_size == (2, 6) and trimmed(held)["attention_mask"].shape == (2, 6)


@pytest.mark.parametrize(("batch_size", "after"), [((2,), (2,)), ((2, 6), (2, 4)), ((), ())], ids=str)
def test_a_tensor_dict_keeps_its_kind_and_a_batch_size_that_fits(batch_size: tuple[int, ...], after: Any) -> None:
    held = TensorDict({"attention_mask": padded(4, 1, columns=6), "x": np.zeros((2, 6, 3))}, batch_size=batch_size)
    cut = trimmed(held)
    assert isinstance(cut, TensorDict) and cut.batch_size == after
    assert dict(cut.items())["x"].shape == (2, 4, 3)
