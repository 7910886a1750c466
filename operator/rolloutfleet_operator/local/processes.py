"""One child process: started in a group of its own, with a log, told to stop, killed in the end."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rolloutfleet_operator.local import guard

OWN_VARIABLES = "ROLLOUTFLEET_"
TAIL_LINES = 15
TAIL_BYTES = 16_384


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What a child inherits: not our own settings (they would beat its file), and no proxy for loopback."""
    kept = {name: value for name, value in environment.items() if not name.startswith(OWN_VARIABLES)}
    for name in ("NO_PROXY", "no_proxy"):
        kept[name] = ",".join(filter(None, [kept.get(name, ""), "127.0.0.1,localhost"]))
    kept["PYTHONUNBUFFERED"] = "1"
    return kept


class RunningProcess:
    """A started process and the group that it leads."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, log_start: int) -> None:
        self._process = process
        self._log = log
        self._log_start = log_start

    @classmethod
    async def start(cls, argv: Sequence[str], log: Path) -> "RunningProcess":
        """Raises OSError where the program can't be run."""
        with log.open("ab") as output:
            log_start = output.tell()
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=child_environment(os.environ),
                start_new_session=True,
            )
        return cls(process, log, log_start)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self) -> str:
        """How it ended, in words, once it has; what is left of its group is gone then too."""
        status = await self._process.wait()
        guard.kill_group(self.pid)
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        return f"ended with exit status {status}"

    def tell_to_stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        if self._process.returncode is None:
            guard.kill_group(self.pid)

    def log_tail(self) -> str:
        """The last lines that it wrote since its start."""
        with self._log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, end - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-TAIL_LINES:])


class Guard:
    """The other end of guard.py's pipe. It inherits a lock: nobody else has that until what is left has ended."""

    def __init__(self, lock: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[lock],
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        self._say(f"+{group}\n")

    def forget(self, group: int) -> None:
        self._say(f"-{group}\n")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        # A guard that somebody killed is not a reason to end a fleet that works.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()

    def close(self) -> None:
        """What it still watches is stopped; waits until that is done."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(timeout=guard.GRACE + 5.0)
