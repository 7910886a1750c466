"""The ends of parts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tests.unit.client.fleet.rows import trajectory

from rolloutfleet.files import forms
from rolloutfleet.files.folder import ExportFolder
from rolloutfleet.files.forms import FileForm, PartFull
from rolloutfleet.files.writing import export_to
from rolloutfleet.fleet import Fleet
from rolloutfleet.fleet.trajectories import TYPES, Row, Trajectory, read_export
from rolloutfleet.wire import TENSORS_MEDIA_TYPE


@dataclass
class Answer:
    """A fleet that exports these once."""

    trajectories: list[Trajectory]
    acknowledged: list[str] = field(default_factory=list)
    leases: dict[str, set[str]] = field(default_factory=dict)
    unreachable: dict[int, str] = field(default_factory=dict)
    unheard: frozenset[str] = frozenset()

    @contextmanager
    def export(self, **wanted: Any) -> Iterator["Answer"]:
        yield self

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self.trajectories)

    def acknowledge(self, names: list[str]) -> None:
        self.acknowledged += names


def saying(content: str) -> Trajectory:
    tensors = {name: np.zeros(2, kind) for name, kind in TYPES.items()}
    return trajectory(Row(("a",), 1.0, tensors, [{"role": "user", "content": content}], None))


def write(answer: Answer, folder: Path) -> list[int]:
    """Numbers of trajectories by part, all of which are acknowledged."""
    with ExportFolder(folder, FileForm.SAFETENSORS) as held:
        export_to(cast(Fleet, answer), held, part_bytes=2**30, lease_seconds=60.0)
    parts = sorted(folder.glob("part-*.safetensors"))
    return [len(read_export(part.read_bytes(), media_type=TENSORS_MEDIA_TYPE).trajectories) for part in parts]


def test_part_ends_before_its_header_is_too_large(tmp_path: Path) -> None:
    answer = Answer([saying('"' * 13_000_000) for _ in range(2)])
    assert write(answer, tmp_path) == [1, 1] and len(answer.acknowledged) == 2


def test_part_holds_as_many_as_its_header_has_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "HEADER_BYTES", 15_000)
    answer = Answer([saying("x" * 4_000) for _ in range(5)])
    assert write(answer, tmp_path) == [2, 2, 1] and len(answer.acknowledged) == 5


def test_trajectory_that_no_header_has_room_for_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forms, "HEADER_BYTES", 15_000)
    answer = Answer([saying("x"), large := saying("x" * 20_000)])
    with pytest.raises(PartFull, match=rf"{large.trajectory_id} don't fit .* write parquet or jsonl"):
        write(answer, tmp_path)
    assert len(answer.acknowledged) == 1 and len(list(tmp_path.glob("part-*"))) == 1
