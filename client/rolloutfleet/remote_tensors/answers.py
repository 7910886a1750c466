"""Bytes of safetensors as they go over the wire: the one tensor of a put, and the many of a batch, piece by piece.

Each tensor gets memory of its own as it comes, so that one which is kept does not keep the whole answer. The layout is
in `rolloutfleet.tensors`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rolloutfleet.fleet.exceptions import ShardMismatch, Unreachable
from rolloutfleet.tensors import DTYPES, LENGTH_BYTES, METADATA, Form, RemoteTensor, form_of, write_header

HEADER_LIMIT: Final = 64 * 2**20
PIECE: Final = 2**20


class BrokenAnswer(Unreachable):
    """The answer ends too early, or is not a safetensors file: worth another try."""


def file_of(form: Form, data: memoryview) -> tuple[int, Iterator[bytes]]:
    """The size of a file with this one tensor, and its pieces."""
    opening = write_header([("tensor", form)])

    def pieces() -> Iterator[bytes]:
        yield opening
        for start in range(0, len(data), PIECE):
            yield bytes(data[start : start + PIECE])

    return len(opening) + form.nbytes, pieces()


def tensors_of(chunks: Iterable[bytes], wanted: Mapping[str, RemoteTensor]) -> Iterator[tuple[str, bytearray]]:
    """The tensors of a batch, each as soon as it is whole. What is missing is left out.

    Raises BrokenAnswer; ShardMismatch where one has not the type and shape of its reference.
    """
    stream = _Stream(chunks)
    length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
    if length > HEADER_LIMIT:
        raise BrokenAnswer(f"its header would have {length} bytes")
    at = 0
    for name, form, start in _in_order(bytes(stream.read(length))):
        if name not in wanted or start != at:
            raise BrokenAnswer(f"there is {name[:80]!r} at {start} in it, which was not expected")
        reference = wanted[name]
        if form != Form(reference.dtype, reference.shape):
            raise ShardMismatch(
                f"shard {name} is {form.dtype} {list(form.shape)}, and the reference says "
                f"{reference.dtype} {list(reference.shape)}"
            )
        yield name, stream.read(form.nbytes)
        at += form.nbytes


def _in_order(header: bytes) -> list[tuple[str, Form, int]]:
    """Name, form and place of each tensor, in the order in which their bytes come."""
    try:
        described: dict[str, Any] = json.loads(header)
        described.pop(METADATA, None)
        found = [
            (name, form_of(DTYPES[entry["dtype"]], entry["shape"]), int(entry["data_offsets"][0]))
            for name, entry in described.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise BrokenAnswer(f"its header can't be read: {error}") from None
    # A tensor without bytes begins where the next one does.
    return sorted(found, key=lambda each: (each[2], each[1].nbytes))


class _Stream:
    """Chunks of whatever size, read in the sizes that are asked for."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._left = memoryview(b"")

    def read(self, size: int) -> bytearray:
        into = bytearray(size)
        view, at = memoryview(into), 0
        while at < size:
            if not self._left:
                self._left = memoryview(next(self._chunks, b""))
                if not self._left:
                    raise BrokenAnswer(f"it ends {size - at} bytes too early")
            taken = min(size - at, len(self._left))
            view[at : at + taken] = self._left[:taken]
            self._left = self._left[taken:]
            at += taken
        return into
