"""The quickstart, run as a newcomer runs it; and what of its ending is pure."""

import os
import subprocess
import sys
from pathlib import Path

from examples.quickstart.ending import keep, row_of, shown_places
from tests.paths import ROOT

from rolloutfleet.dumps import verify


def test_a_row_is_shown_where_its_first_answer_begins_and_ends() -> None:
    mask = [0] * 10 + [1] * 20 + [0] * 10 + [1] * 5
    assert list(shown_places(mask)) == [None, *range(6, 15), None, *range(27, 33), None]


def test_a_short_row_is_shown_whole() -> None:
    assert list(shown_places([0, 1, 1])) == [0, 1, 2]


def test_a_row_is_one_of_its_trajectorys() -> None:
    rows = [{"tensors": {"input_ids": [1]}}, {"tensors": {"input_ids": [2]}}]
    assert row_of({"trajectories": [{"session_id": "s", "rows": rows}]}) == {"session_id": "s", "input_ids": [1]}


def test_only_the_last_runs_files_are_kept(tmp_path: Path) -> None:
    for number in range(2):
        file = tmp_path / "fleet" / "dumps" / "0" / f"s{number}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
        assert keep(tmp_path / "fleet", tmp_path / "kept") == [tmp_path / "kept" / file.name]
    assert [file.name for file in (tmp_path / "kept").iterdir()] == ["s1.json"]


def test_the_quickstart_ends_with_a_conversation_a_row_and_what_to_type_next(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.quickstart", "--agents", "6"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = ran.stdout
    assert "✗" not in said and said.count("✓") == 13
    for part in ("What was captured", "What was checked", "What one agent did", "What a trainer gets of it", "Next"):
        assert part in said
    kept = sorted((tmp_path / ".rolloutfleet" / "quickstart-sessions").glob("*.json"))
    assert len(kept) == 3
    for file in kept:
        with file.open("rb") as opened:
            assert verify(opened, name=file.name) == []
    assert len(typed(said, "rolloutfleet show", tmp_path).splitlines()) > 100
    assert typed(said, "rolloutfleet inspect", tmp_path, "--bundle", "bundle").startswith("3 sessions")


def typed(said: str, begins: str, folder: Path, *more: str) -> str:
    """What a command that was said prints."""
    command = next(line.split() for line in said.splitlines() if line.strip().startswith(begins))
    asked = [sys.executable, "-m", "rolloutfleet", *command[1:], *more]
    return subprocess.run(asked, cwd=folder, capture_output=True, text=True, check=True).stdout
