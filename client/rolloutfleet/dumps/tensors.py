"""A tensor as a dump holds it: `{type: "tensor", data, shape, dtype}`, bit for bit.

`data` is base64 (RFC 4648, section 4) of the elements in C order, little-endian. The names of types are those of
numpy and PyTorch. Bits are all that is kept, so types that numpy lacks (bfloat16, float8) need no library here.
"""

import base64
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Strict, field_serializer, field_validator, model_validator

from rolloutfleet.tensors import CODES, form_of, itemsize

NOT_IN_NUMPY: Final = {name: f"uint{8 * itemsize(name)}" for name in CODES if name.startswith(("bfloat", "float8"))}


class Tensor(BaseModel):
    """A tensor's type, shape and bytes. In JSON `data` is base64."""

    model_config = ConfigDict(frozen=True, strict=True)

    type: Literal["tensor"] = "tensor"
    dtype: str
    shape: Annotated[tuple[int, ...], Strict(False)]
    """Empty for a single element."""
    data: bytes

    @field_validator("data", mode="before")
    @classmethod
    def _from_base64(cls, data: Any) -> Any:
        if not isinstance(data, str):
            return data
        try:
            return base64.b64decode(data, validate=True)
        except ValueError as error:
            raise ValueError(f"data is not valid base64: {error}") from None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        size = form_of(self.dtype, list(self.shape)).nbytes
        if size != len(self.data):
            raise ValueError(f"{len(self.data)} bytes, and shape {list(self.shape)} of {self.dtype} needs {size}")
        return self

    @classmethod
    def of(cls, array: npt.ArrayLike, dtype: str | None = None) -> Self:
        """A numpy array, or what makes one, as a tensor. `dtype` names a type that numpy lacks, whose bits it holds."""
        values = np.asarray(array)
        named = dtype or values.dtype.name
        little = values.astype(values.dtype.newbyteorder("<"), copy=False)
        return cls(dtype=named, shape=values.shape, data=little.tobytes())

    def numpy(self) -> npt.NDArray[Any]:
        """The elements. Of a type that numpy lacks (bfloat16, float8), unsigned integers that hold the bits."""
        held = np.dtype(NOT_IN_NUMPY.get(self.dtype, self.dtype)).newbyteorder("<")
        return np.frombuffer(self.data, held).reshape(self.shape)

    @field_serializer("data")
    def _as_base64(self, data: bytes) -> str:
        return base64.b64encode(data).decode("ascii")
