"""The bytes of safetensors files: one tensor as it comes, and headers for those that leave. Pure.

A file is an 8-byte length, a JSON header, and the tensors' bytes
(https://huggingface.co/docs/safetensors, which is where this layout is from).
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from rolloutfleet.tensors import CODES, DTYPES, Form, form_of

LENGTH_BYTES: Final = 8
HEADER_LIMIT: Final = 2**20
"""Bytes of the header of a tensor that comes."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class NotOneTensor(ValueError):
    """These bytes are not the safetensors form of one tensor; the message says why."""


def header_length(opening: bytes) -> int:
    """What the first 8 bytes say. Raises NotOneTensor."""
    length = int.from_bytes(opening, "little")
    if not 2 <= length <= HEADER_LIMIT:
        raise NotOneTensor(f"its header would have {length} bytes; at most {HEADER_LIMIT}")
    return length


def read_header(header: bytes) -> Form:
    """Type and shape of the one tensor that a header describes. Raises NotOneTensor."""
    try:
        entries = _decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotOneTensor("its header is no JSON object") from None
    entries.pop("__metadata__", None)
    if len(entries) != 1:
        raise NotOneTensor(f"it holds {len(entries)} tensors; a shard is one")
    [entry] = entries.values()
    if not isinstance(entry, dict):
        raise NotOneTensor("its header describes no tensor")
    code = str(entry.get("dtype"))
    if code not in DTYPES:
        raise NotOneTensor(f"dtype is {code[:40]!r}; it can be {', '.join(DTYPES)}")
    try:
        form = form_of(DTYPES[code], entry.get("shape"))
    except ValueError as error:
        raise NotOneTensor(str(error)) from None
    offsets = entry.get("data_offsets")
    if offsets != [0, form.nbytes] or not all(type(offset) is int for offset in offsets):
        raise NotOneTensor(f"data_offsets is not [0, {form.nbytes}], which dtype and shape make it")
    return form


def write_header(tensors: Iterable[tuple[str, Form]], *, metadata: dict[str, str] | None = None) -> bytes:
    """The opening of a file that holds these tensors one after the other, its length included."""
    described: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    end = 0
    for name, form in tensors:
        start, end = end, end + form.nbytes
        described[name] = {"dtype": CODES[form.dtype], "shape": form.shape, "data_offsets": [start, end]}
    header = _encode(described)
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(LENGTH_BYTES, "little") + header


def aligned(tensors: Iterable[tuple[str, Form]]) -> list[tuple[str, Form]]:
    """The order in which every tensor begins at a multiple of its element's size: wide elements first."""
    return sorted(tensors, key=lambda named: -named[1].itemsize)
