"""What a dump holds, and how it is written and read: one JSON object, in lines that can be taken one by one.

The first line holds all but turns and shards; each turn and each shard has a line of its own, and the last line ends
with the digest. So neither writer nor reader ever needs more than one turn in memory, and any JSON reader takes the
whole. The digest is SHA-256 over every byte before `,"digest":`.

`StreamedTurn` and `StreamedShard` are for a writer that must not hold the interpreter, or have them whole in memory,
while it writes them. What they hold is JSON already, or bytes that become base64 a slice at a time. What is read back
of them is the same as of `DumpedTurn` and `DumpedShard`.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict

from rolloutfleet.dumps.tensors import Tensor
from rolloutfleet.wire import LineageKind, Outcome

FORMAT: Final = "rolloutfleet-dump"
FORMAT_VERSION: Final = 1

KEPT: Final = "kept"
"""The reason of a copy of a session whose turns have been trained: it is there to be looked at, and never imported."""

TURNS_MARK: Final = b',"turns":[\n'
SHARDS_MARK: Final = b'],"shards":[\n'
END_MARK: Final = b'],"incomplete":'
DIGEST_MARK: Final = b',"digest":"sha256:'
TAIL_MARK: Final = b'"}\n'
HEX_DIGITS: Final = 64
BASE64_AT_ONCE: Final = 1 << 20
"""Bytes that are encoded in one go: about a millisecond."""

Whole = Annotated[int, Field(ge=0, le=2**63 - 1)]
Number = Annotated[int, Field(ge=1, le=2**63 - 1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
LineageId = Annotated[str, Field(pattern=r"^[ -~]{1,128}$")]
Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$")]
Json = dict[str, Any]


class Damaged(Exception):
    """The file is not a whole dump; the message says what is wrong with it."""


class DumpPart(BaseModel):
    # What a later program of this version adds is let pass.
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class DumpedSession(DumpPart):
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
    await_reward: Finite | None = None
    """Seconds that its trajectories wait for a reward."""
    sampling: Json | None = None
    """Its `defaults` and `overrides` of sampling parameters."""
    outcome: Outcome | None = None
    """None in files of earlier versions, and of sessions that ended under one."""
    outcome_reason: str | None = None
    episode_turns: list[Number] | None = None
    """Numbers of turns whose reward is the whole episode's; None in files of earlier versions."""


class DumpedTrajectory(DumpPart):
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


class DumpHead(DumpPart):
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
    """None: the turns were still open, or those of a whole session are here (`is_kept`)."""
    damaged: list[Number] = []
    """Numbers of turns that it would hold, had its proxy's disk not damaged them, or what they extend."""

    @property
    def is_kept(self) -> bool:
        """Whether it is a copy of a whole session, whose turns have been trained."""
        return self.reason == KEPT


class Matching(DumpPart):
    """How a turn's request is told from others. Digests are in hex."""

    start: Whole
    """How many messages its parent covers."""
    length: Whole
    """How many it covers itself, its output included."""
    history: Digest
    request: Digest
    reasonings: list[Annotated[tuple[int, str], Strict(False)]]
    """(message index, digest) of each reasoning that its request added."""
    rules: str = "1"
    """Which rules made the digests; a store in which others are in force makes them anew."""
    call_ids: list[str | None] = []
    """Of the tool calls that its own messages make, its output's included."""


class DumpedReason(DumpPart):
    """Why a turn starts a branch."""

    message: Whole | None
    """Index of the message that differs; None for what is not a message's."""
    field: str


class DumpedLineage(DumpPart):
    """Which line of work of its agent run a turn is of."""

    id: LineageId | None
    kind: LineageKind
    parent: LineageId | None


class DumpedTurn(DumpPart):
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
    branch_reason: DumpedReason | None = None
    lineage: DumpedLineage | None = None
    """None of turns of earlier versions: the main loop's."""
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
    annotations: dict[str, Tensor] = {}
    """What a trainer said of it, by series: float32, one for each output token."""
    note: str | None = None


class DumpedShard(DumpPart):
    """A tensor that the session kept with a proxy, by the id that it is fetched by."""

    shard_id: str
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class IncomingShard:
    """A shard as it is read, so that it is never whole in memory."""

    shard_id: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Iterator[bytes]
    """Its bytes; what has not been taken when the next part is asked for is passed over. Raises Damaged."""


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
class StreamedTensors:
    """Tensors by name."""

    tensors: Mapping[str, StreamedTensor]

    def json_pieces(self) -> Iterator[bytes]:
        yield b"{"
        for place, (name, tensor) in enumerate(self.tensors.items()):
            yield (b"," if place else b"") + _json(name) + b":"
            yield from tensor.json_pieces()
        yield b"}"


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
    tensors: Mapping[str, StreamedTensor | StreamedTensors]

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


class DumpEnd(DumpPart):
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
    yield DIGEST_MARK + digest.hexdigest().encode() + TAIL_MARK


def _pieces(
    head: DumpHead,
    turns: Iterable[DumpedTurn | StreamedTurn],
    shards: Iterable[DumpedShard | StreamedShard],
    incomplete: Iterable[str],
) -> Iterator[bytes]:
    yield _json(head.model_dump())[:-1] + TURNS_MARK
    yield from _lines(turns)
    yield SHARDS_MARK
    yield from _lines(shards)
    yield END_MARK + _json(list(incomplete))


def _lines(parts: Iterable[DumpedTurn | StreamedTurn | DumpedShard | StreamedShard]) -> Iterator[bytes]:
    """One a line; the comma stands before all but the first, as the last one is not known for one."""
    for place, part in enumerate(parts):
        before = b"," if place else b""
        match part:
            case DumpedTurn() | DumpedShard():
                yield before + _json(part.model_dump()) + b"\n"
            case _:
                yield before
                yield from part.json_pieces()
                yield b"\n"


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
