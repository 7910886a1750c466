"""Dumps are read: part by part, each checked as it comes, the digest last.

A turn's line is read whole, a shard's in pieces, as that one may be larger than memory.
"""

import base64
import hashlib
import io
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from rolloutfleet.dumps.form import (
    DIGEST_MARK,
    END_MARK,
    FORMAT,
    FORMAT_VERSION,
    HEX_DIGITS,
    SHARDS_MARK,
    TAIL_MARK,
    TURNS_MARK,
    Damaged,
    Dump,
    DumpedShard,
    DumpedTurn,
    DumpEnd,
    DumpHead,
    DumpPart,
    IncomingShard,
    Json,
    Part,
)
from rolloutfleet.dumps.tensors import Tensor
from rolloutfleet.explain import what_is_wrong
from rolloutfleet.tensors import form_of

AnyPart = TypeVar("AnyPart", bound=BaseModel)

_DATA: Final = b'"data":"'
_DATA_END: Final = b'"}}'
_AT_ONCE: Final = 1 << 20
"""Bytes of a shard's line that are read at once."""
LONGEST_HEAD: Final = 256 << 10
"""Bytes of the first line. Metadata, the longest part of it, has up to 64 KiB."""
LONGEST_LINE: Final = 512 << 20
"""Bytes of any other that is read whole: a turn's messages are a request, of 64 MiB unless set otherwise."""
_SURROGATE: Final = re.compile(r"\\u[dD][89abAB]|\\u[dD][c-fC-F]")
_HELD_BACK: Final = 8
"""Of them as many stay for the next round as hold the end of the line, where that is cut in two."""


class _Described(DumpPart):
    shard_id: str
    tensor: Json


def read(file: BinaryIO) -> Iterator[Part]:
    """The parts of a dump: head, turns, shards, end. Each is checked as it comes, the digest last.

    Raises Damaged where something is not as it was written. Until the end has come, nothing is proven.
    """
    for part in read_streamed(file):
        if isinstance(part, IncomingShard):
            tensor = Tensor(dtype=part.dtype, shape=part.shape, data=b"".join(part.pieces))
            yield DumpedShard(shard_id=part.shard_id, tensor=tensor)
        else:
            yield part


def read_streamed(file: BinaryIO) -> Iterator[DumpHead | DumpedTurn | IncomingShard | DumpEnd]:
    """The same, its shards in pieces."""
    lines = _Lines(file)
    yield _head(lines.first())
    for line in lines.turns():
        yield _validated(DumpedTurn, _loads(line.removeprefix(b","), lines.count), lines.count)
    yield from _shards_and_end(lines)


def read_shards(file: BinaryIO) -> Iterator[IncomingShard | DumpEnd]:
    """The shards alone, in pieces, and the end. Turns are digested, and not looked into: that takes no time."""
    lines = _Lines(file)
    lines.first()
    for _ in lines.turns():
        pass
    yield from _shards_and_end(lines)


def read_head(file: BinaryIO) -> DumpHead:
    """What a dump says before its turns, from its first line alone. Raises Damaged."""
    return _head(_Lines(file).first())


def decode(content: bytes) -> Dump:
    """A whole dump. Raises Damaged."""
    return load(io.BytesIO(content))


def load(file: BinaryIO, *, shards: bool = True) -> Dump:
    """A whole dump from a file; one that is none is not read further than to where that shows. Raises Damaged.

    With `shards=False` its shards, which may be larger than memory, are checked and left out.
    """
    parts: Iterator[Part] = read(file)
    if not shards:
        parts = (part for part in read_streamed(file) if not isinstance(part, IncomingShard))
    head, *rest, end = parts
    assert isinstance(head, DumpHead) and isinstance(end, DumpEnd)
    return Dump(
        head,
        [part for part in rest if isinstance(part, DumpedTurn)],
        [part for part in rest if isinstance(part, DumpedShard)],
        end,
    )


def digest_of(file: BinaryIO) -> str:
    """The digest that stands at the end of a file, unchecked. Raises Damaged where there is none."""
    size = file.seek(0, io.SEEK_END)
    length = len(DIGEST_MARK) + HEX_DIGITS + len(TAIL_MARK)
    file.seek(max(0, size - length))
    return _digest_in(file.read())


def _shards_and_end(lines: "_Lines") -> Iterator[IncomingShard | DumpEnd]:
    start = lines.part()
    while not start.startswith(END_MARK):
        shard = _incoming(lines, start)
        yield shard
        for _ in shard.pieces:
            pass
        start = lines.part()
    yield lines.end(start)


def _incoming(lines: "_Lines", start: bytes) -> IncomingShard:
    """A shard whose line begins so. Within JSON text a quote is escaped, so the mark of the data is found for sure."""
    described, mark, data = start.removeprefix(b",").partition(_DATA)
    if not mark:
        raise Damaged(f"line {lines.count} is not a shard")
    found = _validated(_Described, _loads(described + _DATA + _DATA_END, lines.count), lines.count)
    try:
        form = form_of(found.tensor.get("dtype"), found.tensor.get("shape"))
    except ValueError as error:
        raise Damaged(f"line {lines.count}: {error}") from None
    return IncomingShard(found.shard_id, form.dtype, form.shape, _pieces_of(lines, data, form.nbytes))


