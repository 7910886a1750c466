"""Key files of a local fleet."""

from pathlib import Path

import pytest

from rolloutfleet_operator.local.site import LocalFleetError, read_key


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
