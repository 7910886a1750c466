"""What the parent does next. Pure: workers, sockets, signals and the clock are told to it, and it answers with actions.

Never two owners: a worker is told to open the store only when no other that was told so is alive.
"""

import signal
from typing import Any, NamedTuple

from rolloutfleet.backoff import crashes_in_a_row, restart_delay
from rolloutfleet.boots import KILLED_FOR_MEMORY

STOP_TIMEOUT = 70.0
"""Seconds that a stop may take, until the worker has said how many."""
ENDING_TIMEOUT = 30.0
"""Seconds for a worker that ends by itself: longer than its last answers and final dumps take."""
UNUSABLE = 2
"""The exit status of a worker whose settings or store can't be used; trying again can't help."""
DAMAGED = 3
"""The exit status of one whose store is damaged: nor can it here, and the data should be looked after."""
FINAL = (UNUSABLE, DAMAGED)

WARMING, WARM, OPENED, SERVING, ENDING = "warming", "warm", "opened", "serving", "ending"

Message = dict[str, Any]


class Spawn(NamedTuple):
    worker: int


class Tell(NamedTuple):
    worker: int
    message: Message


class Listen(NamedTuple):
    """Open the listening sockets where there are none, and hand them to the worker."""

    worker: int
    host: str
    port: int


class Log(NamedTuple):
    """How lines are written: `{ordinal, json, level}`."""

    form: Message


class Kill(NamedTuple):
    worker: int


class Say(NamedTuple):
    """A line for the log."""

    text: str
    level: str = "info"


class Exit(NamedTuple):
    """End, once every worker is gone."""

    status: int


Action = Spawn | Tell | Listen | Log | Kill | Say | Exit


class _WorkerProcess:
    __slots__ = ("number", "state")

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = WARMING


