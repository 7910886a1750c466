"""The command line: `python -m tests.timing.faults`, which is `make faults`."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated

import typer
from tests.counts import Counts, asked_for, report
from tests.paths import ROOT
from tests.timing.faults.fault import Fault
from tests.timing.faults.planted import FAULTS
from tests.timing.faults.results import LATEST, read, write
from tests.timing.faults.running import Copy, Outcome

COPIES = 2


def main() -> None:
    typer.run(faults)


def faults(
    names: Annotated[list[str] | None, typer.Argument(help="Which faults (default: all).", show_default=False)] = None,
    output: Annotated[Path, typer.Option(help="Where results go; those of other faults stay.")] = LATEST,
) -> None:
    """Plant each fault in a copy of the sources, and see that the tests for it fail there.

    Exits with 1 where one is not caught, or where the tests fail without any.
    """
    chosen = [fault for fault in FAULTS if not names or fault.name in names]
    if unknown := set(names or ()) - {fault.name for fault in FAULTS}:
        raise typer.BadParameter(f"no such faults: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="rolloutfleet-faults-") as folder:
        copies = [Copy(ROOT, Path(folder) / str(number)) for number in range(COPIES)]
        print("The tests without a fault", flush=True)
        if trouble := copies[0].passes(sorted({test for fault in chosen for test in fault.selection(ROOT)})):
            print(trouble)
            raise typer.Exit(1)
        outcomes = planted(chosen, copies)
    missed = [outcome.fault for outcome in outcomes if outcome.caught_by is None]
    write(_with_others(outcomes, output), output)
    report(Counts(passed=len(outcomes) - len(missed), failed=len(missed)), asked_for())
    print(f"{len(outcomes) - len(missed)} of {len(outcomes)} are caught" + "".join(f"\nNOT {name}" for name in missed))
    raise typer.Exit(1 if missed else 0)


def _with_others(outcomes: list[Outcome], output: Path) -> list[Outcome]:
    """Those of faults that were not run now are kept, as long as there are such faults."""
    before = read(output) if output.exists() else []
    left = {fault.name for fault in FAULTS} - {outcome.fault for outcome in outcomes}
    return outcomes + [outcome for outcome in before if outcome.fault in left]


def planted(chosen: list[Fault], copies: list[Copy]) -> list[Outcome]:
    """What became of each, as many at a time as there are copies."""
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def one(fault: Fault) -> Outcome:
        copy = free.get()
        try:
            outcome = copy.outcome(fault)
        finally:
            free.put(copy)
        print(f"{outcome.seconds:6.1f} s  {fault.name}: {outcome.caught_by or 'NOT CAUGHT'}", flush=True)
        return outcome

    with ThreadPoolExecutor(len(copies)) as pool:
        return list(pool.map(one, chosen))
