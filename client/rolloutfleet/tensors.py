"""Tensors by reference: what a shard is called in JSON, and the types that tensors have.

    {"type": "remote_tensor", "shard_id": str, "owner": str, "shape": [int, ...], "dtype": str}

`owner` is the address of the proxy that keeps the shard; GET {owner}/shards/{shard_id} brings it, as safetensors with
one tensor under the shard's id. Types have torch's names (`int64`, `bfloat16`); the files have those of safetensors
(https://huggingface.co/docs/safetensors), whose layout is an 8-byte length, a JSON header, and the tensors' bytes one
after the other. It is written and read here without the library, which wants a file whole; and without numpy and torch.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

REMOTE_TENSOR: Final = "remote_tensor"
"""The `type` of a reference."""

CODES: Final[Mapping[str, str]] = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "int64": "I64",
    "uint64": "U64",
    "float64": "F64",
    "complex64": "C64",
}
"""What safetensors calls each type. Types of less than a byte an element are not among them."""
DTYPES: Final[Mapping[str, str]] = {code: dtype for dtype, code in CODES.items()}

_BITS: Final = re.compile(r"[a-z]+(\d+)")
MOST_DIMENSIONS: Final = 64
LENGTH_BYTES: Final = 8
METADATA: Final = "__metadata__"


@dataclass(frozen=True, slots=True)
class Form:
    """Type and shape of a tensor. No dimensions is one element; a dimension of 0 is none."""

    dtype: str
    """One of `CODES`."""
    shape: tuple[int, ...]

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return itemsize(self.dtype)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True, slots=True)
class RemoteTensor:
    """A reference to a shard."""

    shard_id: str
    owner: str
    """Address of the proxy that keeps it."""
    shape: tuple[int, ...]
    dtype: str

    def as_json(self) -> dict[str, Any]:
        return {"type": REMOTE_TENSOR, **asdict(self), "shape": list(self.shape)}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Raises ValueError where it is not a reference."""
        if not isinstance(value, dict) or value.get("type") != REMOTE_TENSOR:
            raise ValueError("this is not a remote_tensor")
        shard_id, owner, shape, dtype = (value.get(name) for name in ("shard_id", "owner", "shape", "dtype"))
        if not isinstance(shard_id, str) or not isinstance(owner, str):
            raise ValueError("a remote_tensor needs shard_id and owner, as text")
        form = form_of(dtype, shape)
        return cls(shard_id, owner, form.shape, form.dtype)


def itemsize(dtype: str) -> int:
    """Bytes of an element of a type of `CODES`."""
    named = _BITS.match(dtype)
    return 1 if named is None else int(named[1]) // 8


def form_of(dtype: Any, shape: Any) -> Form:
    """Type and shape as JSON has them. Raises ValueError."""
    if not isinstance(dtype, str) or dtype not in CODES:
        raise ValueError(f"dtype is {str(dtype)[:40]!r}; it can be {', '.join(CODES)}")
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS or not all(map(_is_size, shape)):
        raise ValueError(f"shape is a list of at most {MOST_DIMENSIONS} whole numbers from 0 on")
    return Form(dtype, tuple(shape))


def remote_tensors(value: Any) -> Iterator[RemoteTensor]:
    """Every reference within JSON, in the order of the text. What only looks like one is left out."""
    waiting = [value]
    while waiting:
        at = waiting.pop()
        if isinstance(at, dict):
            try:
                yield RemoteTensor.from_json(at)
            except ValueError:
                waiting.extend(reversed(at.values()))
        elif isinstance(at, list):
            waiting.extend(reversed(at))


def describe(tensors: Iterable[tuple[str, Form]]) -> tuple[dict[str, Any], int]:
    """What a header says of tensors that lie one after the other, by name, and the bytes of them all."""
    described: dict[str, Any] = {}
    end = 0
    for name, form in tensors:
        start, end = end, end + form.nbytes
        described[name] = {"dtype": CODES[form.dtype], "shape": form.shape, "data_offsets": [start, end]}
    return described, end


def write_header(tensors: Iterable[tuple[str, Form]], *, metadata: Mapping[str, str] | None = None) -> bytes:
    """The opening of a file that holds these tensors one after the other, its length included."""
    described: dict[str, Any] = {} if metadata is None else {METADATA: metadata}
    described |= describe(tensors)[0]
    header = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % LENGTH_BYTES)
    return len(header).to_bytes(LENGTH_BYTES, "little") + header


def read_metadata(content: bytes) -> Any:
    """The metadata in the header of a whole file, texts by name. Raises ValueError, KeyError, TypeError."""
    end = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    return json.loads(content[LENGTH_BYTES:end])[METADATA]


def _is_size(size: Any) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**48
