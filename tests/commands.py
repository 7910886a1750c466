"""Commands as a user runs them, and processes that stand still."""

import contextlib
import io
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import psutil
from tests.waiting import PATIENCE

from rolloutfleet import cli

CLI = (sys.executable, "-m", "rolloutfleet")
Done = subprocess.CompletedProcess[str]


def ran(*command: str, timeout: float = PATIENCE, **options: Any) -> Done:
    """A process, to its end, and what it wrote."""
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)


def invoke(*words: str, stdout: io.StringIO | None = None) -> Done:
    """`rolloutfleet WORDS`, in this process: to load the commands takes longer than most of what they do."""
    before = signal.getsignal(signal.SIGINT)
    stdout, stderr = stdout or io.StringIO(), io.StringIO()
    status: object = None
    with (
        patch.object(sys, "argv", ["rolloutfleet", *words]),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        try:
            cli.main()
        except SystemExit as ended:
            status = ended.code
        finally:
            signal.signal(signal.SIGINT, before)
    assert status is None or isinstance(status, int)
    return Done(words, status or 0, stdout.getvalue(), stderr.getvalue())


@contextlib.contextmanager
def suspended(pid: int) -> Iterator[None]:
    """It and its children stand still meanwhile."""
    process = psutil.Process(pid)
    tree = [process, *process.children(recursive=True)]
    for each in tree:
        each.suspend()
    try:
        yield
    finally:
        for each in tree:
            each.resume()
