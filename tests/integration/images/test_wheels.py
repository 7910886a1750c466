"""What images are made of is what their locks name."""

from pathlib import Path

import pytest
from images.recipes import REPOSITORY
from images.wheels import FetchFailed, fetched
from tests.unit.images.locks import pinned


def test_a_wheel_that_is_not_the_locked_one_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLOUTFLEET_CACHE", str(tmp_path / "cache"))
    lock = tmp_path / "wrong.lock"
    name, [(version, _)] = "mdurl", pinned(REPOSITORY / "requirements.lock")["mdurl"]
    lock.write_text(f"{name}=={version} --hash=sha256:{'0' * 64}\n")
    with pytest.raises(FetchFailed, match=r"wheels of wrong\.lock can't be had"):
        fetched(lock, machine="x86_64")
    assert [path.name for path in (tmp_path / "cache" / "wheels").iterdir()] == ["install.lock"]
