"""What a dump holds, and how it is written and read: one JSON object, in lines that can be taken one by one.

The first line holds all but turns and shards; each turn and each shard has a line of its own, and the last line ends
with the digest. So neither writer nor reader ever needs more than one turn in memory, and any JSON reader takes the
whole. The digest is SHA-256 over every byte before `,"digest":`.
"""

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError

from rolloutfleet.dumps.streamed import StreamedShard, StreamedTurn
from rolloutfleet.dumps.tensors import Tensor

FORMAT: Final = "rolloutfleet-dump"
FORMAT_VERSION: Final = 1

_TURNS: Final = b',"turns":[\n'
_SHARDS: Final = b'],"shards":[\n'
_END: Final = b'],"incomplete":'
_DIGEST: Final = b',"digest":"sha256:'
_TAIL: Final = b'"}\n'
_HEX: Final = 64

Whole = Annotated[int, Field(ge=0, le=2**63 - 1)]
Number = Annotated[int, Field(ge=1, le=2**63 - 1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$")]
Json = dict[str, Any]
AnyPart = TypeVar("AnyPart", bound=BaseModel)


class Damaged(Exception):
    """The file is no whole dump; the message says what is wrong with it."""


class _Part(BaseModel):
    # What a later program of this version adds is let pass.
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class DumpedSession(_Part):
    """The session that the turns are of. Its key is nowhere."""

    session_id: str
    group_id: str
    task_id: str | None
    metadata: Json | None
    limits: dict[str, int]
    agent_may: list[str]
    stale_after: Finite | None
    created_at: Finite
    """Seconds since the epoch."""
    place: Whole
    """In the order in which its store's sessions were started."""
    turns: Whole
    """Committed in all: the number of its newest turn."""
    tokens: Whole
    """New prompt tokens and output tokens of all turns."""
    trajectories: Whole
    """Closed in all: the number of its newest trajectory."""


class DumpedTrajectory(_Part):
    """A closed trajectory."""

    trajectory_id: str
    number: Number
    closed_by: str
    """`reward` or `close`."""
    reward_turn: Number | None
    """Number of the turn that the closing reward was given to."""
    closed_at: Finite
    frozen: bool
    """It has been leased before, so its rewards don't change any more."""
    marked: str | None
    """What a recovery marked it with."""


class DumpHead(_Part):
    """All that a dump says before its turns."""

    format: Literal["rolloutfleet-dump"] = FORMAT
    format_version: int = FORMAT_VERSION
    reason: str
    """Why the session was dumped."""
    dumped_at: Finite
    ordinal: Whole
    store_id: str
    """The proxy and the store that wrote it."""
    session: DumpedSession
    trajectory: DumpedTrajectory | None
    """None: the turns were still open."""


class Matching(_Part):
    """How a turn's request is told from others. Digests are in hex."""

    start: Whole
    """How many messages its parent covers."""
    length: Whole
    """How many it covers itself, its output included."""
    history: Digest
    request: Digest
    reasonings: list[Annotated[tuple[int, str], Strict(False)]]
    """(message index, digest) of each reasoning that its request added."""


class DumpedTurn(_Part):
    """One model call. Its whole prompt is its parent's prompt and output, and then `new_prompt_ids`."""

    turn_id: str
    number: Number
    parent: Number | None
    """Number of the turn that it extends."""
    context: bool
    """True: it is of an earlier trajectory, and here only because turns of this dump extend it."""
    discarded: bool
    trajectory: Number | None
    """Number of its trajectory; None where it was still open."""
    run: Whole
    finish_reason: str
    reward: Finite | None
    """As it was given: raw."""
    mixed_cache: bool
    delivered: bool
    created_at: Finite
    prompt_tokens: Whole
    """Of the whole prompt."""
    matching: Matching
    messages: list[Json]
    """Those that its request added to what the parent covers."""
    tools: Json | None
    output: Json
    extras: Json | None
    new_prompt_ids: Tensor
    output_ids: Tensor
    logprobs: Tensor
    versions: Tensor
    """One of each for each output token."""


class DumpedShard(_Part):
    """A tensor that the session kept with a proxy, by the id that it is fetched by."""

    shard_id: str
    tensor: Tensor


class DumpEnd(_Part):
    """What a dump says behind its turns and shards."""

    incomplete: list[str]
    """Ids of shards that could not be brought in."""
    digest: str
    """SHA-256 of what stands before it, in hex."""


@dataclass(frozen=True, slots=True)
class Dump:
    """A whole dump in memory."""

    head: DumpHead
    turns: list[DumpedTurn]
    """In order of commit."""
    shards: list[DumpedShard]
    end: DumpEnd


Part = DumpHead | DumpedTurn | DumpedShard | DumpEnd


def encode(
    head: DumpHead,
    turns: Iterable[DumpedTurn | StreamedTurn],
    shards: Iterable[DumpedShard | StreamedShard] = (),
    *,
    incomplete: Sequence[str] | Iterable[str] = (),
) -> Iterator[bytes]:
    """The file in pieces: a turn or a shard each, or a part of one that is streamed.

    `incomplete` is looked at when all shards have been taken.
    """
    digest = hashlib.sha256()
    for piece in _pieces(head, turns, shards, incomplete):
        digest.update(piece)
        yield piece
    yield _DIGEST + digest.hexdigest().encode() + _TAIL


def read(file: BinaryIO) -> Iterator[Part]:
    """The parts of a dump: head, turns, shards, end. Each is checked as it comes, the digest last.

    Raises Damaged where something is not as it was written. Until the end has come, nothing is proven.
    """
    digest = hashlib.sha256()
    lines = _Lines(file, digest)
    head = lines.next()
    if not head.endswith(_TURNS):
        raise Damaged("its first line is not that of a dump")
    yield _head(head.removesuffix(_TURNS) + b"}")
    line = lines.next()
    while line != _SHARDS:
        yield _part(DumpedTurn, line, lines.count)
        line = lines.next()
    line = lines.next()
    while not line.startswith(_END):
        yield _part(DumpedShard, line, lines.count)
        line = lines.next()
    yield lines.end(line)


def read_head(file: BinaryIO) -> DumpHead:
    """What a dump says before its turns, from its first line alone. Raises Damaged."""
    head = next(read(file))
    assert isinstance(head, DumpHead)
    return head


def decode(content: bytes) -> Dump:
    """A whole dump. Raises Damaged."""
    head, *rest = read(io.BytesIO(content))
    assert isinstance(head, DumpHead)
    end = rest.pop()
    assert isinstance(end, DumpEnd)
    return Dump(
        head,
        [part for part in rest if isinstance(part, DumpedTurn)],
        [part for part in rest if isinstance(part, DumpedShard)],
        end,
    )


def digest_of(file: BinaryIO) -> str:
    """The digest that stands at the end of a file, unchecked. Raises Damaged where there is none."""
    size = file.seek(0, io.SEEK_END)
    length = len(_DIGEST) + _HEX + len(_TAIL)
    file.seek(max(0, size - length))
    return _digest_in(file.read())


def _pieces(
    head: DumpHead,
    turns: Iterable[DumpedTurn | StreamedTurn],
    shards: Iterable[DumpedShard | StreamedShard],
    incomplete: Iterable[str],
) -> Iterator[bytes]:
    yield _json(head.model_dump())[:-1] + _TURNS
    yield from _lines(turns)
    yield _SHARDS
    yield from _lines(shards)
    yield _END + _json(list(incomplete))


def _lines(parts: Iterable[DumpedTurn | StreamedTurn | DumpedShard | StreamedShard]) -> Iterator[bytes]:
    """One a line; the comma stands before all but the first, as the last one is not known for one."""
    for place, part in enumerate(parts):
        before = b"," if place else b""
        match part:
            case DumpedTurn():
                yield before + _json(_turn(part)) + b"\n"
            case DumpedShard():
                yield before + _json({"shard_id": part.shard_id, "tensor": part.tensor.as_json()}) + b"\n"
            case _:
                yield before
                yield from part.json_pieces()
                yield b"\n"


def _turn(turn: DumpedTurn) -> Json:
    return {name: value.as_json() if isinstance(value, Tensor) else _plain(value) for name, value in turn}


def _plain(value: Any) -> Any:
    return value.model_dump() if isinstance(value, BaseModel) else value


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


class _Lines:
    """The lines of a file, digested as they are read."""

    def __init__(self, file: BinaryIO, digest: "hashlib._Hash") -> None:
        self._file = file
        self._digest = digest
        self.count = 0
        """Of lines read: the number of the last one."""

    def next(self) -> bytes:
        line = self._file.readline()
        self.count += 1
        if not line.endswith(b"\n"):
            raise Damaged(f"it breaks off in line {self.count}")
        if not line.startswith(_END):
            self._digest.update(line)
        return line

    def end(self, line: bytes) -> DumpEnd:
        """What the last line says. Raises Damaged where it is not the last, or the digest is another."""
        if self._file.read(1):
            raise Damaged(f"something follows its end, line {self.count}")
        said, content = _digest_in(line), line[: -(len(_DIGEST) + _HEX + len(_TAIL))]
        self._digest.update(content)
        if said != self._digest.hexdigest():
            raise Damaged("its digest is another: something in it was changed after it was written")
        incomplete = _loads(content.removeprefix(_END), self.count)
        return _validated(DumpEnd, {"incomplete": incomplete, "digest": said}, self.count)


def _digest_in(ending: bytes) -> str:
    start, hexadecimal = -(len(_DIGEST) + _HEX + len(_TAIL)), ending[-(_HEX + len(_TAIL)) : -len(_TAIL)]
    if ending[start : start + len(_DIGEST)] != _DIGEST or not ending.endswith(_TAIL):
        raise Damaged("it does not end with a digest")
    return hexadecimal.decode("ascii", "replace")


def _head(content: bytes) -> DumpHead:
    found = _loads(content, 1)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise Damaged("it is no dump of RolloutFleet")
    if found.get("format_version") != FORMAT_VERSION:
        raise Damaged(f"its format_version is {found.get('format_version')!r}, and this program knows {FORMAT_VERSION}")
    return _validated(DumpHead, found, 1)


def _part(kind: type[AnyPart], line: bytes, number: int) -> AnyPart:
    return _validated(kind, _loads(line.removeprefix(b","), number), number)


def _loads(content: bytes, number: int) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"line {number} is no JSON: {error}") from None


def _validated(kind: type[AnyPart], value: Any, number: int) -> AnyPart:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise Damaged(f"line {number}{f', {where}' if where else ''}: {problem['msg']}") from None
