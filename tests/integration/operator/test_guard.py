"""The guard of a local fleet, with a process of a test's own to end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.waiting import PATIENCE

from rolloutfleet_operator.local import guard

STUBBORN = """\
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def stubborn() -> Iterator[subprocess.Popen[str]]:
    """A process that does not listen to SIGTERM. Killed, it is there until it is waited for."""
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        yield process
        process.kill()


LOOKING = """\
from {package} import guard
guard.GRACE, guard.KILLED_WITHIN = 0.1, {killed_within}
looked = guard.is_there
def is_there(group):
    found = looked(group)
    print("there" if found else "gone", flush=True)
    return found
guard.is_there = is_there
guard.main()
"""
"""A guard with a short grace, which says what it sees each time when it looks."""
LOOKS = 20
"""More than it takes before and while it kills."""


def guarding(process: subprocess.Popen[str], *, killed_within: float) -> subprocess.Popen[str]:
    """A guard which that process has been left to."""
    script = LOOKING.format(package=guard.__package__, killed_within=killed_within)
    words = [sys.executable, "-c", script]
    started = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert started.stdin is not None
    started.stdin.write(f"+{process.pid}\n")
    started.stdin.close()
    return started


def test_it_ends_only_after_what_it_had_to_kill(stubborn: subprocess.Popen[str]) -> None:
    with guarding(stubborn, killed_within=120) as it:
        os.waitid(os.P_PID, stubborn.pid, os.WEXITED | os.WNOWAIT)
        assert it.stdout is not None
        assert [it.stdout.readline() for _ in range(LOOKS)] == ["there\n"] * LOOKS, "it goes on"
        assert stubborn.wait() == -signal.SIGKILL
        assert it.stdout.read().endswith("gone\n")
        assert it.wait(PATIENCE) == 0


def test_it_does_not_wait_for_ever(stubborn: subprocess.Popen[str]) -> None:
    """Where nobody waits for processes that were left, they stay."""
    with guarding(stubborn, killed_within=0.1) as it:
        os.waitid(os.P_PID, stubborn.pid, os.WEXITED | os.WNOWAIT)
        assert it.wait(PATIENCE) == 0
