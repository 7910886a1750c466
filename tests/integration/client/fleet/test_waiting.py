"""What a long wait shows, and where it shows nothing."""

import os
import pty
import select
import subprocess
import sys
import time

from tests.waiting import PATIENCE

from rolloutfleet.fleet.waiting import Waiting

WAITS = """
import time
from rolloutfleet.fleet.waiting import Waiting
waiting = Waiting()
with waiting.line("waiting", total=4) as tell:
    for done in range(4):
        tell(f"waiting for {done}", done)
        time.sleep(0.4)
with waiting.line("short") as tell:
    tell("never to be seen", 0)
"""


def test_on_a_terminal_a_line_that_goes_away() -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", WAITS], stderr=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    said = b""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.5)[0]:
            try:
                said += os.read(ours, 65536)
            except OSError:
                break
        elif process.poll() is not None:
            break
    assert process.wait(PATIENCE) == 0
    assert b"waiting for 3" in said
    assert b"3/4" in said
    assert b"never to be seen" not in said


def test_elsewhere_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", WAITS], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_a_trainers_own_progress_is_left_alone() -> None:
    from rich.console import Console
    from rich.progress import Progress

    waiting = Waiting(True)
    with Progress(console=Console(stderr=True)) as own, waiting.line("waiting") as tell:
        own.add_task("training")
        time.sleep(0.6)
        tell("waiting", 1)
