"""The state folder of a local fleet, and its key files."""

import stat
from pathlib import Path

import pytest

from rolloutfleet_operator.local.site import LocalFleetError, StateFolder, read_key


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_state_folder_of_an_earlier_release_is_closed_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "logs").mkdir(0o755)
    (tmp_path / "admin.key").write_text("a key\n")
    StateFolder(tmp_path).make()
    assert (mode(tmp_path), mode(tmp_path / "logs")) == (0o700, 0o700)


def test_a_folder_that_is_used_for_the_first_time_keeps_its_rights(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    StateFolder(tmp_path).make()
    assert (mode(tmp_path), mode(tmp_path / "logs"), mode(tmp_path / "admin.key")) == (0o755, 0o700, 0o600)


def test_a_key_is_the_text_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("a key\n")
    assert read_key(file) == "a key"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\n", "is empty"),
        (b"\xff", "can't be read: not UTF-8 text"),
        (None, "can't be read: No such file or directory"),
    ],
)
def test_a_key_file_without_a_key_is_named(tmp_path: Path, content: bytes | None, problem: str) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(LocalFleetError) as error:
        read_key(file)
    assert str(error.value) == f"the key file {file} {problem}"
