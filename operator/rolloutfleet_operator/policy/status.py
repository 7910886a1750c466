"""A fleet's status, from what was seen and decided. Where nothing happened it is the one before, and not written."""

from typing import Final

from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import (
    MOST_PROBLEMS,
    ConditionStatus,
    ConditionType,
    FleetStatus,
    ProblemStatus,
    RestartAnswer,
)
from rolloutfleet_operator.policy import conditions
from rolloutfleet_operator.policy.conditions import View
from rolloutfleet_operator.policy.decide import Decision
from rolloutfleet_operator.policy.observed import FleetSeen, text_of
from rolloutfleet_operator.policy.problems import Trouble, trouble
from rolloutfleet_operator.policy.reasons import Problem, Reason

_SPEC_KINDS: Final[tuple[ConditionType, ...]] = ("Ready", "Progressing", "SettingsInForce")


def status(spec: FleetSpec, seen: FleetSeen, decision: Decision, now: float) -> FleetStatus:
    """The whole status, to be written under the version that `seen.status` was read at, where it differs from that."""
    view = View(spec=spec, seen=seen, decision=decision)
    there = [pod for pod in seen.pods if pod.terminating_since is None]
    said = text_of(now)
    return FleetStatus(
        observed_generation=seen.generation,
        replicas=len(seen.pods),
        ready_replicas=len(view.ready),
        updated_replicas=sum(pod.template_hash == seen.template_hash for pod in view.members),
        draining_replicas=sum(pod.stats is not None and pod.stats.drain is not None for pod in there),
        selector=seen.selector,
        endpoint=seen.endpoint,
        template_hash=seen.template_hash,
        operator_version=seen.operator_version,
        parked=decision.parked,
        current=decision.current,
        problems=_problems(decision.troubles, seen.status, said),
        restarts=decision.restarts,
        restart=RestartAnswer(observed_id=decision.observed_restart),
        conditions=conditions.with_times(conditions.all_of(view), seen.status.conditions, seen.generation, said),
    )


def unusable(earlier: FleetStatus, message: str, generation: int, now: float) -> FleetStatus:
    """Of a spec that can't be read, or not be carried out at all: nothing is changed, and that is said."""
    said = text_of(now)
    known = {each.type: each for each in earlier.conditions}
    made = [
        known.get(kind, ConditionStatus(type=kind, status="Unknown", reason=Reason.NOT_KNOWN))
        for kind in conditions.KINDS
    ]
    about: dict[str, ConditionStatus] = {
        kind: ConditionStatus(type=kind, status="False", reason=Problem.SPEC_INVALID, message=message)
        for kind in _SPEC_KINDS
    }
    made = [about.get(each.type, each) for each in made]
    return earlier.model_copy(
        update={
            "observed_generation": generation,
            "problems": _problems((trouble(Problem.SPEC_INVALID, message),), earlier, said),
            "conditions": conditions.with_times(made, earlier.conditions, generation, said),
        }
    )


def _problems(found: tuple[Trouble, ...], earlier: FleetStatus, now: str) -> list[ProblemStatus]:
    """The worst, each since it was first seen."""
    since = {(each.pod, each.reason): each.since for each in earlier.problems}
    return [
        ProblemStatus(
            pod=each.pod or None,
            reason=each.reason.value,
            message=each.message,
            since=since.get((each.pod or None, each.reason.value), now),
        )
        for each in found[:MOST_PROBLEMS]
    ]
