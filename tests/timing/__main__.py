"""What promises wall-clock time or resident memory: `python -m tests.timing [FILES]`, which is `make test-timing`.

One file after the other, since nothing else may take the processor meanwhile, and behind them every planted fault.
tests/timing/results/latest.json has what each came to, at which commit and when; those not run now keep theirs. Exits
with 1 where a test fails or is skipped, or a fault is missed. Arguments that name no file or folder here are pytest's:
then nothing is written.
"""

import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from e2e.results import checked_out
from tests.counts import COUNTS_FILE, reported
from tests.parts import PARTS
from tests.paths import ROOT
from tests.run import run, wait_for

HERE: Final = ROOT / "tests" / "timing"
LATEST: Final = HERE / "results" / "latest.json"
FAULTS: Final = "tests/timing/faults"
"""Stands for all planted faults among the files."""
TIMEOUT: Final = 900
"""Seconds for one test: the longest are repeated for minutes."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a file came to."""

    file: str
    commit: str
    """What was checked out; with `+` where it was changed."""
    date: str
    passed: int
    failed: int
    """Or skipped: what was not seen is not kept."""
    seconds: float


def main() -> None:
    words, there = sys.argv[1:], files()
    wanted = [file for file in there if not words or any(_names(word, file) for word in words)]
    if not all(any(_names(word, file) for file in there) for word in words):
        sys.exit(run(PARTS["timing"], words))
    failed = []
    try:
        for file in wanted:
            result = _run(file)
            write(kept(read(), result, there=there))
            how = "FAILED" if result.failed else "ok"
            print(f"{result.seconds:6.1f} s  {file}: {result.passed} passed, {result.failed} failed  {how}", flush=True)
            failed += [file] * bool(result.failed)
    except KeyboardInterrupt:
        sys.exit(130)
    print(f"{len(wanted) - len(failed)} files passed, {len(failed)} failed", *failed, sep="\n  ")
    sys.exit(1 if failed else 0)


def files() -> list[str]:
    """What there is to run, from the root; the planted faults last."""
    return [*(str(file.relative_to(ROOT)) for file in sorted(HERE.rglob("test_*.py"))), FAULTS]


def _names(word: str, file: str) -> bool:
    return file == word or file.startswith(f"{word.rstrip('/')}/")


def _run(file: str) -> Result:
    began, commit, today = time.monotonic(), checked_out(), datetime.datetime.now(datetime.UTC).date()
    with tempfile.TemporaryDirectory(prefix="rolloutfleet-timing-") as folder:
        counted, said = Path(folder) / "counts", Path(folder) / "said"
        tests = ["pytest", "-q", f"--timeout={TIMEOUT}", f"--basetemp={folder}/tests", file]
        command = [sys.executable, "-m", *(["tests.timing.faults"] if file == FAULTS else tests)]
        with said.open("wb") as output:
            environment = os.environ | {COUNTS_FILE: str(counted)}
            status = wait_for(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output))
        counts = reported(counted)
        if failed := counts.failed + counts.skipped or int(status != 0):
            print(said.read_text(errors="replace"))
    return Result(file, commit, today.isoformat(), counts.passed, failed, round(time.monotonic() - began, 1))


def kept(before: Iterable[Result], newer: Result, *, there: Iterable[str]) -> list[Result]:
    """The newest result of each file that there still is."""
    by_file = {result.file: result for result in (*before, newer)}
    return [by_file[file] for file in there if file in by_file]


def read(path: Path = LATEST) -> list[Result]:
    return [Result(**each) for each in json.loads(path.read_text())] if path.exists() else []


def write(results: Iterable[Result], path: Path = LATEST) -> None:
    """A line each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[\n" + ",\n".join(json.dumps(asdict(result)) for result in results) + "\n]\n")


if __name__ == "__main__":
    main()
