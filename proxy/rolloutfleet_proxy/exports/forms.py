"""The two forms of an export, JSON and safetensors, made piece by piece.

Exports are large: a lease of 64 trajectories of 30,000 tokens is 40 MB of tensors. So neither form is ever whole in
memory; both are plain generators for a worker thread, and no piece of their work holds the interpreter for long.
The safetensors layout (an 8-byte header length, a JSON header, then every tensor's bytes, flat) is that of
https://huggingface.co/docs/safetensors, which bounds the header at 100 MB.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import nan
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from rolloutfleet.tensors import LENGTH_BYTES, Form, RemoteTensor, describe
from rolloutfleet.wire import EXPORT_METADATA_KEY, JSON_MEDIA_TYPE, AskExport, ExportStyle, Included, LineageKind
from rolloutfleet_proxy.domain.errors import InvalidRequest
from rolloutfleet_proxy.domain.trajectory import ExportTurn
from rolloutfleet_proxy.domain.turn import shown_facts
from rolloutfleet_proxy.exports.conversations import (
    INCLUDED_LIMIT,
    included_pieces,
    included_size,
)
from rolloutfleet_proxy.exports.rows import (
    TENSORS,
    Row,
    credited,
    input_ids,
    of_trained,
    path,
    return_of,
    rows,
    untrained,
)
from rolloutfleet_proxy.shards.files import Body
from rolloutfleet_proxy.store.exports import (
    LeasedTrajectory,
    load_ids,
    load_logprobs,
    load_messages,
    load_trajectory,
    load_versions,
)
from rolloutfleet_proxy.store.leases import Grant, Member
from rolloutfleet_proxy.store.store import Connection, Read


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A trajectory about to be exported, without its tokens and messages."""

    trajectory: LeasedTrajectory
    trained: bool
    """False where none of its tokens are, for how its session ended."""
    style: ExportStyle
    context: frozenset[LineageKind]
    """The kinds of lineages whose turns are not trained."""
    turns: dict[int, ExportTurn]
    """Its own turns, and all that they extend."""
    rows: list[Row]
    include: list[Included]
    first_index: int
    """The place of its first turn among the export's."""

    @property
    def member(self) -> Member:
        return self.trajectory.member

    @property
    def kept(self) -> list[int]:
        """Numbers of its own turns in order of commit, orphans left out."""
        return self.trajectory.kept

    @property
    def tokens(self) -> int:
        """Of all rows."""
        return sum(self.turns[row.last].tokens for row in self.rows)


def load_plan(connection: Connection, member: Member, asked: AskExport, *, first_index: int) -> Plan:
    """Raises ExportGone."""
    found = load_trajectory(connection, member)
    turns = _covered(found.turns, found.kept)
    style, discount = asked.style, asked.discount
    made = rows(turns, found.kept, style=style, discount=discount, context=asked.context)
    if asked.credit == "session" and (episode := found.episode) is not None:
        made = credited(made, return_of(found.turns, episode.kept, episode.number, style=style, discount=discount))
    trained = found.outcome is None or found.outcome in asked.train or found.rewarded
    if not trained:
        made = untrained(made)
    return Plan(
        trajectory=found,
        trained=trained,
        style=style,
        context=asked.context,
        turns=turns,
        rows=made,
        include=asked.include,
        first_index=first_index,
    )


def _covered(turns: Mapping[int, ExportTurn], kept: Sequence[int]) -> dict[int, ExportTurn]:
    """The kept turns and all that they extend, in order of commit."""
    ends = set(kept) - {turns[number].parent for number in kept}
    covered = set(chain.from_iterable(path(turns, number) for number in ends))
    return {number: turn for number, turn in turns.items() if number in covered}


HEADER_LIMIT: Final = 100_000_000
_NO_HEADER: Final = (
    "The messages of this export don't fit in a safetensors header (100 MB). Nothing is leased: "
    f"ask for fewer trajectories, or for {JSON_MEDIA_TYPE}."
)
"""Bytes of a header that readers of safetensors accept."""
_ELEMENTS: Final = 16_384
"""Numbers written as JSON at once: about a millisecond."""

_encode = msgspec.json.Encoder().encode

References = Callable[[Plan, Row], Mapping[str, RemoteTensor]]
"""What refers to each of a row's tensors."""
TensorsAsJson = Callable[[Row], Iterator[bytes]]
"""Makes what stands for a row's tensors in JSON."""


