"""A real `rolloutfleet up` in a process of its own, watched and surely ended."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from tests import logs
from tests.waiting import PATIENCE, START, until

UP = (sys.executable, "-m", "rolloutfleet", "up")


class Up:
    """A running `rolloutfleet up`, and what it said so far."""

    def __init__(self, folder: Path, text: str, *words: str, under: Sequence[str] = ()) -> None:
        self.state = folder / "state"
        self._mark = f"UP_OF_TEST={uuid.uuid4()}"
        self._output = folder / "up.out"
        resource = folder / "fleet.yaml"
        resource.write_text(text)
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [*under, *UP, str(resource), "--state-dir", str(self.state), *words],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **dict([self._mark.split("=")])},
                start_new_session=True,
            )
        for log in self.logs:
            logs.started(log)

    @property
    def logs(self) -> tuple[Path, Path]:
        """Its own, and the folder with those of what it starts."""
        return self._output, self.state / "logs"

    def ctrl_c(self) -> None:
        """What a terminal does: all that is in the foreground is told, not `up` alone."""
        os.killpg(self.process.pid, signal.SIGINT)

    def left(self) -> list[str]:
        """The command lines of all that it started, however indirectly, and that still runs."""
        return [" ".join(each.cmdline()) for each in psutil.process_iter() if self._is_ours(each)]

    def _is_ours(self, process: psutil.Process) -> bool:
        name, value = self._mark.split("=")
        try:
            return process.environ().get(name) == value
        except psutil.Error:
            return False

    def said(self) -> str:
        return self._output.read_text()

    def until(self, what: Callable[[], Any]) -> Any:
        """What it returns, once that is true; the process must not end before."""

        def found() -> Any:
            it = what()
            assert it or self.process.poll() is None, self.said()
            return it

        return until(found, seconds=START)

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
def running(folder: Path, text: str, *words: str, under: Sequence[str] = ()) -> Iterator[Up]:
    """`words` are more flags of the command; `under` is a command that starts it, such as nohup."""
    up = Up(folder, text, *words, under=under)
    try:
        yield up
    finally:
        if up.process.poll() is None:
            up.process.send_signal(signal.SIGTERM)
        try:
            up.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            up.process.kill()
            up.process.wait()
        for log in up.logs:
            logs.ended(log)
