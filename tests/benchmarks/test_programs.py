"""The Go programs' own tests, where Go is installed."""

import shutil
import subprocess

import pytest
from benchmarks.rigs.binaries import FOLDER


@pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed")
@pytest.mark.parametrize("program", ["loadgen", "stub"])
def test_the_program_is_tidy_and_passes_its_tests(program: str) -> None:
    for command in (["gofmt", "-l", "."], ["go", "vet", "./..."], ["go", "test", "./..."]):
        done = subprocess.run(command, cwd=FOLDER / program, capture_output=True, text=True, timeout=170, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert command[0] != "gofmt" or done.stdout == ""
