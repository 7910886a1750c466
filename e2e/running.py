"""Runs the tests on a cluster: scenarios side by side, since they mostly wait, each in a namespace of its own.

The cluster is made if need be, and goes with the run that made it.
"""

import argparse
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import FrameType
from typing import Final, NoReturn

from tests.counts import Counts, asked_for, report
from toolchain.kubernetes import lifecycle, records
from toolchain.kubernetes.docker import daemon
from toolchain.kubernetes.docker.client import Docker
from toolchain.kubernetes.failures import ClusterError
from toolchain.kubernetes.progress import say, step
from toolchain.kubernetes.settings import ENV_PREFIX, Settings

from e2e import results
from e2e.installing import LOADED, build_images, load_images
from e2e.results import Result

ROOT: Final = results.HERE.parent
REPORTS: Final = ROOT / ".cache" / "e2e"
WORKERS_FOR_THE_CORE: Final = 1
"""Nodes for pods: each takes its time to start, and to be given images."""
FOLDERS: Final = "tmp"
"""In there: the temporary folders of each scenario's tests."""
EPILOG: Final = """\
examples:
  python -m e2e --kubeconfig ~/.kube/config --registry registry.example/rolloutfleet
                                           the core, on a cluster of yours
  python -m e2e                            the core, on a cluster that is made for it: what CI runs
  python -m e2e --full --minutes 45        everything that has not passed at this commit yet, for 45 minutes;
                                           run it again to go on. Results: e2e/results/latest.json
  python -m e2e test_cluster.py -- -x      one file; what follows -- goes to pytest
  python -m toolchain.kubernetes up        a cluster that stays from run to run

A failed test leaves logs, events and objects of its namespace in .cache/e2e.
"""


