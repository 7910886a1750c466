"""The loop of an export to files: take, write, make durable, and only then acknowledge."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from rolloutfleet.files.folder import ExportFolder, Part, Taken
from rolloutfleet.files.forms import PartFull
from rolloutfleet.fleet import Export, Fleet
from rolloutfleet.fleet.exceptions import Conflict, Gone, LeaseLost, NotKnown
from rolloutfleet.fleet.trajectories import LeasedName

AGAIN_SECONDS: Final = 1.0
"""How often it is asked whether what a killed run had leased is back."""


@dataclass(slots=True)
class Progress:
    """How far it is."""

    trajectories: int = 0
    sessions: int = 0
    tokens: int = 0
    parts: int = 0
    bytes: int = 0
    """Of finished parts, on disk."""


@dataclass(slots=True)
class Summary:
    """What became of an export."""

    done: Progress
    again: int = 0
    """Trajectories that an earlier run had written, and that the fleet was told of now."""
    lost: list[str] = field(default_factory=list)
    """Trajectories that somebody else leased before they were acknowledged: they are in the files, and elsewhere."""
    unheard: int = 0
    """Trajectories in finished parts whose proxies could not be told. The next run tells them."""
    unreachable: Mapping[int, str] = field(default_factory=dict)
    """Proxies that did not answer, and why: what they hold is still to come."""


def export_to(
    fleet: Fleet,
    folder: ExportFolder,
    *,
    part_bytes: int,
    lease_seconds: float,
    most: int | None = None,
    tell: Callable[[Progress], None] = lambda progress: None,
    **wanted: Any,
) -> Summary:
    """Write what is ready now, part by part: all of it, or `most` and the rest of their last group.

    `wanted` is what Fleet.export takes. Raises FleetError, OSError, and PartFull for a trajectory that no part has room
    for.

    After a run that was killed, its unfinished leases are given back first. What it had leased in its very last moment
    is waited for, until those leases end.
    """
    run = _Run(fleet, folder, part_bytes, tell)
    last = not folder.was_killed()
    run.tell_again()
    run.give_back()
    folder.hold({})
    until: float | None = None
    try:
        while True:
            left = None if most is None else most - run.trajectories
            run.one_pass(lease_seconds=lease_seconds, count=left, wait=False, **wanted)
            if last or (most is not None and run.trajectories >= most):
                return run.ended()
            # What a killed run had still asked for was leased before the first pass was answered.
            until = until or time.monotonic() + lease_seconds
            # A lease may end after a pass and before this is asked, so that another pass follows in any case.
            if leased := fleet.audit().sessions.leased:
                time.sleep(AGAIN_SECONDS)
            last = not leased or time.monotonic() > until
    finally:
        folder.let_go()


@dataclass
class _Run:
    _fleet: Fleet
    _folder: ExportFolder
    _part_bytes: int
    _tell: Callable[[Progress], None]
    _summary: Summary = field(default_factory=lambda: Summary(Progress()))
    _taken: list[Taken] = field(default_factory=list)
    """Finished parts that the fleet may not have heard of."""
    _last_session: str | None = None

    @property
    def trajectories(self) -> int:
        """How many it has written."""
        return self._summary.done.trajectories

    def tell_again(self) -> None:
        """Acknowledge what an earlier run wrote and may not have acknowledged."""
        for taken in self._folder.taken():
            self._taken.append(taken)
            try:
                self._fleet.acknowledge(taken.trajectories)
            except (Conflict, Gone, LeaseLost, NotKnown):
                self._acknowledge_each(taken.trajectories)
            self._summary.again += len(taken.trajectories)

    def give_back(self) -> None:
        """Give back what an earlier run had leased and not written."""
        written = {each.trajectory_id for taken in self._taken for each in taken.trajectories}
        for lease in groupby(self._folder.held(), key=attrgetter("lease_id")):
            try:
                self._fleet.release(each for each in lease[1] if each.trajectory_id not in written)
            except (Conflict, Gone, NotKnown):
                # The lease is over, or its store is gone.
                continue
        self._forget_heard()

    def one_pass(self, **wanted: Any) -> None:
        part: Part | None = None
        noted: set[str] = set()
        with self._fleet.export(**wanted) as export:
            try:
                for trajectory in export:
                    part = part or self._folder.begin()
                    leases = export.leases
                    if leases.keys() != noted:
                        self._folder.hold(leases)
                        noted = set(leases)
                    try:
                        part.add(trajectory)
                    except PartFull:
                        if not part.trajectories:
                            raise
                        self._finish(export, part)
                        part = self._folder.begin()
                        part.add(trajectory)
                    self._count(trajectory.session_id, trajectory.tokens)
                    if part.written >= self._part_bytes:
                        self._finish(export, part)
                        part = None
                if part is not None:
                    self._finish(export, part)
            except BaseException:
                # Without effect on one that is finished.
                if part is not None:
                    part.discard()
                raise
            self._summary.unreachable = export.unreachable

    def ended(self) -> Summary:
        self._forget_heard()
        self._summary.unheard = sum(len(taken.trajectories) for taken in self._taken)
        return self._summary

    def _finish(self, export: Export, part: Part) -> None:
        taken = part.finish()
        self._taken.append(taken)
        names = [each.trajectory_id for each in taken.trajectories]
        self._folder.hold(_without(export.leases, names))
        try:
            export.acknowledge(names)
        except (Conflict, Gone, LeaseLost, NotKnown):
            self._acknowledge_each(taken.trajectories)
        self._summary.done.parts += 1
        self._summary.done.bytes += part.file.stat().st_size
        self._tell(self._summary.done)
        self._forget_heard()

    def _acknowledge_each(self, trajectories: Iterable[LeasedName]) -> None:
        """One by one: where one of a lease is refused, nothing of the call counts."""
        for each in trajectories:
            try:
                self._fleet.acknowledge([each])
            except LeaseLost as lost:
                self._summary.lost += lost.trajectory_ids
            except (Conflict, Gone, NotKnown):
                # Its store is another by now, or has long forgotten: there is nobody to tell.
                continue

    def _forget_heard(self) -> None:
        unheard = self._fleet.unheard
        waiting = []
        for taken in self._taken:
            if any(each.trajectory_id in unheard for each in taken.trajectories):
                waiting.append(taken)
            else:
                self._folder.heard(taken)
        self._taken = waiting

    def _count(self, session_id: str, tokens: int) -> None:
        done = self._summary.done
        done.trajectories += 1
        done.tokens += tokens
        # A session's trajectories come one after the other.
        done.sessions += session_id != self._last_session
        self._last_session = session_id
        self._tell(done)


def _without(leases: Mapping[str, Iterable[str]], names: Iterable[str]) -> dict[str, set[str]]:
    gone = set(names)
    left = {lease: set(held) - gone for lease, held in leases.items()}
    return {lease: held for lease, held in left.items() if held}
