"""How many sessions a training run may have under way, so that little of it is too old when it is trained.

A trainer at weight version v has consumed v batches, and consumes one more for each version to come. Whatever it has
accepted so far or has running now is consumed by version v + s at the latest if

    accepted + running <= (v + s + 1) * batch

and sessions end in the order in which they began. With s = `max_staleness` that is the budget. A session that takes
longer than so many versions is too old when it ends, whatever the budget: it is looked at then, by its tokens.

The bound, and the figures for recovery, are those of AReaL's StalenessManager; what differs is said at each method.
"""

import threading
from dataclasses import asdict, dataclass, replace
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class StalenessCounts:
    """Sessions of a run at one moment; a group of k counts k."""

    enqueued: int = 0
    """Asked for and not yet started: waiting for capacity."""
    submitted: int = 0
    """Started so far."""
    accepted: int = 0
    """Ended well so far, exported or not, and their place not given back."""
    rejected: int = 0
    """Ended so far without anything to train on, or given back after that: deleted, dumped, or too old."""
    running: int = 0
    """Started and not ended."""


class StalenessManager:
    """The one budget of a training run, or of one of its ranks. Thread-safe; holds counts alone, never sessions.

    `max_concurrent` bounds the sessions that run at once, `max_staleness` the age of what is trained in versions, and
    `batch_size` is how many sessions a version consumes. Raises ValueError for a negative bound.
    """

    def __init__(self, *, max_concurrent: int, max_staleness: int, batch_size: int) -> None:
        given = {"max_concurrent": max_concurrent, "max_staleness": max_staleness, "batch_size": batch_size}
        for name, value in given.items():
            if value < 0:
                raise ValueError(f"{name} is {value}; it can't be below 0")
        # As in the reference, 0 means the smallest budget that still makes progress.
        self.max_concurrent = max(1, max_concurrent)
        self.batch_size = max(1, batch_size)
        self.max_staleness = max_staleness
        self._counts = StalenessCounts()
        self._lock = threading.Lock()

    @classmethod
    def of_rank(cls, ranks: int, *, max_concurrent: int, max_staleness: int, batch_size: int) -> Self:
        """One rank's share of a run's budget, for trainers in which each of `ranks` starts its own sessions.

        The bounds of the whole run are divided and rounded down, so that together the ranks stay within them, save
        that each may always run one. Raises ValueError where a batch can't be divided evenly: the ranks would train
        another number of sessions than the run says.
        """
        if ranks < 1:
            raise ValueError(f"ranks is {ranks}; it must be at least 1")
        if batch_size % ranks:
            raise ValueError(f"batch_size {batch_size} can't be divided by {ranks} ranks")
        return cls(max_concurrent=max_concurrent // ranks, max_staleness=max_staleness, batch_size=batch_size // ranks)

    @property
    def counts(self) -> StalenessCounts:
        """All counts of one moment."""
        return self._counts

    def capacity(self, version: int) -> int:
        """How many sessions may be started while the weights are at `version`.

        The smaller of both bounds' rooms. Negative where more is under way than may be, after a recovery for
        instance; reported as it is.
        """
        counts = self._counts
        concurrency = self.max_concurrent - counts.running
        staleness = (self.max_staleness + version + 1) * self.batch_size - (counts.accepted + counts.running)
        return min(concurrency, staleness)

    def on_enqueued(self, sessions: int = 1) -> None:
        """Sessions are asked for, and wait for capacity."""
        self._change(sessions, enqueued=1)

    def on_dequeued(self, sessions: int = 1) -> None:
        """Sessions that waited are not wanted any more."""
        self._change(sessions, enqueued=-1)

    def on_submitted(self, sessions: int = 1) -> None:
        """Sessions start; those that waited no longer do."""
        _check(sessions)
        with self._lock:
            self._submit(sessions)

    def submit_if_room(self, sessions: int, *, version: int) -> bool:
        """As `on_submitted`, where there is room for all of them at `version`; else nothing changes.

        One step, so that several threads never start more than there is room for.
        """
        _check(sessions)
        with self._lock:
            if self.capacity(version) < sessions:
                return False
            self._submit(sessions)
            return True

    def on_accepted(self, sessions: int = 1) -> None:
        """Sessions ended and have something to train on. One never submitted leaves `running` at -1, as it is."""
        self._change(sessions, accepted=1, running=-1)

    def on_rejected(self, sessions: int = 1) -> None:
        """Running sessions ended without anything to train on; their place is free."""
        self._change(sessions, rejected=1, running=-1)

    def on_given_back(self, sessions: int = 1) -> None:
        """Accepted sessions will not be trained after all: deleted, dumped, too old, or given back by their rollout.

        Their place is free again. (The reference has no such call; there, dropped work lowers the capacity for good.)
        """
        self._change(sessions, accepted=-1, rejected=1)

    def on_version_recovered(self, version: int, *, held: int = 0) -> None:
        """The trainer goes on at `version`, its last step plus one, after a crash or from an older checkpoint.

        `version` batches have been consumed; `held` ended sessions are still with the fleet and will be. What runs
        still counts. Calling it again with the same figures changes nothing. Raises ValueError below 0.
        """
        if version < 0 or held < 0:
            raise ValueError(f"version {version} and held {held} can't be below 0")
        with self._lock:
            self._counts = replace(self._counts, accepted=version * self.batch_size + held)

    def state(self) -> dict[str, int]:
        """What `restore` takes, for a checkpoint: plain numbers by name."""
        return asdict(self._counts)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a saved state. Raises ValueError for anything that is none; nothing changes then."""
        known = asdict(StalenessCounts())
        if state.keys() != known.keys():
            raise ValueError(f"a saved state has {', '.join(known)}; this one has {', '.join(sorted(state))}")
        for name, value in state.items():
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"{name} is {value!r}; it must be a whole number")
        with self._lock:
            self._counts = StalenessCounts(**state)

    def _submit(self, sessions: int) -> None:
        waited = min(sessions, self._counts.enqueued)
        self._counts = _added(self._counts, enqueued=-waited, submitted=sessions, running=sessions)

    def _change(self, sessions: int, **by: int) -> None:
        """Add `sessions` times what `by` says of each count."""
        _check(sessions)
        with self._lock:
            self._counts = _added(self._counts, **{name: sign * sessions for name, sign in by.items()})


def _check(sessions: int) -> None:
    if sessions < 0:
        raise ValueError(f"{sessions} sessions: a number of sessions can't be below 0")


def _added(counts: StalenessCounts, **by: int) -> StalenessCounts:
    return replace(counts, **{name: getattr(counts, name) + n for name, n in by.items()})
