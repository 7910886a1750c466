"""What comes over the wire: any cut into chunks, any broken answer."""

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet.fleet.exceptions import ShardMismatch
from rolloutfleet.remote_tensors.answers import BrokenAnswer, file_of, tensors_of
from rolloutfleet.tensors import Form, RemoteTensor

ARRAYS: dict[str, "np.ndarray[Any, Any]"] = {
    "a": np.arange(6, dtype=np.int64).reshape(2, 3),
    "empty": np.zeros((0, 4), np.float32),
    "b": np.array([True, False, True]),
    "none": np.zeros(0, np.int64),
}
ANSWER = safetensors.numpy.save(ARRAYS, metadata={"missing": json.dumps(["gone"])})
WANTED = {name: RemoteTensor(name, "http://a", array.shape, array.dtype.name) for name, array in ARRAYS.items()}


def cut(body: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = 0
    for size in sizes:
        yield body[at : at + size]
        at += size
    yield body[at:]


@given(st.lists(st.integers(0, 40)).map(lambda sizes: [size for size in sizes if size]))
def test_the_same_tensors_however_the_answer_is_cut(sizes: list[int]) -> None:
    found = dict(tensors_of(cut(ANSWER, sizes), WANTED))
    assert {name: bytes(data) for name, data in found.items()} == {
        name: array.tobytes() for name, array in ARRAYS.items()
    }


@given(st.integers(0, len(ANSWER) - 1))
def test_an_answer_that_ends_early_is_broken(length: int) -> None:
    with pytest.raises(BrokenAnswer):
        dict(tensors_of([ANSWER[:length]], WANTED))


@given(st.binary(max_size=200))
def test_what_is_no_answer_is_broken_and_nothing_worse(body: bytes) -> None:
    with pytest.raises(BrokenAnswer):
        dict(tensors_of([body], WANTED))


@given(st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=2)))
def test_a_header_of_any_other_json_is_broken(value: Any) -> None:
    header = json.dumps({"a": value}).encode()
    with pytest.raises(BrokenAnswer):
        dict(tensors_of([len(header).to_bytes(8, "little") + header], WANTED))


def test_a_tensor_nobody_asked_for_is_broken() -> None:
    with pytest.raises(BrokenAnswer, match="'a'"):
        dict(tensors_of([ANSWER], {name: WANTED[name] for name in ("b", "empty", "none")}))


@pytest.mark.parametrize(
    "other", [RemoteTensor("a", "", (3, 2), "int64"), RemoteTensor("a", "", (2, 3), "float64")], ids=str
)
def test_another_form_than_the_reference_says_is_no_answer(other: RemoteTensor) -> None:
    with pytest.raises(ShardMismatch, match="int64"):
        dict(tensors_of([ANSWER], WANTED | {"a": other}))


def test_no_memory_is_taken_for_what_a_header_only_claims() -> None:
    header = b'{"a":{"dtype":"I64","shape":[1099511627776],"data_offsets":[0,8796093022208]}}'
    with pytest.raises(ShardMismatch):
        dict(tensors_of([len(header).to_bytes(8, "little") + header], WANTED))
    with pytest.raises(BrokenAnswer):
        dict(tensors_of([(2**62).to_bytes(8, "little")], WANTED))


def test_what_is_put_is_what_safetensors_reads() -> None:
    array = np.arange(2_000_003, dtype=np.uint8)
    size, pieces = file_of(Form("uint8", array.shape), array.data)
    body = b"".join(pieces)
    assert len(body) == size
    np.testing.assert_array_equal(safetensors.numpy.load(body)["tensor"], array)


def test_a_kept_tensor_does_not_keep_the_rest_of_its_answer() -> None:
    large = {"keep": np.ones(1000, np.uint8), "drop": np.ones(8_000_000, np.uint8)}
    wanted = {name: RemoteTensor(name, "", array.shape, "uint8") for name, array in large.items()}
    answer = safetensors.numpy.save(large)
    tracemalloc.start()
    kept = [data for name, data in tensors_of(cut(answer, [65536] * 100), wanted) if name == "keep"]
    assert tracemalloc.get_traced_memory()[0] < 1_000_000 and bytes(kept[0]) == large["keep"].tobytes()
    tracemalloc.stop()
