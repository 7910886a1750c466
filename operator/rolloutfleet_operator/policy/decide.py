"""What to do next for one fleet on a cluster: the observed state goes in, everything to be done comes out.

One pass: observe, decide, write the status, apply the children, execute the actions. The status is written first and
under the version that was read, and a pass whose write is refused executes nothing: so the next pass finds every
decision in the status, also after a crash at any point.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import MOST_PROBLEMS, CurrentStatus, ParkedStatus, RestartsStatus, StoreStatus
from rolloutfleet_operator.policy import (
    causes,
    crashes,
    memory,
    problems,
    rollout,
    scaling,
    steps,
    stores,
    updates,
    workers,
)
from rolloutfleet_operator.policy.actions import Action, AskDrain, Evict, PatchMetadata
from rolloutfleet_operator.policy.causes import MEMORY, FleetState
from rolloutfleet_operator.policy.memory import Standing, Verdict
from rolloutfleet_operator.policy.observed import STATE_LABEL, ObservedFleet, ObservedPod, SlotRequest, text_of
from rolloutfleet_operator.policy.reasons import CurrentAction, Problem, ProblemReason, severity
from rolloutfleet_operator.policy.restarts import (
    Progress,
    RestartAdmission,
    RestartInProgress,
    admit,
    advance,
    down,
    held_by,
    open_entries,
    stuck_of,
    undumped,
)
from rolloutfleet_operator.policy.rollout import Roll
from rolloutfleet_operator.policy.scaling import RetireStep, ScalePlan, desired_of
from rolloutfleet_operator.policy.steps import Step
from rolloutfleet_operator.policy.updates import Update, UpdateAdmission

REQUEUE_SOON: Final = 1.0
"""Seconds until a pass that follows what was only written down in this one."""
REQUEUE_AT_A_STEP: Final = 2.0
"""Seconds between passes while a proxy is on its way down or up: calls may be held meanwhile."""
REQUEUE_FOR_A_SLOT: Final = 5.0
"""Seconds between passes while one waits for a slot that another fleet has."""


class PodState(StrEnum):
    """What STATE_LABEL says of a pod, where no cause of a restart has a label for it."""

    STARTING = "starting"
    READY = "ready"
    BUDGET_TOO_SMALL = "budget-too-small"
    DRAINED = "drained"
    RESTARTING = "restarting"
    RETIRING = "retiring"
    ENDING = "ending"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evictable:
    """Pods that a disruption budget lets be evicted."""

    ready: int
    """Pods that may be unavailable before no ready one is evicted."""
    unready: bool
    """Unready pods may be evicted whatever that number says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a pass comes to. `status.py` makes the status of it."""

    actions: tuple[Action, ...]
    """To be carried out in this order, when the status is written and the children are applied."""
    replicas: int
    """Of the StatefulSet."""
    peers: int
    """`replicas` in the proxies' settings: those that scale away are peers until they are gone."""
    lost_proxies: tuple[int, ...]
    """Ordinals of those on lost nodes, also where they are to end: until such a node is back or deleted, no other pod
    takes their place."""
    evictable: Evictable
    gateway_replicas: int
    engine_replicas: int | None
    """None where the fleet runs no engines itself."""
    updates: tuple[Update, ...]
    """Of each Deployment."""
    restarts: RestartsStatus
    stores: list[StoreStatus]
    parked: ParkedStatus
    current: CurrentStatus | None
    problems: tuple[Problem, ...]
    """All of them, the worst first."""
    verdicts: dict[str, Verdict]
    """By pod, of those that are asked for."""
    roll: Roll
    leaving: dict[str, RetireStep]
    observed_restart: str | None
    held: int
    """Of the operator's slots."""
    slot_requests: tuple[SlotRequest, ...]
    audit: frozenset[str]
    """Pods of which the next poll has to say what they hold; those of earlier releases are asked for /audit then."""
    requeue_at: float | None
    """When to decide again at the latest, if nothing is seen to change before."""
    suspended: bool
    """Nothing runs any more."""

    def disturbs(self, observed: ObservedFleet) -> bool:
        """Whether a proxy is drained or taken away."""
        fewer = observed.workload is not None and self.replicas < observed.workload.replicas
        return fewer or any(isinstance(action, AskDrain | Evict) for action in self.actions)


