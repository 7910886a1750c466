"""Writers of one file each: parquet, jsonl, safetensors, sft. Memory is bounded by what a part may hold.

Formats: https://parquet.apache.org/docs/file-format, https://jsonlines.org, https://huggingface.co/docs/safetensors.

In parquet and jsonl a record stands for one row of a trajectory, and needs no other. In sft a line is an example of
supervised fine-tuning.
"""

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from math import nan
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

import numpy as np
from safetensors.numpy import save_file

from rolloutfleet.explain import is_model
from rolloutfleet.fleet.trajectories import TYPES, Array, Trajectory
from rolloutfleet.formats import sft
from rolloutfleet.wire import EXPORT_METADATA_KEY, Export, ExportedRow, ExportedTrajectory, ExportedTurn, Included

Record = dict[str, Any]

TEXTS: Final = ("trajectory_id", "session_id", "group_id", "task_id", "metadata", "outcome", "outcome_reason", "marked")
NUMBERS: Final = ("run", "version", "oldest_version")
"""What each record of a trajectory says of it, under the names that it has there."""
INCLUDED: Final = get_args(Included)
"""Parts of its row's conversation in each record; null unless the export includes them."""


def records(trajectory: Trajectory) -> Iterator[Record]:
    """A record a row. `turns` are those on the row's path that are the trajectory's own, and `turn_ids` indexes them.

    The five tensors of a row are numpy arrays [tokens], of the types in `rolloutfleet.fleet.trajectories.TYPES`.
    """
    places = {turn.turn_id: place for place, turn in enumerate(trajectory.turns)}
    for index, row in enumerate(trajectory.rows):
        path = [places[name] for name in row.turn_ids if name in places]
        tensors = {name: np.asarray(row.tensors[name]) for name in TYPES}
        tensors["turn_ids"] = _indexed(tensors["turn_ids"], path, turns=len(places))
        yield {
            **{name: getattr(trajectory, name) for name in (*TEXTS, *NUMBERS)},
            "row": index,
            "reward": row.reward,
            **tensors,
            "messages": row.messages,
            "tools": row.tools,
            "turns": [trajectory.turns[place].model_dump() for place in path],
        }


def _indexed(turn_ids: "np.ndarray[Any, Any]", path: list[int], *, turns: int) -> "np.ndarray[Any, Any]":
    """Indices into the trajectory's turns as indices into the path; -1 stays."""
    # The last entry is where -1 points.
    new = np.full(turns + 1, -1, dtype=np.int32)
    new[path] = np.arange(len(path), dtype=np.int32)
    indexed: np.ndarray[Any, Any] = new[turn_ids]
    return indexed


ROW_GROUP_BYTES: Final = 8 * 2**20
"""Of a parquet file; what is buffered before it is compressed and written."""
RECORD_BYTES: Final = 512
"""Counted for what a record holds beside tensors and messages."""
HEADER_BYTES: Final = 99_000_000
"""Bytes of a safetensors header for trajectories: readers accept 100 MB, and the tensors are named there, too."""
PYARROW_MISSING: Final = "writing parquet takes pyarrow: pip install pyarrow"


class FileForm(StrEnum):
    PARQUET = "parquet"
    JSONL = "jsonl"
    SAFETENSORS = "safetensors"
    SFT = "sft"

    @property
    def ending(self) -> str:
        """Of a part's name."""
        return "sft.jsonl" if self is FileForm.SFT else self.value


class MissingLibrary(Exception):
    """A form needs a library that is not installed or can't be used; the message says what to do."""


class PartFull(Exception):
    """A trajectory has no room in this part; in an empty one, in none of its form. The message says what to do then."""


class PartWriter(ABC):
    """Writes one file."""

    written = 0
    """Bytes so far, before any compression."""
    _out: Any

    @abstractmethod
    def add(self, trajectory: Trajectory) -> None:
        """Raises PartFull, and then the part is as it was; OSError."""

    def close(self) -> None:
        """All of it is in the file, though perhaps not yet on disk."""
        self._out.close()

    def abandon(self) -> None:
        """The file is of no use; nothing of it stays open. Never raises."""
        with contextlib.suppress(OSError):
            self._out.close()


def check_form(form: FileForm) -> None:
    """Raises MissingLibrary before anything is asked of a fleet."""
    if form is FileForm.PARQUET:
        load_pyarrow()


