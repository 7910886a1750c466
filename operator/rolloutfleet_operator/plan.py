"""What to do next for a fleet: a pure decision, shared by everything that can run one.

A *site* (this machine, or a cluster) says which children a spec means there. Comparing those with what
is there gives actions; an executor carries them out and looks again. Nothing here waits, reads a clock
or touches a process, so each rule can be tried by handing in a state and a time.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from rolloutfleet.spec import FleetSpec

FIRST_DELAY = 1.0
LONGEST_DELAY = 30.0
STEADY_AFTER = 60.0
"""Seconds of being ready after which earlier deaths count no more."""

Body = TypeVar("Body", covariant=True)


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
class Child(Generic[Body]):
    """One child as it is wanted. `body` is what the site makes it from; equal bodies are the same child."""

    name: str
    kind: Kind
    start_limit: float
    """Seconds to become ready in."""
    body: Body

    @property
    def fingerprint(self) -> str:
        """Changes exactly when the body does."""
        return hashlib.sha256(repr(self.body).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One child as it is. Times are seconds of the clock that `plan` is given."""

    name: str
    kind: Kind
    fingerprint: str
    phase: Phase
    since: float
    """When it came into this phase."""
    ever_ready: bool = False
    deaths: int = 0
    """How often in a row it ended by itself, without a steady time between."""
    ending: str = ""
    """How it ended, in words."""


class Site(Protocol[Body]):
    """A place that a fleet can run at."""

    def children(self, spec: FleetSpec) -> tuple[Child[Body], ...]:
        """What the spec means here, in the order of starting. Pure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(Generic[Body]):
    site: Site[Body]
    children: Mapping[str, Seen] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Start(Generic[Body]):
    """Make this child; nothing of that name runs."""

    child: Child[Body]
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


Action = Start[Body] | Stop | Wait | GiveUp


def plan(spec: FleetSpec, observed: Observed[Body], now: float) -> tuple[Action[Body], ...]:
    """The actions that bring what is there nearer to what the spec asks for; none when there is nothing to do."""
    wanted = observed.site.children(spec)
    names = {child.name for child in wanted}
    stops = [
        Stop(seen.name, "no longer asked for")
        for seen in observed.children.values()
        if seen.name not in names and seen.phase in (Phase.STARTING, Phase.READY)
    ]
    steps = [_step(child, observed.children.get(child.name), now) for child in wanted]
    return (*stops, *(step for step in steps if step is not None))


def _step(child: Child[Body], seen: Seen | None, now: float) -> Action[Body] | None:
    if seen is None:
        return Start(child, "asked for")
    if seen.phase is Phase.ENDED:
        return _after_an_end(child, seen, now)
    if seen.phase is Phase.STOPPING:
        return None
    if seen.fingerprint != child.fingerprint:
        return Stop(seen.name, "its settings changed")
    if seen.phase is Phase.STARTING:
        return _while_starting(child, seen, now)
    return None


def _after_an_end(child: Child[Body], seen: Seen, now: float) -> Action[Body]:
    if seen.fingerprint != child.fingerprint or seen.deaths == 0:
        return Start(child, "asked for")
    if not seen.ever_ready:
        return GiveUp(seen.name, f"{seen.ending} before it was ready")
    due = seen.since + restart_delay(seen.deaths)
    return Start(child, seen.ending) if due <= now else Wait(seen.name, due)


def _while_starting(child: Child[Body], seen: Seen, now: float) -> Action[Body]:
    limit = seen.since + child.start_limit
    if now < limit:
        return Wait(seen.name, limit)
    late = f"not ready after {child.start_limit:g} s"
    return Stop(seen.name, late) if seen.ever_ready else GiveUp(seen.name, late)


def restart_delay(deaths: int) -> float:
    """Seconds between the last of so many deaths in a row and the next start: none after the first."""
    if deaths <= 1:
        return 0.0
    return min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(deaths - 2, 30))


def deaths_in_a_row(*, before: int, ready_for: float) -> int:
    """The count after one more death, of a child that had been ready for so many seconds."""
    return 1 if ready_for >= STEADY_AFTER else before + 1
