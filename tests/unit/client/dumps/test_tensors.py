"""Tensors in dumps, bit for bit."""

import json

import numpy as np
import pytest
from hypothesis import given
from pydantic import ValidationError
from tests.unit.client.dumps.samples import tensors

from rolloutfleet.dumps.tensors import Tensor


@given(tensors())
def test_a_tensor_comes_back_bit_for_bit(tensor: Tensor) -> None:
    assert Tensor.model_validate(json.loads(json.dumps(tensor.model_dump()))) == tensor


@given(tensors())
def test_numpy_sees_the_same_bits(tensor: Tensor) -> None:
    array = tensor.numpy()
    assert array.shape == tensor.shape
    assert Tensor.of(array, tensor.dtype) == tensor


@pytest.mark.parametrize(
    "array",
    [
        np.array([2**63 - 1, -(2**63)]),
        np.array([True, False]),
        np.array(1.5),
        np.zeros((0, 4), np.float16),
        np.arange(6, dtype=">i4").reshape(2, 3).T,
    ],
    ids=["int64", "bool", "one element", "empty", "big-endian and not in C order"],
)
def test_arrays_keep_their_values(array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> None:
    back = Tensor.of(array).numpy()
    assert back.shape == array.shape and (back == array).all() and back.dtype == array.dtype.newbyteorder("<")


def test_bfloat16_is_kept_as_its_bits() -> None:
    bits = np.array([0x3F80, 0x7FC1, 0x8000], np.uint16)
    tensor = Tensor.of(bits, "bfloat16")
    assert tensor.dtype == "bfloat16" and (tensor.numpy() == bits).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": "AAA"},
        {"data": "A*=="},
        {"data": "AAAAAAAA"},
        {"shape": [-1, -1]},
        {"shape": [1.0]},
        {"shape": 1},
        {"dtype": "str"},
        {"type": "array"},
    ],
    ids=str,
)
def test_what_is_no_tensor_is_refused(wrong: dict[str, object]) -> None:
    right = {"type": "tensor", "dtype": "int32", "shape": [1], "data": "AAAAAA=="}
    assert Tensor.model_validate(right).numpy().tolist() == [0]
    with pytest.raises(ValidationError):
        Tensor.model_validate(right | wrong)
