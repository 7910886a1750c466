"""Which proxies are to be restarted, why, and which first; and what stops a roll.

A new template, and a restart that is asked for by id, go from proxy to proxy. Those that are down come first and need
no slot, for nobody loses anything; then the oldest. A roll stops at the first proxy that has the new template and does
not become Ready. A corrected template makes that one outdated and down, so it comes first.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import RestartStatus
from rolloutfleet_operator.policy import memory, pods
from rolloutfleet_operator.policy.ledger import Cause
from rolloutfleet_operator.policy.memory import Rule, Standing, Verdict
from rolloutfleet_operator.policy.seen import RESTART_NOTE, FleetSeen, PodSeen, SlotUse
from rolloutfleet_operator.policy.steps import Way
from rolloutfleet_operator.policy.times import seconds_of

_HOPELESS = frozenset(
    ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError")
)
"""What the kubelet says of a container that time alone won't start."""

_REPLACE, _UNRESPONSIVE = "replace-", "unresponsive-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A proxy that is to be restarted."""

    pod: PodSeen
    cause: Cause
    use: SlotUse
    since: float
    """When it came to be due."""
    id: str
    """Of the drain."""
    slot: bool = True
    """False where it serves nobody, so that no slot is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roll:
    """How the fleet's pods stand to what is asked for."""

    members: tuple[PodSeen, ...]
    """The pods that the spec asks for."""
    outdated: tuple[PodSeen, ...]
    """Of another template than the one that is asked for."""
    unasked: tuple[PodSeen, ...]
    """Those for which the restart that is asked for by id has not been made."""
    unanswered: bool
    """Such a restart is asked for, and not all have had it."""
    stopped_by: PodSeen | None
    """The pod with the new template that does not become Ready."""
    applied: bool
    """New pods get the template that is asked for."""

    @property
    def begun(self) -> bool:
        """Whether some have the new template, and some have not."""
        return 0 < len(self.outdated) < len(self.members)


def roll_of(spec: FleetSpec, seen: FleetSeen, members: tuple[PodSeen, ...], now: float) -> Roll:
    """`members` are the pods that the spec asks for, by ordinal."""
    outdated = tuple(pod for pod in members if pod.template_hash != seen.template_hash)
    updated = [pod for pod in members if pod.template_hash == seen.template_hash]
    unasked = tuple(pod for pod in members if not has_restarted(pod, spec, seen))
    workload = seen.workload
    asked = None if spec.restart is None else spec.restart.id
    return Roll(
        members=members,
        outdated=outdated,
        unasked=unasked,
        unanswered=asked is not None and asked != seen.status.restart.observed_id,
        stopped_by=next((pod for pod in updated if outdated and _fails(pod, now)), None),
        applied=workload is not None
        and workload.current
        and workload.template_hash == seen.template_hash
        and workload.restart_id == asked,
    )


def has_restarted(pod: PodSeen, spec: FleetSpec, seen: FleetSeen) -> bool:
    """Whether the restart that is asked for by id has been made of that pod; True where none is asked for.

    The pod says so itself: it got the id with its template, or when its proxy had booted.
    """
    if spec.restart is None or seen.status.restart.observed_id == spec.restart.id:
        return True
    return pod.notes.get(RESTART_NOTE) == spec.restart.id


def way_of(pod: PodSeen | None, entry: RestartStatus, spec: FleetSpec, seen: FleetSeen) -> Way:
    """How a pod is restarted: a new pod where it is down or outdated, else as `memory.restart` says."""
    outdated = pod is not None and pod.template_hash != seen.template_hash
    if entry.reason == "rollout" or (entry.reason == "requested" and outdated):
        return "Pod"
    return "Pod" if needs_no_slot(entry) else spec.memory.restart


def needs_no_slot(entry: RestartStatus) -> bool:
    """Whether that is the replacement of a pod that served nobody."""
    return entry.id is not None and entry.id.startswith((_REPLACE, _UNRESPONSIVE))


def request_id(spec: FleetSpec, seen: FleetSeen) -> str:
    """The drain's id for the restart that is asked for: the same for each look at the same request.

    The request before it is part of it, so that an id which comes back is a new request.
    """
    assert spec.restart is not None
    before = seen.status.restart.observed_id
    told = f"{'' if before == spec.restart.id else before} {spec.restart.id}"
    return f"restart-{hashlib.sha256(told.encode()).hexdigest()[:16]}"


