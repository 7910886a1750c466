"""Child processes that surely end, and what their process trees use, read from /proc (Linux only)."""

import contextlib
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

TICKS = os.sysconf("SC_CLK_TCK")


class StartFailed(Exception):
    """A process ended, or did not serve in time; the message holds the end of its log."""


def stop_as_by_ctrl_c() -> None:
    """SIGTERM, and a SIGINT that a background job would ignore, become a KeyboardInterrupt: what was started ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


class Running:
    """A command in a process group of its own, its output in a file; the group ends with the context."""

    def __init__(self, command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.command = list(command)
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until(self, ready: Callable[[], bool], *, timeout: float = 60.0) -> None:
        """Raises StartFailed when the process ends first, or the time does."""
        end = time.monotonic() + timeout
        while not ready():
            if self._process.poll() is not None:
                raise StartFailed(f"{self.command[:4]} ended with {self._process.returncode}\n{self._end_of_log()}")
            if time.monotonic() > end:
                raise StartFailed(f"{self.command[:4]} is not ready after {timeout:.0f} s\n{self._end_of_log()}")
            time.sleep(0.05)

    def stop(self, *, patience: float = 20.0) -> None:
        """SIGTERM to the process, and SIGKILL to what is left of its group after `patience` seconds."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def kill(self) -> None:
        """SIGKILL to all of its group at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _end_of_log(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-2000:]


@dataclass(frozen=True, slots=True)
class _Stat:
    parent: int
    ticks: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # The second field is the name in parentheses, and may itself hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    # Of the process, and of the children that it has waited for.
    return _Stat(parent=int(fields[1]), ticks=sum(int(field) for field in fields[11:15]))


def tree(root: int) -> dict[int, int]:
    """The processes of a tree, root included, with the CPU ticks that each has used."""
    pids = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    stats = {pid: stat for pid in pids if (stat := _stat(pid))}
    children = defaultdict(list)
    for pid, stat in stats.items():
        children[stat.parent].append(pid)
    found: dict[int, int] = {}
    pending = [root]
    while pending:
        pid = pending.pop()
        if pid in stats:
            found[pid] = stats[pid].ticks
            pending.extend(children[pid])
    return found


def cpu_seconds(root: int) -> float:
    """CPU used so far by a process tree: user and system, all threads, ended children included."""
    return sum(tree(root).values()) / TICKS


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a process tree. In `rss` a page that two of its processes share counts twice, in `pss` once."""

    rss: int
    pss: int
    anonymous: int
    processes: int


def memory(root: int) -> Memory:
    """What the process tree has resident now."""
    totals = dict.fromkeys(("Rss", "Pss", "Anonymous"), 0)
    pids = tree(root)
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]:
                name, _, size = line.partition(":")
                if name in totals:
                    totals[name] += int(size.split()[0]) * 1024
    return Memory(rss=totals["Rss"], pss=totals["Pss"], anonymous=totals["Anonymous"], processes=len(pids))