def decide(spec: FleetSpec, observed: ObservedFleet, now: float) -> Decision:
    """What to do about that fleet now. The same for the same arguments, whoever asked before."""
    terms = memory.terms_of(spec, observed.template_hash)
    members = tuple(
        sorted((pod for pod in observed.pods if pod.ordinal < desired_of(spec)), key=lambda pod: pod.ordinal)
    )
    verdicts = {pod.name: memory.judge(pod, spec, terms, now) for pod in members}
    roll = rollout.roll_of(spec, observed, members, now)
    state = FleetState(spec=spec, observed=observed, roll=roll, terms=terms, verdicts=verdicts, now=now)
    off = _is_off(spec, observed)
    gateways, engines = (0 if off else spec.gateway.replicas_on_a_cluster), _engine_replicas(spec, off=off)
    going = updates.of_fleet(spec, observed, gateways=gateways, engines=engines, now=now)
    rolling = sum(each.holds_slot for each in going)
    progress = advance(state, rolling=rolling)
    scaled = scaling.scale(spec, observed, progress.busy, now)
    admission = admit(state, progress, rolling=rolling)
    restarts, crashed, notes = crashes.counted(admission.restarts, observed.status.restarts, observed.pods, spec)
    kept = stores.of_fleet(spec, observed, now)
    lost = stores.problems_of(observed.name, kept, now)
    found = tuple(sorted({*_problems(state, progress, scaled, admission), *lost}, key=severity))
    begins = admission.due is not None and admission.due.cause.slot
    held, away = held_by(progress) + begins, len(down(spec, roll, progress)) + begins
    updated = updates.admit(going, spec, observed, held=held, down=away, now=now)
    return Decision(
        actions=(
            *workers.changes(spec, observed),
            *progress.actions,
            *scaled.actions,
            *admission.actions,
            *memory.marks_of(members, verdicts, terms),
            *notes,
            *_labels(state, progress, scaled),
            *crashes.events_of(crashed),
            *updated.actions,
            *scaling.events_of_parking(observed.status.parked, scaled.parked),
            *problems.events_of_changes(observed.status, found[:MOST_PROBLEMS]),
        ),
        replicas=scaled.replicas,
        peers=max(1, spec.proxies.replicas, scaled.replicas),
        lost_proxies=tuple(sorted(pod.ordinal for pod in observed.pods if pod.node_lost)),
        evictable=_evictable(spec, observed, progress),
        gateway_replicas=gateways,
        engine_replicas=engines,
        updates=updated.updates,
        restarts=restarts,
        stores=kept,
        parked=scaled.parked,
        current=_current(state, progress, admission, scaled, updated),
        problems=found,
        verdicts=verdicts,
        roll=roll,
        leaving=scaled.leaving,
        observed_restart=_observed_restart(state, progress, updated),
        held=held + updated.held,
        slot_requests=(*admission.slot_requests, *updated.slot_requests),
        audit=_to_be_asked(spec, observed, progress, scaled),
        requeue_at=_requeue_at(state, progress, admission, scaled, updated),
        suspended=off and _is_empty(observed),
    )


def _problems(
    state: FleetState, progress: Progress, scaled: ScalePlan, admission: RestartAdmission
) -> Iterator[Problem]:
    spec, observed, now = state.spec, state.observed, state.now
    found = sorted((*problems.of_fleet(spec, observed, now), *crashes.problems_of(observed, now)), key=severity)
    yield from found
    yield from stuck_of(progress)
    yield from memory.problems_of(state.roll.members, state.verdicts, progress.busy, observed.status)
    if state.roll.stopped_by is not None:
        name = state.roll.stopped_by.name
        cause = next((f"{each.reason}: {each.message}; " for each in found if each.pod == name), "")
        message = f"{cause}it has the new template and does not become Ready; the others keep theirs until it is"
        yield Problem(ProblemReason.ROLL_STOPPED, message, name)
    for name, how in scaled.leaving.items():
        if how is RetireStep.HOLDING_TURNS:
            yield undumped(name)
    for pod in admission.by_hand:
        if pod.drain is not None:
            message = f"it is to be restarted, but is in the drain {pod.drain.id}, which is not the operator's"
            yield Problem(ProblemReason.DRAINED_BY_HAND, message, pod.name)


