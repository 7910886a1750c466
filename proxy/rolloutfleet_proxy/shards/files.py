"""The files of shards: written aside, made durable, and only then given the name that a row will hold.

Each file has a name of its own, never used again, so that putting, replacing and removing a shard can't meet in one
file. All of this blocks; it is for worker threads. What comes is one tensor, in safetensors' form
(`rolloutfleet.tensors`).
"""

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import Final

from rolloutfleet.tensors import LENGTH_BYTES, Form, write_header
from rolloutfleet_proxy.domain.errors import DiskFailed, DiskFull
from rolloutfleet_proxy.shards.header import Header, NotTensors, header_length, read_header

SUFFIX: Final = ".safetensors"
_UNFINISHED: Final = ".part"
PIECE: Final = 2**20
"""Bytes that are read at once."""

Made = tuple[str, Form, bytes | Iterable[bytes]]
"""A tensor to be kept: its name, its form, its bytes, whole or in pieces."""


@dataclass(frozen=True, slots=True)
class Body:
    """A safetensors file on its way out: its size, and what makes it, for worker threads."""

    size: int
    pieces: Iterator[bytes]


@dataclass(frozen=True, slots=True)
class Readable:
    """A tensor that can be read, in a worker thread, while it is gathered."""

    form: Form
    pieces: Callable[[], Iterator[bytes]]
    """Its bytes, from the beginning each time it is called. Raises OSError where somebody removed the file."""

    def read(self) -> bytes:
        """All of it at once."""
        return b"".join(self.pieces())


@dataclass(slots=True)
class Gathered:
    """What was found, by shard id."""

    tensors: dict[str, Readable] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    """No longer kept by their owner, or of no proxy of this fleet: never to be had again."""
    unreachable: list[str] = field(default_factory=list)
    """Their owner did not answer: another time it may."""


class ShardFiles:
    """The folder. What a process that died left unfinished is removed when it is opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # A disk without room for a folder still has shards to serve, if it ever had any.
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob(f"*{_UNFINISHED}"):
                left.unlink(missing_ok=True)

    def incoming(self, name: str) -> "Incoming":
        """A file for shard `name`, which is made when the first of it is written."""
        return Incoming(self, name, secrets.token_hex(16) + SUFFIX)

    def sync(self) -> None:
        """Make the names of files durable. Raises DiskError."""
        with disk_answers():
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def pieces(self, file: str, form: Form) -> Iterator[bytes]:
        """The bytes of a tensor, without its header. Raises OSError where the file is not there, or is too short."""
        with (self.folder / file).open("rb", buffering=0) as opened:
            left = form.nbytes
            opened.seek(-left, os.SEEK_END)
            while left:
                piece = opened.read(min(PIECE, left))
                if not piece:
                    raise OSError(errno.EIO, f"{file} ends {left} bytes too early")
                left -= len(piece)
                yield piece

    def remove(self, file: str) -> None:
        """Raises OSError, but not where it is gone already."""
        (self.folder / file).unlink(missing_ok=True)

    def is_there(self, file: str) -> bool:
        return (self.folder / file).is_file()

    def names(self) -> Iterator[str]:
        """Every finished file."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            yield from (entry.name for entry in entries if entry.name.endswith(SUFFIX))


class Incoming:
    """A tensor on its way to its file. Feed it in order, then `finish`; else `discard`, which is always safe."""

    def __init__(self, files: ShardFiles, name: str, file: str) -> None:
        self.name = name
        self.file = file
        self.form: Form | None = None
        """Known once the header has come."""
        self._files = files
        self._path = files.folder / (file + _UNFINISHED)
        self._opened: FileIO | None = None
        self._digest = blake2b(digest_size=16)
        self._opening = b""
        self._left = 0

    def complete(self) -> tuple[Form, bytes]:
        """What has come, and a digest of type, shape and bytes: equal for equal tensors, whatever they were named."""
        assert self.form is not None and not self._left
        return self.form, self._digest.digest()

    def feed(self, data: bytes) -> None:
        """Take the next bytes of a safetensors file. Raises NotTensors, DiskError."""
        if self.form is not None:
            self._write(data)
            return
        self._opening += data
        if len(self._opening) < LENGTH_BYTES:
            return
        end = LENGTH_BYTES + header_length(self._opening[:LENGTH_BYTES])
        if len(self._opening) >= end:
            opening, self._opening = self._opening, b""
            self.describe(_one_tensor(read_header(opening[LENGTH_BYTES:end])))
            self._write(opening[end:])

    def describe(self, form: Form) -> None:
        """Begin a tensor whose bytes alone will be fed. Raises DiskError."""
        self.form = form
        self._left = form.nbytes
        self._digest.update(repr((form.dtype, form.shape)).encode())
        with disk_answers():
            self._files.folder.mkdir(parents=True, exist_ok=True)
            self._opened = FileIO(self._path, "xb")
            _write_all(self._opened, write_header([(self.name, form)]))

    def finish(self) -> None:
        """Make the file durable under its name; the folder has to be synced after it.

        Raises NotTensors, DiskError.
        """
        if self._opened is None:
            raise NotTensors("it ends within its header")
        if self._left:
            raise NotTensors(f"it ends {self._left} bytes too early")
        with disk_answers():
            os.fsync(self._opened.fileno())
            self._opened.close()
            self._path.rename(self._files.folder / self.file)

    def discard(self) -> None:
        """Leave nothing behind, whether it was finished or not."""
        if self._opened is not None:
            self._opened.close()
        for path in (self._path, self._files.folder / self.file):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        if len(data) > self._left:
            raise NotTensors("there is more behind the tensor's bytes")
        assert self._opened is not None
        self._left -= len(data)
        self._digest.update(data)
        with disk_answers():
            _write_all(self._opened, data)


@contextlib.contextmanager
def disk_answers() -> Iterator[None]:
    """An OSError is DiskFull where the disk has no room, else DiskFailed."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"no room for a shard ({errno.errorcode[error.errno]})") from None
        raise DiskFailed(f"the disk refused a shard: {error}") from None


def _write_all(file: FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _one_tensor(header: Header) -> Form:
    """Type and shape of the one tensor that is described. Raises NotTensors."""
    if len(header.tensors) != 1:
        raise NotTensors(f"it holds {len(header.tensors)} tensors; a shard is one")
    [form] = header.tensors.values()
    return form
