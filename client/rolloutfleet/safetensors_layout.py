"""The layout of safetensors files: an 8-byte length, a JSON header, and the tensors' bytes one after the other.

https://huggingface.co/docs/safetensors is where it is from. Pure, and without the library, which wants a file whole.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rolloutfleet.tensors import CODES, Form

LENGTH_BYTES: Final = 8
METADATA: Final = "__metadata__"


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
