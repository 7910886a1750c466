"""Is a dump whole, and does it say of each turn what training needs? `verify` finds all that does not hold."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np

from rolloutfleet.dumps.files import DumpName, kept_name, parse_dump_name
from rolloutfleet.dumps.form import Damaged, DumpedTurn, DumpEnd, DumpHead, IncomingShard
from rolloutfleet.dumps.reading import read_streamed
from rolloutfleet.dumps.tensors import Tensor
from rolloutfleet.wire import NOTE_BYTES, SERIES_A_TURN, SERIES_NAME

SAID_AT_MOST = 20
"""Problems of one file: a broken writer would make thousands."""
SAID_LENGTH = 500
"""Characters of each: it may hold what stands in the file."""

_TOKENS = {"new_prompt_ids": "int32", "output_ids": "int32", "logprobs": "float32", "versions": "int32"}


@dataclass(slots=True)
class Inspected:
    """What a look at a dump found."""

    head: DumpHead | None = None
    end: DumpEnd | None = None
    """Each is None where the file is damaged before it."""
    turns: int = 0
    """Of its own, without those that are context."""
    tokens: int = 0
    """Sampled, in those turns."""
    shards: int = 0
    problems: list[str] = field(default_factory=list)
    """What is wrong with it, a sentence each; missing shards are in `end`."""

    @property
    def all_problems(self) -> list[str]:
        """Those, and the shards that are missing."""
        missing = self.end.incomplete if self.end is not None else []
        return [*self.problems, *([f"it is incomplete: shards are missing: {', '.join(missing)}"] if missing else [])]


def inspect(file: BinaryIO, *, name: str | None = None) -> Inspected:
    """Read a dump, a turn at a time, and hold all of it against what it has to be. `name` is the file's.

    The digest, the form of every part, the lengths of ids, log-probabilities and versions, that all numbers are
    finite, that every prompt stands on its parent's tokens, and that names agree.
    """
    found = Inspected()
    try:
        for problem in _problems(file, name, found):
            found.problems.append(problem[:SAID_LENGTH])
            if len(found.problems) == SAID_AT_MOST:
                found.problems.append("and more")
                break
    except Damaged as error:
        found.problems.append(str(error)[:SAID_LENGTH])
    return found


def verify(file: BinaryIO, *, name: str | None = None) -> list[str]:
    """What is wrong with a dump, a sentence each; empty where nothing is. Shards that are missing are said too."""
    return inspect(file, name=name).all_problems


def _problems(file: BinaryIO, name: str | None, found: Inspected) -> Iterator[str]:
    checked: _Checked | None = None
    for part in read_streamed(file):
        match part:
            case DumpHead():
                found.head, checked = part, _Checked(part)
                yield from _names(part, name)
            case DumpedTurn() if checked is not None:
                found.turns += not part.context
                found.tokens += 0 if part.context else math.prod(part.output_ids.shape)
                yield from checked.turn(part)
            case IncomingShard():
                found.shards += 1
            case DumpEnd() if checked is not None:
                found.end = part
                yield from checked.end()


def _names(head: DumpHead, name: str | None) -> Iterator[str]:
    trajectory = head.trajectory
    said = DumpName(head.session.session_id, None if trajectory is None else trajectory.number)
    if parse_dump_name(str(said)) != said:
        yield f"session_id {head.session.session_id!r} is not a valid session id"
    elif name is not None and name != (own := kept_name(said.session_id) if head.is_kept else str(said)):
        yield f"by what it holds its name is {own}, not {name}"
    if trajectory is not None and trajectory.trajectory_id != str(said).removesuffix(".json"):
        yield f"trajectory_id {trajectory.trajectory_id!r} is not {str(said).removesuffix('.json')}"


class _Checked:
    """What later parts of a dump are held against."""

    def __init__(self, head: DumpHead) -> None:
        self._head = head
        self._number = None if head.trajectory is None else head.trajectory.number
        self._tokens: dict[int, int] = {}
        """Of each turn's prompt and output."""
        self._newest = 0
        self._own: set[int] = set()

    def turn(self, turn: DumpedTurn) -> Iterator[str]:
        said = f"turn {turn.number} ({turn.turn_id})"
        yield from (f"{said}: {problem}" for problem in self._of_turn(turn))
        self._newest = turn.number
        self._tokens[turn.number] = turn.prompt_tokens + math.prod(turn.output_ids.shape)
        if not turn.context:
            self._own.add(turn.number)

    def end(self) -> Iterator[str]:
        if not self._own:
            yield "no turn in it is of its trajectory"
        if self._head.session.turns < self._newest:
            yield f"the session has {self._head.session.turns} turns, and one here has the number {self._newest}"

    def _of_turn(self, turn: DumpedTurn) -> Iterator[str]:
        if turn.number <= self._newest:
            yield f"its number is not above {self._newest}, of the turn before it"
        if not turn.context and turn.trajectory != self._number and not self._head.is_kept:
            yield f"it is of trajectory {turn.trajectory}, not of {self._number}"
        if not turn.context and turn.discarded:
            yield "it was discarded, and is not marked as context"
        yield from _of_tensors(turn)
        yield from _of_annotations(turn)
        yield from self._of_prompt(turn)

    def _of_prompt(self, turn: DumpedTurn) -> Iterator[str]:
        """Ids are kept behind the parent's, so a prompt extends its parent's where the lengths add up."""
        behind = 0 if turn.parent is None else self._tokens.get(turn.parent)
        new = math.prod(turn.new_prompt_ids.shape)
        if behind is None:
            yield f"its parent, turn {turn.parent}, is not in the dump before it"
        elif behind + new != turn.prompt_tokens:
            whose = "no parent" if turn.parent is None else f"{behind} tokens of turn {turn.parent}"
            yield f"its prompt has {turn.prompt_tokens} tokens, and {whose} and {new} new ones make {behind + new}"


def _of_tensors(turn: DumpedTurn) -> Iterator[str]:
    tensors: dict[str, Tensor] = {name: getattr(turn, name) for name in _TOKENS}
    for name, tensor in tensors.items():
        if tensor.dtype != _TOKENS[name] or len(tensor.shape) != 1:
            yield f"{name} has the shape {list(tensor.shape)} of {tensor.dtype}; it is a list of {_TOKENS[name]}"
            return
    lengths = {name: tensors[name].shape[0] for name in ("output_ids", "logprobs", "versions")}
    if len(set(lengths.values())) > 1:
        yield "lengths differ: " + ", ".join(f"{length} {name}" for name, length in lengths.items())
    if not np.isfinite(tensors["logprobs"].numpy()).all():
        yield "a log-probability is not finite"
    for name in ("new_prompt_ids", "output_ids"):
        if (tensors[name].numpy() < 0).any():
            yield f"{name} has an id below 0"


def _of_annotations(turn: DumpedTurn) -> Iterator[str]:
    if len(turn.annotations) > SERIES_A_TURN:
        yield f"it has {len(turn.annotations)} annotations; a turn has at most {SERIES_A_TURN}"
    if turn.note is not None and len(turn.note.encode()) > NOTE_BYTES:
        yield f"its note has more than {NOTE_BYTES} bytes"
    for name, tensor in turn.annotations.items():
        if not SERIES_NAME.fullmatch(name):
            yield f"{name[:80]!r} is not a valid name of an annotation"
        if tensor.dtype != "float32" or tensor.shape != turn.output_ids.shape:
            yield f"annotation {name[:80]!r} is not one float32 for each output token"
        elif np.isinf(tensor.numpy()).any():
            yield f"annotation {name[:80]!r} has an infinity"
