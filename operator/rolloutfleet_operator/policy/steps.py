"""One restart, step by step, each derived from the observed state: the proxy's drain and boots, and the pod's uid.

In its process or container a proxy restarts itself: the drain that is requested ends in it, and the boot that follows
has the drain's id. A pod is quiesced, and evicted when nothing is in flight or the drain's time is up. With ephemeral
storage it first takes no new sessions until every turn is acknowledged or dumped, and past `retireTimeout` dumps them
itself, if dumps outlive the pod.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import RestartStatus
from rolloutfleet.wire import Drain, DrainMode, DrainThen
from rolloutfleet_operator.policy.actions import Action, AskDrain, AskDumps, Evict, UndoDrain
from rolloutfleet_operator.policy.observed import READY_WITHIN, ObservedPod, seconds_of
from rolloutfleet_operator.policy.reasons import EventReason

DRAIN_TTL: Final = 300.0
"""An operator that is gone for longer than this leaves proxies that serve, as if nothing had been asked."""
WARM_WITHIN: Final = 180.0
"""Seconds that a next worker has to load in, beside the drain's own time."""

Way = Literal["Process", "Container", "Pod"]
_THEN: Final[dict[Way, DrainThen]] = {"Process": "restart", "Container": "exit", "Pod": "stay"}
"""How the drain of a restart ends."""


class Step(StrEnum):
    """How far a restart is. The names are those of its Events."""

    DRAIN_ASKED = EventReason.DRAIN_ASKED.value
    WARMING = EventReason.WARMING.value
    """The next worker loads; calls go on."""
    EMPTYING = EventReason.EMPTYING.value
    """Ephemeral storage: cordoned until it holds no turns."""
    QUIESCING = EventReason.QUIESCING.value
    EVICTING = EventReason.EVICTING.value
    ENDING = EventReason.ENDING.value
    BOOTING = EventReason.BOOTING.value
    DONE = EventReason.RESTARTED.value


BEFORE_THE_END: Final = frozenset((Step.DRAIN_ASKED, Step.WARMING, Step.EMPTYING, Step.QUIESCING))
"""The steps from which there is a way back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """An open entry of the ledger, and what it needs to go on."""

    entry: RestartStatus
    pod: ObservedPod | None
    way: Way
    may_lose: bool
    """The loss of the pod's turns is allowed by name."""
    spec: FleetSpec

    @property
    def id(self) -> str:
        assert self.entry.id is not None, "only what the operator began is carried on"
        return self.entry.id

    @property
    def asked(self) -> float:
        return seconds_of(self.entry.time)

    @property
    def drain(self) -> Drain | None:
        """Its own drain, where the proxy is in it."""
        found = None if self.pod is None else self.pod.drain
        return found if found is not None and found.id == self.id else None

    @property
    def keeps_turns(self) -> bool:
        """Whether the pod has to stay, for the sake of turns that would go with it."""
        goes = self.way == "Pod" and self.spec.proxies.storage.ephemeral and not self.may_lose
        return goes and self.pod is not None and self.pod.holds_turns


def step_of(restart: Restart, now: float) -> Step:
    """How far that restart is."""
    pod = restart.pod
    if pod is None:
        return Step.BOOTING
    if pod.uid != restart.entry.uid or (restart.way != "Pod" and pod.has_booted(restart.id)):
        return Step.DONE if _settled(restart, pod) else Step.BOOTING
    if pod.terminating_since is not None:
        return Step.ENDING
    if restart.way == "Pod":
        return _before_eviction(restart, pod, now)
    return _before_boot(restart, pod)


def actions_of(restart: Restart, step: Step, now: float) -> Iterator[Action]:
    """What carries it on; nothing where it only has to be waited for."""
    pod = restart.pod
    if pod is None:
        return
    drain = restart.drain
    if step is Step.EVICTING and not restart.keeps_turns:
        yield Evict(pod=pod.name, uid=pod.uid, why=restart.entry.reason)
    elif step in BEFORE_THE_END and (pod.drain is None or drain is not None) and pod.stats is not None:
        ask = _ask(restart, pod, now)
        if drain is None or not _as_asked(drain, ask, now):
            yield ask
        elif step is Step.EMPTYING and drain.mode == "quiesce" and is_quiet(drain, now):
            yield AskDumps(pod=pod.name)
    elif step in (Step.BOOTING, Step.DONE):
        yield from take_back(restart)


def take_back(restart: Restart) -> Iterator[Action]:
    """What undoes a restart that has not come to its end."""
    if restart.drain is not None:
        yield UndoDrain(pod=restart.entry.pod, id=restart.id)


def deadline_of(restart: Restart, step: Step) -> float:
    """When the step takes longer than it can: then it is said, and holds no slot of other fleets."""
    disruption = restart.spec.disruption
    due = restart.asked + disruption.drain_timeout + WARM_WITHIN
    if restart.way == "Pod" and restart.spec.proxies.storage.ephemeral:
        due += disruption.retire_timeout
    return due if step in BEFORE_THE_END or step is Step.EVICTING else due + READY_WITHIN


def dumps_outlive(spec: FleetSpec) -> bool:
    """Whether what an ephemeral proxy dumps is still there when its pod is gone."""
    dump = spec.sessions.dump
    return dump.path != "" and dump.volume is not None and dump.volume.keys().isdisjoint(("emptyDir", "ephemeral"))


def is_quiet(drain: Drain, now: float) -> bool:
    """Whether nothing is in flight any more at a proxy that holds calls, or the time for that is up."""
    return drain.holding and (drain.under_way == 0 or (drain.deadline is not None and now >= drain.deadline))


def _settled(restart: Restart, pod: ObservedPod) -> bool:
    answers = pod.ready and pod.terminating_since is None and pod.stats is not None
    return answers and restart.drain is None


def _before_eviction(restart: Restart, pod: ObservedPod, now: float) -> Step:
    if pod.is_down:
        return Step.EMPTYING if restart.keeps_turns else Step.EVICTING
    drain = restart.drain
    if drain is None:
        return Step.DRAIN_ASKED
    if restart.keeps_turns:
        return Step.EMPTYING
    return Step.EVICTING if drain.mode == "quiesce" and is_quiet(drain, now) else Step.QUIESCING


def _before_boot(restart: Restart, pod: ObservedPod) -> Step:
    if pod.stats is None:
        return Step.BOOTING if not pod.ready else Step.DRAIN_ASKED
    drain = restart.drain
    if drain is None:
        return Step.DRAIN_ASKED
    return Step.QUIESCING if drain.holding else Step.WARMING


def _ask(restart: Restart, pod: ObservedPod, now: float) -> AskDrain:
    # Until then an ephemeral pod's sessions are left to end by themselves.
    emptied_by = restart.asked + restart.spec.disruption.retire_timeout
    empties = restart.keeps_turns and not (dumps_outlive(restart.spec) and now >= emptied_by)
    mode: DrainMode = "cordon" if empties else "quiesce"
    then = _THEN[restart.way]
    return AskDrain(pod=pod.name, id=restart.id, mode=mode, then=then, ttl=DRAIN_TTL, reason=restart.entry.reason)


def _as_asked(drain: Drain, ask: AskDrain, now: float) -> bool:
    """Whether a drain in force is the one that is asked for, and lasts long enough."""
    lasts = drain.expires is None or drain.expires - now > ask.ttl / 2
    return lasts and (drain.mode, drain.then) == (ask.mode, ask.then)
