"""What is wrong, by name, from what was seen: each cause of a fleet that does not serve has a reason of its own.

Messages say what to do, and hold nothing that moves while nothing happens: the status is written when they change.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import FleetStatus
from rolloutfleet_operator.policy.actions import Say
from rolloutfleet_operator.policy.observed import (
    READY_WITHIN,
    ContainerSeen,
    DeploymentSeen,
    FleetSeen,
    OtherPodSeen,
    PodSeen,
    is_late,
    is_silent,
    is_stuck,
)
from rolloutfleet_operator.policy.reasons import SEVERITY, Happening, Problem
from rolloutfleet_operator.policy.scaling import SETTLE

LOOPS: Final = 3
"""Restarts of a container that has not started up since, which make a loop, also while it runs for a moment."""
SILENT_FOR: Final = 3
"""Polls without an answer after which it is said that a proxy that is Ready gives none."""
ANOTHER_FLEETS: Final = "StoreOfAnotherFleet"

_NO_CLASS: Final = re.compile(r'storageclass\S* "[^"]*" not found', re.IGNORECASE)
"""As the controller of claims says it: `storageclass.storage.k8s.io "fast" not found`."""
_PULL: Final = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ImageInspectError", "RegistryUnavailable")
_CONFIG: Final = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_LAST_WORDS: Final = {
    ANOTHER_FLEETS: Problem.STORE_OF_ANOTHER_FLEET,
    "StoreUnusable": Problem.STORE_UNUSABLE,
    "BadKeyFile": Problem.KEYS_MISSING,
    "ModelUnreadable": Problem.TOKENIZER_UNREACHABLE,
    "BadSettings": Problem.SETTINGS_REFUSED,
}
"""How a proxy begins its last words when it can't start, and what that is."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Trouble:
    """Something wrong. `pod` is empty where the fleet as a whole is meant."""

    severity: int
    pod: str
    reason: Problem
    message: str


def trouble(reason: Problem, message: str, pod: str | None = None) -> Trouble:
    return Trouble(severity=SEVERITY[reason], pod=pod or "", reason=reason, message=message)


def of_fleet(spec: FleetSpec, seen: FleetSeen, now: float) -> Iterator[Trouble]:
    """All that can be told without knowing what the operator is doing about it."""
    for fault in seen.faults:
        yield trouble(Problem(fault.reason), fault.message, fault.pod)
    yield from _of_claims(seen)
    if seen.workload is not None and seen.workload.failed_create:
        yield _not_made(seen.workload.failed_create)
    for pod in seen.pods:
        yield from _of_proxy(pod, spec, seen, now)
    for deployment in (seen.gateway.deployment, seen.engines.deployment):
        yield from _of_deployment(deployment, now)


def _of_claims(seen: FleetSeen) -> Iterator[Trouble]:
    for claim in seen.claims:
        if claim.growing and claim.message:
            yield trouble(Problem.STORAGE_CANT_GROW, f"claim {claim.name}: {claim.message}")
        elif not claim.bound and claim.message:
            no_class = _NO_CLASS.search(claim.message)
            reason = Problem.STORAGE_CLASS_MISSING if no_class else Problem.CLAIM_PENDING
            yield trouble(reason, f"claim {claim.name}: {claim.message}")


def _not_made(message: str) -> Trouble:
    return trouble(Problem.QUOTA_EXCEEDED if "exceeded quota" in message else Problem.POD_REFUSED, message)


def _of_deployment(deployment: DeploymentSeen | None, now: float) -> Iterator[Trouble]:
    if deployment is None:
        return
    if deployment.failed_create:
        yield _not_made(deployment.failed_create)
    for pod in deployment.pods:
        found = _of_pod(pod, now)
        if found is None and not pod.ready and now - pod.created > READY_WITHIN and pod.terminating_since is None:
            found = trouble(Problem.NOT_READY_IN_TIME, _late(pod.name), pod.name)
        if found is not None:
            yield found


def _of_proxy(pod: PodSeen, spec: FleetSpec, seen: FleetSeen, now: float) -> Iterator[Trouble]:
    found = _of_pod(pod, now)
    if found is not None:
        yield found
    elif is_silent(pod, for_seconds=spec.disruption.drain_timeout, samples=spec.memory.samples, now=now):
        yield trouble(Problem.UNRESPONSIVE, "it answers neither the operator nor the kubelet; it is evicted", pod.name)
    elif is_late(pod, now):
        yield trouble(Problem.NOT_READY_IN_TIME, _late(pod.name), pod.name)
    elif pod.key_refused:
        secret = spec.auth.secret or f"{seen.name}-keys"
        message = (
            f"it does not take the first key of the Secret {secret}, so callers with that key get 401 there; the "
            "kubelet is asked to bring it"
        )
        yield trouble(Problem.KEY_NOT_TAKEN, message, pod.name)
    elif pod.ready and pod.unanswered >= SILENT_FOR:
        message = "it is Ready, but does not answer the operator's GET /stats; see its log, and network policies"
        yield trouble(Problem.STATS_UNKNOWN, message, pod.name)
    yield from _of_answers(pod, seen, now)


