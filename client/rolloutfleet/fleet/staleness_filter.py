"""Which trajectories of an export are too old to be handed out, and how many were seen."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from rolloutfleet.fleet.admission import Admission
from rolloutfleet.fleet.trajectories import Trajectory

TooOld = Literal["drop", "keep"]


@dataclass(frozen=True, slots=True)
class Counts:
    """What a fleet object has seen. Trajectories."""

    handed_out: int = 0
    acknowledged: int = 0
    too_old_dropped: int = 0
    too_old_kept: int = 0


class StalenessFilter:
    """Judges and counts what a fleet object hands out, and tells the budget. Without a budget nothing is too old."""

    def __init__(self, admission: Admission | None, *, too_old: TooOld, version: Callable[[], int]) -> None:
        self.counts = Counts()
        self._admission = admission
        self._too_old = too_old
        self._version = version

    def drops(self, trajectory: Trajectory) -> bool:
        """Whether it is not to be handed out; counted either way."""
        late = (
            self._admission is not None
            and trajectory.oldest_version is not None
            and self._version() - trajectory.oldest_version > self._admission.manager.max_staleness
        )
        dropped = late and self._too_old == "drop"
        counts = self.counts
        self.counts = replace(
            counts,
            handed_out=counts.handed_out + (not dropped),
            too_old_dropped=counts.too_old_dropped + dropped,
            too_old_kept=counts.too_old_kept + (late and not dropped),
        )
        if self._admission is not None:
            self._admission.slots.judged(trajectory.session_id, trajectory.trajectory_id, too_old=dropped)
            self._admission.changed()
        return dropped

    def acknowledged(self, trajectory_ids: Iterable[str]) -> None:
        """They are trained."""
        names = list(trajectory_ids)
        self.counts = replace(self.counts, acknowledged=self.counts.acknowledged + len(names))
        if self._admission is not None:
            for name in names:
                self._admission.slots.trained(name.rpartition("-trajectory-")[0], name)