@dataclass
class Run:
    """What one run does, and where it is."""

    commit: str
    mark: str
    words: Sequence[str]
    deadline: float
    known: dict[str, float]
    """Seconds that each scenario took when it last ran."""
    kept: bool = False
    """True: results go to `e2e/results` one by one, so that an interrupted run keeps those it has."""
    begun: bool = False
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    stopped: threading.Event = field(default_factory=threading.Event)
    keeping: threading.Lock = field(default_factory=threading.Lock)

    def scenario(self, name: str) -> list[Result]:
        """Run one; nothing where it would not have ended in time, unless it is the first of all."""
        if self.stopped.is_set() or (self.begun and time.monotonic() + self.known.get(name, 0.0) > self.deadline):
            return []
        self.begun = True
        slug = name.replace("::", ".")
        report = REPORTS / f"{slug}.xml"
        report.unlink(missing_ok=True)
        # Each with folders of its own: several would clean up each other's.
        folders = f"--basetemp={REPORTS / FOLDERS / slug}"
        line = [sys.executable, "-m", "pytest", "-q", "-m", self.mark, f"--junitxml={report}", folders, *self.words]
        started = time.monotonic()
        process = subprocess.Popen(
            [*line, f"e2e/{name}"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C reaches it by `stop` alone
        )
        self.processes[name] = process
        said, _ = process.communicate()
        del self.processes[name]
        found = results.of_run(report, name, status=process.returncode, commit=self.commit)
        well = all(result.passed for result in found)
        say(f"{'ok  ' if well else 'FAIL'} {name} {time.monotonic() - started:.0f} s")
        if not well:
            say(said)
        if self.kept and not self.stopped.is_set():
            with self.keeping:
                results.add(found)
        return found

    def lanes(self, lanes: Sequence[Sequence[str]], *, at_once: int) -> list[Result]:
        """Run scenarios, those of a lane one after the other. Begins with the longest lane."""
        order = sorted(lanes, key=lambda lane: sum(map(self._seconds, lane)), reverse=True)
        with ThreadPoolExecutor(at_once) as pool:
            futures = [pool.submit(lambda lane: [self.scenario(name) for name in lane], lane) for lane in order]
            try:
                found = [future.result() for future in futures]
            except BaseException:
                self.stop()
                raise
        return [result for lane in found for each in lane for result in each]

    def _seconds(self, name: str) -> float:
        """The time that it took when it last ran; infinite where nothing is known, as it may be the longest."""
        return self.known.get(name, math.inf)

    def stop(self) -> None:
        """Let every pytest end as Ctrl-C lets it: with its fixtures taken down."""
        self.stopped.set()
        for process in list(self.processes.values()):
            process.terminate()


def run(options: argparse.Namespace) -> int:
    wanted = _wanted(options)
    if not wanted:
        say("every scenario has passed at this commit already")
        return 0
    settings = Settings()
    if not options.full and "workers" not in settings.model_fields_set:
        settings = settings.model_copy(update={"workers": WORKERS_FOR_THE_CORE})
    daemon_ran, cluster_ran = daemon.running() is not None, records.read(settings.name) is not None
    try:
        _make_ready(settings)
        found = _run_all(wanted, options)
    finally:
        if not cluster_ran:
            lifecycle.down(settings.name)
            if not daemon_ran:
                daemon.stop()
    return _conclude(found, options)


def _make_ready(settings: Settings) -> None:
    """A cluster with the images of this working tree, which are built while its nodes start."""
    if settings.kubeconfig is None:
        docker = daemon.ensure(data=settings.docker_data, addresses=settings.docker_range)
    elif (found := daemon.found()) is not None:
        docker = found
    else:
        raise ClusterError(daemon.CAN_T_START)
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(_built, docker)
        record = lifecycle.up(settings)
        os.environ[LOADED] = load_images(record, docker, made.result()).told()


def _built(docker: Docker) -> dict[str, str]:
    with step("Building the project's images"):
        return build_images(docker)


def _wanted(options: argparse.Namespace) -> list[str]:
    """Scenarios of the named files, or of all; a full run goes on where an earlier one ended."""
    there = results.scenarios() if options.full else results.core()
    if options.full:
        commit = results.checked_out()
        here = [each for each in results.read() if each.commit == commit]
        there = results.lacking(here, there=there, runs=options.runs)
    return [each for each in there if not options.files or each.partition("::")[0] in options.files]


def _run_all(wanted: Sequence[str], options: argparse.Namespace) -> list[Result]:
    (REPORTS / FOLDERS).mkdir(parents=True, exist_ok=True)
    started = Run(
        commit=results.checked_out(),
        mark="" if options.full else "not full",
        words=options.words,
        deadline=time.monotonic() + 60 * options.minutes,
        known={result.scenario: result.seconds for result in results.read()},
        kept=options.full,
    )
    say(f"{len(wanted)} scenarios, {options.at_once} at once")
    return [each for lanes in plan(wanted) for each in started.lanes(lanes, at_once=options.at_once)]


def plan(wanted: Sequence[str]) -> list[list[list[str]]]:
    """Lanes that run side by side, one set of them after the other.

    While the operator of the whole cluster and the definition come and go, only what needs neither runs beside.
    """

    def marked(mark: str) -> list[str]:
        return [name for name in wanted if results.is_marked(name, mark)]

    coming_and_going, without, alone = map(marked, ("whole_cluster", "no_operator", "alone"))
    rest = [name for name in wanted if name not in {*coming_and_going, *without, *alone}]
    return [[coming_and_going, *([name] for name in without)], [[name] for name in rest], [alone]]


def _conclude(found: Sequence[Result], options: argparse.Namespace) -> int:
    failed = [result.scenario for result in found if not result.passed]
    report(Counts(len(found) - len(failed), len(failed)), asked_for())
    say(f"{len(found) - len(failed)} scenarios passed, {len(failed)} failed{': ' * bool(failed)}{', '.join(failed)}")
    if options.full:
        commit = results.checked_out()
        here = [each for each in results.read() if each.commit == commit]
        lacking = results.lacking(here, there=results.scenarios(), runs=options.runs)
        left = [each for each in lacking if each not in failed]
        if left:
            say(f"{len(left)} scenarios are left for the next part: python -m e2e --full")
    return 1 if failed or not found else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m e2e",
        description="Run the tests on a Kubernetes cluster.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="test files of e2e/ (default: all)")
    parser.add_argument("--kubeconfig", metavar="FILE", help="run on the cluster of this file; none is made")
    parser.add_argument("--context", metavar="NAME", help="which of its contexts (default: the current one)")
    parser.add_argument("--registry", metavar="NAME", help="where that cluster pulls from: images are pushed there")
    parser.add_argument("--full", action="store_true", help="every scenario, not the core alone; writes the results")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="with --full: until each has passed so often")
    parser.add_argument("--at-once", type=int, default=4, metavar="N", help="scenarios side by side (%(default)s)")
    parser.add_argument(
        "--minutes",
        type=float,
        default=45,
        help="begin none that would end after that, by its last run (%(default)s)",
    )
    return parser


def main() -> None:
    signal.signal(signal.SIGTERM, _interrupted)
    ours, words = _split(sys.argv[1:])
    options = _parser().parse_args(ours)
    options.words = words
    # Of this process and the pytest processes that it starts.
    for name in ("kubeconfig", "context", "registry"):
        if (given := getattr(options, name)) is not None:
            os.environ[f"{ENV_PREFIX}{name.upper()}"] = given
    if unknown := [name for name in options.files if not (results.HERE / name).is_file()]:
        _parser().error(f"no file {', '.join(unknown)} in e2e/")
    try:
        sys.exit(run(options))
    except ClusterError as error:
        sys.exit(f"e2e: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    place = list(words).index("--") if "--" in words else len(words)
    return list(words[:place]), list(words[place + 1 :])


def _interrupted(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
