"""What a long wait shows: a line on a terminal, and nothing anywhere else."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.errors import LiveError
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

SHOWN_AFTER: Final = 0.5
"""Seconds. What is over sooner is not worth a line."""

ShowProgress = Callable[[str, int], None]
"""Takes what is waited for now, and how many have come."""


class Waiting:
    """Lines on the error output. `show` None: where that is a terminal."""

    def __init__(self, show: bool | None = None) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._show = sys.stderr.isatty() if show is None else show

    @contextmanager
    def line(self, text: str, *, total: int | None = None) -> Iterator[ShowProgress]:
        """A line from the first moment that it is told anything, half a second in, until the block ends."""
        if not self._show:
            yield lambda text, done: None
            return
        line = _Line(self._console, text, total)
        try:
            yield line.told
        finally:
            line.end()


class _Line:
    def __init__(self, console: Console, text: str, total: int | None) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"))
        counted = (BarColumn(), MofNCompleteColumn()) if total is not None else ()
        self._progress = Progress(*columns, *counted, TimeElapsedColumn(), console=console, transient=True)
        self._task = self._progress.add_task(text, total=total)
        self._since = time.monotonic()
        self._shown = False
        self._refused = False

    def told(self, text: str, done: int) -> None:
        self._progress.update(self._task, description=text, completed=done)
        if not self._shown and not self._refused and time.monotonic() - self._since >= SHOWN_AFTER:
            try:
                self._progress.start()
                self._shown = True
            except LiveError:
                # The trainer shows something of its own.
                self._refused = True

    def end(self) -> None:
        if self._shown:
            self._progress.stop()
