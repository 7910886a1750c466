"""Parts of examples for supervised fine-tuning: a line an example, in files of their own name."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from tests.unit.client.formats.drawn import SIX, batches, rollout

from rolloutfleet.files.folder import ExportFolder, WrongFolder
from rolloutfleet.files.forms import FileForm, part_writer
from rolloutfleet.fleet.trajectories import LeasedName, Trajectory
from rolloutfleet.formats import sft


@given(batches())
def test_lines_are_the_examples_of_each_trajectory(drawn: list[list[Trajectory]]) -> None:
    trajectories = [trajectory for each in drawn for trajectory in each]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "part"
        writer = part_writer(FileForm.SFT, file)
        for trajectory in trajectories:
            writer.add(trajectory)
        writer.close()
        content = file.read_bytes()
    assert writer.written == len(content)
    lines = [json.loads(line) for line in content.splitlines()]
    assert lines == [example for trajectory in trajectories for example in sft.rows([trajectory])]


def test_lines_have_messages_and_tools_where_they_are_included(tmp_path: Path) -> None:
    [one] = rollout(SIX)
    said, tools = [{"role": "user", "content": "ß"}], [{"type": "function", "function": {"name": "f"}}]
    rows = tuple(replace(row, messages=said, tools=tools) for row in one.rows)
    writer = part_writer(FileForm.SFT, tmp_path / "part")
    writer.add(replace(one, rows=rows))
    writer.close()
    lines = [json.loads(line) for line in (tmp_path / "part").read_bytes().splitlines()]
    assert lines and all((line["messages"], line["tools"]) == (said, tools) for line in lines)


def test_a_part_that_trains_nothing_is_finished_and_names_its_trajectories(tmp_path: Path) -> None:
    [failed] = rollout(SIX, outcome="failed", reward=None)
    with ExportFolder(tmp_path, FileForm.SFT) as folder:
        part = folder.begin()
        part.add(failed)
        taken = part.finish()
    assert part.file.read_bytes() == b""
    assert taken.trajectories == (LeasedName(failed.trajectory_id, failed.lease_id),)


def test_a_finished_part_is_found_by_the_next_run(tmp_path: Path) -> None:
    [one] = rollout(SIX)
    with ExportFolder(tmp_path, FileForm.SFT) as folder:
        part = folder.begin()
        part.add(one)
        part.finish()
    assert part.file.name == "part-00000.sft.jsonl"
    with ExportFolder(tmp_path, FileForm.SFT) as folder:
        [taken] = folder.taken()
        assert taken.trajectories == (LeasedName(one.trajectory_id, one.lease_id),)
        following = folder.begin()
        assert following.file.name == "part-00001.sft.jsonl"
        following.discard()


@pytest.mark.parametrize(("there", "other"), [(FileForm.SFT, FileForm.JSONL), (FileForm.JSONL, FileForm.SFT)])
def test_a_folder_of_records_takes_no_examples_and_the_other_way_round(
    tmp_path: Path, there: FileForm, other: FileForm
) -> None:
    (tmp_path / f"part-00000.{there.ending}").touch()
    with (
        pytest.raises(WrongFolder, match=f"has {there.ending} parts; name another folder for {other}"),
        ExportFolder(tmp_path, other),
    ):
        pass
