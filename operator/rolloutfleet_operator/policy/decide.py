"""What to do next for one fleet on a cluster: everything that was seen goes in, everything to be done comes out.

One pass: see, decide, write the status, apply the children, carry out the actions. The status is written first and
under the version that was read, and a pass whose write is refused carries nothing out: so what the status says has been
decided is found by whoever decides next, also after a crash at any point.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import MOST_PROBLEMS, CurrentStatus, ParkedStatus, RestartsStatus
from rolloutfleet_operator.policy import causes, crashes, memory, problems, rollout, scaling, workers
from rolloutfleet_operator.policy.actions import Action, AskDrain, Evict, Mark
from rolloutfleet_operator.policy.causes import FleetState
from rolloutfleet_operator.policy.current import current_of
from rolloutfleet_operator.policy.memory import Standing, Verdict
from rolloutfleet_operator.policy.memory import rule_of as rule_of
from rolloutfleet_operator.policy.observed import STATE_LABEL, FleetSeen, PodSeen, Want
from rolloutfleet_operator.policy.problems import Trouble, trouble
from rolloutfleet_operator.policy.reasons import Problem
from rolloutfleet_operator.policy.restarts import Begun, Carried, begin, carry_on, held_by, stuck_of, undumped
from rolloutfleet_operator.policy.rollout import Roll, has_restarted
from rolloutfleet_operator.policy.scaling import Leaving, Scale, desired_of
from rolloutfleet_operator.policy.steps import Step

SOON: Final = 1.0
"""Seconds until a pass that follows what was only written down in this one."""
STEP: Final = 2.0
"""Seconds between passes while a proxy is on its way down or up: calls may be held meanwhile."""
WAIT: Final = 5.0
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
class Decision:
    """What a pass comes to. `status.py` makes the status of it."""

    actions: tuple[Action, ...]
    """To be carried out in this order, when the status is written and the children are applied."""
    replicas: int
    """Of the StatefulSet."""
    peers: int
    """`replicas` in the proxies' settings: those that scale away are peers until they are gone."""
    gateway_replicas: int
    engine_replicas: int | None
    """None where the fleet runs no engines itself."""
    restarts: RestartsStatus
    parked: ParkedStatus
    current: CurrentStatus | None
    troubles: tuple[Trouble, ...]
    """All of them, the worst first."""
    verdicts: dict[str, Verdict]
    """By pod, of those that are asked for."""
    roll: Roll
    leaving: dict[str, Leaving]
    observed_restart: str | None
    held: int
    """Of the operator's slots."""
    wants: tuple[Want, ...]
    audit: frozenset[str]
    """Pods whose /audit is asked for with the next poll."""
    look_again: float | None
    """When to decide again at the latest, if nothing is seen to change before."""
    suspended: bool
    """Nothing runs any more."""

    def disturbs(self, seen: FleetSeen) -> bool:
        """Whether a proxy is drained or taken away."""
        fewer = seen.workload is not None and self.replicas < seen.workload.replicas
        return fewer or any(isinstance(action, AskDrain | Evict) for action in self.actions)


def decide(spec: FleetSpec, seen: FleetSeen, now: float) -> Decision:
    """What to do about that fleet now. The same for the same arguments, whoever asked before."""
    rule = rule_of(spec, seen.template_hash)
    members = tuple(sorted((pod for pod in seen.pods if pod.ordinal < desired_of(spec)), key=lambda pod: pod.ordinal))
    verdicts = memory.verdicts_of(members, spec, rule, now)
    roll = rollout.roll_of(spec, seen, members, now)
    state = FleetState(spec=spec, seen=seen, roll=roll, rule=rule, verdicts=verdicts, now=now)
    carried = carry_on(state)
    scaled = scaling.scale(spec, seen, carried.busy, now)
    begun = begin(state, carried)
    restarts, crashed, notes = crashes.counted(begun.restarts, seen.status.restarts, seen.pods, spec)
    found = tuple(sorted({*_troubles(spec, seen, roll, carried, scaled, begun, verdicts, now)}))
    begins = begun.due is not None and begun.due.cause.slot
    return Decision(
        actions=(
            *carried.actions,
            *scaled.actions,
            *begun.actions,
            *memory.marks_of(members, verdicts, rule),
            *notes,
            *_labels(state, carried, scaled),
            *workers.changes(spec, seen),
            *crashes.events_of(crashed),
            *scaling.events_of_parking(seen.status.parked, scaled.parked),
            *problems.events_of_changes(seen.status, found[:MOST_PROBLEMS]),
        ),
        replicas=scaled.replicas,
        peers=max(1, spec.proxies.replicas, scaled.replicas),
        gateway_replicas=0 if _is_off(spec, seen) else spec.gateway.replicas,
        engine_replicas=None if spec.engine is None else 0 if _is_off(spec, seen) else spec.engine.replicas,
        restarts=restarts,
        parked=scaled.parked,
        current=current_of(spec, seen, carried, begun, scaled, verdicts, now),
        troubles=found,
        verdicts=verdicts,
        roll=roll,
        leaving=scaled.leaving,
        observed_restart=_observed(spec, seen, members, carried),
        held=held_by(carried) + begins,
        wants=begun.wants,
        audit=_to_be_asked(spec, seen, carried, scaled),
        look_again=_look_again(spec, seen, carried, begun, scaled, verdicts, now),
        suspended=_is_off(spec, seen) and _is_empty(seen),
    )


