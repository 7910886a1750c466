"""What a long wait shows, and where it shows nothing."""

import os
import sys

import pytest
from rich.console import Console
from rich.progress import Progress

from rolloutfleet.fleet.waiting import Waiting


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def wait() -> None:
    """A wait of 1.6 s for four of something, and one that is over at once."""
    clock = Clock()
    waiting = Waiting(clock=clock)
    with waiting.line("waiting", total=4) as tell:
        for done in range(4):
            tell(f"waiting for {done}", done)
            clock.now += 0.4
    with waiting.line("short") as tell:
        tell("never to be seen", 0)


def test_on_a_terminal_a_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    said = b""
    with os.fdopen(ours, "rb", buffering=0) as seen, os.fdopen(theirs, "w") as terminal:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stderr", terminal)
            wait()
        terminal.write("the end")
        terminal.flush()
        while not said.endswith(b"the end"):
            said += seen.read(65536)
    assert b"waiting for 3" in said
    assert b"3/4" in said
    assert b"never to be seen" not in said


def test_elsewhere_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    wait()
    assert capfd.readouterr() == ("", "")


def test_a_trainers_own_progress_is_left_alone() -> None:
    clock = Clock()
    waiting = Waiting(True, clock=clock)
    with Progress(console=Console(stderr=True)) as own, waiting.line("waiting") as tell:
        own.add_task("training")
        clock.now += 0.6
        tell("waiting", 1)
