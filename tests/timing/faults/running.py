"""Runs tests on a copy of the sources, with a fault in it or none."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.counts import COUNTS_FILE
from tests.timing.faults.fault import Fault, part_of

PACKAGES = ("client", "engine", "operator", "proxy")
LONGEST = 600.0
"""Seconds for the tests of one fault."""
FAILED = 1
"""What pytest ends with where tests failed, and nothing else went wrong."""

_FIRST = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the tests of a fault said of it."""

    fault: str
    promise: str
    file: str
    caught_by: str | None
    """The test that failed; None where all passed."""
    seconds: float


class Copy:
    """Sources apart from those that are worked on."""

    def __init__(self, root: Path, into: Path) -> None:
        self._root = root
        self.folder = into
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for name in filter(None, listed.split("\0")):
            if (root / name).is_file():
                (into / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, into / name)

    def passes(self, tests: Iterable[str]) -> str:
        """Runs the tests without a fault; what pytest said where they fail, else nothing."""
        for part in by_part(tests):
            done = self._pytest(part, "-n", "2", "--dist", "loadfile")
            if done.returncode:
                return done.stdout + done.stderr
        return ""

    def outcome(self, fault: Fault) -> Outcome:
        """Raises RuntimeError where the tests did not get as far as to pass or fail."""
        began = time.monotonic()
        file = fault.plant(self.folder)
        try:
            for part in by_part(fault.selection(self.folder)):
                done = self._pytest(part, "-x")
                if done.returncode:
                    break
        finally:
            shutil.copy2(self._root / file.relative_to(self.folder), file)
        if done.returncode not in (0, FAILED):
            raise RuntimeError(f"{fault.name}: pytest ended with {done.returncode}\n{done.stdout}{done.stderr}")
        failed = _FIRST.search(done.stdout)
        return Outcome(
            fault.name,
            fault.promise.name.lower(),
            str(file.relative_to(self.folder)),
            failed[1] if failed else None,
            round(time.monotonic() - began, 1),
        )

    def _pytest(self, tests: Iterable[str], *options: str) -> "subprocess.CompletedProcess[str]":
        # Before the packages that are installed, which are those that are worked on.
        sources = os.pathsep.join(str(self.folder / package) for package in PACKAGES)
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *tests],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": sources, COUNTS_FILE: ""},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )


def by_part(tests: Iterable[str]) -> list[list[str]]:
    """Tests of one folder of tests/ together, the quickest first: those of others can't run in the same process."""
    parts: dict[str, list[str]] = {}
    for test in tests:
        parts.setdefault(part_of(test), []).append(test)
    return [parts[name] for name in sorted(parts, key=lambda name: (name != "unit", name != "integration"))]