class Decisions:
    """Workers are known by number, the first is 1. Times are seconds of one clock that never jumps."""

    def __init__(self) -> None:
        self.owner: _WorkerProcess | None = None
        """The one that was told to open the store, while it lives."""
        self.next: _WorkerProcess | None = None
        """The one that gets ready to."""
        self.due: float | None = None
        """When `tick` is to be called at the latest."""
        self._numbers = 0
        self._ever_served = False
        self._served_since = 0.0
        self._crashes = 0
        self._then = "stay"
        self._crash: Message = {}
        self._stopping = 0
        self._stop_timeout = STOP_TIMEOUT
        self._ephemeral = False
        self._quiesce: str | None = None
        """The signal that the next worker to serve is told of."""
        self._spawn_at: float | None = None
        self._kill_at: float | None = None

    def spawn(self) -> list[Action]:
        """A worker begins to get ready."""
        assert self.next is None
        self._spawn_at = None
        self._note_due()
        self._numbers += 1
        self.next = _WorkerProcess(self._numbers)
        first = self._numbers == 1
        return [Spawn(self._numbers), *([] if first else [Say(f"worker {self._numbers} starts")])]

    def said(self, number: int, message: Message, now: float) -> list[Action]:
        """A worker said something; what one says that was given up is not heard."""
        worker = self._named(number)
        if worker is None:
            return []
        if "listen" in message:
            asked = message["listen"]
            self._stop_timeout, self._ephemeral = asked["timeout"], asked["ephemeral"]
            return [Log(asked["log"]), Listen(number, asked["host"], asked["port"])]
        if worker is not self.owner:
            return self._warm(worker) if "warm" in message else []
        if "serving" in message:
            worker.state, self._ever_served, self._served_since = SERVING, True, now
            name, self._quiesce = self._quiesce, None
            return [Say(f"worker {number} serves"), *([] if name is None else [Tell(number, {"quiesce": name})])]
        if "then" in message:
            return self._drain_ends_in(message["then"])
        if "ending" in message:
            worker.state = ENDING
            if self._kill_at is None:
                self._kill_by(now + ENDING_TIMEOUT)
        return []

    def ended(self, number: int, status: int, oom_killed: bool, peak_rss: int | None, now: float) -> list[Action]:
        """A worker is gone: `status` is its exit status, or less than 0 and the signal that killed it.

        `oom_killed` says that the kernel has meanwhile killed a process here for want of memory.
        """
        words = how(status, oom_killed=oom_killed)
        if self.owner is not None and number == self.owner.number:
            return self._owner_ended(status, words, peak_rss, now)
        if self.next is not None and number == self.next.number:
            self.next = None
            return self._next_ended(number, status, words, now)
        return []

    def told_to_stop(self, number: int, now: float) -> list[Action]:
        """SIGTERM or SIGINT came: the first asks, the second doesn't wait.

        Where the store goes with its pod, the worker that follows after a crash, or in a restart, has to dump it first.
        """
        self._stopping += 1
        name = signal.Signals(number).name
        owner, dumps = self.owner, self._ephemeral and self._ever_served
        if (owner is None and not dumps) or self._stopping > 1:
            workers = [worker for worker in (owner, self.next) if worker is not None]
            status = 0 if self._stopping == 1 else 128 + number
            return [Say(f"{name}: ending at once"), *(Kill(worker.number) for worker in workers), Exit(status)]
        self._kill_by(now + self._stop_timeout)
        if owner is None or owner.state == OPENED or (dumps and owner.state == ENDING and self._then == "restart"):
            self._quiesce = name
            begun = self.spawn() if owner is None and self.next is None else []
            return [Say(f"{name}: the worker that serves next is told to end"), *begun]
        return [
            Say(f"{name}: worker {owner.number} finishes its calls, for at most {self._stop_timeout:g} s"),
            *self._give_up_next(),
            Tell(owner.number, {"quiesce": name}),
        ]

    def tick(self, now: float) -> list[Action]:
        """What is due by the clock."""
        actions: list[Action] = []
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_by(None)
            worker = self.owner or self.next
            if worker is not None:
                actions += [Say(f"worker {worker.number} does not end: killing it", "error"), Kill(worker.number)]
        if self._spawn_at is not None and now >= self._spawn_at:
            actions += self.spawn()
        return actions

    def _warm(self, worker: _WorkerProcess) -> list[Action]:
        worker.state = WARM
        if self.owner is None:
            return self._open(worker)
        return [
            Say(f"worker {worker.number} is warm, and waits for worker {self.owner.number} to end"),
            Tell(self.owner.number, {"successor": "warm"}),
        ]

    def _drain_ends_in(self, then: str) -> list[Action]:
        self._then = then
        if then != "restart":
            return self._give_up_next()
        if self._stopping or self.owner is None:
            return []
        if self.next is None:
            return self.spawn()
        return [Tell(self.owner.number, {"successor": "warm"})] if self.next.state == WARM else []

    def _owner_ended(self, status: int, words: str, peak_rss: int | None, now: float) -> list[Action]:
        assert self.owner is not None
        worker, self.owner = self.owner, None
        if not self._stopping:
            self._kill_by(None)
        on_purpose = worker.state == ENDING and status == 0
        is_followed = self._quiesce is not None and worker.state == ENDING
        if (self._stopping and not is_followed) or (on_purpose and self._then == "exit"):
            return [Say(f"worker {worker.number} {words}"), Exit(0 if on_purpose else as_exit_status(status))]
        if self._then == "exit":
            early = f"worker {worker.number} {words} before its drain was over"
            return [Say(early, "error"), Exit(as_exit_status(status))]
        self._then = "stay"
        if on_purpose:
            self._crashes = 0
            return [Say(f"worker {worker.number} ended, and has released the store"), *self._follow(now, delay=0.0)]
        self._crash = {"crash": words, "peak_rss": peak_rss}
        if not self._ever_served or status in FINAL:
            return [*self._give_up_next(), Exit(as_exit_status(status))]
        served = now - self._served_since if worker.state in (SERVING, ENDING) else 0.0
        self._crashes = crashes_in_a_row(before=self._crashes, healthy_for=served)
        delay = restart_delay(self._crashes)
        follows = f"worker {worker.number} {words}; another starts in {delay:g} s"
        return [Say(follows, "warning"), *self._follow(now, delay)]

    def _next_ended(self, number: int, status: int, words: str, now: float) -> list[Action]:
        early = f"worker {number} {words} before it was warm"
        if self.owner is not None:
            return [
                Say(f"{early}; worker {self.owner.number} goes on", "error"),
                Tell(self.owner.number, {"successor": words}),
            ]
        if not self._ever_served or self._stopping or status in FINAL:
            return [Exit(as_exit_status(status))]
        self._crashes += 1
        delay = restart_delay(self._crashes)
        return [Say(f"{early}; another starts in {delay:g} s", "warning"), *self._follow(now, delay)]

    def _follow(self, now: float, delay: float) -> list[Action]:
        """Somebody must own the store again: who is warm, who gets so, or a new one."""
        if self.next is not None:
            return self._open(self.next) if self.next.state == WARM else []
        if delay <= 0:
            return self.spawn()
        self._spawn_at = now + delay
        self._note_due()
        return []

    def _open(self, worker: _WorkerProcess) -> list[Action]:
        assert self.owner is None
        self.owner, self.next = worker, None
        worker.state = OPENED
        crash, self._crash = self._crash, {}
        return [Tell(worker.number, {"open": crash})]

    def _give_up_next(self) -> list[Action]:
        worker, self.next = self.next, None
        return [] if worker is None else [Say(f"worker {worker.number} is not needed"), Kill(worker.number)]

    def _named(self, number: int) -> _WorkerProcess | None:
        return next((one for one in (self.owner, self.next) if one is not None and one.number == number), None)

    def _kill_by(self, due: float | None) -> None:
        self._kill_at = due
        self._note_due()

    def _note_due(self) -> None:
        self.due = min((due for due in (self._kill_at, self._spawn_at) if due is not None), default=None)


def how(status: int, *, oom_killed: bool = False) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"ended with exit status {status}"
    if oom_killed and -status == signal.SIGKILL:
        return KILLED_FOR_MEMORY
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def as_exit_status(status: int) -> int:
    """A status that this process can end with, as shells have it."""
    return status if status >= 0 else 128 - status
