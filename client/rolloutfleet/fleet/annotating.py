"""What a trainer computed for the rows of an export, split by turn and written as a fleet takes it. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from rolloutfleet.fleet.exceptions import BadArgument
from rolloutfleet.fleet.trajectories import Array, Row, Trajectory
from rolloutfleet.tensors import Form, write_header
from rolloutfleet.wire import ANNOTATIONS_BYTES, NOTES, SERIES_NAME

_MOST_HEADER: Final = 1 << 19
"""Bytes of a call's header, about; a proxy takes twice as many."""
_ENTRY: Final = 128
"""Bytes of a header that a tensor or a note takes besides its name or text, at the most."""

Part = tuple[str, Array | str]
"""(`TURN_ID/SERIES`, its numbers), or (TURN_ID, its note)."""


def bodies(
    trajectory: Trajectory, series: Mapping[str, Any], *, row: int | None, notes: Mapping[str, str]
) -> Iterator[bytes]:
    """The bodies of the calls that bring all of it, each as large as one may be. Raises BadArgument."""
    parts: list[Part] = [
        *(found for name, values in series.items() for found in _split(trajectory, name, values, row=row)),
        *((turn, _note(note)) for turn, note in notes.items()),
    ]
    held: list[Part] = []
    header = data = 0
    for part in parts:
        more_header, more_data = _sizes(part)
        if held and (header + more_header > _MOST_HEADER or data + more_data > ANNOTATIONS_BYTES - 2 * _MOST_HEADER):
            yield _body(held)
            held, header, data = [], 0, 0
        held.append(part)
        header, data = header + more_header, data + more_data
    if held:
        yield _body(held)


def _sizes(part: Part) -> tuple[int, int]:
    """(bytes of the header, bytes behind it)."""
    name, value = part
    if isinstance(value, str):
        return _ENTRY + len(name) + len(json.dumps(json.dumps(value))), 0
    return _ENTRY + len(name), value.nbytes


def _body(parts: Sequence[Part]) -> bytes:
    notes = {turn: value for turn, value in parts if isinstance(value, str)}
    tensors = [(name, value) for name, value in parts if not isinstance(value, str)]
    forms = [(name, Form("float32", value.shape)) for name, value in tensors]
    header = write_header(forms, metadata={NOTES: json.dumps(notes)} if notes else None)
    return b"".join([header, *(value.tobytes() for _, value in tensors)])


def _split(trajectory: Trajectory, name: str, values: Any, *, row: int | None) -> Iterator[Part]:
    if not SERIES_NAME.fullmatch(name):
        raise BadArgument(name[:80], "is not a valid name of a series: 1 to 64 of A-Za-z0-9_.-")
    for index, each in _by_row(trajectory, name, values, row=row):
        found = trajectory.rows[index]
        numbers, turns = _trained(name, found, index, each)
        for turn in np.unique(turns):
            yield f"{trajectory.turns[turn].turn_id}/{name}", numbers[turns == turn]


def _by_row(trajectory: Trajectory, name: str, values: Any, *, row: int | None) -> Iterator[tuple[int, Any]]:
    """(index of the row, what is said of it)."""
    rows = len(trajectory.rows)
    if row is not None:
        if not 0 <= row < rows:
            raise BadArgument("row", f"is {row}; the trajectory has {rows} rows, from 0 on")
        yield row, values
    elif _dimensions(values) == 0:
        yield from ((index, values) for index in range(rows))
    elif rows == 1 and _dimensions(values) == 1 and (len(values) > 1 or hasattr(values, "ndim")):
        yield 0, values
    elif len(values) == rows:
        yield from enumerate(values)
    else:
        raise BadArgument(name, f"has {len(values)} entries; the trajectory has {rows} rows, and each takes one")


def _dimensions(values: Any) -> int:
    """Of an array, a tensor, or lists of these or of numbers, which need not be of one length."""
    if hasattr(values, "ndim"):
        return int(values.ndim)
    if isinstance(values, list | tuple):
        return 1 + (_dimensions(values[0]) if values else 0)
    return 0


def _trained(name: str, row: Row, index: int, values: Any) -> tuple[Array, Array]:
    """(numbers, turns) of the tokens of a row whose loss_mask is 1."""
    mask, turns = row.tensors["loss_mask"], row.tensors["turn_ids"]
    if not isinstance(mask, np.ndarray) or not isinstance(turns, np.ndarray):
        raise BadArgument("trajectory", "was exported as shards: its loss_mask and turn_ids are needed, as arrays")
    numbers, trained = _numbers(name, values), mask == 1
    count = int(trained.sum())
    if numbers.ndim == 0:
        numbers = np.full(count, numbers)
    elif numbers.shape == mask.shape:
        numbers = numbers[trained]
    elif numbers.shape != (count,):
        raise BadArgument(
            name,
            f"has the shape {list(numbers.shape)} for row {index}, which has {mask.size} tokens, {count} of them with "
            "a loss_mask of 1: it takes one number for each of all, or for each of those",
        )
    if np.isinf(numbers).any():
        raise BadArgument(name, f"has an infinity for row {index}: numbers are finite, or NaN where there is none")
    return numbers, turns[trained]


def _numbers(name: str, values: Any) -> Array:
    try:
        return np.asarray(_plain(values), dtype="<f4")
    except (TypeError, ValueError):
        raise BadArgument(name, f"is {type(values).__name__}; it takes an array of numbers, or one number") from None


def _plain(values: Any) -> Any:
    """What numpy takes: of a tensor of torch, on whatever device and of whatever type, its numbers."""
    return values.detach().float().cpu().numpy() if hasattr(values, "detach") else values


def _note(note: object) -> str:
    if not isinstance(note, str):
        raise BadArgument("notes", f"has {type(note).__name__} for a turn; it takes text, by turn_id")
    return note