def _pieces_of(lines: "_Lines", data: bytes, nbytes: int) -> Iterator[bytes]:
    left = nbytes
    while True:
        ended = data.endswith(b"\n")
        sure = max(0, len(data) - len(data) % 4 - _HELD_BACK)
        whole = data.removesuffix(_DATA_END + b"\n") if ended else data[:sure]
        piece = _from_base64(whole, lines.count)
        left -= len(piece)
        yield piece
        if ended:
            break
        data = data[len(whole) :] + lines.part(more=True)
    if left:
        raise Damaged(f"line {lines.count}: {nbytes - left} bytes of a shard, and {nbytes} are needed")


def _from_base64(text: bytes, number: int) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise Damaged(f"line {number} is not valid base64: {error}") from None


class _Lines:
    """The lines of a file, digested as they are read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.count = 0
        """Of lines read: the number of the last one."""

    def first(self) -> bytes:
        """What stands before the turns, as an object."""
        line = self._next(LONGEST_HEAD)
        if not line.endswith(TURNS_MARK):
            raise Damaged("its first line is not that of a dump")
        return line.removesuffix(TURNS_MARK) + b"}"

    def turns(self) -> Iterator[bytes]:
        while (line := self._next()) != SHARDS_MARK:
            yield line

    def part(self, *, more: bool = False) -> bytes:
        """The beginning of a line, or more of it, or the whole last line."""
        self.count += not more
        data = self._file.readline(_AT_ONCE)
        if not more and data.startswith(END_MARK):
            return data if data.endswith(b"\n") else self._rest([data], LONGEST_LINE)
        if not data or (len(data) < _AT_ONCE and not data.endswith(b"\n")):
            raise Damaged(f"it breaks off in line {self.count}")
        self._digest.update(data)
        return data

    def _next(self, longest: int = LONGEST_LINE) -> bytes:
        self.count += 1
        line = self._rest([], longest)
        if not line.endswith(b"\n"):
            raise Damaged(f"it breaks off in line {self.count}")
        self._digest.update(line)
        return line

    def _rest(self, pieces: list[bytes], longest: int) -> bytes:
        """The rest of a line, after the pieces that were read. What is not a line of a dump is not read whole."""
        length = sum(map(len, pieces))
        while piece := self._file.readline(_AT_ONCE):
            length += len(piece)
            if length > longest:
                raise Damaged(f"line {self.count} is longer than {longest} bytes")
            if b"\0" in piece:
                raise Damaged(f"line {self.count} is not JSON: it holds a zero byte")
            pieces.append(piece)
            if piece.endswith(b"\n"):
                break
        return b"".join(pieces)

    def end(self, line: bytes) -> DumpEnd:
        """What the last line says. Raises Damaged where it is not the last, or the digest is another."""
        if self._file.read(1):
            raise Damaged(f"something follows its end, line {self.count}")
        said, content = _digest_in(line), line[: -(len(DIGEST_MARK) + HEX_DIGITS + len(TAIL_MARK))]
        self._digest.update(content)
        if said != self._digest.hexdigest():
            raise Damaged("its digest is another: something in it was changed after it was written")
        incomplete = _loads(content.removeprefix(END_MARK), self.count)
        return _validated(DumpEnd, {"incomplete": incomplete, "digest": said}, self.count)


def _digest_in(ending: bytes) -> str:
    tail = ending[-(len(DIGEST_MARK) + HEX_DIGITS + len(TAIL_MARK)) :]
    if not tail.startswith(DIGEST_MARK) or not tail.endswith(TAIL_MARK):
        raise Damaged("it does not end with a digest")
    return tail[len(DIGEST_MARK) : -len(TAIL_MARK)].decode("ascii", "replace")


def _head(content: bytes) -> DumpHead:
    found = _loads(content, 1)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise Damaged("it is not a dump of RolloutFleet")
    if found.get("format_version") != FORMAT_VERSION:
        version = repr(found.get("format_version"))[:80]
        raise Damaged(f"its format_version is {version}, and this program knows {FORMAT_VERSION}")
    return _validated(DumpHead, found, 1)


def _loads(content: bytes, number: int) -> Any:
    try:
        # UTF-8 alone: given bytes, json.loads takes other encodings too, and halves of letters.
        text = content.decode()
        found = json.loads(text, parse_constant=_refuse_constant)
        if _SURROGATE.search(text):
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Damaged(f"line {number} is not JSON: it holds half a character, a lone surrogate") from None
    except UnicodeDecodeError:
        raise Damaged(f"line {number} is not JSON: it is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise Damaged(f"line {number} is not JSON: {error}") from None
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _validated(kind: type[AnyPart], value: Any, number: int) -> AnyPart:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise Damaged(f"line {number}{f', {where}' if where else ''}: {what_is_wrong(problem)}") from None
