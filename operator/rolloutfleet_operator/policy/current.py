"""What the operator is at, in one line: `status.current`. The oldest thing under way, else what it waits for."""

from enum import StrEnum

from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import CurrentStatus
from rolloutfleet_operator.policy import steps
from rolloutfleet_operator.policy.causes import MEMORY, FleetState
from rolloutfleet_operator.policy.memory import Standing
from rolloutfleet_operator.policy.observed import ObservedFleet, text_of
from rolloutfleet_operator.policy.restarts import Admission, Progress, RestartInProgress, open_entries
from rolloutfleet_operator.policy.scaling import RetireStep, ScalePlan
from rolloutfleet_operator.policy.steps import Step


class CurrentAction(StrEnum):
    """`status.current.action` where nothing is restarted; else it is the cause's."""

    SCALE_DOWN = "ScaleDown"
    SUSPEND = "Suspend"


def current_of(state: FleetState, progress: Progress, admission: Admission, scaled: ScalePlan) -> CurrentStatus | None:
    """None where there is nothing to do."""
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
