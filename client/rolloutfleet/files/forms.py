"""Writers of one file each: parquet, jsonl, safetensors. Memory is bounded by what a part may hold.

Formats: https://parquet.apache.org/docs/file-format, https://jsonlines.org, https://huggingface.co/docs/safetensors.
"""

import contextlib
import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from safetensors.numpy import save_file

from rolloutfleet.files.records import Record, records
from rolloutfleet.fleet.trajectories import TYPES, Trajectory
from rolloutfleet.wire import EXPORT_METADATA_KEY, Export, ExportedRow, ExportedTrajectory

ROW_GROUP_BYTES: Final = 8 * 2**20
"""Of a parquet file; what is buffered before it is compressed and written."""
RECORD_BYTES: Final = 512
"""Counted for what a record holds beside tensors and messages."""
PYARROW_MISSING: Final = "writing parquet takes pyarrow: pip install 'rolloutfleet[parquet]'"


class FileForm(StrEnum):
    PARQUET = "parquet"
    JSONL = "jsonl"
    SAFETENSORS = "safetensors"


class MissingLibrary(Exception):
    """A form needs a library that is not installed; the message says how to get it."""


class PartWriter(Protocol):
    """Writes one file."""

    written: int
    """Bytes so far, before any compression."""

    def add(self, trajectory: Trajectory) -> None: ...

    def close(self) -> None:
        """All of it is in the file, though perhaps not yet on disk."""

    def abandon(self) -> None:
        """The file is of no use; nothing of it stays open. Never raises."""


def check_form(form: FileForm) -> None:
    """Raises MissingLibrary before anything is asked of a fleet."""
    if form is FileForm.PARQUET:
        _pyarrow()


def part_writer(form: FileForm, file: Path) -> PartWriter:
    """Raises MissingLibrary, OSError."""
    made: Mapping[FileForm, Callable[[Path], PartWriter]] = {
        FileForm.PARQUET: ParquetWriter,
        FileForm.JSONL: JsonlWriter,
        FileForm.SAFETENSORS: SafetensorsWriter,
    }
    return made[form](file)


class JsonlWriter:
    """A line of JSON a row."""

    def __init__(self, file: Path) -> None:
        self.written = 0
        self._out = file.open("wb")

    def add(self, trajectory: Trajectory) -> None:
        for record in records(trajectory):
            listed = {name: value.tolist() if name in TYPES else value for name, value in record.items()}
            line = json.dumps(listed, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            self.written += self._out.write(line.encode() + b"\n")

    def close(self) -> None:
        self._out.close()

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self._out.close()


class ParquetWriter:
    """A record a row, in row groups of some megabytes. `metadata` and each turn's `message` are JSON text."""

    def __init__(self, file: Path) -> None:
        pyarrow, parquet = _pyarrow()
        self.written = 0
        self._arrow = pyarrow
        self._schema = _schema(pyarrow)
        self._out = parquet.ParquetWriter(str(file), self._schema, compression="zstd")
        self._waiting: list[Record] = []
        self._waiting_bytes = 0

    def add(self, trajectory: Trajectory) -> None:
        for record in records(trajectory):
            flat = record | {"metadata": _text(record["metadata"])}
            flat["turns"] = [turn | {"message": _text(turn["message"])} for turn in record["turns"]]
            self._waiting.append(flat)
            amount = sum(record[name].nbytes for name in TYPES) + RECORD_BYTES + len(flat["metadata"])
            amount += sum(len(turn["message"]) for turn in flat["turns"])
            self.written += amount
            self._waiting_bytes += amount
            if self._waiting_bytes >= ROW_GROUP_BYTES:
                self._write_group()

    def close(self) -> None:
        if self._waiting:
            self._write_group()
        self._out.close()

    def abandon(self) -> None:
        with contextlib.suppress(OSError):
            self._out.close()

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


class SafetensorsWriter:
    """The form of `POST /export`: flat tensors with `cu_seqlens`, and the rest as JSON in the header."""

    def __init__(self, file: Path) -> None:
        self.written = 0
        self._file = file
        self._trajectories: list[Trajectory] = []

    def add(self, trajectory: Trajectory) -> None:
        self._trajectories.append(trajectory)
        arrays = (np.asarray(row.tensors[name]) for row in trajectory.rows for name in TYPES)
        self.written += RECORD_BYTES + sum(array.nbytes for array in arrays)
        self.written += sum(len(_text(turn.message)) for turn in trajectory.turns)

    def close(self) -> None:
        given = self._trajectories
        rows = [row for trajectory in given for row in trajectory.rows]
        turns = [turn for trajectory in given for turn in trajectory.turns]
        tensors = {
            name: np.concatenate([np.asarray(row.tensors[name]) for row in rows])
            for name in TYPES
            if name != "turn_ids"
        }
        tensors["turn_ids"] = _counted_over_all(given)
        tensors["rewards"] = np.array([row.reward or 0.0 for row in rows], dtype=np.float32)
        tensors["turn_rewards"] = np.array([turn.reward or 0.0 for turn in turns], dtype=np.float32)
        tensors["turn_rewarded"] = np.array([turn.reward is not None for turn in turns], dtype=np.uint8)
        tensors["cu_seqlens"] = np.cumsum([0, *(row.tokens for row in rows)], dtype=np.int64)
        save_file(tensors, self._file, metadata={EXPORT_METADATA_KEY: _described(given)})

    def abandon(self) -> None:
        self._trajectories.clear()


def _counted_over_all(trajectories: list[Trajectory]) -> "np.ndarray[Any, Any]":
    found, before = [], 0
    for trajectory in trajectories:
        for row in trajectory.rows:
            ids = np.asarray(row.tensors["turn_ids"])
            found.append(np.where(ids < 0, ids, ids + before).astype(np.int32))
        before += len(trajectory.turns)
    return np.concatenate(found)


def _described(trajectories: list[Trajectory]) -> str:
    export = Export(
        ordinals=[],
        failed=[],
        lease_id=None,
        expires_in=None,
        run=max(each.run for each in trajectories),
        version=max(each.version for each in trajectories),
        sessions=[],
        trajectories=[
            ExportedTrajectory(
                trajectory_id=each.trajectory_id,
                session_id=each.session_id,
                group_id=each.group_id,
                task_id=each.task_id,
                metadata=each.metadata,
                marked=each.marked,
                oldest_version=each.oldest_version,
                turns=list(each.turns),
                rows=[ExportedRow(turn_ids=list(row.turn_ids), reward=row.reward) for row in each.rows],
            )
            for each in trajectories
        ],
    )
    return export.model_dump_json()


def _schema(arrow: Any) -> Any:
    text, whole, real = arrow.string(), arrow.int64(), arrow.float64()
    turn = arrow.struct(
        [
            ("turn_id", text),
            ("parent_id", text),
            ("reward", real),
            ("finish_reason", text),
            ("mixed_cache", arrow.bool_()),
            ("message", text),
        ]
    )
    named = [(name, text) for name in ("trajectory_id", "session_id", "group_id", "task_id", "metadata", "marked")]
    counted = [(name, whole) for name in ("run", "version", "oldest_version", "row")]
    tensors = [(name, arrow.list_(arrow.from_numpy_dtype(kind))) for name, kind in TYPES.items()]
    return arrow.schema([*named, *counted, ("reward", real), *tensors, ("turns", arrow.list_(turn))])


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingLibrary(PYARROW_MISSING) from error
    return pyarrow, pyarrow.parquet
