"""Runs what repeats something as often as it can be told to, and writes what it showed: `python -m tests.at_length`.

These are the files that import `tests.lengths`: `make test` runs them too, with fewer repetitions.
"""

import ast
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Final

import typer
from e2e.results import Result, checked_out, of_run, read, write
from tests.lengths import VARIABLE
from tests.paths import ROOT

LATEST: Final = ROOT / "tests" / "results" / "at_length.json"
AT_ONCE: Final = 2
TIMEOUT: Final = 900
"""Seconds for one test: the longest are repeated for minutes."""


def files() -> Iterator[str]:
    """Those that repeat something, from the root."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        imported = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom))
        if any(node.module == "tests.lengths" for node in imported):
            yield str(path.relative_to(ROOT))


def at_length(
    names: Annotated[list[str] | None, typer.Argument(help="Which files (default: all).", show_default=False)] = None,
    output: Annotated[Path, typer.Option(help="Where the results go, over those of the same files.")] = LATEST,
) -> None:
    """Run the tests that repeat something with their full number of repetitions (ten minutes).

    Exits with 1 where one fails or is skipped.
    """
    there = list(files())
    if unknown := set(names or ()) - set(there):
        raise typer.BadParameter(f"nothing is repeated in {', '.join(sorted(unknown))}")
    wanted, commit = names or there, checked_out()
    with tempfile.TemporaryDirectory(prefix="rolloutfleet-at-length-") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda file: _run(file, Path(folder), commit), wanted))
    results = [result for each in found for result in each]
    failed = [result.scenario for result in results if not result.passed]
    print(
        f"{len(results) - len(failed)} tests passed, {len(failed)} failed"
        + "".join(f"\nFAIL {name}" for name in failed)
    )
    kept = [each for each in read(output) if each.file in there and each.file not in wanted]
    write(sorted([*kept, *results], key=lambda each: each.file), output)
    raise typer.Exit(1 if failed or not results else 0)


def _run(file: str, folder: Path, commit: str) -> Sequence[Result]:
    own = folder / file.replace("/", "-")
    report = own.with_suffix(".xml")
    words = ["-q", f"--timeout={TIMEOUT}", f"--basetemp={own}", f"--junitxml={report}", file]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT,
        env=os.environ | {VARIABLE: "yes"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    print(f"{time.monotonic() - began:6.1f} s  {file}: {'ok' if done.returncode == 0 else 'FAILED'}", flush=True)
    if done.returncode:
        print(done.stdout, done.stderr, flush=True)
    return of_run(report, file, status=done.returncode, commit=commit)


if __name__ == "__main__":
    typer.run(at_length)