def part_writer(form: FileForm, file: Path) -> PartWriter:
    """Raises MissingLibrary, OSError."""
    made: Mapping[FileForm, Callable[[Path], PartWriter]] = {
        FileForm.PARQUET: ParquetWriter,
        FileForm.JSONL: JsonlWriter,
        FileForm.SAFETENSORS: SafetensorsWriter,
        FileForm.SFT: SftWriter,
    }
    return made[form](file)


class JsonlWriter(PartWriter):
    """A line of JSON a row."""

    def __init__(self, file: Path) -> None:
        self._out = file.open("wb")

    def add(self, trajectory: Trajectory) -> None:
        for record in self.lines(trajectory):
            line = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            self.written += self._out.write(line.encode() + b"\n")

    def lines(self, trajectory: Trajectory) -> Iterator[Record]:
        for record in records(trajectory):
            yield {name: value.tolist() if name in TYPES else value for name, value in record.items()}


class SftWriter(JsonlWriter):
    """A line of JSON for each row that trains something: an example, as `rolloutfleet.formats.sft.rows` makes it."""

    def lines(self, trajectory: Trajectory) -> Iterator[Record]:
        yield from sft.rows([trajectory])


class ParquetWriter(PartWriter):
    """A record a row, in row groups of some megabytes. `metadata`, `messages`, `tools`, each turn's `message` and the
    `chat_template_kwargs` of its `sampling` are JSON text."""

    def __init__(self, file: Path) -> None:
        self._arrow = load_pyarrow()
        self._schema = _schema(self._arrow)
        self._out = self._arrow.parquet.ParquetWriter(str(file), self._schema, compression="zstd")
        self._waiting: list[Record] = []
        self._waiting_bytes = 0

    def add(self, trajectory: Trajectory) -> None:
        for record in records(trajectory):
            included = {name: _text(record[name]) for name in INCLUDED if record[name] is not None}
            flat = record | included | {"metadata": _text(record["metadata"])}
            flat["turns"] = [_flat_turn(turn) for turn in record["turns"]]
            self._waiting.append(flat)
            amount = sum(record[name].nbytes for name in TYPES) + RECORD_BYTES + len(flat["metadata"])
            amount += sum(len(turn["message"]) for turn in flat["turns"]) + sum(map(len, included.values()))
            self.written += amount
            self._waiting_bytes += amount
            if self._waiting_bytes >= ROW_GROUP_BYTES:
                self._write_group()

    def close(self) -> None:
        if self._waiting:
            self._write_group()
        super().close()

    def _write_group(self) -> None:
        columns = [self._column(field) for field in self._schema]
        self._out.write_table(self._arrow.Table.from_arrays(columns, schema=self._schema))
        self._waiting, self._waiting_bytes = [], 0

    def _column(self, field: Any) -> Any:
        values = [record[field.name] for record in self._waiting]
        if field.name not in TYPES:
            return self._arrow.array(values, type=field.type)
        ends = np.cumsum([0, *(len(value) for value in values)], dtype=np.int32)
        return self._arrow.ListArray.from_arrays(ends, np.concatenate(values), type=field.type)


