"""Why a proxy is restarted. A cause is one declaration in `CAUSES`; all that depends on causes is derived from it.

So to add one is to add an entry here: what is due and in which order, the drain's id, whether it is still wanted, the
way, the slot, the reason in the status, in Events and in the proxy's log of boots, the counter in `status.restarts` and
its field in the CRD, the label of the metric and of the pod, and `status.current.action` follow. The cause of an entry
that an earlier pass wrote is found by its id and reason (`cause_of`), so no entry is left without one.

The order says two things. The most urgent cause comes first. Those that need no slot concern proxies that serve no
calls, the others proxies that serve; of these a later one includes what an earlier one does (a roll gives a proxy that
is over its budget a new pod, which frees its memory too), so of several that ask for one proxy the last is carried out.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import RestartStatus
from rolloutfleet_operator.policy import memory
from rolloutfleet_operator.policy.memory import Standing, Verdict
from rolloutfleet_operator.policy.observed import RESTART_NOTE, ObservedFleet, ObservedPod, seconds_of
from rolloutfleet_operator.policy.rollout import Roll, is_outdated
from rolloutfleet_operator.policy.steps import Way

CRASH: Final = "crash"
OOM: Final = "oom"
CRASHES: Final[Mapping[str, str]] = {
    OOM: "the kernel killed it for its memory, and started again",
    CRASH: "it ended by itself, and started again",
}
"""Why a proxy restarted by itself, by counter, and the message of the Event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetState:
    """One fleet at one moment: what is asked for, what was observed, and what both come to."""

    spec: FleetSpec
    observed: ObservedFleet
    roll: Roll
    terms: str
    """A digest of budget and template (`memory.terms_of`): restarts for memory under others do not count."""
    verdicts: Mapping[str, Verdict]
    """By pod, of those that are asked for."""
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """That a cause asks for the restart of a proxy."""

    since: float
    """When it came to be due; of two, the earlier is served first."""
    key: str
    """The end of the drain's id. The same key is the same restart: a proxy makes it once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """STATE_LABEL of pods that a cause concerns, be a restart due already or not."""

    value: str
    holds: Callable[[ObservedPod, FleetState], bool]


def _by_a_new_pod(pod: ObservedPod | None, state: FleetState) -> Way:
    return "Pod"


def _no_cooldown(spec: FleetSpec) -> float:
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartCause:
    """Why the operator restarts a proxy."""

    id: str
    """How the ids of its drains begin, before a hyphen and `Need.key`."""
    counter: str
    """Its name in `status.restarts`, as the metric's label, and as the reason of its entries, drains and boots."""
    action: str
    """`status.current.action`."""
    needed: Callable[[ObservedPod, FleetState], Need | None]
    """Whether that proxy is to be restarted; asked only of proxies that serve, or with `slot=False` that are down."""
    wanted: Callable[[RestartStatus, ObservedPod, FleetState], bool]
    """Whether a restart that was decided is still to be made. Of the proxy as it is now, which may drain for it."""
    cooldown: Callable[[FleetSpec], float]
    """Seconds from one restart of a proxy for this cause to the next. `_no_cooldown` only where a restart is sure to
    cure it, or `needed` sees to it: else a cause that nothing cures restarts the fleet for ever."""
    way: Callable[[ObservedPod | None, FleetState], Way] = lambda pod, state: state.spec.memory.restart
    slot: bool = True
    """False where it only concerns proxies that serve nobody."""
    marks: Callable[[FleetSpec], Mapping[str, str]] = lambda spec: {}
    """Annotations by which a pod shows that it needs this restart no more; without them it is not over."""
    label: Label | None = None
    help: str = ""
    """What the counter counts, for the CRD, where `RestartsStatus` has no field for it."""

    def owns(self, id: str) -> bool:
        """Whether a drain of that id is for this cause."""
        return id.startswith(f"{self.id}-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement(RestartCause):
    """Of a proxy that serves nobody: nobody loses anything by it, so it needs no slot."""

    action: str = "Replacement"
    wanted: Callable[[RestartStatus, ObservedPod, FleetState], bool] = lambda entry, pod, state: pod.is_down
    cooldown: Callable[[FleetSpec], float] = _no_cooldown
    way: Callable[[ObservedPod | None, FleetState], Way] = _by_a_new_pod
    slot: bool = False


def _unresponsive(pod: ObservedPod, state: FleetState) -> Need | None:
    asked, now = state.spec.memory, state.now
    silent_for = max(state.spec.disruption.drain_timeout, asked.interval * asked.samples)
    silent = pod.is_silent(for_seconds=silent_for, samples=asked.samples, now=now)
    return Need(since=now, key=f"{int(now)}") if silent else None


def _is_silent(pod: ObservedPod, state: FleetState) -> bool:
    disruption, samples = state.spec.disruption, state.spec.memory.samples
    return pod.is_silent(for_seconds=disruption.drain_timeout, samples=samples, now=state.now)


def _down_and_outdated(pod: ObservedPod, state: FleetState) -> Need | None:
    return Need(since=state.now, key=f"{int(state.now)}") if pod in state.roll.replaceable else None


def _down_and_requested(pod: ObservedPod, state: FleetState) -> Need | None:
    waits = pod in state.roll.restart_pending and not _is_outdated(pod, state) and pod.is_late(state.now)
    return Need(since=state.now, key=f"{int(state.now)}") if waits else None


def _over_budget(pod: ObservedPod, state: FleetState) -> Need | None:
    verdict = state.verdicts.get(pod.name)
    if verdict is None or verdict.standing is not Standing.DUE:
        return None
    return Need(since=verdict.since or 0.0, key=memory.restart_key(verdict.attempt, state.terms, state.now))


def _is_over_budget(pod: ObservedPod, state: FleetState) -> bool:
    verdict = state.verdicts.get(pod.name)
    return verdict is not None and verdict.standing in (Standing.COOLING, Standing.DUE)


def _requested(pod: ObservedPod, state: FleetState) -> Need | None:
    """An outdated pod is restarted for it when it may get its new template."""
    may = pod in state.roll.replaceable or not _is_outdated(pod, state)
    return Need(since=0.0, key=_request_key(pod, state)) if pod in state.roll.restart_pending and may else None


def _is_the_same_request(entry: RestartStatus, pod: ObservedPod, state: FleetState) -> bool:
    return state.spec.restart is not None and entry.id == f"{REQUESTED.id}-{_request_key(pod, state)}"


def _request_key(pod: ObservedPod, state: FleetState) -> str:
    """The same at each pass for the same request, be the restart made by now or not.

    The request before it, and the proxy's restart for one, are part of it, so that an id which comes back is a new
    request.
    """
    assert state.spec.restart is not None
    asked, before = state.spec.restart.id, state.observed.status.restart.observed_id
    boots = [] if pod.stats is None else pod.stats.boots
    *_, earlier, newest = "", "", *(boot.id for boot in boots if REQUESTED.owns(boot.id or ""))
    texts = (f"{made} {'' if before == asked else before} {asked}" for made in (earlier, newest))
    key_after_earlier, key_after_newest = (hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts)
    return key_after_earlier if newest == f"{REQUESTED.id}-{key_after_earlier}" else key_after_newest


def _has_the_request(spec: FleetSpec) -> Mapping[str, str]:
    return {} if spec.restart is None else {RESTART_NOTE: spec.restart.id}


def _outdated(pod: ObservedPod, state: FleetState) -> Need | None:
    key = f"{state.observed.template_hash[:12]}-{int(state.now)}"
    return Need(since=0.0, key=key) if pod in state.roll.replaceable else None


def _is_outdated(pod: ObservedPod, state: FleetState) -> bool:
    return is_outdated(pod, state.observed)


UNRESPONSIVE: Final = Replacement(
    id="unresponsive",
    counter=CRASH,
    needed=_unresponsive,
    cooldown=lambda spec: spec.memory.cooldown,
    label=Label(value="unresponsive", holds=_is_silent),
)
MEMORY: Final = RestartCause(
    id="memory",
    counter="memory",
    action="MemoryRestart",
    needed=_over_budget,
    # A budget or template that is new clears what came of the old.
    wanted=lambda entry, pod, state: memory.attempt_of(entry.id, state.terms) > 0,
    cooldown=_no_cooldown,  # `memory.judge` counts it from the newest boot of any kind
    label=Label(value="over-budget", holds=_is_over_budget),
)
REQUESTED: Final = RestartCause(
    id="restart",
    counter="requested",
    action="RequestedRestart",
    needed=_requested,
    wanted=_is_the_same_request,
    cooldown=_no_cooldown,
    way=lambda pod, state: "Pod" if pod is not None and _is_outdated(pod, state) else state.spec.memory.restart,
    marks=_has_the_request,
)
CAUSES: Final = (
    UNRESPONSIVE,
    Replacement(id="replace", counter="rollout", needed=_down_and_outdated),
    Replacement(id="replace", counter="requested", needed=_down_and_requested, marks=_has_the_request),
    MEMORY,
    REQUESTED,
    RestartCause(
        id="roll",
        counter="rollout",
        action="Rollout",
        needed=_outdated,
        wanted=lambda entry, pod, state: _is_outdated(pod, state),
        cooldown=_no_cooldown,
        way=_by_a_new_pod,
        label=Label(value="outdated", holds=_is_outdated),
    ),
)
"""The most urgent first."""

_UNKNOWN: Final = RestartCause(
    id="",
    counter="",
    action="Replacement",
    needed=lambda pod, state: None,
    wanted=lambda entry, pod, state: False,
    cooldown=_no_cooldown,
)
"""What another release began for a cause of its own: it is withdrawn while that is possible."""


def cause_of(entry: RestartStatus) -> RestartCause:
    """The cause of a restart that the operator began."""
    of_entry = (cause for cause in CAUSES if cause.counter == entry.reason and cause.owns(entry.id or ""))
    return next(of_entry, _UNKNOWN)


def all_marks(spec: FleetSpec) -> dict[str, str]:
    """The marks of all causes together."""
    return {name: value for cause in CAUSES for name, value in cause.marks(spec).items()}


def counters() -> list[str]:
    """What `status.restarts` counts."""
    return list(dict.fromkeys((*(cause.counter for cause in CAUSES), *CRASHES)))


def is_ours(drain_id: str) -> bool:
    """Whether a drain of that id was asked for by an operator."""
    return any(cause.owns(drain_id) for cause in CAUSES)


def labels_of(pod: ObservedPod, state: FleetState, *, slot: bool) -> list[tuple[str, bool]]:
    """The labels of the causes with a slot, or without one, and whether each holds for that pod."""
    labels = [cause.label for cause in CAUSES if cause.label and cause.slot == slot]
    return [(label.value, label.holds(pod, state)) for label in labels]


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A proxy that is to be restarted."""

    pod: ObservedPod
    cause: RestartCause
    """What the restart is made and counted for."""
    priority: int
    """The place in CAUSES of the most urgent cause that asks for it."""
    since: float
    """When that came to be due."""
    id: str
    """Of the drain."""


def dues(state: FleetState) -> list[Due]:
    """What is to be restarted, in the order in which it is to be served. Who may begin is decided elsewhere."""
    found = [due for pod in state.roll.members if (due := _due(pod, state)) is not None]
    return sorted(found, key=lambda due: (due.pod.ready, due.priority, due.since, due.pod.created, due.pod.ordinal))


def _due(pod: ObservedPod, state: FleetState) -> Due | None:
    """One at most for each proxy, as urgent as the first cause; of a proxy that serves, the last one does most."""
    asked = []
    for priority, cause in enumerate(CAUSES):
        if not (pod.serves if cause.slot else pod.is_down) or _cools_down(cause, pod, state):
            continue
        if (need := cause.needed(pod, state)) is not None:
            asked.append((priority, cause, need))
    if not asked:
        return None
    priority, first, urgent = asked[0]
    _, cause, need = asked[-1] if first.slot else asked[0]
    return Due(pod=pod, cause=cause, priority=priority, since=urgent.since, id=f"{cause.id}-{need.key}")


def _cools_down(cause: RestartCause, pod: ObservedPod, state: FleetState) -> bool:
    """Whether it was restarted for that cause a short while ago, also where that gave it a new pod of its name."""
    entries = (entry for entry in state.observed.status.restarts.last if entry.pod == pod.name)
    began = [seconds_of(entry.time) for entry in entries if cause_of(entry) is cause]
    boots = [] if pod.stats is None else pod.stats.boots
    began += [boot.time for boot in boots if cause.owns(boot.id or "")]
    return state.now - max(began, default=float("-inf")) < cause.cooldown(state.spec)
