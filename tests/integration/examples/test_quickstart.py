"""The quickstart, run as a newcomer runs it."""

import os
import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT
from tests.waiting import START

from rolloutfleet.dumps.checks import verify


def test_the_quickstart_ends_with_a_conversation_a_row_and_what_to_type_next(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.quickstart", "--agents", "6"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=3 * START,
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
