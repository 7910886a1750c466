"""What a long wait shows: a line on a terminal, nothing anywhere else."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Final

from rich.console import Console
from rich.errors import LiveError
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

SHOWN_AFTER: Final = 0.5
"""Seconds. What is over sooner is not worth a line."""

ShowProgress = Callable[[str, int], None]
"""Takes what is waited for now, and how many have come."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Lines on the error output."""

    show: bool | None = None
    """None: where that is a terminal."""
    _: KW_ONLY
    clock: Callable[[], float] = time.monotonic

    @contextmanager
    def line(self, text: str, *, total: int | None = None) -> Iterator[ShowProgress]:
        """A line from the first moment that it is told anything, half a second in, until the block ends."""
        if not (sys.stderr.isatty() if self.show is None else self.show):
            yield lambda text, done: None
            return
        columns = (SpinnerColumn(), TextColumn("{task.description}"))
        counted = (BarColumn(), MofNCompleteColumn()) if total is not None else ()
        progress = Progress(
            *columns, *counted, TimeElapsedColumn(), console=Console(stderr=True, highlight=False), transient=True
        )
        task = progress.add_task(text, total=total)
        since = self.clock()
        shown = refused = False

        def tell(text: str, done: int) -> None:
            nonlocal shown, refused
            progress.update(task, description=text, completed=done)
            if not shown and not refused and self.clock() - since >= SHOWN_AFTER:
                try:
                    progress.start()
                    shown = True
                except LiveError:
                    # The trainer shows something of its own.
                    refused = True

        try:
            yield tell
        finally:
            if shown:
                progress.stop()