def _labels(state: FleetState, progress: Progress, scaled: ScalePlan) -> Iterator[PatchMetadata]:
    """Where a pod's label says something else than is so."""
    for pod in state.observed.pods:
        label = _label(pod, state, progress, scaled)
        if pod.notes.get(STATE_LABEL) != label:
            yield PatchMetadata(pod=pod.name, uid=pod.uid, labels={STATE_LABEL: label})


def _label(pod: ObservedPod, state: FleetState, progress: Progress, scaled: ScalePlan) -> str:
    """The first that is so."""
    verdict = state.verdicts.get(pod.name)
    of_first = (
        (PodState.ENDING, pod.terminating_since is not None),
        (PodState.RETIRING, pod.name in scaled.leaving),
        (PodState.RESTARTING, pod.name in progress.busy),
        *causes.labels_of(pod, state, slot=False),
        (PodState.DRAINED, pod.drain is not None),
        (PodState.STARTING, not pod.ready),
        (PodState.BUDGET_TOO_SMALL, verdict is not None and verdict.standing is Standing.TOO_SMALL),
        *causes.labels_of(pod, state, slot=True),
    )
    return str(next((label for label, holds in of_first if holds), PodState.READY))


def _observed_restart(state: FleetState, progress: Progress, updated: UpdateAdmission) -> str | None:
    """The id of the newest restart that all proxies have had, and with which all Deployments were updated."""
    spec, roll, before = state.spec, state.roll, state.observed.status.restart.observed_id
    if spec.restart is None or len(roll.members) < desired_of(spec):
        return before
    going = any(each.restart.entry.reason == causes.REQUESTED.counter for each in progress.under_way)
    due = any(each.due or each.since is not None for each in updated.updates)
    return before if roll.restart_pending or going or due else spec.restart.id


def _evictable(spec: FleetSpec, observed: ObservedFleet, progress: Progress) -> Evictable:
    """Proxies that may be evicted. Of those with node-local volumes none may, unless maintenance is announced or the
    operator itself evicts one in this pass, which its drain has made unready."""
    if spec.disruption.maintenance or not observed.node_local:
        return Evictable(ready=spec.disruption.max_unavailable, unready=True)
    return Evictable(ready=0, unready=any(isinstance(action, Evict) for action in progress.actions))


def _engine_replicas(spec: FleetSpec, *, off: bool) -> int | None:
    if spec.engine is None:
        return None
    return 0 if off else spec.engine.replicas


def _is_off(spec: FleetSpec, observed: ObservedFleet) -> bool:
    """Whether gateway and engines can go: a suspended fleet's proxies need them to their end."""
    return spec.suspend and not observed.pods and (observed.workload is None or observed.workload.replicas == 0)


def _is_empty(observed: ObservedFleet) -> bool:
    deployments = (observed.gateway.deployment, observed.engines.deployment)
    return all(each is None or not each.pods for each in deployments)


def _to_be_asked(spec: FleetSpec, observed: ObservedFleet, progress: Progress, scaled: ScalePlan) -> frozenset[str]:
    parked = {pod.name for pod in observed.pods if pod.ordinal in observed.status.parked.ordinals}
    ephemeral = spec.proxies.storage.ephemeral
    replaced = {each.restart.entry.pod for each in progress.under_way if ephemeral and each.restart.way == "Pod"}
    return frozenset(parked | replaced | scaled.leaving.keys())


