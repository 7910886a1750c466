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

from tests.timing.faults.fault import Fault
from tests.waiting import PATIENCE_VARIABLE

PACKAGES = ("client", "engine", "operator", "proxy")
LONGEST = 600.0
"""Seconds for the tests of one fault."""
PATIENCE = 60.0
"""Seconds that they wait for what a fault may keep away."""
FAILED = 1
"""What pytest ends with where tests failed, and nothing else went wrong."""

_FIRST = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


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
        done = self._pytest(tests, "-n", "2", "--dist", "loadfile")
        return done.stdout + done.stderr if done.returncode else ""

    def outcome(self, fault: Fault) -> Outcome:
        """Raises RuntimeError where the tests did not get as far as to pass or fail."""
        began = time.monotonic()
        file = fault.plant(self.folder)
        try:
            done = self._pytest(fault.selection(self.folder), "-x")
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
            env=os.environ | {"PYTHONPATH": sources, PATIENCE_VARIABLE: str(PATIENCE)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
