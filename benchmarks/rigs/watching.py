"""What is watched while a load runs: resident memory of a process tree, and whether `/health` answers."""

import http.client
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.rigs import processes
from benchmarks.rigs.background import Background

PAGE = 4096
PROBES_A_SECOND = 10
SAMPLES_A_SECOND = 20
TIMEOUT = 10.0
"""Seconds after which a probe counts as lost."""


class _Regular(Background):
    """Does one thing so many times a second, until it is left."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self._interval = 1 / rate

    def once(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        due = time.monotonic()
        while not self._left.is_set():
            self.once()
            due = max(due + self._interval, time.monotonic())
            self._left.wait(due - time.monotonic())


class Resident(_Regular):
    """Samples a process tree: (seconds, bytes)."""

    def __init__(self, pid: int) -> None:
        super().__init__(SAMPLES_A_SECOND)
        self.samples: list[tuple[float, int]] = []
        self._pid = pid
        self._began = time.monotonic()

    def once(self) -> None:
        self.samples.append((time.monotonic() - self._began, resident(self._pid)))

    @property
    def peak(self) -> int:
        """The most there was at once; the kernel's own marks of its processes catch what falls between two."""
        marks = [high_water(pid) for pid in processes.tree(self._pid)]
        return max([*marks, *(size for _, size in self.samples)])


def resident(root: int) -> int:
    """Resident bytes of a process tree; a page that two of them share counts twice."""
    return sum(_resident(pid) for pid in processes.tree(root))


def _resident(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    return 0


def high_water(pid: int) -> int:
    """The most that one process ever had resident."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


class Health(_Regular):
    """Asks `/health` ten times a second on a connection that is kept, and notes how long each answer took."""

    def __init__(self, url: str) -> None:
        super().__init__(PROBES_A_SECOND)
        self.waits: list[float] = []
        """Seconds of each answer that was a 200."""
        self.lost = 0
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT)

    def once(self) -> None:
        began = time.monotonic()
        try:
            self._connection.request("GET", "/health")
            answer = self._connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            self.lost += 1
            self._connection.close()
            return
        if answer.status == 200:
            self.waits.append(time.monotonic() - began)
        else:
            self.lost += 1


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


@dataclass(slots=True)
class Slope:
    """The line through points that outliers don't bend (Theil-Sen): the median of the slopes of all pairs."""

    points: Sequence[tuple[float, float]]
    value: float = field(init=False)

    def __post_init__(self) -> None:
        slopes = sorted(
            (y2 - y1) / (x2 - x1)
            for index, (x1, y1) in enumerate(self.points)
            for x2, y2 in self.points[index + 1 :]
            if x2 > x1
        )
        self.value = slopes[len(slopes) // 2] if slopes else 0.0


def thinned(samples: Sequence[tuple[float, float]], *, most: int = 200) -> list[tuple[float, float]]:
    """As many points as a fit of all pairs can take: the least of each stretch of time, which is what is kept and not
    what a call had at that moment."""
    size = max(math.ceil(len(samples) / most), 1)
    stretches = [samples[at : at + size] for at in range(0, len(samples), size)]
    return [(stretch[len(stretch) // 2][0], min(value for _, value in stretch)) for stretch in stretches]