def _troubles(
    spec: FleetSpec,
    seen: FleetSeen,
    roll: Roll,
    carried: Carried,
    scaled: Scale,
    begun: Begun,
    verdicts: dict[str, Verdict],
    now: float,
) -> Iterator[Trouble]:
    found = sorted((*problems.of_fleet(spec, seen, now), *crashes.problems_of(seen, now)))
    yield from found
    yield from stuck_of(carried)
    yield from memory.troubles_of(roll.members, verdicts, carried.busy, seen.status)
    if roll.stopped_by is not None:
        name = roll.stopped_by.name
        cause = next((f"{each.reason}: {each.message}; " for each in found if each.pod == name), "")
        message = f"{cause}it has the new template and does not become Ready; the others keep theirs until it is"
        yield trouble(Problem.ROLL_STOPPED, message, name)
    for name, how in scaled.leaving.items():
        if how is Leaving.HOLDING_TURNS:
            yield undumped(name)
    for pod in begun.by_hand:
        drain = None if pod.stats is None else pod.stats.drain
        if drain is not None:
            message = f"it is to be restarted, but is in the drain {drain.id}, which is not the operator's"
            yield trouble(Problem.DRAINED_BY_HAND, message, pod.name)


def _labels(state: FleetState, carried: Carried, scaled: Scale) -> Iterator[Mark]:
    """Where a pod's label says something else than is so."""
    for pod in state.seen.pods:
        label = _label(pod, state, carried, scaled)
        if pod.notes.get(STATE_LABEL) != label:
            yield Mark(pod=pod.name, uid=pod.uid, labels={STATE_LABEL: label})


def _label(pod: PodSeen, state: FleetState, carried: Carried, scaled: Scale) -> str:
    """The first that is so."""
    drained = pod.stats is not None and pod.stats.drain is not None
    verdict = state.verdicts.get(pod.name)
    of_first = (
        (PodState.ENDING, pod.terminating_since is not None),
        (PodState.RETIRING, pod.name in scaled.leaving),
        (PodState.RESTARTING, pod.name in carried.busy),
        *causes.labels_of(pod, state, slot=False),
        (PodState.DRAINED, drained),
        (PodState.STARTING, not pod.ready),
        (PodState.BUDGET_TOO_SMALL, verdict is not None and verdict.standing is Standing.TOO_SMALL),
        *causes.labels_of(pod, state, slot=True),
    )
    return str(next((label for label, holds in of_first if holds), PodState.READY))


def _observed(spec: FleetSpec, seen: FleetSeen, members: tuple[PodSeen, ...], carried: Carried) -> str | None:
    """The id of the newest restart that all proxies have had."""
    before = seen.status.restart.observed_id
    if spec.restart is None or len(members) < desired_of(spec):
        return before
    going = any(each.restart.entry.reason == causes.REQUESTED.counter for each in carried.under_way)
    made = all(has_restarted(pod, spec, seen) for pod in members)
    return spec.restart.id if made and not going else before


def _is_off(spec: FleetSpec, seen: FleetSeen) -> bool:
    """Whether gateway and engines can go: a suspended fleet's proxies need them to their end."""
    return spec.suspend and not seen.pods and (seen.workload is None or seen.workload.replicas == 0)


def _is_empty(seen: FleetSeen) -> bool:
    deployments = (seen.gateway.deployment, seen.engines.deployment)
    return all(each is None or not each.pods for each in deployments)


def _to_be_asked(spec: FleetSpec, seen: FleetSeen, carried: Carried, scaled: Scale) -> frozenset[str]:
    parked = {pod.name for pod in seen.pods if pod.ordinal in seen.status.parked.ordinals}
    replaced = {
        each.restart.entry.pod for each in carried.under_way if each.restart.way == "Pod" and each.restart.ephemeral
    }
    return frozenset(parked | replaced | scaled.leaving.keys())


def _look_again(
    spec: FleetSpec,
    seen: FleetSeen,
    carried: Carried,
    begun: Begun,
    scaled: Scale,
    verdicts: dict[str, Verdict],
    now: float,
) -> float | None:
    if begun.due is not None or scaled.parked != seen.status.parked:
        return now + SOON
    going = any(not each.stuck and each.step is not Step.EMPTYING for each in carried.under_way)
    ending = any(how in (Leaving.QUIESCING, Leaving.DUMPING) for how in scaled.leaving.values())
    if going or ending or (spec.suspend and seen.pods):
        return now + STEP
    if begun.wants:
        return now + WAIT
    ends = [verdict.until for verdict in verdicts.values() if verdict.standing is Standing.COOLING and verdict.until]
    return max(now + SOON, min(ends)) if ends else None
