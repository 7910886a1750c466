"""`make kills`: processes of a fleet killed and stopped while they are at work, judged by what its clients were told.

Proxies, two simulated engines and the real gateway serve agents with the stock OpenAI SDK, and trainers that export,
acknowledge, give back and import, by plain HTTP and by the client library. Workers, parents, engines and the gateway
are killed, several at once, while they were seen in the middle of something: also while they start or drain, dump,
import, export or take an acknowledgement. It is done in legs, each with a fleet of its own: at the end of each all is
exported, and compared with the clients' journals.

Exit status 1 where that shows a fault, 2 where there were fewer kills than asked for, 130 where it was interrupted. The
result is written after each leg; --resume goes on from it, as long as the code of what is killed is the same.
"""

import argparse
import datetime
import json
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.rigs.processes import stop_as_by_ctrl_c
from tests.paths import ROOT
from tests.timing.kills import results
from tests.timing.kills.kinds import Kill, Kind
from tests.timing.kills.results import LATEST, Json
from tests.timing.kills.run import PROXIES, Asked, run
from tests.timing.kills.targets import FAULTS

RECORD = "record.json"
"""What is left of a leg that showed something wrong. It is no part of the result: that is of the legs before it."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    stop_as_by_ctrl_c()
    # What the client library says of each proxy that dies.
    logging.getLogger("rolloutfleet").addHandler(logging.NullHandler())
    before: list[Json] = []
    if options.resume:
        kept = json.loads(options.output.read_text(encoding="utf-8"))
        if kept["code"] != results.digest_of_code():
            _say(f"{options.output} is of other code: begin anew, without --resume")
            return 2
        before = [results.record_of(kept)]
    with tempfile.TemporaryDirectory(prefix="rolloutfleet-kills-") as bytecode:
        return _Run(options, Path(sys.pycache_prefix or bytecode), before).go()


@dataclass
class _Run:
    """Leg after leg."""

    options: argparse.Namespace
    bytecode: Path
    legs: list[Json]
    began: float = field(default_factory=time.monotonic)
    of_this_leg: list[Kill] = field(default_factory=list)
    done_before: int = 0

    def go(self) -> int:
        """The exit status."""
        self.done_before = self._done
        try:
            while self._done < self.options.kills and self._minutes_left > 0:
                if not self._leg():
                    return 1
        except KeyboardInterrupt:
            unjudged = Counter(str(kill.kind) for kill in self.of_this_leg)
            _say(f"\nInterrupted: the fleet has been stopped. Not judged: {_listed(unjudged) or 'nothing'}.")
            self._conclude()
            return 130
        self._conclude()
        return 0 if self._done >= self.options.kills else 2

    @property
    def _done(self) -> int:
        return sum(leg["kills"] for leg in self.legs)

    @property
    def _minutes_left(self) -> float:
        return float(self.options.minutes - (time.monotonic() - self.began) / 60)

    def _leg(self) -> bool:
        """Whether it showed nothing wrong."""
        self.of_this_leg = []
        asked = Asked(
            kills=min(self.options.leg, self.options.kills - self._done),
            seed=self.options.seed + sum(leg["legs"] for leg in self.legs),
            minutes=self._minutes_left,
            proxies=self.options.proxies,
            kinds=self.options.kinds,
            fault=self.options.fault,
        )
        folder = Path(tempfile.mkdtemp(prefix="rolloutfleet-kills-"))
        try:
            outcome = run(asked, folder, bytecode=self.bytecode, say=_say, killed=self._killed)
        except KeyboardInterrupt:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if not outcome.contradictions:
            self.legs.append(outcome.record)
            self.of_this_leg = []
            self._write()
            shutil.rmtree(folder, ignore_errors=True)
            return True
        results.write(outcome.record, folder / RECORD)
        for text in outcome.contradictions:
            _say(f"WRONG: {text}")
        _say(f"stores, logs, the journal and the record of this leg are kept in {folder}")
        return False

    def _killed(self, kill: Kill) -> None:
        self.of_this_leg.append(kill)
        done, seconds = self._done + len(self.of_this_leg), time.monotonic() - self.began
        each = seconds / (done - self.done_before)
        left = each * (self.options.kills - done) / 60
        _say(f"{seconds:6.0f} s, {done:4} of {self.options.kills}, {each:.1f} s each, {left:.0f} min left: {kill}")

    def _write(self) -> None:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        total = results.added(self.legs)
        kept = results.result(total, asked=self.options.kills, proxies=self.options.proxies, date=today)
        results.write(kept, self.options.output)

    def _conclude(self) -> None:
        if not self.legs:
            _say("There is no result.")
            return
        total = results.added(self.legs)
        _say(f"{total['kills']} kills in {total['seconds']:.0f} s: {_listed(total['by_kind'])}")
        _say(f"clients were answered: {_listed(total['answers'])}")
        if results.is_clean({**total, "complete": True}):
            _say("nothing that was answered is lost, and nothing is there twice")
        _say(f"the result is in {self.options.output}")


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{what} {number}" for what, number in counts.items())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.timing.kills", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=results.LEAST, help="how many (default: %(default)s)")
    parser.add_argument("--leg", type=int, default=200, help="how many with one fleet (default: %(default)s)")
    parser.add_argument("--proxies", type=int, default=PROXIES, help="of a fleet (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="decides order and places (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=180, help="no kill after so many (default: %(default)s)")
    parser.add_argument(
        "--kinds", type=Kind, nargs="+", choices=list(Kind), default=list(Kind), help="only these; default: all"
    )
    parser.add_argument("--fault", choices=FAULTS, help="plant this fault in the proxies: the run must end with 1")
    parser.add_argument("--resume", action="store_true", help="go on from the result that is there")
    parser.add_argument("--output", type=Path, default=LATEST, help=f"the result (default: {_shown()})")
    return parser


def _shown() -> Path:
    return LATEST.relative_to(ROOT)


def _say(line: str) -> None:
    print(line, flush=True)
