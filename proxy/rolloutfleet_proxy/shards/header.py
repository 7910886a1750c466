"""The header of safetensors that come: bounded before it is parsed, then held against its own sums.

The form is that of `rolloutfleet.tensors`: a length, a JSON header, the tensors' bytes one after the other.
"""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from rolloutfleet.tensors import DTYPES, METADATA, Form, form_of

HEADER_LIMIT: Final = 2**20
"""Bytes of a header."""

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class NotTensors(ValueError):
    """These bytes are not safetensors; the message says why, and `tensor` which one is at fault, where one is."""

    def __init__(self, why: str, *, tensor: str | None = None) -> None:
        super().__init__(why)
        self.tensor = tensor


@dataclass(frozen=True, slots=True)
class Header:
    """What it describes."""

    tensors: dict[str, Form]
    """In the order in which their bytes stand, with nothing between them."""
    metadata: Any
    """As it came; None where there is none."""


def header_length(opening: bytes) -> int:
    """What the first 8 bytes say. Raises NotTensors."""
    length = int.from_bytes(opening, "little")
    if not 2 <= length <= HEADER_LIMIT:
        raise NotTensors(f"its header would have {length} bytes; at most {HEADER_LIMIT}")
    return length


def read_header(header: bytes) -> Header:
    """Raises NotTensors."""
    try:
        entries = _decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotTensors("its header is not a JSON object") from None
    metadata = entries.pop(METADATA, None)
    found: list[tuple[list[int], str, Form]] = []
    for name, entry in entries.items():
        form = _form(name, entry)
        found.append((_offsets(name, entry, form), name, form))
    found.sort(key=lambda each: each[0])
    end = 0
    for offsets, name, form in found:
        if offsets != [end, end + form.nbytes]:
            why = f"data_offsets is not [{end}, {end + form.nbytes}], which dtype and shape make it"
            raise NotTensors(why, tensor=name)
        end += form.nbytes
    return Header({name: form for _, name, form in found}, metadata)


def _form(name: str, entry: Any) -> Form:
    if not isinstance(entry, dict):
        raise NotTensors("its header describes no tensor", tensor=name)
    code = str(entry.get("dtype"))
    if code not in DTYPES:
        raise NotTensors(f"dtype is {code[:40]!r}; it can be {', '.join(DTYPES)}", tensor=name)
    try:
        return form_of(DTYPES[code], entry.get("shape"))
    except ValueError as error:
        raise NotTensors(str(error), tensor=name) from None


def _offsets(name: str, entry: dict[str, Any], form: Form) -> list[int]:
    offsets = entry.get("data_offsets")
    if isinstance(offsets, list) and len(offsets) == 2 and all(type(offset) is int for offset in offsets):
        return offsets
    raise NotTensors(f"data_offsets is not two whole numbers, {form.nbytes} apart", tensor=name)
