"""One tensor as it comes, as a safetensors file; `rolloutfleet.safetensors_layout` has the layout. Pure."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from rolloutfleet.safetensors_layout import METADATA
from rolloutfleet.tensors import DTYPES, Form, form_of

HEADER_LIMIT: Final = 2**20
"""Bytes of the header of a tensor that comes."""

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
    entries.pop(METADATA, None)
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


def aligned(tensors: Iterable[tuple[str, Form]]) -> list[tuple[str, Form]]:
    """The order in which every tensor begins at a multiple of its element's size: wide elements first."""
    return sorted(tensors, key=lambda named: -named[1].itemsize)
