"""Tensors become bytes and back, bit for bit."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rolloutfleet.dumps.tensors import NOT_IN_NUMPY, Tensor
from rolloutfleet.remote_tensors.arrays import array_of, form_and_bytes, is_array
from rolloutfleet.tensors import CODES, Form

KNOWN = sorted(set(CODES) - NOT_IN_NUMPY.keys())


def there_and_back(array: Any) -> Any:
    form, data = form_and_bytes(array)
    assert len(data) == form.nbytes
    return array_of(form, bytearray(data), "numpy")


@given(st.sampled_from(KNOWN).flatmap(lambda name: arrays.arrays(name, arrays.array_shapes(min_dims=0, min_side=0))))
def test_every_type_and_shape_of_numpy_is_exact(array: "np.ndarray[Any, Any]") -> None:
    back = there_and_back(array)
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert not back.flags.writeable


@pytest.mark.parametrize("name", sorted(NOT_IN_NUMPY))
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 128)], ids=str)
def test_types_that_numpy_lacks_keep_their_bits(name: str, shape: tuple[int, ...]) -> None:
    form = Form(name, shape)
    tensor = Tensor(dtype=name, shape=shape, data=bytes(at * 37 % 256 for at in range(form.nbytes)))
    assert there_and_back(tensor) == tensor


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12).reshape(3, 4).T,
        np.arange(20)[::-3],
        np.arange(2)[::2],
        np.arange(24).reshape(2, 3, 4)[:, :2, 1:],
        np.arange(4, dtype=">i8"),
        np.array([1.5, -0.0, np.nan], dtype=">f4"),
        np.broadcast_to(np.float16(3), (2, 5)),
        np.asfortranarray(np.eye(3)),
    ],
    ids=lambda array: f"{array.dtype.str}{array.strides}",
)
def test_however_the_elements_lie_the_values_are_the_same(array: "np.ndarray[Any, Any]") -> None:
    back = there_and_back(array)
    assert back.dtype.name == array.dtype.name
    np.testing.assert_array_equal(back, array)


def test_one_number_of_numpy_is_a_tensor_to_put_and_plain_data_elsewhere() -> None:
    assert there_and_back(np.float32(2.5)).shape == ()
    assert not is_array(np.float32(2.5))


@pytest.mark.parametrize(
    "array", [np.zeros(2, complex), np.array(["a"]), np.array([None]), np.zeros(1, "M8[s]")], ids=str
)
def test_a_type_that_can_not_be_kept_is_named(array: "np.ndarray[Any, Any]") -> None:
    with pytest.raises(ValueError, match=array.dtype.name.replace("[", r"\[")):
        form_and_bytes(array)


@pytest.mark.parametrize("value", [[1, 2], 3, None, "text", b"bytes"], ids=repr)
def test_what_is_no_tensor_is_refused(value: Any) -> None:
    assert not is_array(value)
    with pytest.raises(TypeError, match=type(value).__name__):
        form_and_bytes(value)
