"""The Go programs' own tests."""

import os
import subprocess

import pytest
from benchmarks.rigs.binaries import FOLDER
from tests.waiting import START
from toolchain import go


@pytest.mark.parametrize("program", ["loadgen", "stub"])
def test_the_program_is_tidy_and_passes_its_tests(program: str) -> None:
    there = {**os.environ, "PATH": f"{go.folder()}{os.pathsep}{os.environ['PATH']}"}
    for command in (["gofmt", "-l", "."], ["go", "vet", "./..."], ["go", "test", "./..."]):
        done = subprocess.run(
            command, cwd=FOLDER / program, env=there, capture_output=True, text=True, timeout=2 * START, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert command[0] != "gofmt" or done.stdout == ""
