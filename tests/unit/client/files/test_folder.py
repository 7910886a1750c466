"""A folder of parts belongs to one export at a time."""

from pathlib import Path

import pytest

from rolloutfleet.files.folder import ExportFolder, FolderInUse, WrongFolder
from rolloutfleet.files.forms import FileForm


def test_two_exports_do_not_share_a_folder(tmp_path: Path) -> None:
    with ExportFolder(tmp_path, FileForm.JSONL), pytest.raises(FolderInUse), ExportFolder(tmp_path, FileForm.JSONL):
        pass
    with ExportFolder(tmp_path, FileForm.JSONL):
        pass
    with pytest.raises(WrongFolder), ExportFolder(Path(__file__), FileForm.JSONL):
        pass
