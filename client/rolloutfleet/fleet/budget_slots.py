"""Which sessions hold a slot of the staleness budget, and what for. Pure.

A session that the trainer started holds one while it runs, and from its end on one for good, where it left something to
train on. What becomes of it otherwise gives the slot back: it ended without a trajectory, was deleted, dumped or lost,
all that it left was too old, its rollout gave it back, or its proxy has not answered for too long. A proxy that comes
back, and what is exported after all, takes its slots again, even beyond the budget: what is there is there.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum

from rolloutfleet.staleness import StalenessManager


class Slot(Enum):
    RUNNING = "running"
    ACCEPTED = "accepted"
    NONE = "none"


@dataclass(slots=True)
class _Known:
    """What is known of a session."""

    ordinal: int | None
    slot: Slot
    ended: bool = False
    gone: bool = False
    lost: bool = False
    adopted: bool = False
    """It was there before this trainer."""
    given_back: bool = False
    """Its rollout is over, and has not had it trained. No other takes it; an export may."""
    left: set[str] = field(default_factory=set)
    """Its closed trajectories."""
    too_old: set[str] = field(default_factory=set)
    trained: set[str] = field(default_factory=set)

    @property
    def deserved(self) -> Slot:
        if self.gone or self.lost:
            return Slot.NONE
        if not self.ended:
            return Slot.RUNNING
        return Slot.NONE if self.given_back or self.left <= self.too_old else Slot.ACCEPTED

    @property
    def settled(self) -> bool:
        """Whether nothing more can come of it."""
        return self.gone or (self.ended and self.left <= self.trained | self.too_old)


class BudgetSlots:
    """Tells the manager of every change. Holds the sessions that are not settled yet, and forgets the others."""

    def __init__(self, manager: StalenessManager | None, *, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called after each of them. Without a manager it holds nothing."""
        self._manager = manager
        self._changed = changed
        self._known: dict[str, _Known] = {}

    def sessions(self, ordinal: int | None = None) -> list[str]:
        """Those that are not settled, of one proxy or of all."""
        return [name for name, known in self._known.items() if ordinal is None or known.ordinal == ordinal]

    def ordinals(self) -> set[int]:
        return {known.ordinal for known in self._known.values() if known.ordinal is not None}

    def adopted_running(self) -> int:
        """How many sessions run that were there before this trainer."""
        return sum(known.adopted and known.slot is Slot.RUNNING for known in self._known.values())

    def accepted(self) -> int:
        """How many have ended and left something to train on."""
        return sum(known.slot is Slot.ACCEPTED for known in self._known.values())

    def seems_empty(self, session_id: str) -> bool:
        """True of one that holds a slot, and of which no trajectory has been seen."""
        known = self._known.get(session_id)
        return known is not None and not known.left

    def started(self, session_ids: Iterable[str], *, ordinal: int | None) -> None:
        """Sessions whose places the manager has as submitted already."""
        if self._manager is not None:
            self._known |= {name: _Known(ordinal, Slot.RUNNING) for name in session_ids}

    def replaced(self, old: str, new: str, *, ordinal: int | None) -> None:
        """A session took another's place, at once and whatever the budget has room for."""
        if self._manager is not None:
            self.gone(old)
            self._known[new] = _Known(ordinal, Slot.NONE)
            self._settle(new)

    def adopt(self, session_id: str, *, ordinal: int | None, ended: bool, left: Iterable[str] = ()) -> None:
        """A session that was there before this trainer. The manager counts an ended one as held already."""
        if session_id in self._known:
            return
        known = self._known[session_id] = _Known(ordinal, Slot.NONE, ended=ended, adopted=True, left=set(left))
        if ended:
            known.slot = known.deserved
        else:
            self._settle(session_id)

    def closed_trajectory(self, session_id: str, trajectory_id: str | None) -> None:
        """It left something; None where it did not."""
        self._note(session_id, left=[trajectory_id] if trajectory_id else [])

    def ended(self, session_id: str, *, left: Iterable[str] = ()) -> None:
        self._note(session_id, left=left, ended=True)

    def gone(self, session_id: str) -> None:
        """Deleted, dumped, lost, or given back by the trainer: nothing of it will be trained."""
        self._note(session_id, gone=True)

    def given_back(self, session_ids: Iterable[str]) -> None:
        """Their rollout is over, and has not had them trained."""
        for name in self._known.keys() & session_ids:
            self._known[name].given_back = True
            self._settle(name)

    def forget(self, session_id: str) -> None:
        """Nothing more can come of it; its place stays as it is."""
        self._known.pop(session_id, None)

    def judged(self, session_id: str, trajectory_id: str, *, too_old: bool) -> None:
        """An export brought it, and it is trained or not."""
        known = self._known.get(session_id)
        if known is not None:
            known.left.add(trajectory_id)
            known.given_back = False
            (known.too_old.add if too_old else known.too_old.discard)(trajectory_id)
            self._settle(session_id)

    def trained(self, session_id: str, trajectory_id: str) -> None:
        """Acknowledged. An accepted session keeps its place."""
        self._note(session_id, left=[trajectory_id], trained=[trajectory_id])

    def _note(
        self,
        session_id: str,
        *,
        left: Iterable[str] = (),
        trained: Collection[str] = (),
        ended: bool = False,
        gone: bool = False,
    ) -> None:
        known = self._known.get(session_id)
        if known is not None:
            known.left.update(left)
            known.trained.update(trained)
            known.given_back = known.given_back and not trained
            known.ended, known.gone = known.ended or ended, known.gone or gone
            self._settle(session_id)

    def mark(self, ordinal: int, *, lost: bool) -> None:
        """Its proxy has not answered for too long, or answers again."""
        for name in self.sessions(ordinal):
            self._known[name].lost = lost
            self._settle(name)

    def _settle(self, session_id: str) -> None:
        known = self._known[session_id]
        before, known.slot = known.slot, known.deserved
        if before is not known.slot and self._manager is not None:
            _tell(self._manager, before, known.slot)
            self._changed()
        if known.settled and not known.lost:
            del self._known[session_id]


def _tell(manager: StalenessManager, before: Slot, after: Slot) -> None:
    match before, after:
        case Slot.RUNNING, Slot.ACCEPTED:
            manager.on_accepted()
        case Slot.RUNNING, Slot.NONE:
            manager.on_rejected()
        case Slot.ACCEPTED, Slot.NONE:
            manager.on_given_back()
        case Slot.NONE, Slot.RUNNING:
            manager.on_submitted()
        case Slot.NONE, Slot.ACCEPTED:
            manager.on_submitted()
            manager.on_accepted()
        case _:
            raise AssertionError(f"a session went from {before} to {after}")