def dues(
    spec: FleetSpec, seen: FleetSeen, roll: Roll, verdicts: dict[str, Verdict], rule: Rule, now: float
) -> Iterator[Due]:
    """What is to be restarted, first what needs no slot. Who gets one, and may begin, is decided elsewhere."""
    replaced = replaceable(spec, roll)
    requested = [pod for pod in roll.unasked if pod in replaced or pod.template_hash == seen.template_hash]
    unresponsive = [
        pod for pod in roll.members if _hangs(pod, spec, rule, now) and not _was_tried(pod, seen, rule, now)
    ]
    for pod in unresponsive:
        yield Due(pod=pod, cause="crash", use="memory", since=now, id=f"{_UNRESPONSIVE}{int(now)}", slot=False)
    for pod in replaced:
        if pods.is_down(pod):
            yield Due(pod=pod, cause="rollout", use="rollout", since=now, id=f"{_REPLACE}{int(now)}", slot=False)
    for pod in requested:
        if pods.is_down(pod) and pod not in replaced and pods.is_late(pod, now):
            yield Due(pod=pod, cause="requested", use="requested", since=now, id=f"{_REPLACE}{int(now)}", slot=False)
    yield from sorted(
        _of_those_that_serve(spec, seen, roll, replaced, requested, verdicts, rule, now),
        key=lambda due: (
            due.pod.ready,
            due.use != "memory",
            due.use == "rollout",
            due.since,
            due.pod.created,
            due.pod.ordinal,
        ),
    )


def _of_those_that_serve(
    spec: FleetSpec,
    seen: FleetSeen,
    roll: Roll,
    replaced: tuple[PodSeen, ...],
    requested: list[PodSeen],
    verdicts: dict[str, Verdict],
    rule: Rule,
    now: float,
) -> Iterator[Due]:
    """One at most for each proxy: a new pod also does what the other causes ask for."""
    for pod in roll.members:
        verdict = verdicts.get(pod.name)
        over = verdict is not None and verdict.standing is Standing.DUE
        use: SlotUse = "memory" if over else "requested" if pod in requested else "rollout"
        since = verdict.since if over and verdict is not None and verdict.since is not None else 0.0
        if not pods.serves(pod):
            continue
        if pod in replaced:
            yield Due(pod=pod, cause="rollout", use=use, since=since, id=f"roll-{seen.template_hash[:12]}-{int(now)}")
        elif pod in requested:
            yield Due(pod=pod, cause="requested", use=use, since=since, id=request_id(spec, seen))
        elif over and verdict is not None:
            yield Due(pod=pod, cause="memory", use=use, since=since, id=memory.restart_id(verdict.row, rule, now))


def replaceable(spec: FleetSpec, roll: Roll) -> tuple[PodSeen, ...]:
    """The outdated pods that may get the new template, the oldest first; of a stopped roll only those that are down."""
    if not roll.applied:
        return ()
    may = [pod for pod in roll.outdated if spec.update_policy == "Automatic" or _is_asked_for(pod, roll)]
    if roll.stopped_by is not None:
        may = [pod for pod in may if pods.is_down(pod)]
    return tuple(sorted(may, key=lambda pod: (pod.created, pod.ordinal)))


def _is_asked_for(pod: PodSeen, roll: Roll) -> bool:
    """Whether a restart by id is asked for, and not made; what one made and left broken is part of it."""
    return pod in roll.unasked or (roll.unanswered and pods.is_down(pod))


def _fails(pod: PodSeen, now: float) -> bool:
    hopeless = pod.container.waiting in _HOPELESS or pod.container.waiting == "CrashLoopBackOff"
    return pods.is_late(pod, now) or (pods.is_down(pod) and hopeless)


def _was_tried(pod: PodSeen, seen: FleetSeen, rule: Rule, now: float) -> bool:
    """Whether the pod before it was evicted for the same a cool-down ago, or less."""
    tried = [entry for entry in seen.status.restarts.last if (entry.id or "").startswith(_UNRESPONSIVE)]
    return any(entry.pod == pod.name and now - seconds_of(entry.time) < rule.cooldown for entry in tried)


def _hangs(pod: PodSeen, spec: FleetSpec, rule: Rule, now: float) -> bool:
    patience = max(spec.disruption.drain_timeout, spec.memory.interval * rule.samples)
    return pods.is_silent(pod, for_seconds=patience, samples=rule.samples, now=now)
