"""What the operator is at, in one line: `status.current`. The oldest thing under way, else what it waits for."""

from collections.abc import Mapping
from enum import StrEnum

from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import CurrentStatus
from rolloutfleet_operator.policy import steps
from rolloutfleet_operator.policy.causes import MEMORY
from rolloutfleet_operator.policy.memory import Standing, Verdict
from rolloutfleet_operator.policy.observed import FleetSeen, text_of
from rolloutfleet_operator.policy.restarts import Begun, Carried, UnderWay, open_entries
from rolloutfleet_operator.policy.scaling import Leaving, Scale
from rolloutfleet_operator.policy.steps import Step


class Doing(StrEnum):
    """`status.current.action` where nothing is restarted; else it is the cause's."""

    SCALE_DOWN = "ScaleDown"
    SUSPEND = "Suspend"


def current_of(
    spec: FleetSpec,
    seen: FleetSeen,
    carried: Carried,
    begun: Begun,
    scaled: Scale,
    verdicts: Mapping[str, Verdict],
    now: float,
) -> CurrentStatus | None:
    """None where there is nothing to do."""
    if carried.under_way:
        return _under_way(carried.under_way[0])
    if begun.due is not None:
        entry = open_entries(begun.restarts)[begun.due.pod.name]
        return CurrentStatus(action=begun.due.cause.action, pod=entry.pod, since=entry.time)
    if scaled.leaving:
        return _leaving(spec, seen, scaled, now)
    if begun.waiting is not None:
        due = begun.waiting
        waits = CurrentStatus(action=due.cause.action, pod=due.pod.name, since="", waiting_for="slot")
        return _kept(waits, seen, now)
    cooling = [(verdict.until or 0.0, pod) for pod, verdict in verdicts.items() if verdict.standing is Standing.COOLING]
    if cooling and not spec.suspend:
        until, pod = min(cooling)
        waits = CurrentStatus(action=MEMORY.action, pod=pod, since="", deadline=text_of(until), waiting_for="cooldown")
        return _kept(waits, seen, now)
    return None


def _under_way(each: UnderWay) -> CurrentStatus:
    waits = each.step in (Step.WARMING, Step.EMPTYING, Step.QUIESCING)
    return CurrentStatus(
        action=each.cause.action,
        pod=each.restart.entry.pod,
        step=each.step.value,
        since=each.restart.entry.time,
        deadline=text_of(steps.deadline_of(each.restart, each.step)),
        waiting_for="quiet" if waits else None,
    )


def _leaving(spec: FleetSpec, seen: FleetSeen, scaled: Scale, now: float) -> CurrentStatus:
    """The pod that goes next is the highest that may not go yet."""
    by_ordinal = sorted(seen.pods, key=lambda pod: -pod.ordinal)
    pods = [pod.name for pod in by_ordinal if pod.name in scaled.leaving]
    pod = next((name for name in pods if scaled.leaving[name] is not Leaving.MAY_GO), pods[0])
    step = scaled.leaving[pod]
    patience = spec.disruption.drain_timeout if spec.suspend else spec.disruption.retire_timeout
    said = CurrentStatus(
        action=Doing.SUSPEND if spec.suspend else Doing.SCALE_DOWN,
        pod=pod,
        step=step.value,
        since="",
        deadline=None if scaled.since is None else text_of(scaled.since + patience),
        waiting_for=None if step is Leaving.MAY_GO else "quiet",
    )
    return _kept(said, seen, now)


def _kept(said: CurrentStatus, seen: FleetSeen, now: float) -> CurrentStatus:
    """Since when this action waits with this pod."""
    before = seen.status.current
    same = before is not None and (before.action, before.pod) == (said.action, said.pod)
    since = before.since if same and before is not None else text_of(now)
    return said.model_copy(update={"since": since})
