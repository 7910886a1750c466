"""What can't be exported is said before the fleet is asked."""

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Done, invoke

from rolloutfleet.cli import export as export_command
from rolloutfleet.cli.failures import CommandFailed
from rolloutfleet.fleet.leases import ExportFile


def export(folder: Path, *words: str) -> Done:
    """Of a fleet that does not answer."""
    (folder / "admin.key").write_text("rfa-0123456789abcdef\n")
    return invoke("export", *words, "--url", "http://127.0.0.1:9", "--admin-key-file", str(folder / "admin.key"))


def test_what_can_not_be_is_said_before_the_fleet_is_asked(tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "part-00000.jsonl").write_text("")
    wrong = {
        ("--to", "parquet"): "give -o DIR",
        ("--to", "csv", "-o", str(tmp_path)): "'csv' is not one of",
        ("--to", "parquet", "-o", str(tmp_path / "out"), "--ack"): "leave --ack out",
        ("--to", "parquet", "-o", str(tmp_path / "out"), "--format", "json"): "leave --format out",
        ("--to", "parquet", "-o", str(tmp_path / "out"), "--part-size", "many"): "--part-size",
        ("--to", "parquet", "-o", str(tmp_path / "out"), "--part-size", "1"): "1Ki to 4Gi",
        ("--to", "parquet", "-o", str(tmp_path / "a-file")): "is a file",
        ("--to", "parquet", "-o", str(tmp_path / "other")): "has jsonl parts",
    }
    for words, why in wrong.items():
        done = export(tmp_path, *words)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert why in done.stderr and "answers" not in done.stderr
    assert not (tmp_path / "out").exists()
    assert "no proxy answers" in export(tmp_path, "--to", "parquet", "-o", str(tmp_path / "out")).stderr


def test_a_pyarrow_that_does_not_load_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError('pyarrow requires NumPy 2.0')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pyarrow", raising=False)
    done = export(tmp_path, "--to", "parquet", "-o", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "can't be used: pyarrow requires NumPy 2.0" in done.stderr and "pip install" not in done.stderr


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = export(tmp_path, "--to", "parquet", "-o", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "pip install pyarrow" in done.stderr and done.stderr.count("\n") == 1


class Ends:
    """A fleet, as far as the end of an export needs it."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, bool]] = []

    def end_lease(self, lease: str, *, acknowledge: bool) -> None:
        self.ended.append((lease, acknowledge))


@pytest.mark.parametrize("acknowledge", [True, False])
def test_a_lease_whose_file_can_not_be_written_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acknowledge: bool
) -> None:
    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(export_command, "sync", full)
    fleet: Any = Ends()
    with pytest.raises(CommandFailed, match="No space left on device; lease l0-1 is given back"):
        export_command._finish(
            fleet, ExportFile(b"{}", "l0-1"), "json", output=tmp_path / "out.json", acknowledge=acknowledge
        )
    assert fleet.ended == [("l0-1", False)]
    assert list(tmp_path.iterdir()) == []
