"""A real terminal, in which commands draw and keys are pressed: a session of tmux."""

import os
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.waiting import until

PROMPT: Final = "what now> "


class Terminal:
    """A shell, and what is on its screen."""

    def __init__(self, columns: int, lines: int) -> None:
        program = shutil.which("tmux")
        assert program is not None, "tmux is not installed: apt-get install tmux (.ci/run installs it)"
        self._tmux = (program, "-u", "-L", f"rolloutfleet-{uuid.uuid4()}", "-f", "/dev/null")
        self._environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        for name in ("TMUX", "COLUMNS", "LINES"):  # The size is the terminal's, whatever those who run tests are told.
            self._environment.pop(name, None)
        self._ask("new-session", "-d", "-x", str(columns), "-y", str(lines), "env", f"PS1={PROMPT}", "sh")

    def _ask(self, *words: str) -> str:
        done = subprocess.run([*self._tmux, *words], env=self._environment, capture_output=True, text=True, check=True)
        return done.stdout

    def run(self, *command: str) -> None:
        """What is to be run when the shell asks for it."""
        self.type(shlex.join(command))

    def type(self, line: str) -> None:
        """A line for the shell, once it asks for one."""
        self.until(lambda screen: screen.rstrip().endswith(PROMPT.rstrip()))
        self._ask("send-keys", "-l", line)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        """As tmux names them: `q`, `C-c`, `Enter`."""
        self._ask("send-keys", *keys)

    def resize(self, columns: int, lines: int) -> None:
        self._ask("resize-window", "-x", str(columns), "-y", str(lines))

    def screen(self) -> str:
        return self._ask("capture-pane", "-p")

    def coloured(self) -> str:
        """The screen with the codes of its colours."""
        return self._ask("capture-pane", "-p", "-e")

    def until(self, what: Callable[[str], object]) -> str:
        """The screen, once that is true of it."""
        screen = ""

        def shown() -> object:
            nonlocal screen
            screen = self.screen()
            return what(screen)

        try:
            until(shown)
        except AssertionError as error:
            error.add_note(f"the screen:\n{screen}")
            raise
        return screen

    def record(self, file: Path) -> None:
        """Write all that programs print from now on to a file: also what is on the screen for a moment only."""
        file.touch()
        self._ask("pipe-pane", "-o", f"cat >> {shlex.quote(str(file))}")

    def until_shown(self, text: str) -> str:
        return self.until(lambda screen: text in screen)

    def end(self) -> None:
        self._ask("kill-server")


@contextmanager
def terminal(*, columns: int = 130, lines: int = 30) -> Iterator[Terminal]:
    opened = Terminal(columns, lines)
    try:
        yield opened
    finally:
        opened.end()
