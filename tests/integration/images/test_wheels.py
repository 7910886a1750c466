"""What images are made of is what their locks name."""

from pathlib import Path

import pytest
from images.recipes import REPOSITORY
from images.wheels import FetchFailed, fetch
from tests.unit.images.locks import pinned


def test_a_wheel_that_is_not_the_locked_one_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "wrong.lock"
    name, [(version, _)] = "mdurl", pinned(REPOSITORY / "requirements.lock")["mdurl"]
    lock.write_text(f"{name}=={version} --hash=sha256:{'0' * 64}\n")
    with pytest.raises(FetchFailed, match=r"wheels of wrong\.lock can't be had"):
        fetch(lock, tmp_path / "wheels", machine="x86_64")
    assert not (tmp_path / "wheels").exists()
