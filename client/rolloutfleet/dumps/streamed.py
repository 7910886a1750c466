"""Turns and shards for a writer that must not hold the interpreter, or have them whole in memory, while it writes them.

What they hold is JSON already, or bytes that become base64 a slice at a time. What is read back of them is the same as
of `DumpedTurn` and `DumpedShard`.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

BASE64_AT_ONCE: Final = 1 << 20
"""Bytes that are encoded in one go: about a millisecond."""


@dataclass(frozen=True, slots=True)
class StreamedTensor:
    """A tensor's type, shape, and its bytes in C order, little-endian, cut anywhere."""

    dtype: str
    shape: tuple[int, ...]
    pieces: Iterable[bytes]

    def json_pieces(self) -> Iterator[bytes]:
        described = {"type": "tensor", "dtype": self.dtype, "shape": list(self.shape), "data": ""}
        yield _json(described).removesuffix(b'"}')
        yield from base64_pieces(self.pieces)
        yield b'"}'


@dataclass(frozen=True, slots=True)
class StreamedShard:
    """A `DumpedShard` whose bytes come in pieces."""

    shard_id: str
    tensor: StreamedTensor

    def json_pieces(self) -> Iterator[bytes]:
        yield b'{"shard_id":' + _json(self.shard_id) + b',"tensor":'
        yield from self.tensor.json_pieces()
        yield b"}"


@dataclass(frozen=True, slots=True)
class StreamedTurn:
    """A `DumpedTurn` by the names of its fields: short ones, those that are JSON already (in one line), tensors."""

    short: Mapping[str, Any]
    as_json: Mapping[str, bytes]
    tensors: Mapping[str, StreamedTensor]

    def json_pieces(self) -> Iterator[bytes]:
        yield _json(dict(self.short)).removesuffix(b"}")
        for name, value in self.as_json.items():
            yield b"," + _json(name) + b":"
            yield value
        for name, tensor in self.tensors.items():
            yield b"," + _json(name) + b":"
            yield from tensor.json_pieces()
        yield b"}"


def base64_pieces(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Base64 of bytes that come in pieces, as if they had come at once."""
    left = b""
    for piece in pieces:
        for start in range(0, len(piece), BASE64_AT_ONCE):
            left += piece[start : start + BASE64_AT_ONCE]
            whole = len(left) - len(left) % 3
            yield base64.b64encode(left[:whole])
            left = left[whole:]
    yield base64.b64encode(left)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
