"""A trainer that loops over rollouts and steps, and goes on from its journal when it is begun again, killed anywhere.

`python -m tests.integration.client.fleet.looping_trainer URL KEY_FILE FOLDER SEED` reads what each of its lives is to
be from its input, `{life, dies, after}`, one after the other; it says the process id of each, and how it ended. A life
with `dies` kills itself when it is at that place for the time after `after` others.

The journal is what a trainer's checkpoint is: a step is over when its end is durable there. Only then are its
trajectories acknowledged, and a life that finds them again, since the one before died on the way, only does that.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

from tests.integration.client.fleet.recorded_agent import append, converse
from tests.paths import ROOT
from tests.waiting import PATIENCE, until

from rolloutfleet import Command, Fleet
from rolloutfleet.fleet import Trajectory

JOURNAL: Final = "journal"
SETTLED: Final = "settled"
"""Trajectories of which an acknowledgement was answered: they never come again."""
PLACES_PASSED: Final = "places"
FINISH: Final = "finish"
"""A file that tells it to start nothing new, and to train on all that is left."""
STALE_AFTER: Final = 2.0
LEASE_SECONDS: Final = 4.0
MEMBERS: Final = 2
LEFT_OPEN: Final[Sequence[Literal["keep", "close", "delete"]]] = ("keep", "close", "delete")


class Place(StrEnum):
    """Where a life may kill itself."""

    RECOVERING = "recovering"
    AGENT = "agent"
    """Within a function that is an agent."""
    HANDED_OUT = "handed out"
    BEGUN = "begun"
    UPDATED = "updated"
    """The fleet has the step's version, and the journal does not have its end."""
    ENDED = "ended"
    ACKNOWLEDGED = "acknowledged"


@dataclass(frozen=True, slots=True)
class Life:
    """What one is to be."""

    life: int
    dies: Place | None = None
    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A line of the journal; a step has one when it begins and one when it ends."""

    life: int
    number: int
    ends: bool
    version: int
    """Of the weights that it makes."""
    trajectories: Mapping[str, Sequence[str]]
    """Their turns."""


def read_journal(folder: Path) -> list[Step]:
    """The steps of all lives."""
    return [Step(**json.loads(line)) for line in lines(folder / JOURNAL)]


def lines(file: Path) -> list[str]:
    """Those that are whole."""
    return file.read_text().split("\n")[:-1] if file.exists() else []


@dataclass
class Trainer:
    """One life."""

    fleet: Fleet
    folder: Path
    random: Random
    asked: Life
    version: int = 1
    trained: set[str] = field(default_factory=set)
    """Trajectories of steps that are over."""
    settled: set[str] = field(default_factory=set)
    passed: int = 0

    def live(self) -> None:
        """Until there is nothing left to do."""
        steps = read_journal(self.folder)
        over = [step for step in steps if step.ends]
        self.trained = {name for step in over for name in step.trajectories}
        self.settled = set(lines(self.folder / SETTLED))
        self.version = max((step.version for step in over), default=1)
        if self.asked.life:
            self.at(Place.RECOVERING)
            self.fleet.recover(self.version, open=self.random.choice(LEFT_OPEN), confirm=True)
        finish = self.folder / FINISH
        while not finish.exists():
            self.take_what_is_left()
            self.roll_out()
        until(self.is_all_settled, seconds=2 * PATIENCE, state=lambda: self.fleet.audit())

    def is_all_settled(self) -> bool:
        """Take what is left; true where nothing is any more."""
        self.take_what_is_left()
        audit = self.fleet.audit()
        sums = (audit.turns, audit.sessions)
        return not audit.failed and not self.fleet.owed and not any(each.live or each.leased for each in sums)

    def take_what_is_left(self) -> None:
        """What earlier lives had, and were killed over."""
        with self.fleet.export(on_exit="keep", lease_seconds=LEASE_SECONDS, grace=0.5) as export:
            left = list(export)
        self.train(left, lambda: self.fleet.acknowledge(left))

    def roll_out(self) -> None:
        """Some groups, trained one by one, all at once when the block has ended, or left before all have come."""
        one_by_one, breaks_off = self.random.random() < 0.5, self.random.random() < 0.1
        turns = [self.random.choice((1, 2, 3)) for _ in range(3)]
        agent = self.agent if self.random.random() < 0.5 else self.command
        kept: list[Trajectory] = []
        with self.fleet.rollout(
            agent,
            turns,
            n=MEMBERS,
            concurrency=2 * MEMBERS,
            reward=lambda session, turns: 0.5,
            max_failures=1.0,
            on_exit="keep",
            export={"lease_seconds": LEASE_SECONDS},
            stale_after=STALE_AFTER,
        ) as episodes:
            for group in episodes:
                self.at(Place.HANDED_OUT)
                if one_by_one:
                    self.train(group.trajectories, lambda group=group: episodes.acknowledge(group))  # type: ignore[misc]
                else:
                    kept += group.trajectories
                if breaks_off:
                    break
        self.train(kept, lambda: self.fleet.acknowledge(kept))

    def train(self, trajectories: Iterable[Trajectory], acknowledge: Callable[[], None]) -> None:
        """A step on what is in none that is over."""
        came = {each.trajectory_id: [turn.turn_id for turn in each.turns] for each in trajectories}
        assert self.settled.isdisjoint(came), f"came again: {self.settled & came.keys()}"
        fresh = {name: turns for name, turns in came.items() if name not in self.trained}
        if fresh:
            step = {"life": self.asked.life, "number": len(self.trained), "version": self.version + 1}
            self.write(Step(**step, ends=False, trajectories=fresh))
            self.at(Place.BEGUN)
            self.fleet.set_version(self.version + 1)
            self.at(Place.UPDATED)
            self.write(Step(**step, ends=True, trajectories=fresh))
            self.at(Place.ENDED)
            self.version += 1
            self.trained.update(fresh)
        acknowledge()
        for name in came.keys() - self.fleet.unheard:
            append(self.folder / SETTLED, name)
            self.settled.add(name)
        if fresh:
            self.at(Place.ACKNOWLEDGED)

    def write(self, step: Step) -> None:
        with (self.folder / JOURNAL).open("a") as file:
            file.write(json.dumps(asdict(step)) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def agent(self, session: Any, turns: int) -> float:
        self.at(Place.AGENT)
        folder = self.folder
        return converse(session.base_url, session.api_key, turns=turns, patient=turns % 2 == 0, folder=folder) / 3

    @property
    def command(self) -> Command:
        words = ["-m", "tests.integration.client.fleet.recorded_agent", str(self.folder)]
        return Command([sys.executable, *words, mark(self.asked.life), "{task}"], cwd=ROOT)

    def at(self, place: Place) -> None:
        append(self.folder / PLACES_PASSED, f"{self.asked.life} {place}")
        if place == self.asked.dies:
            self.passed += 1
            if self.passed > self.asked.after:
                os.kill(os.getpid(), signal.SIGKILL)


def mark(life: int) -> str:
    """The word in the command lines of all that a life's commands start."""
    return f"of-life-{life}"


def main() -> None:
    url, key_file, folder, seed = sys.argv[1:]
    for line in sys.stdin:
        life = Life(**json.loads(line))
        if not (process := os.fork()):
            _live(url, key_file, Path(folder), life, Random(f"{seed} {life.life}"))
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


def _live(url: str, key_file: str, folder: Path, life: Life, random: Random) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    try:
        with Fleet.from_url(url, admin_key_file=key_file, progress=False) as fleet:
            Trainer(fleet, folder, random, life).live()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
