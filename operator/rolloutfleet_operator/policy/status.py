"""A fleet's status, from the observed state and the decision.

Where nothing happened it is the one before, and not written.
"""

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
from rolloutfleet_operator.policy.observed import ObservedFleet, text_of
from rolloutfleet_operator.policy.problems import Problem, problem
from rolloutfleet_operator.policy.reasons import ConditionReason, ProblemReason

_SPEC_KINDS: Final[tuple[ConditionType, ...]] = ("Ready", "Progressing", "SettingsInForce")


def status(spec: FleetSpec, observed: ObservedFleet, decision: Decision, now: float) -> FleetStatus:
    """The whole status, to be written under the version that `observed.status` has, where it differs from that."""
    view = View(spec=spec, observed=observed, decision=decision)
    there = [pod for pod in observed.pods if pod.terminating_since is None]
    time = text_of(now)
    return FleetStatus(
        observed_generation=observed.generation,
        replicas=len(observed.pods),
        ready_replicas=len(view.ready),
        updated_replicas=sum(pod.template_hash == observed.template_hash for pod in view.members),
        draining_replicas=sum(pod.stats is not None and pod.stats.drain is not None for pod in there),
        selector=observed.selector,
        endpoint=observed.endpoint,
        template_hash=observed.template_hash,
        operator_version=observed.operator_version,
        parked=decision.parked,
        current=decision.current,
        problems=_problems(decision.problems, observed.status, time),
        restarts=decision.restarts,
        restart=RestartAnswer(observed_id=decision.observed_restart),
        conditions=conditions.with_times(
            conditions.all_of(view), observed.status.conditions, observed.generation, time
        ),
    )


def unusable(earlier: FleetStatus, message: str, generation: int, now: float) -> FleetStatus:
    """Of a spec that can't be read, or not be carried out at all: nothing is changed, and that is said."""
    time = text_of(now)
    known = {each.type: each for each in earlier.conditions}
    made = [
        known.get(kind, ConditionStatus(type=kind, status="Unknown", reason=ConditionReason.NOT_KNOWN))
        for kind in conditions.KINDS
    ]
    about: dict[str, ConditionStatus] = {
        kind: ConditionStatus(type=kind, status="False", reason=ProblemReason.SPEC_INVALID, message=message)
        for kind in _SPEC_KINDS
    }
    made = [about.get(each.type, each) for each in made]
    return earlier.model_copy(
        update={
            "observed_generation": generation,
            "problems": _problems((problem(ProblemReason.SPEC_INVALID, message),), earlier, time),
            "conditions": conditions.with_times(made, earlier.conditions, generation, time),
        }
    )


def _problems(found: tuple[Problem, ...], earlier: FleetStatus, now: str) -> list[ProblemStatus]:
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
