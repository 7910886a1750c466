"""What the tests of each file take, in seconds: printed at the end of a run for the slowest, written for all.

    python -m pytest … ; less .cache/durations.txt

`cpu` is that of the process that runs the tests and of its children that have ended, so a file whose `wall` is far
above it waits. Where files run side by side, walls add up to more than the run took.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

WRITTEN = Path(".cache") / "durations.txt"
PRINTED = 15
PROPERTY = "cpu"
PHASES = ("setup", "call", "teardown")


@dataclass(slots=True)
class Spent:
    """On the tests of one file: seconds, and the slowest test."""

    tests: int = 0
    walls: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    cpu: float = 0.0
    slowest: tuple[float, str] = (0.0, "")
    _of_tests: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def wall(self) -> float:
        return sum(self.walls.values())

    def add(self, test: str, phase: str, wall: float, cpu: float) -> None:
        self.tests += phase == "call"
        self.walls[phase] += wall
        self.cpu += cpu
        self._of_tests[test] += wall
        self.slowest = max(self.slowest, (self._of_tests[test], test))


class Meter:
    """In each process that runs tests: gives every report the processor's seconds since the last one."""

    def __init__(self) -> None:
        self._before = _cpu()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Any:
        report: pytest.TestReport = yield
        now = _cpu()
        report.user_properties = [*report.user_properties, (PROPERTY, now - self._before)]
        self._before = now
        return report


class Durations:
    """In the process that prints: sums the reports by file."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._spent: dict[str, Spent] = defaultdict(Spent)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when not in PHASES:
            return  # xdist's, of a test whose process died
        file, _, test = report.nodeid.partition("::")
        cpu = sum(float(str(value)) for name, value in report.user_properties if name == PROPERTY)
        self._spent[file].add(test, report.when, report.duration, cpu)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._spent:
            return
        lines = list(table(self._spent))
        (self._root / WRITTEN.parent).mkdir(exist_ok=True)
        (self._root / WRITTEN).write_text("\n".join(lines) + "\n")
        terminalreporter.section(f"slowest files (all: {WRITTEN})")
        for line in lines[: PRINTED + 2]:
            terminalreporter.write_line(line)


def table(spent: Mapping[str, Spent]) -> Iterable[str]:
    """The sum, then a line a file, the slowest first."""
    yield f"{'wall':>8} {'cpu':>8} {'setup':>8} {'call':>8} {'teardown':>8} {'tests':>6}  file (its slowest test)"
    yield _line("all", list(spent.values()))
    for file, one in sorted(spent.items(), key=lambda item: -item[1].wall):
        yield _line(f"{file} ({one.slowest[0]:.1f} {one.slowest[1]})", [one])


def _line(name: str, files: list[Spent]) -> str:
    walls = [sum(one.walls[phase] for one in files) for phase in PHASES]
    figures = " ".join(f"{seconds:8.1f}" for seconds in (sum(walls), sum(one.cpu for one in files), *walls))
    return f"{figures} {sum(one.tests for one in files):6d}  {name}"


def _cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
