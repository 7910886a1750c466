"""`make fuzz`: hostile and valid requests against a fleet of two proxies, the real gateway and the simulated engine."""

import argparse
import asyncio
import datetime
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.rigs.machine import revision
from benchmarks.rigs.processes import stop_as_by_ctrl_c
from tests.fleets import running_fleet
from tests.integration.fuzz import results
from tests.integration.fuzz.running import SETTINGS, Fuzz
from tests.paths import ROOT

PROXIES = 2


def main() -> int:
    """0 where all is well, 1 where something was found or too little covered, 130 where it was interrupted."""
    asked = _parser().parse_args()
    # What is started here is ended by the blocks that started it, so that nothing is left whoever ends this.
    stop_as_by_ctrl_c()
    try:
        return _run(asked)
    except KeyboardInterrupt:
        print("\nInterrupted: the fleet has been stopped, and nothing was written.", file=sys.stderr)
        return 130


def _run(asked: argparse.Namespace) -> int:
    began, commit = time.monotonic(), revision()
    with tempfile.TemporaryDirectory(prefix="rolloutfleet-fuzz-") as folder:
        print(f"Starting a fleet of {PROXIES} proxies; seed {asked.seed}.", flush=True)
        with running_fleet(Path(folder), proxies=PROXIES, settings=SETTINGS) as fleet:
            fuzz = Fuzz(fleet, seed=asked.seed, say=_say)
            until = time.monotonic() + asked.minutes * 60
            asyncio.run(fuzz.run(asked.cases, batch=asked.batch, until=until))
    result = results.summary(
        fuzz.covered,
        fuzz.faults,
        asked=asked.cases,
        commit=commit,
        seed=asked.seed,
        proxies=PROXIES,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        seconds=time.monotonic() - began,
    )
    results.write(result, asked.output)
    _conclude(result, asked.output)
    return 0 if results.is_clean(result) else 1


def _conclude(result: results.Json, output: Path) -> None:
    for fault in result["faults"]:
        print(f"\n{fault['route']} {fault['kind']} at proxy {fault['proxy']}: {fault['what']}")
        print(f"  sent {fault['sent']}\n  answered {fault['answered']}")
    if not result["complete"]:
        print("\nIt did not come to its end: too much was wrong, or the time was up (--minutes).")
    if result["share_2xx"] < results.LEAST_2XX:
        print(f"\nToo few of the cases reached a 2xx: at least {results.LEAST_2XX:.0%} must.")
    if result["calls_without_2xx"]:
        print(f"\nNever answered with a 2xx: {', '.join(result['calls_without_2xx'])}.")
    print(
        f"\n{result['cases']:,} cases in {result['seconds']:.0f} s, {result['share_2xx']:.0%} of them reached 2xx; "
        f"{result['audits_compared']} audits compared; {len(result['faults'])} faults. Written to {output}."
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.integration.fuzz",
        description="Valid and hostile requests to every call of the API, against a fleet of its own on loopback. Each "
        "answer is judged, and after each batch the audits of the proxies must equal what the 2xx answers said.",
        epilog="What a case sent is in the result beside its fault, to be sent again by hand. A seed makes the same "
        "choices again, as far as the answers let it: ids differ, and so does who comes first.",
    )
    parser.add_argument("--cases", type=_count, default=100_000, metavar="N", help="how many (default 100,000)")
    parser.add_argument("--batch", type=_count, default=500, metavar="N", help="cases between two audits (default 500)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of all choices (default 1)")
    parser.add_argument("--minutes", type=float, default=90.0, metavar="M", help="end after so many (default 90)")
    parser.add_argument(
        "--output", type=Path, default=results.LATEST, metavar="FILE", help=f"the result (default {_shown()})"
    )
    return parser


def _shown() -> Path:
    return results.LATEST.relative_to(ROOT)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _say(line: str) -> None:
    print(line[:500], flush=True)