class TooLarge(InvalidRequest):
    """An export that one answer can't hold. What it has leased is to be given back."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="max_trajectories")


def check_included(read: Read[Any], granted: Grant) -> None:
    """Raises TooLarge where one answer can't hold what rows are to have; ExportGone."""
    size = 0
    for plan in _plans(read, granted):
        size += included_size(read, plan.member, (path(plan.turns, row.last) for row in plan.rows))
        if size > INCLUDED_LIMIT:
            raise TooLarge(
                f"This export would include more than {INCLUDED_LIMIT >> 20} MiB of messages and tools. Nothing is "
                "leased: ask for fewer trajectories or sessions, or without include."
            )


def json_pieces(
    read: Read[Any], granted: Grant, head: dict[str, Any], *, references: References | None = None
) -> Iterator[bytes]:
    """The JSON form. `head` holds what comes before the trajectories. Raises ExportGone.

    With `references` tensors are not in it, but what refers to them.
    """
    tensors = partial(_in_full, read) if references is None else partial(_referred, references)
    return _json(read, _plans(read, granted), head, tensors)


def safetensors(read: Read[Any], granted: Grant, head: dict[str, Any]) -> Body:
    """The safetensors form: reads what the header needs at once, and the tensors as they are asked for.

    Raises ExportGone, TooLarge.
    """
    plans: list[Plan] = []
    described: list[bytes] = []
    size = 0
    for piece in _json(read, _collected(_plans(read, granted), plans), head, None):
        # Metadata is a JSON string: JSON within JSON.
        escaped = _encode(piece.decode())[1:-1]
        size += len(escaped)
        if size > HEADER_LIMIT:  # Refused early, before it fills memory.
            raise TooLarge(_NO_HEADER)
        described.append(escaped)
    layout, tensor_bytes = _layout(plans)
    opening = b'{"__metadata__":{"' + EXPORT_METADATA_KEY.encode() + b'":"'
    closing = b'"},' + layout[1:]
    padding = -(len(opening) + size + len(closing)) % LENGTH_BYTES
    header_size = len(opening) + size + len(closing) + padding
    if header_size > HEADER_LIMIT:
        raise TooLarge(_NO_HEADER)
    header = [header_size.to_bytes(LENGTH_BYTES, "little"), opening, *described, closing + b" " * padding]
    return Body(LENGTH_BYTES + header_size + tensor_bytes, chain(header, _tensor_pieces(read, plans)))


def _plans(read: Read[Any], granted: Grant) -> Iterator[Plan]:
    first_index = 0
    for member in granted.members:
        plan = read(partial(load_plan, member=member, asked=granted.asked, first_index=first_index))
        first_index += len(plan.kept)
        yield plan


def _collected(plans: Iterable[Plan], into: list[Plan]) -> Iterator[Plan]:
    """The same plans; each is appended to the list once it is read."""
    for plan in plans:
        into.append(plan)
        yield plan


def _json(
    read: Read[Any], plans: Iterable[Plan], head: dict[str, Any], tensors: Callable[[Plan], TensorsAsJson] | None
) -> Iterator[bytes]:
    yield _encode(head)[:-1] + b',"trajectories":['
    for place, plan in enumerate(plans):
        if place:
            yield b","
        messages = read(partial(load_messages, member=plan.member, numbers=plan.kept))
        yield from _trajectory(read, plan, messages, None if tensors is None else tensors(plan))
    yield b"]}"


def _trajectory(
    read: Read[Any], plan: Plan, messages: dict[int, bytes], tensors: TensorsAsJson | None
) -> Iterator[bytes]:
    trajectory = plan.trajectory
    head = {
        "trajectory_id": plan.member.trajectory_id,
        "session_id": plan.member.session_name,
        "group_id": trajectory.group_id,
        "task_id": trajectory.task_id,
        "metadata": msgspec.Raw(b"{}" if trajectory.metadata is None else trajectory.metadata.encode()),
        "outcome": trajectory.outcome,
        "outcome_reason": trajectory.outcome_reason,
        "marked": trajectory.marked,
        "oldest_version": trajectory.oldest_version,
    }
    yield _encode(head)[:-1] + b',"turns":['
    for place, number in enumerate(plan.kept):
        yield (b"," if place else b"") + _turn(plan, number, messages[number])
    yield b'],"rows":['
    for place, row in enumerate(plan.rows):
        turn_ids = [plan.turns[number].name for number in row.own]
        described = _encode({"turn_ids": turn_ids, "reward": row.reward})
        yield (b"," if place else b"") + described[:-1]
        yield from included_pieces(read, plan.member, path(plan.turns, row.last), plan.include)
        if tensors is not None:
            yield b',"tensors":'
            yield from tensors(row)
        yield b"}"
    yield b"]}"


