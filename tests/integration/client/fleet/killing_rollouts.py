"""Kills of a trainer that loops over rollouts, and of its proxies; the fleet against journals of trainer and agents.

Each kill is some events after the last: answers of agents, and places that the trainer passed.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Self

import httpx
import psutil
from tests.fleets import Fleet, ProxyProcess, running_fleet
from tests.integration.client.fleet.conftest import key_file
from tests.integration.client.fleet.looping_trainer import (
    FINISH,
    PLACES_PASSED,
    Life,
    Place,
    Step,
    lines,
    mark,
    read_journal,
)
from tests.integration.client.fleet.recorded_agent import ANSWERS
from tests.integration.proxy import judge
from tests.integration.proxy.cleaning import dumped_turns
from tests.paths import ROOT
from tests.processes import ends_with_this_process
from tests.waiting import PATIENCE, until

from rolloutfleet.fleet.proxies import owner_of

SETTINGS: Final = {"sessions": {"cleanup_interval": 0.5}}
REASONS: Final = {"replaced", "recovered", "deleted", "orphan"}
"""Why turns may have been discarded: agents run again, versions that the trainer lost, `open="delete"`."""
EVENTS: Final = 12
"""The most from one kill to the next."""
TRAINER: Final = "trainer"

Json = Any


@dataclass
class Trainer:
    """The process whose children are the lives of a trainer, one after the other."""

    process: "subprocess.Popen[str]"
    log: Path
    lives: int = 0
    pid: int = 0

    @classmethod
    @contextlib.contextmanager
    def loaded(cls, fleet: Fleet, folder: Path, *, seed: int) -> Iterator[Self]:
        log = folder / "trainer.log"
        words = [fleet.proxy.url, str(key_file(fleet)), str(folder), str(seed)]
        command = [sys.executable, "-m", "tests.integration.client.fleet.looping_trainer", *words]
        with (
            log.open("wb") as said,
            subprocess.Popen(
                [*ends_with_this_process(), *command],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            ) as process,
        ):
            made = cls(process, log)
            try:
                yield made
            finally:
                made.kill()
                process.communicate(timeout=PATIENCE)

    def begin(self, *, dies: Place | None = None, after: int = 0) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asdict(Life(self.lives, dies, after))) + "\n")
        self.process.stdin.flush()
        self.pid = self._told()
        self.lives += 1

    @property
    def lives_now(self) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return bool(self.pid) and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        return False

    def kill(self) -> None:
        """A life that has ended by itself stays dead until it is waited for."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """The status of the life, once it has ended; none of its commands is left running."""
        status, self.pid = self._told(), 0
        until(lambda: not self.commands(), state=self.commands)
        return status

    def commands(self) -> list[list[str]]:
        """Of its newest life: what still runs of them."""
        words = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
        return [each for each in words if mark(self.lives - 1) in each and str(self.log.parent) in " ".join(each)]

    def _told(self) -> int:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        return int(line)


@dataclass
class Killing:
    """Kills, and what was seen after each."""

    fleet: Fleet
    folder: Path
    trainer: Trainer
    random: Random
    kills: Counter[str] = field(default_factory=Counter)
    looks: int = 0
    longest_idle: float = 0.0
    """Seconds that any open session was seen to be without a call or a touch."""

    def kill(self, count: int, *, killed: Callable[[str], object] = lambda what: None) -> None:
        """So many, each life of the trainer ended by one, after up to three of proxies."""
        while self.kills.total() < count:
            dies = self.random.choice((None, *Place))
            self.trainer.begin(dies=dies, after=0 if dies is Place.RECOVERING else self.random.randrange(4))
            for _ in range(min(self.random.randrange(4), count - self.kills.total() - 1)):
                if self.some_events_later():
                    proxy = self.random.choice(self.fleet.proxies)
                    self.kill_proxy(proxy)
                    self.kills[f"proxy {proxy.ordinal}"] += 1
                    killed(f"proxy {proxy.ordinal}")
            if self.some_events_later(most=EVENTS if dies is None else 5 * EVENTS):
                self.trainer.kill()
                dies = None
            status = self.trainer.wait()
            assert status == -signal.SIGKILL, self.trainer.log.read_text()
            what = TRAINER if dies is None else f"{TRAINER}: {dies}"
            self.kills[what] += 1
            killed(what)
            self.look()

    def finish(self) -> None:
        """A last life, which is not killed, trains on all that is left."""
        (self.folder / FINISH).touch()
        self.trainer.begin()
        assert self.trainer.wait() == 0, self.trainer.log.read_text()

    def some_events_later(self, most: int = EVENTS) -> bool:
        """False where the trainer has died before."""
        wanted = self.events() + self.random.randint(1, most)
        until(
            lambda: self.events() >= wanted or not self.trainer.lives_now,
            seconds=2 * PATIENCE,
            state=lambda: (self.trainer.log.read_text()[-4000:], self.events(), wanted),
        )
        return self.trainer.lives_now

    def events(self) -> int:
        return len(lines(self.folder / ANSWERS)) + len(lines(self.folder / PLACES_PASSED))

    def kill_proxy(self, proxy: ProxyProcess) -> None:
        proxy.kill()
        self.look()
        proxy.launch()

    def look(self) -> None:
        """Nothing is acknowledged of which the step is not over."""
        for proxy in self.fleet.proxies:
            with contextlib.suppress(httpx.HTTPError):
                counted = proxy.audit()
                over = trained_turns(read_journal(self.folder), proxy.ordinal)
                assert counted["balanced"], counted
                assert counted["turns"]["acknowledged"] <= len(over), (counted, len(over))
                with proxy.admin() as admin:
                    left = admin.get("/sessions", params={"state": "open"}).raise_for_status().json()["sessions"]
                self.longest_idle = max([self.longest_idle, *(each["idle_seconds"] for each in left)])
                self.looks += 1

    def check(self) -> Json:
        """Every sum and every turn, once the last life has ended; the figures."""
        journal = read_journal(self.folder)
        in_steps = Counter(name for step in journal if step.ends for name in step.trajectories)
        assert not [name for name, times in in_steps.items() if times > 1], "in two steps that are over"
        known = [line.split()[1] for line in lines(self.folder / ANSWERS)]
        assert len(known) == len(set(known)), "one turn answered two calls"
        total: Counter[str] = Counter()
        for proxy in self.fleet.proxies:
            proxy.wait_until_ready()
            counted = proxy.audit()
            turns, sessions = counted["turns"], counted["sessions"]
            trained, dumped = trained_turns(journal, proxy.ordinal), set(dumped_turns(proxy))
            assert counted["balanced"] and not any(counted["missing"].values()), counted
            assert (turns["live"], turns["leased"], sessions["live"], sessions["leased"]) == (0, 0, 0, 0), counted
            # What a life trained and died over, before it was acknowledged, is dumped once it is stale.
            assert (turns["acknowledged"], turns["dumped"]) == (len(trained - dumped), len(dumped)), counted
            assert turns["discarded"].keys() <= REASONS, counted
            answered = {line.split()[1] for line in lines(self.folder / ANSWERS) if owner_of(line) == proxy.ordinal}
            others = answered - trained - dumped
            assert len(others) <= sum(turns["discarded"].values()), (others, counted)
            assert "Traceback" not in proxy.log.read_text()
            judge.assert_sound(proxy)
            total.update(created=turns["created"], acknowledged=turns["acknowledged"], dumped=turns["dumped"])
            total.update({f"discarded: {why}": number for why, number in turns["discarded"].items()})
        steps = Counter("over" if step.ends else "begun" for step in journal)
        return {
            "kills": dict(self.kills),
            "steps": dict(steps),
            "turns": dict(total),
            "looks": self.looks,
            "longest_idle": round(self.longest_idle, 1),
        }


def trained_turns(journal: list[Step], ordinal: int) -> set[str]:
    """Those of a proxy that are in steps that are over."""
    over = [step.trajectories for step in journal if step.ends]
    return {turn for step in over for name, turns in step.items() if owner_of(name) == ordinal for turn in turns}


def kill_rollouts(folder: Path, *, kills: int, seed: int, killed: Callable[[str], object] = lambda what: None) -> Json:
    """Kill so often in a fleet of two, let the trainer come to its end, and check what became of everything; the
    figures."""
    of_trainer, of_fleet = folder / "trainer", folder / "fleet"
    of_trainer.mkdir()
    engines = ("--weight-version", "default")  # the version is the trainer's alone to tell
    with (
        running_fleet(of_fleet, proxies=2, engine_options=engines, settings=SETTINGS) as fleet,
        Trainer.loaded(fleet, of_trainer, seed=seed) as trainer,
    ):
        killing = Killing(fleet, of_trainer, trainer, Random(f"kills {seed}"))
        killing.kill(kills, killed=killed)
        killing.finish()
        return killing.check()