def _requeue_at(
    state: FleetState, progress: Progress, admission: RestartAdmission, scaled: ScalePlan, updated: UpdateAdmission
) -> float | None:
    if admission.due is not None or updated.actions or scaled.parked != state.observed.status.parked:
        return state.now + REQUEUE_SOON
    going = any(not each.stuck and each.step is not Step.EMPTYING for each in progress.under_way)
    ending = any(how in (RetireStep.QUIESCING, RetireStep.DUMPING) for how in scaled.leaving.values())
    if going or ending or (state.spec.suspend and state.observed.pods):
        return state.now + REQUEUE_AT_A_STEP
    if admission.slot_requests or updated.slot_requests:
        return state.now + REQUEUE_FOR_A_SLOT
    ends = [
        verdict.until for verdict in state.verdicts.values() if verdict.standing is Standing.COOLING and verdict.until
    ]
    return max(state.now + REQUEUE_SOON, min(ends)) if ends else None


def _current(
    state: FleetState, progress: Progress, admission: RestartAdmission, scaled: ScalePlan, updated: UpdateAdmission
) -> CurrentStatus | None:
    """What the operator is at, in one line: the oldest thing under way, else what it waits for; None: nothing to do."""
    spec, observed, verdicts, now = state.spec, state.observed, state.verdicts, state.now
    if progress.under_way:
        return _under_way(progress.under_way[0])
    if admission.due is not None:
        entry = open_entries(admission.restarts)[admission.due.pod.name]
        return CurrentStatus(action=admission.due.cause.action, pod=entry.pod, since=entry.time)
    if scaled.leaving:
        return _leaving(spec, observed, scaled, now)
    if admission.waiting is not None:
        due = admission.waiting
        waits = CurrentStatus(action=due.cause.action, pod=due.pod.name, since="", waiting_for="slot")
        return _kept(waits, observed, now)
    if (busy := next((each for each in updated.updates if each.since is not None or each.waits), None)) is not None:
        return busy.current if busy.since is not None else _kept(busy.current, observed, now)
    cooling = [(verdict.until or 0.0, pod) for pod, verdict in verdicts.items() if verdict.standing is Standing.COOLING]
    if cooling and not spec.suspend:
        until, pod = min(cooling)
        waits = CurrentStatus(action=MEMORY.action, pod=pod, since="", deadline=text_of(until), waiting_for="cooldown")
        return _kept(waits, observed, now)
    return None


def _under_way(each: RestartInProgress) -> CurrentStatus:
    waits = each.step in (Step.WARMING, Step.EMPTYING, Step.QUIESCING)
    return CurrentStatus(
        action=each.cause.action,
        pod=each.restart.entry.pod,
        step=each.step.value,
        since=each.restart.entry.time,
        deadline=text_of(steps.deadline_of(each.restart, each.step)),
        waiting_for="quiet" if waits else None,
    )


def _leaving(spec: FleetSpec, observed: ObservedFleet, scaled: ScalePlan, now: float) -> CurrentStatus:
    """The pod that goes next is the highest that may not go yet."""
    by_ordinal = sorted(observed.pods, key=lambda pod: -pod.ordinal)
    pods = [pod.name for pod in by_ordinal if pod.name in scaled.leaving]
    pod = next((name for name in pods if scaled.leaving[name] is not RetireStep.MAY_GO), pods[0])
    step = scaled.leaving[pod]
    patience = spec.disruption.drain_timeout if spec.suspend else spec.disruption.retire_timeout
    current = CurrentStatus(
        action=CurrentAction.SUSPEND if spec.suspend else CurrentAction.SCALE_DOWN,
        pod=pod,
        step=step.value,
        since="",
        deadline=None if scaled.since is None else text_of(scaled.since + patience),
        waiting_for=None if step is RetireStep.MAY_GO else "quiet",
    )
    return _kept(current, observed, now)


def _kept(current: CurrentStatus, observed: ObservedFleet, now: float) -> CurrentStatus:
    """Since when this action waits with this pod."""
    before = observed.status.current
    same = before is not None and (before.action, before.pod) == (current.action, current.pod)
    since = before.since if same and before is not None else text_of(now)
    return current.model_copy(update={"since": since})
