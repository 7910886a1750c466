"""Tensors to bytes and back, bit for bit: those of torch, of numpy, and of types that numpy lacks.

PyTorch is imported when it is first needed: without it everything works on numpy arrays.
"""

import sys
from typing import Any, Final, Literal

import numpy as np

from rolloutfleet.dumps.tensors import NOT_IN_NUMPY, Tensor
from rolloutfleet.tensors import CODES, Form

Framework = Literal["torch", "numpy"]

FOREIGN: Final = 2
"""How numpy marks types that others registered with it."""
TORCH_MISSING: Final = 'PyTorch is not installed: pip install torch. (RemoteTensors work without: framework="numpy")'


def import_torch() -> Any:
    """PyTorch. Raises ImportError that says what to install."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(TORCH_MISSING) from error
    return torch


def is_array(value: Any) -> bool:
    """Whether it is a tensor of a kind that can be put: torch's, numpy's, or `rolloutfleet.dumps.Tensor`."""
    return isinstance(value, np.ndarray | Tensor) or _is_torch(value)


def form_and_bytes(array: Any) -> tuple[Form, memoryview]:
    """Type, shape and the bytes of its elements in C order, little-endian; copied only where they lie otherwise.

    Raises ValueError for a type that safetensors has no name for, and for tensors without storage of their own
    (sparse, meta); TypeError for what is not a tensor.
    """
    if isinstance(array, Tensor):
        return _form(array.dtype, array.shape), memoryview(array.data)
    if _is_torch(array):
        return _of_torch(array)
    if isinstance(array, np.ndarray | np.generic):
        return _of_numpy(np.asarray(array))
    raise TypeError(f"{type(array).__name__} is not a tensor of torch or numpy")


def array_of(form: Form, data: bytearray, framework: Framework) -> Any:
    """A tensor over these bytes, which it shares.

    With numpy it is read-only, and a type that numpy lacks (bfloat16, float8) comes as `rolloutfleet.dumps.Tensor`.
    Raises ImportError where torch is asked for and not installed.
    """
    return _torch_of(form, data) if framework == "torch" else _numpy_of(form, data)


def _is_torch(value: Any) -> bool:
    # Where nobody has imported it, there are no tensors of it.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _form(dtype: str, shape: Any) -> Form:
    if dtype not in CODES:
        raise ValueError(f"tensors of {dtype} can't be kept; the types are {', '.join(CODES)}")
    return Form(dtype, tuple(int(size) for size in shape))


def _of_numpy(array: "np.ndarray[Any, Any]") -> tuple[Form, memoryview]:
    form = _form(array.dtype.name, array.shape)
    if not form.nbytes:
        return form, memoryview(b"")
    # Types that others registered with numpy (ml_dtypes' bfloat16) have no byte order to change.
    little = array if array.dtype.isbuiltin == FOREIGN else array.astype(array.dtype.newbyteorder("<"), copy=False)
    flat = np.asarray(little, order="C").reshape(-1)
    return form, flat.view(np.uint8).data


def _of_torch(tensor: Any) -> tuple[Form, memoryview]:
    torch = sys.modules["torch"]
    form = _form(str(tensor.dtype).removeprefix("torch."), tensor.shape)
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise ValueError(f"a tensor that is {'meta' if tensor.is_meta else tensor.layout} has no elements to keep")
    if not form.nbytes:
        return form, memoryview(b"")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # A stride means nothing where there is one element, and yet `view` minds it.
    flat = plain.as_strided((plain.numel(),), (1,))
    return form, flat.view(torch.uint8).numpy().data


def _numpy_of(form: Form, data: bytearray) -> Any:
    if form.dtype in NOT_IN_NUMPY:
        return Tensor(dtype=form.dtype, shape=form.shape, data=bytes(data))
    held = np.dtype(form.dtype).newbyteorder("<")
    array = np.frombuffer(data, held).reshape(form.shape) if data else np.empty(form.shape, held)
    array.flags.writeable = False
    return array


def _torch_of(form: Form, data: bytearray) -> Any:
    torch = import_torch()
    dtype = getattr(torch, form.dtype, None)
    if dtype is None:
        raise ValueError(f"this PyTorch ({torch.__version__}) has no type {form.dtype}")
    if not data:
        return torch.empty(form.shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(form.shape)
