"""What an import takes out of a dump file: a look at all of it, its turns as rows, its shards.

Reading is JSON, and JSON holds the interpreter: a line of 40 MB half a second, in whatever thread. So a file with a
long line is read in a process of its own (promise 8), `python -m rolloutfleet_proxy.lifecycle.contents KIND FILE
ARGUMENT FD`. Over this descriptor, a connection of `multiprocessing`, it sends values as msgpack; behind an empty one
comes what is wrong with the file, if anything is. Such files are rare, and the process lives for one pass over one of
them.
"""

import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from rolloutfleet.dumps.checks import inspect
from rolloutfleet.dumps.files import open_dump
from rolloutfleet.dumps.form import Damaged, DumpedTurn, DumpEnd, IncomingShard
from rolloutfleet.dumps.reading import read_shards, read_streamed
from rolloutfleet_proxy.domain.ledger import LIVE
from rolloutfleet_proxy.domain.lineage import parse_lineage
from rolloutfleet_proxy.domain.matching import Matching, parse_branch_reason
from rolloutfleet_proxy.domain.trajectory import VOID
from rolloutfleet_proxy.domain.turn import Extras, spans
from rolloutfleet_proxy.store.imports import TurnRow

T = TypeVar("T")

LONG_LINE: Final = 2 << 20
"""Bytes of a line that are read without a process: some 30 ms."""
_BATCH: Final = 1 << 20
"""Bytes of turns that are written in one transaction, about: so long do other writes wait."""
_CHUNK: Final = 1 << 20

_encode = msgspec.json.Encoder().encode

_AS_IS: Final = (
    *("context", "number", "parent", "trajectory", "delivered", "mixed_cache", "run", "prompt_tokens", "reward"),
    *("created_at", "finish_reason"),
)
_AS_JSON: Final = ("output", "messages", "tools", "extras")
"""Columns of a turn's row that hold what the dumped turn's field of that name does, and in which form."""


class Looked(msgspec.Struct, frozen=True):
    """What a whole look at a dump found."""

    problems: list[str]
    """Empty where nothing is wrong."""
    head: str = ""
    """JSON of its DumpHead."""
    digest: str = ""
    incomplete: list[str] = []
    shards: int = 0


def look(file: Path, name: str) -> Looked:
    """Read all of a dump and check it. For a worker thread; raises OSError, and Damaged where it is no file."""
    (found,) = _values("look", Looked, file, name)
    return found


def turns(file: Path, digest: str) -> Generator[list[TurnRow]]:
    """The turns of a dump, some at a time, for a worker thread. Raises Damaged where its digest is another, OSError."""
    return _values("turns", list[TurnRow], file, digest)


def shards(file: Path, digest: str) -> Generator[IncomingShard]:
    """The shards of a dump, in pieces, as `turns` has them. They are no JSON, so no process is needed."""
    with open_dump(file) as opened:
        for part in read_shards(opened):
            if isinstance(part, IncomingShard):
                yield part
            else:
                _check_same(part, digest)


def turn_row(turn: DumpedTurn) -> TurnRow:
    """What stands in the store of a turn, bit for bit as it stood there before.

    Raises Damaged for extras that could not be read there: an export that meets them would fail, and with it whatever
    else it holds.
    """
    matching = turn.matching
    columns: dict[str, Any] = {name: getattr(turn, name) for name in _AS_IS}
    columns |= {name: None if (value := getattr(turn, name)) is None else _encode(value) for name in _AS_JSON}
    try:
        Extras.decode(columns["extras"])
    except msgspec.ValidationError as error:
        raise Damaged(f"the extras of {turn.turn_id[:80]} are none of a turn: {error}") from None
    return TurnRow(
        **columns,
        name=turn.turn_id,
        state=VOID if turn.discarded else LIVE,
        start=matching.start,
        length=matching.length,
        history=bytes.fromhex(matching.history),
        request=bytes.fromhex(matching.request),
        matching=Matching(
            rules=matching.rules,
            reasonings=tuple((index, bytes.fromhex(digest)) for index, digest in matching.reasonings),
            call_ids=tuple(matching.call_ids),
            branch_reason=parse_branch_reason(None if turn.branch_reason is None else turn.branch_reason.model_dump()),
            lineage=parse_lineage(None if turn.lineage is None else turn.lineage.model_dump()),
        ).encode(),
        versions=_encode(spans(turn.versions.numpy().tolist())),
        prompt_ids=turn.new_prompt_ids.data,
        output_ids=turn.output_ids.data,
        logprobs=turn.logprobs.data,
        annotations={name: tensor.data for name, tensor in turn.annotations.items()},
        note=turn.note,
    )


def _look(file: BinaryIO, name: str) -> Iterator[Looked]:
    found = inspect(file, name=name)
    if found.problems or found.head is None or found.end is None:
        yield Looked(found.problems)
    else:
        yield Looked([], found.head.model_dump_json(), found.end.digest, found.end.incomplete, found.shards)


def _turns(file: BinaryIO, digest: str) -> Iterator[list[TurnRow]]:
    batch: list[TurnRow] = []
    started = 0
    for part in read_streamed(file):
        if isinstance(part, DumpEnd):
            _check_same(part, digest)
        if isinstance(part, DumpedTurn):
            batch.append(turn_row(part))
            if file.tell() - started >= _BATCH:
                yield batch
                batch, started = [], file.tell()
    if batch:
        yield batch


def _check_same(end: DumpEnd, digest: str) -> None:
    if end.digest != digest:
        raise Damaged("it was replaced while it was imported")


_KINDS: Final[dict[str, Callable[[BinaryIO, str], Iterator[Any]]]] = {
    "look": _look,
    "turns": _turns,
}


def _values(kind: str, of: type[T], file: Path, argument: str) -> Generator[T]:
    if _has_long_line(file):
        yield from _from_process(kind, of, file, argument)
        return
    with open_dump(file) as opened:
        yield from _KINDS[kind](opened, argument)


def _has_long_line(file: Path) -> bool:
    length = 0
    with open_dump(file) as opened:
        while chunk := opened.read(_CHUNK):
            first, last = chunk.find(b"\n"), chunk.rfind(b"\n")
            length += len(chunk) if first < 0 else first
            if length > LONG_LINE:
                return True
            # Within one chunk no line is long.
            length = length if first < 0 else len(chunk) - last - 1
    return False


def _from_process(kind: str, of: type[T], file: Path, argument: str) -> Iterator[T]:
    decoder = msgspec.msgpack.Decoder(of)
    ours, theirs = Pipe(duplex=False)
    command = [sys.executable, "-m", __name__, kind, str(file), argument, str(theirs.fileno())]
    with ours, theirs, subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        try:
            while content := ours.recv_bytes():
                yield decoder.decode(content)
            damage = ours.recv_bytes()
        except (EOFError, OSError):
            raise OSError("the process that reads the dump has died") from None
        finally:
            process.kill()
    if damage:
        raise Damaged(damage.decode())


def main() -> None:
    """The process's work."""
    kind, file, argument, descriptor = sys.argv[1:]
    parent = Connection(int(descriptor), readable=False)
    damage = ""
    try:
        with open_dump(Path(file)) as opened:
            for value in _KINDS[kind](opened, argument):
                parent.send_bytes(msgspec.msgpack.encode(value))
    except Damaged as error:
        damage = str(error)
    parent.send_bytes(b"")
    parent.send_bytes(damage.encode())


if __name__ == "__main__":
    main()
