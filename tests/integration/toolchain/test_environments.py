"""An environment apart is made once, as its lock says, or not at all."""

import subprocess
from pathlib import Path

import pytest
from toolchain.environments import NotInstalled, python_of

ABSENT = f"no-such-package-at-all==1.0 --hash=sha256:{'0' * 64}\n"


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("ROLLOUTFLEET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_it_is_made_once_and_anew_for_another_lock(cache: Path, tmp_path: Path) -> None:
    lock = tmp_path / "peer.lock"
    lock.write_text("# nothing\n")
    python = python_of(lock, kind="tests")
    said = subprocess.run([python, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True)
    assert Path(said.stdout.strip()) == python.parents[1]
    (python.parents[1] / "mark").touch()
    assert python_of(lock, kind="tests") == python and (python.parents[1] / "mark").exists()
    lock.write_text("# nothing else\n")
    assert python_of(lock, kind="tests") != python


def test_what_could_not_be_installed_is_not_there(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    lock = tmp_path / "peer.lock"
    lock.write_text(ABSENT)
    with pytest.raises(NotInstalled, match=r"(?s)peer\.lock could not be installed: .*no-such-package"):
        python_of(lock, kind="tests")
    assert [each for each in cache.iterdir() if each.is_dir()] == []
