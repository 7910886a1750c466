"""The wheel without an extra: each command works, or says what is missing and how to install it from this wheel."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.paths import ROOT
from tests.waiting import START

UV = str(Path(sys.executable).with_name("uv"))


def done(*command: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=START, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a wheel")
    built = done(UV, "build", "--quiet", "--wheel", "--no-build-isolation", "--out-dir", str(folder), str(ROOT))
    assert not built.returncode, built.stderr
    [found] = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def commands(wheel: Path) -> Iterator[Path]:
    """The folder of its commands."""
    environment = wheel.parent / "bare"
    python = str(environment / "bin" / "python")
    pinned = ("--constraint", str(ROOT / "requirements.lock"))
    for words in (
        ("venv", "--no-project", "--python", sys.executable, str(environment)),
        ("pip", "install", "--python", python, *pinned, str(wheel)),
    ):
        made = done(UV, *words, "--quiet")
        assert not made.returncode, made.stderr
    yield environment / "bin"


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("local", ("rolloutfleet", "up", str(ROOT / "examples" / "fleet.yaml"))),
        ("inspect", ("rolloutfleet", "inspect", "--dumps", ".")),
        ("proxy", ("rolloutfleet-proxy",)),
        ("engine", ("rolloutfleet-engine",)),
        ("operator", ("rolloutfleet-operator", "run")),
    ],
)
def test_a_command_that_lacks_packages_says_how_to_install_them_from_this_wheel(
    wheel: Path, commands: Path, tmp_path: Path, extra: str, words: tuple[str, ...]
) -> None:
    refused = done(str(commands / words[0]), *words[1:], folder=tmp_path)
    assert refused.returncode in (1, 2)
    [line] = refused.stderr.splitlines()
    assert line.startswith(f"{words[0]}: ")
    assert line.endswith(
        f" is not installed; install the extra '{extra}': pip install 'rolloutfleet[{extra}] @ {wheel.as_uri()}'"
    )


@pytest.mark.parametrize(
    "words",
    [
        ("rolloutfleet", "--help"),
        ("rolloutfleet", "--version"),
        ("rolloutfleet-operator", "--help"),
        ("rolloutfleet-operator", "crd"),
    ],
)
def test_a_command_that_needs_no_extra_works(commands: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    worked = done(str(commands / words[0]), *words[1:], folder=tmp_path)
    assert (worked.returncode, worked.stderr) == (0, "") and worked.stdout


@pytest.mark.parametrize("name", ["status", "top", "sessions", "tail", "export", "prometheus"])
def test_a_command_that_asks_a_fleet_needs_no_extra(commands: Path, tmp_path: Path, name: str) -> None:
    refused = done(str(commands / "rolloutfleet"), name, folder=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.startswith("rolloutfleet: no fleet runs from ") and refused.stderr.count("\n") == 1
