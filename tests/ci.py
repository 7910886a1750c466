"""Every part of the tests but `timing`, whatever became of the others: `python -m tests.ci`, which `.ci/run` calls.

Downloads and compiling begin at once and take what the tests leave of the processor. The unit tests run first and by
themselves, the other parts two at a time. The table at the end has the command for each part alone.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from threading import Event, Lock
from typing import Final

from e2e import results as e2e
from tests.counts import COUNTS_FILE, Counts, reported
from tests.parts import PARTS, Part
from tests.paths import ROOT
from tests.timing.__main__ import files, read

LOGS: Final = ROOT / ".cache" / "ci"
ORDER: Final = ("integration", "cluster", "agents", "browser", "system", "engine")
"""The parts behind the unit tests: first what mostly waits, last what takes the whole processor."""
AT_ONCE: Final = 2
PREPARED: Final = {"engine": "sglang", "cluster": "cluster"}
"""The make target whose end a part waits for."""
LONGEST: Final = 3600.0
"""Seconds for one part."""
OLD: Final = 150
"""Commits after which results of `make test-timing` are called old."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one part."""

    part: Part
    status: int
    counts: Counts
    seconds: float

    @property
    def failed(self) -> bool:
        return self.status != 0

    def row(self) -> str:
        counts = f"{self.counts.passed:>7} {self.counts.failed:>7} {self.counts.skipped:>8}"
        ended = "" if self.counts.failed or not self.failed else f"   (ended with status {self.status})"
        return f"{self.part.name:<12} {counts} {self.seconds:>8.0f}   make {self.part.target}{ended}"


def main() -> None:
    began = time.monotonic()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores Ctrl-C
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    preparing = {target: _prepare(target) for target in sorted(set(PREPARED.values()))}
    try:
        outcomes = sorted(_outcomes(preparing), key=lambda outcome: [*PARTS].index(outcome.part.name))
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        for process in preparing.values():
            _kill(process)
    print(*_table(outcomes), sep="\n")
    print(*_stale_results(), sep="\n")
    print(f"{time.monotonic() - began:.0f} s in all")
    total = sum((outcome.counts for outcome in outcomes), Counts())
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped", flush=True)
    sys.exit(1 if any(outcome.failed for outcome in outcomes) else 0)


def _outcomes(preparing: dict[str, "subprocess.Popen[bytes]"]) -> Iterator[Outcome]:
    running: set[subprocess.Popen[bytes]] = set()
    left, taking, stopped = list(ORDER), Lock(), Event()

    def is_prepared(name: str) -> bool:
        return name not in PREPARED or preparing[PREPARED[name]].poll() is not None

    def taken() -> Iterator[str]:
        """The next part that is prepared, until none is left."""
        while True:
            with taking:
                if not left:
                    return
                name = next(filter(is_prepared, left), left[0])
                left.remove(name)
            if name in PREPARED:
                preparing[PREPARED[name]].wait()
            yield name

    def run_some() -> list[Outcome]:
        return [_run(PARTS[name], running) for name in taken() if not stopped.is_set()]

    yield _run(PARTS["unit"], running, shown=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        started = [pool.submit(run_some) for _ in range(AT_ONCE)]
        try:
            yield from chain.from_iterable(each.result() for each in started)
        except KeyboardInterrupt:
            stopped.set()
            for process in [*preparing.values(), *running]:
                _kill(process)
            raise


def _stale_results() -> Iterator[str]:
    """Results that are missing, failed or old: run those tests again before an issue is called resolved."""
    results = {result.file: result for result in read()}
    for file in files():
        result = results.get(file)
        if result is None:
            yield f"not run yet: make test-timing ARGS={file}"
        elif result.failed or _commits_since(result.commit) > OLD:
            yield f"{'failed' if result.failed else 'old'}, of {result.date}: make test-timing ARGS={file}"
    scenarios = Counter(result.commit for result in e2e.read())
    if old := sum(count for commit, count in scenarios.items() if _commits_since(commit) > OLD):
        yield f"{old} scenarios on a cluster ran more than {OLD} commits ago: make e2e-full"


def _commits_since(commit: str) -> float:
    """Many, where it is not known."""
    count = ["git", "rev-list", "--count", f"{commit.rstrip('+')}..HEAD"]
    done = subprocess.run(count, cwd=ROOT, capture_output=True, text=True, check=False)
    return float("inf") if done.returncode else int(done.stdout)


def _prepare(target: str) -> "subprocess.Popen[bytes]":
    with (LOGS / f"make-{target}.log").open("wb") as log:
        return subprocess.Popen(
            ["nice", "-n", "19", "make", target], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def _run(part: Part, running: "set[subprocess.Popen[bytes]]", *, shown: bool = False) -> Outcome:
    """Run one part, whose process joins those that are `running`; unless it is `shown` as it runs, what it said is
    printed at its end."""
    counted, log = LOGS / f"{part.name}.counts", LOGS / f"{part.name}.log"
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["make", part.target],
            cwd=ROOT,
            env=os.environ | {COUNTS_FILE: str(counted)},
            stdin=subprocess.DEVNULL,
            stdout=None if shown else output,
            stderr=None if shown else subprocess.STDOUT,
            start_new_session=True,
        )
        running.add(process)
        try:
            status = process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            status = 124
        finally:
            _kill(process)
            running.discard(process)
    if not shown:
        print(f"\n===== make {part.target} =====\n{log.read_text(errors='replace')}", flush=True)
    return Outcome(part, status, reported(counted), time.monotonic() - began)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End it, and all that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _table(outcomes: Iterable[Outcome]) -> Iterator[str]:
    yield f"\n{'part':<12} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}   command"
    yield from (outcome.row() for outcome in outcomes)


if __name__ == "__main__":
    main()