def _turn(plan: Plan, number: int, message: bytes) -> bytes:
    turn = plan.turns[number]
    return _encode(
        {
            "turn_id": turn.name,
            "parent_id": None if turn.parent is None else plan.turns[turn.parent].name,
            "reward": turn.reward,
            "finish_reason": turn.finish_reason,
            "mixed_cache": turn.mixed_cache,
            **shown_facts(turn.extras, turn.branch_reason, turn.lineage),
            "message": msgspec.Raw(message),
        }
    )


def _json_tensors(tensors: Iterator[tuple[str, Any]]) -> Iterator[bytes]:
    before = b"{"
    for name, tensor in tensors:
        yield before + _encode(name) + b":["
        for at in range(0, len(tensor), _ELEMENTS):
            numbers = _encode(tensor[at : at + _ELEMENTS].tolist())[1:-1]
            yield b"," + numbers if at else numbers
        yield b"]"
        before = b","
    yield b"}"


def _in_full(read: Read[Any], plan: Plan) -> TensorsAsJson:
    values = {name: values_of(read, plan, name) for name in TENSORS}
    return lambda row: _json_tensors((name, tensor_of(plan, row, name, values[name])) for name in TENSORS)


def _referred(references: References, plan: Plan) -> TensorsAsJson:
    def as_json(row: Row) -> Iterator[bytes]:
        yield _encode({name: reference.as_json() for name, reference in references(plan, row).items()})

    return as_json


def values_of(read: Read[Any], plan: Plan, name: str) -> dict[int, Any]:
    """What a tensor is made of, by turn."""
    match name:
        case "input_ids":
            return read(partial(load_ids, member=plan.member, numbers=plan.turns))  # type: ignore[no-any-return]
        case "logprobs":
            return read(partial(load_logprobs, member=plan.member, numbers=plan.kept))  # type: ignore[no-any-return]
        case "versions":
            return read(partial(load_versions, member=plan.member, numbers=plan.kept))  # type: ignore[no-any-return]
        case "turn_ids":
            return {number: plan.first_index + place for place, number in enumerate(plan.kept)}
        case _:
            return dict.fromkeys(plan.kept, 1)


def tensor_of(plan: Plan, row: Row, name: str, values: dict[int, Any]) -> Any:
    """One of a row's tensors, of the values of its turns."""
    return input_ids(plan.turns, row, values) if name == "input_ids" else of_trained(name, plan.turns, row, values)


def _layout(plans: list[Plan]) -> tuple[bytes, int]:
    """(the header's entries as a JSON object, bytes of all tensors)."""
    tokens = sum(plan.tokens for plan in plans)
    lengths = {name: tokens if name in TENSORS else len(_flat(name, plans)) for name, _ in _ORDER}
    entries, size = describe((name, Form(np.dtype(dtype).name, (lengths[name],))) for name, dtype in _ORDER)
    return _encode(entries), size


def _tensor_pieces(read: Read[Any], plans: list[Plan]) -> Iterator[bytes]:
    for name, _ in _ORDER:
        if name in TENSORS:
            for plan in plans:
                values = values_of(read, plan, name)
                for row in plan.rows:
                    yield tensor_of(plan, row, name, values).tobytes()
        else:
            yield _flat(name, plans).tobytes()


def _ends(plans: list[Plan]) -> Iterable[int]:
    end = 0
    yield end
    for plan in plans:
        for row in plan.rows:
            end += plan.turns[row.last].tokens
            yield end


def _rewards(plans: list[Plan]) -> Iterable[float | None]:
    return (row.reward for plan in plans for row in plan.rows)


def _turn_rewards(plans: list[Plan]) -> Iterable[float | None]:
    return (plan.turns[number].reward for plan in plans for number in plan.kept)


_FLAT: Final[Mapping[str, tuple[type[np.generic], Callable[[list[Plan]], Iterable[Any]]]]] = {
    "cu_seqlens": (np.int64, _ends),
    "rewards": (np.float32, lambda plans: (nan if reward is None else reward for reward in _rewards(plans))),
    "rewarded": (np.uint8, lambda plans: (reward is not None for reward in _rewards(plans))),
    "turn_rewards": (np.float32, lambda plans: (reward or 0.0 for reward in _turn_rewards(plans))),
    "turn_rewarded": (np.uint8, lambda plans: (reward is not None for reward in _turn_rewards(plans))),
}
"""The tensors of the whole export, beside those of its rows."""

_ORDER: Final = sorted(
    [*TENSORS.items(), *((name, dtype) for name, (dtype, _) in _FLAT.items())],
    key=lambda tensor: -np.dtype(tensor[1]).itemsize,
)
"""(name, dtype) of every tensor, as they lie in the file: wide elements first, so that all are aligned."""


def _flat(name: str, plans: list[Plan]) -> npt.NDArray[np.generic]:
    dtype, values = _FLAT[name]
    return np.array(list(values(plans)), dtype)
