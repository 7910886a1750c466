"""A part of the tests, again and again on a busy machine: `python -m tests.repeat PART TIMES`, `make test-repeat`.

Two busy processes run beside it, and before each run the page cache is dropped where this may be done. What each run
came to stands in tests/results/repeat_PART.json; called again, it goes on where it stopped, as long as nothing but
results, documentation, benchmarks and other parts has changed since.
"""

import contextlib
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.counts import COUNTS_FILE, reported
from tests.parts import PARTS, Part
from tests.paths import ROOT

RESULTS: Final = ROOT / "tests" / "results"
BUSY: Final = 2
DROP: Final = Path("/proc/sys/vm/drop_caches")
UNTESTED: Final = (":(exclude,glob)**/results/**", ":!e2e/test_*.py", ":!benchmarks", ":!docs", ":!*.md")
"""A change of these, or of the tests of other parts, begins no new series."""
Run = dict[str, Any]


def main() -> None:
    match sys.argv[1:]:
        case [name, times] if name in PARTS and times.isdigit():
            pass
        case _:
            sys.exit(f"usage: python -m tests.repeat {{{','.join(PARTS)}}} TIMES")
    part, file = PARTS[name], RESULTS / f"repeat_{name}.json"
    runs = _series(file, part)
    with _busy():
        while len(runs) < int(times):
            runs.append(_run(part))
            RESULTS.mkdir(exist_ok=True)
            file.write_text("[\n" + ",\n".join(map(json.dumps, runs)) + "\n]\n")
            print(f"run {len(runs)} of {times}: {runs[-1]}", flush=True)
    red = [run for run in runs if run["status"]]
    print(f"{len(runs)} runs of {part.folder}, {len(red)} of them red")
    sys.exit(1 if red else 0)


def _series(file: Path, part: Part) -> list[Run]:
    """The runs of what is tested as it is now."""
    runs: list[Run] = json.loads(file.read_text()) if file.exists() else []
    return [run for run in runs if _is_unchanged_since(run["commit"], part)]


def _is_unchanged_since(commit: str, part: Part) -> bool:
    """True while nothing that the part runs differs. All use what is in `tests/unit`, and but for that, integration."""
    used = {part.name, "unit", *(["integration"] if part.name != "unit" else [])}
    others = [f":!{other.folder}" for other in PARTS.values() if other.name not in used]
    changed = ["git", "diff", "--quiet", commit, "--", ".", *UNTESTED, *others]
    return subprocess.run(changed, cwd=ROOT, stderr=subprocess.DEVNULL, check=False).returncode == 0


def _run(part: Part) -> Run:
    os.sync()
    with contextlib.suppress(OSError):
        DROP.write_text("1")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rolloutfleet-repeat-") as folder:
        counted = Path(folder) / "counts"
        command = [sys.executable, "-m", "tests.run", part.name]
        environment = os.environ | {COUNTS_FILE: str(counted), "CI_SLOW": "1"}
        status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        counts = reported(counted)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return {
        "commit": head.stdout.strip(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "status": status,
        "passed": counts.passed,
        "failed": counts.failed,
        "skipped": counts.skipped,
        "seconds": round(time.monotonic() - began),
    }


@contextlib.contextmanager
def _busy() -> Iterator[None]:
    """Processes that take what the scheduler gives them."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(BUSY)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
