"""A real `rolloutfleet up` in a process of its own, watched and surely ended."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

UP = (sys.executable, "-m", "rolloutfleet.cli", "up")
PATIENCE = 60.0


class Up:
    """A running `rolloutfleet up`, and what it said so far."""

    def __init__(self, folder: Path, text: str) -> None:
        self.state = folder / "state"
        self._output = folder / "up.out"
        resource = folder / "fleet.yaml"
        resource.write_text(text)
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [*UP, str(resource), "--state-dir", str(self.state)],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def said(self) -> str:
        return self._output.read_text()

    def until(self, what: Callable[[], Any]) -> Any:
        """What it returns, once that is true; the process must not end before."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            found = what()
            if found:
                return found
            assert self.process.poll() is None, self.said()
            time.sleep(0.05)
        raise AssertionError(f"not within {PATIENCE} s; it said:\n{self.said()}")

    def until_said(self, text: str) -> None:
        self.until(lambda: text in self.said())

    def book(self) -> dict[str, Any]:
        """fleet.json, once it is there."""
        file = self.state / "fleet.json"
        self.until(file.exists)
        book: dict[str, Any] = json.loads(file.read_text())
        return book

    def children(self) -> dict[str, psutil.Process]:
        """The fleet's processes by what they are told on the command line; the guard apart."""
        found = {}
        for each in psutil.Process(self.process.pid).children(recursive=True):
            line = " ".join(each.cmdline())
            if "guard.py" not in line:
                found[line] = each
        return found

    def engine(self, url: str) -> psutil.Process:
        port = url.rsplit(":", 1)[1]
        return next(each for line, each in self.children().items() if f"--port {port}" in line)


@contextmanager
def running(folder: Path, text: str) -> Iterator[Up]:
    up = Up(folder, text)
    try:
        yield up
    finally:
        if up.process.poll() is None:
            up.process.send_signal(signal.SIGTERM)
        try:
            up.process.wait(30)
        except subprocess.TimeoutExpired:
            up.process.kill()
            up.process.wait()