def _of_answers(pod: PodSeen, seen: FleetSeen, now: float) -> Iterator[Trouble]:
    stats = pod.stats
    if stats is None:
        return
    if stats.store_full:
        yield trouble(
            Problem.VOLUME_FULL, "its volume is full: turns are refused with 507; grow storage.size", pod.name
        )
    if stats.dump_failing:
        yield trouble(Problem.DUMP_FAILING, stats.dump_error or "dumps can't be written", pod.name)
    if stats.settings_error:
        yield trouble(Problem.SETTINGS_REFUSED, stats.settings_error, pod.name)
    if stats.needs_restart and pod.template_hash == seen.template_hash and _is_overdue(seen, now):
        names = ", ".join(stats.needs_restart)
        yield trouble(Problem.NEEDS_RESTART, f"{names}: in force after a restart; set spec.restart.id", pod.name)
    if stats.gateway_loses:
        lost = ", ".join(stats.gateway_loses)
        yield trouble(Problem.FIELDS_LOST, f"requests reach the engines without {lost}", pod.name)
    if stats.past_max_hold:
        message = "the trainer's pause has lasted longer than sessions.maxHold; calls get 503 until POST /continue"
        yield trouble(Problem.PAUSE_TOO_LONG, message, pod.name)


def _of_pod(pod: PodSeen | OtherPodSeen, now: float) -> Trouble | None:
    """What the cluster says of a pod, the first cause before what follows from it."""
    if pod.node_lost:
        gone = "if it is gone for good, kubectl delete node, and the pod starts elsewhere"
        return trouble(Problem.NODE_LOST, f"its node gives no sign of life; {gone}", pod.name)
    if is_stuck(pod, now):
        return trouble(Problem.STUCK_TERMINATING, "it should have ended; see its finalizers and its node", pod.name)
    if pod.terminating_since is not None or pod.ready:
        return None
    if pod.unschedulable is not None:
        reason = Problem.WAITING_FOR_GPUS if "nvidia.com/gpu" in pod.unschedulable else Problem.UNSCHEDULABLE
        return trouble(reason, pod.unschedulable, pod.name)
    return _of_container(pod.name, pod.container)


def _of_container(name: str, seen: ContainerSeen) -> Trouble | None:
    if seen.waiting in _PULL:
        return trouble(Problem.IMAGE_PULL_FAILED, f"{seen.image or 'its image'} can't be pulled", name)
    if seen.waiting in _CONFIG:
        return trouble(Problem.CONTAINER_CONFIG_ERROR, seen.message, name)
    kind, _, words = seen.last_words.partition(": ")
    if kind in _LAST_WORDS and seen.last_end is not None and not seen.started:
        return trouble(_LAST_WORDS[kind], words, name)
    if seen.waiting == "CrashLoopBackOff" or (seen.restarts >= LOOPS and seen.last_end and not seen.started):
        ended = f"it ends soon after each start ({seen.last_end or 'Error'}, exit status {seen.last_exit})"
        return trouble(Problem.CRASH_LOOPING, f"{ended}; kubectl logs --previous {name}", name)
    return None


def _is_overdue(seen: FleetSeen, now: float) -> bool:
    return seen.settings_since is not None and now - seen.settings_since > SETTLE


def _late(name: str) -> str:
    return f"not Ready within {READY_WITHIN:g} s; kubectl describe pod {name}"


def events_of_changes(before: FleetStatus, now: Iterable[Trouble]) -> Iterator[Say]:
    """`now` are those that the status will show."""
    there = {(each.pod or None, each.reason.value): each for each in now}
    known = {(each.pod, each.reason) for each in before.problems}
    for (pod, reason), each in there.items():
        if (pod, reason) not in known:
            yield Say(reason=reason, message=each.message, pod=pod, warning=True)
    for pod, reason in sorted(known - there.keys(), key=lambda key: (key[1], key[0] or "")):
        yield Say(reason=Happening.PROBLEM_GONE, message=f"{reason} is over", pod=pod)
