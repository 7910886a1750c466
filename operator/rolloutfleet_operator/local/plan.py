"""What to do next for a local fleet: a pure decision.

Comparing the children that a spec means with those observed gives actions; the executor carries them out and looks
again. Nothing here waits, reads a clock or touches a process, so each rule can be tried by handing in a state and a
time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rolloutfleet.backoff import restart_delay


class Kind(StrEnum):
    """The children of a fleet, in the order in which they are started."""

    ENGINE = "engine"
    GATEWAY = "gateway"
    PROXY = "proxy"


class Phase(StrEnum):
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """One child as it is wanted: how to start its process, and how to see that it works."""

    name: str
    kind: Kind
    argv: tuple[str, ...]
    url: str
    ready_path: str
    start_limit: float
    """Seconds to become ready in."""
    stop_grace: float
    """Seconds between being told to stop and being killed."""
    files: tuple[tuple[Path, str], ...] = ()
    """Written before it is started."""
    answers_path: str | None = None
    """Answered whatever it has to do, as long as it is not stuck; None: nobody asks."""


@dataclass(slots=True, kw_only=True)
class ObservedChild:
    """One child as it is. Times are seconds of the clock that `plan` is given."""

    child: Child
    """As it was started."""
    phase: Phase
    since: float
    """When it came into this phase."""
    ever_ready: bool = False
    crashes: int = 0
    """How often in a row it ended by itself, without a steady time between."""
    ending: str = ""
    """How it ended, in words."""


@dataclass(frozen=True, slots=True)
class Start:
    """Make this child; nothing of that name runs."""

    child: Child
    why: str


@dataclass(frozen=True, slots=True)
class Stop:
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do for that child until then; look again at that time."""

    name: str
    until: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """That child has never worked, so trying again can't help; a person has to look."""

    name: str
    why: str


Action = Start | Stop | Wait | GiveUp


def plan(wanted: Sequence[Child], observed: Mapping[str, ObservedChild], now: float) -> tuple[Action, ...]:
    """The actions that bring what is there (by name) nearer to what is wanted; none when there is nothing to do."""
    names = {child.name for child in wanted}
    stops = [
        Stop(name, "no longer asked for")
        for name, child in observed.items()
        if name not in names and child.phase in (Phase.STARTING, Phase.READY)
    ]
    steps = [_step(child, observed.get(child.name), now) for child in wanted]
    return (*stops, *(step for step in steps if step is not None))


def _step(child: Child, observed: ObservedChild | None, now: float) -> Action | None:
    if observed is None:
        return Start(child, "asked for")
    if observed.phase is Phase.ENDED:
        return _after_an_end(child, observed, now)
    if observed.phase is Phase.STOPPING:
        return None
    if observed.child != child:
        return Stop(child.name, "its settings changed")
    if observed.phase is Phase.STARTING:
        return _while_starting(child, observed, now)
    return None


def _after_an_end(child: Child, observed: ObservedChild, now: float) -> Action:
    if observed.child != child or observed.crashes == 0:
        return Start(child, "asked for")
    if not observed.ever_ready:
        return GiveUp(child.name, f"{observed.ending} before it was ready")
    due = observed.since + restart_delay(observed.crashes)
    return Start(child, observed.ending) if due <= now else Wait(child.name, due)


def _while_starting(child: Child, observed: ObservedChild, now: float) -> Action:
    limit = observed.since + child.start_limit
    if now < limit:
        return Wait(child.name, limit)
    late = f"not ready after {child.start_limit:g} s"
    return Stop(child.name, late) if observed.ever_ready else GiveUp(child.name, late)