class SafetensorsWriter(PartWriter):
    """The form of `POST /export`: flat tensors with `cu_seqlens`, and the rest as JSON in the header.

    A safetensors file is written whole, so a part waits in memory: as bytes, which are counted, not as objects.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tensors = {name: bytearray() for name in TYPES}
        self._ends = [0]
        self._rewards: list[float | None] = []
        self._turn_rewards: list[float | None] = []
        self._described: list[str] = []
        self._header_bytes = 0
        self._run = self._version = 0

    def add(self, trajectory: Trajectory) -> None:
        described = _described(trajectory)
        # Metadata is a JSON string: JSON within JSON.
        header_bytes = self._header_bytes + len(json.dumps(described, ensure_ascii=False).encode())
        if header_bytes > HEADER_BYTES:
            raise PartFull(
                f"the messages of trajectory {trajectory.trajectory_id} don't fit in a safetensors header (100 MB); "
                "write parquet or jsonl, or leave out --include"
            )
        self._header_bytes = header_bytes
        turns_before = len(self._turn_rewards)
        for row in trajectory.rows:
            for name, kind in TYPES.items():
                array = np.ascontiguousarray(row.tensors[name], dtype=kind)
                if name == "turn_ids":
                    array = np.where(array < 0, array, array + turns_before).astype(kind)
                self._tensors[name] += array.data
                self.written += array.nbytes
            self._ends.append(self._ends[-1] + row.tokens)
            self._rewards.append(row.reward)
        self._turn_rewards += [turn.reward for turn in trajectory.turns]
        self._described.append(described)
        self.written += len(described) + RECORD_BYTES
        self._run, self._version = max(self._run, trajectory.run), max(self._version, trajectory.version)

    def close(self) -> None:
        tensors = {name: np.frombuffer(self._tensors[name], dtype=kind) for name, kind in TYPES.items()}
        tensors["rewards"], tensors["rewarded"] = _rewards(self._rewards, nothing=nan)
        tensors["turn_rewards"], tensors["turn_rewarded"] = _rewards(self._turn_rewards, nothing=0.0)
        tensors["cu_seqlens"] = np.array(self._ends, dtype=np.int64)
        save_file(tensors, self._file, metadata={EXPORT_METADATA_KEY: self._header()})

    def abandon(self) -> None:
        self._tensors.clear()
        self._described.clear()

    def _header(self) -> str:
        """`Export` as JSON: its trajectories are there already, each as JSON."""
        run, version = self._run, self._version
        export = Export(lease_id=None, expires_in=None, run=run, version=version, sessions=[], trajectories=[])
        but_for_them = export.model_dump_json(exclude={"trajectories"})
        return f'{but_for_them.removesuffix("}")},"trajectories":[{",".join(self._described)}]}}'


def _rewards(given: Sequence[float | None], *, nothing: float) -> tuple[Array, Array]:
    """As float32, with what stands where there is none; and where there is one."""
    numbers = np.array([nothing if reward is None else reward for reward in given], dtype=np.float32)
    return numbers, np.array([reward is not None for reward in given], dtype=np.uint8)


def _described(trajectory: Trajectory) -> str:
    """All but its tensors, as JSON."""
    rows = [
        ExportedRow(turn_ids=list(row.turn_ids), reward=row.reward, messages=row.messages, tools=row.tools)
        for row in trajectory.rows
    ]
    said = {name: getattr(trajectory, name) for name in ExportedTrajectory.model_fields}
    return ExportedTrajectory.model_validate(said | {"rows": rows}).model_dump_json()


def _flat_turn(turn: Record) -> Record:
    sampling = turn["sampling"]
    if sampling is not None and sampling["chat_template_kwargs"] is not None:
        sampling = sampling | {"chat_template_kwargs": _text(sampling["chat_template_kwargs"])}
    return turn | {"message": _text(turn["message"]), "sampling": sampling}


def _schema(arrow: Any) -> Any:
    text, whole, real = arrow.string(), arrow.int64(), arrow.float64()
    named = [(name, text) for name in TEXTS]
    counted = [(name, whole) for name in (*NUMBERS, "row")]
    tensors = [(name, arrow.list_(arrow.from_numpy_dtype(kind))) for name, kind in TYPES.items()]
    included = [(name, text) for name in INCLUDED]
    return arrow.schema(
        [*named, *counted, ("reward", real), *tensors, *included, ("turns", _type_of(arrow, list[ExportedTurn]))]
    )


def _type_of(arrow: Any, kind: Any) -> Any:
    """The type of values of such a field of a model. Mappings are JSON text."""
    if is_model(kind):
        return arrow.struct([(name, _type_of(arrow, field.annotation)) for name, field in kind.model_fields.items()])
    inner = [each for each in get_args(kind) if each is not NoneType]
    if get_origin(kind) in (Union, UnionType):
        return _type_of(arrow, inner[0])
    if get_origin(kind) is list:
        return arrow.list_(_type_of(arrow, inner[0]))
    return {bool: arrow.bool_(), int: arrow.int64(), float: arrow.float64()}.get(kind, arrow.string())


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def load_pyarrow() -> Any:
    """The library, with its module for parquet. Raises MissingLibrary."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingLibrary(PYARROW_MISSING) from error
    except ImportError as error:
        # As of a pyarrow that takes a newer numpy.
        raise MissingLibrary(f"writing parquet takes pyarrow, and what is installed can't be used: {error}") from error
    return pyarrow
