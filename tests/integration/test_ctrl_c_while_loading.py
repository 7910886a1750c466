"""Ctrl-C while a command still loads its modules ends it at once, without a traceback."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import psutil
import pytest
from tests.waiting import PATIENCE


@contextmanager
def loading(module: str, imported: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """A command that has just imported a module, with many behind it; and what it will say, imports among it.

    It says it into a pipe, on Linux a small one: it loads no further than that is read.
    """
    reading, writing = os.pipe()
    if sys.platform == "linux":
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    # A parent that ignores SIGINT, as a shell's background job does, would have it ignored here too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", module, "--help"],
            stdout=subprocess.DEVNULL,
            stderr=writing,
            text=True,
            env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
        )
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(writing)
    with process, os.fdopen(reading) as said:
        assert any(line.rpartition("|")[2].strip() == imported for line in said), "ended before"
        yield process, said


@pytest.mark.parametrize("module", ["rolloutfleet", "tests.integration.fuzz", "tests.timing.kills", "benchmarks"])
def test_no_traceback(module: str) -> None:
    with loading(module, "asyncio") as (process, said):
        process.send_signal(signal.SIGINT)
        rest = said.read()
        assert process.wait(PATIENCE) == -signal.SIGINT
    assert "Traceback" not in rest and "KeyboardInterrupt" not in rest, rest[-2000:]


def test_a_proxys_worker_leaves_it_to_its_parent() -> None:
    """A terminal sends it to both."""
    with loading("rolloutfleet_proxy", "fastapi.params") as (process, said):
        [worker] = psutil.Process(process.pid).children()
        worker.send_signal(signal.SIGINT)
        rest = said.read()
        assert process.wait(PATIENCE) == 0
    assert "Traceback" not in rest and "KeyboardInterrupt" not in rest, rest[-2000:]


def test_the_command_loads_nothing_before_it_sees_to_ctrl_c() -> None:
    """Ctrl-C would meet Python's own way of ending."""
    said = "import sys; before = set(sys.modules); import rolloutfleet.__main__; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-S", "-c", said], capture_output=True, text=True, check=True, cwd="client")
    assert set(done.stdout.split()) == {"rolloutfleet", "rolloutfleet.__main__"}
