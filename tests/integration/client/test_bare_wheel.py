"""`make wheel` without an extra: what a trainer imports is there, and each command works, or says what is missing and
how to install it from this wheel."""

import subprocess
from pathlib import Path

import pytest
from tests.integration.client.environments import empty, uv
from tests.paths import ROOT
from tests.waiting import START


def done(*command: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=START, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a wheel")
    built = done("make", "wheel", f"DIST={folder}")
    assert not built.returncode, built.stderr
    [found] = folder.glob("*.whl")
    assert built.stdout.endswith(f"M\t{found}\n")
    return found


@pytest.fixture(scope="module")
def commands(wheel: Path) -> Path:
    """The folder of its commands."""
    python = empty(wheel.parent / "bare")
    uv("pip", "install", "--python", python, "--constraint", ROOT / "requirements.lock", wheel)
    return python.parent


def test_the_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < 2 * 2**20


EVERY_FORMAT = """
from importlib import import_module
from pkgutil import iter_modules
from rolloutfleet import formats
found = [import_module(f"{formats.__name__}.{module.name}") for module in iter_modules(formats.__path__)]
assert formats.trl in found and formats.verl in found
"""


@pytest.mark.parametrize(
    "program",
    [
        "import rolloutfleet",
        "from rolloutfleet import AsyncFleet, Command, Fleet",
        "import rolloutfleet.advantages",
        EVERY_FORMAT,
    ],
)
def test_a_trainer_imports_what_it_needs(commands: Path, tmp_path: Path, program: str) -> None:
    imported = done(str(commands / "python"), "-c", program, folder=tmp_path)
    assert (imported.returncode, imported.stdout, imported.stderr) == (0, "", "")


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
