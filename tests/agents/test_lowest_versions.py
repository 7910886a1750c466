"""The client works with the lowest versions that pyproject.toml allows; the rest stays as locked where that can be."""

import os
import subprocess
from pathlib import Path

from tests.integration.client.environments import empty, uv
from tests.paths import ROOT
from tests.waiting import START

PLAIN = ("--no-header", "--no-annotate")


def test_the_unit_tests_of_the_client_pass_on_the_lowest_versions(tmp_path: Path) -> None:
    lowest, chosen = tmp_path / "lowest.txt", tmp_path / "chosen.txt"
    resolution = ("--resolution", "lowest-direct", "--no-deps", "--extra", "parquet")
    uv("pip", "compile", *PLAIN, *resolution, "-o", lowest, "pyproject.toml")
    # What stands in the output file is kept where it can be.
    chosen.write_text((ROOT / "requirements.lock").read_text())
    wanted = ("--extra", "all", "--group", "dev", "--constraint", lowest)
    uv("pip", "compile", *PLAIN, *wanted, "-o", chosen, "pyproject.toml")
    python = empty(tmp_path / "environment")
    uv("pip", "sync", "--python", python, chosen)
    uv("pip", "install", "--python", python, "--no-deps", "--no-build-isolation", "--editable", ".")

    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # typer calls what later versions of click deprecate.
    options = ("-q", "-n", "2", "--dist", "loadfile", "-W", "ignore::DeprecationWarning:typer")
    tests = subprocess.run(
        [python, "-m", "pytest", *options, "tests/unit/client"],
        cwd=ROOT,
        env=inherited,
        capture_output=True,
        text=True,
        timeout=4 * START,
        check=False,
    )
    assert not tests.returncode, tests.stdout[-5000:]
