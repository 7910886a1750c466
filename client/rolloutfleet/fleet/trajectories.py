"""What an export brings, as a trainer holds it: trajectories of rows, with numpy arrays or references to shards.

The forms on the wire are in docs/export.md: JSON, or safetensors with the same object in the header.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import fsum
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from rolloutfleet.fleet.exceptions import FleetError
from rolloutfleet.tensors import RemoteTensor, read_metadata
from rolloutfleet.wire import EXPORT_METADATA_KEY, TENSORS_MEDIA_TYPE, Export, ExportedRow, ExportedTurn, Outcome

Array = NDArray[Any]

TYPES: Final[Mapping[str, type[np.generic]]] = {
    "input_ids": np.int64,
    "loss_mask": np.uint8,
    "logprobs": np.float32,
    "versions": np.int32,
    "turn_ids": np.int32,
}
"""The tensors of a row; each has one entry a token."""


def sum_given(rewards: Iterable[float | None]) -> float | None:
    """The sum of the rewards that were given; None where none was."""
    given = [reward for reward in rewards if reward is not None]
    return fsum(given) if given else None


def session_of(trajectory_id: str) -> str:
    """The session that its name says."""
    return trajectory_id.rpartition("-trajectory-")[0]


class Leased(Protocol):
    """A trajectory by name, and the lease that it is held under."""

    @property
    def trajectory_id(self) -> str: ...

    @property
    def lease_id(self) -> str: ...


@dataclass(frozen=True, slots=True)
class LeasedName:
    """A trajectory by name alone, under the lease that it came with."""

    trajectory_id: str
    lease_id: str


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence, from the first prompt to the end of its last turn."""

    turn_ids: tuple[str, ...]
    """Turns on its path, the earliest first."""
    reward: float | None
    """Its return, discounted; None where no turn of it was rewarded."""
    tensors: Mapping[str, Array | RemoteTensor]
    """`input_ids` int64, `loss_mask` uint8 (1 on what is trained here), `logprobs` float32 (0 where the mask is 0),
    `versions` int32 and `turn_ids` int32 (-1 where the mask is 0), all [tokens]. `turn_ids` index into `turns` of the
    row's own trajectory. Exported as shards, references to them."""
    messages: list[dict[str, Any]] | None = None
    """Those of its conversation, in OpenAI's form, its last answer included; None unless the export includes them."""
    tools: list[Any] | None = None
    """Those that its requests declared, [] where none; None unless the export includes them."""
    turns: tuple[ExportedTurn, ...] = field(default=(), repr=False)
    """All of its trajectory's, into which the tensor `turn_ids` indexes."""

    @property
    def tokens(self) -> int:
        """Its length, prompts and context included."""
        ids = self.tensors["input_ids"]
        return int(ids.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A closed piece of a session, leased. It can be pickled, and acknowledged by any `Fleet` of any process."""

    trajectory_id: str
    session_id: str
    group_id: str
    task_id: str | None
    metadata: dict[str, Any]
    """The session's."""
    marked: str | None
    """After a recovery: `newer` or `older_run` where it has tokens of weights that no longer are."""
    turns: tuple[ExportedTurn, ...]
    rows: tuple[Row, ...]
    run: int
    version: int
    """The fleet's run and version at the moment of the export."""
    lease_id: str
    outcome: Outcome | None = None
    """The end of its session: completed, truncated, failed or aborted; None while that is open."""
    outcome_reason: str | None = None
    oldest_version: int | None = None
    """The smallest version of its turns' tokens, of those that are context too; None where there is none."""

    @property
    def reward(self) -> float | None:
        """The sum of its turns' rewards as they were given; None where none was."""
        return sum_given(turn.reward for turn in self.turns)

    @property
    def tokens(self) -> int:
        """The tokens of all its rows."""
        return sum(row.tokens for row in self.rows)


@dataclass(frozen=True, slots=True)
class Page:
    """What one call brought."""

    answer: Export
    """Its `lease_id` is None where nothing was there to lease."""
    trajectories: tuple[Trajectory, ...]


def read_export(content: bytes, *, media_type: str) -> Page:
    """An export's answer. Raises FleetError where it is none."""
    try:
        if media_type.partition(";")[0].strip() == TENSORS_MEDIA_TYPE:
            return _from_safetensors(content)
        export = Export.model_validate_json(content)
        return Page(export, tuple(_trajectories(export, _from_lists)))
    except (ValueError, LookupError, TypeError, SafetensorError) as error:
        raise FleetError(f"this is not an export ({type(error).__name__})") from error


Tensors = Mapping[str, Array | RemoteTensor]


def _trajectories(export: Export, tensors_of: Callable[[ExportedRow], Tensors]) -> Iterator[Trajectory]:
    turns_before = 0
    for found in export.trajectories:
        turns = tuple(found.turns)
        rows = tuple(_row(row, _own_turns(tensors_of(row), turns_before), turns) for row in found.rows)
        turns_before += len(turns)
        of_the_export = {"run": export.run, "version": export.version, "lease_id": str(export.lease_id)}
        yield Trajectory(**dict(found) | {"turns": turns, "rows": rows} | of_the_export)


def _from_safetensors(content: bytes) -> Page:
    export = Export.model_validate_json(read_metadata(content)[EXPORT_METADATA_KEY])
    flat = load(content)
    places = pairwise(flat["cu_seqlens"].tolist())

    def cut_out(_: ExportedRow) -> Tensors:
        begin, end = next(places)
        # Copied, so that a row that is kept does not keep the whole answer.
        return {name: flat[name][begin:end].copy() for name in TYPES}

    return Page(export, tuple(_trajectories(export, cut_out)))


def _from_lists(row: ExportedRow) -> Tensors:
    given = row.tensors or {}
    if all(isinstance(value, dict) for value in given.values()):
        return {name: RemoteTensor.from_json(given[name]) for name in given}
    return {name: np.array(given[name], dtype=kind) for name, kind in TYPES.items()}


def _row(said: ExportedRow, tensors: Tensors, turns: tuple[ExportedTurn, ...]) -> Row:
    return Row(tuple(said.turn_ids), said.reward, tensors, said.messages, said.tools, turns)


def _own_turns(tensors: Tensors, turns_before: int) -> Tensors:
    """The wire counts turns over the whole export; a row says which of its own trajectory's."""
    ids = tensors.get("turn_ids")
    if not isinstance(ids, np.ndarray):
        return tensors
    return {**tensors, "turn_ids": np.where(ids < 0, ids, ids - turns_before).astype(ids.dtype)}
