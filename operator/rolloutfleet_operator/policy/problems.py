"""The problems of a fleet, from its observed state: each cause of a fleet that does not serve has a reason of its own.

Messages say what to do, and hold no figure that changes while nothing happens: each change is a write of the status.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from rolloutfleet.settings import MIB, SMALLEST_BUDGET
from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import FleetStatus
from rolloutfleet_operator.policy.actions import EmitEvent
from rolloutfleet_operator.policy.observed import (
    READY_WITHIN,
    ObservedContainer,
    ObservedDeployment,
    ObservedFleet,
    ObservedOtherPod,
    ObservedPod,
)
from rolloutfleet_operator.policy.reasons import EventReason, Problem, ProblemReason
from rolloutfleet_operator.policy.scaling import SETTINGS_IN_FORCE_WITHIN

CRASH_LOOP_RESTARTS: Final = 3
"""Restarts of a container that has not started up since, which make a loop, also while it runs for a moment."""
UNANSWERED_POLLS: Final = 3
"""Polls without an answer after which it is said that a proxy that is not down gives none."""

SILENT_AFTER: Final = 20.0
"""Seconds without Ready after which it is said that an engine is silent: by then it has been for a minute, as the
kubelet asks twice, and waits for 20 s each time."""

PROVISIONED_WITHIN: Final = 120.0
"""Seconds that a provisioner has for a volume before it is said that there is none."""

_STARTS_ELSEWHERE: Final = "kubectl delete node, and the pod starts elsewhere"
_VOLUME_IS_THERE: Final = "kubectl delete node and the pod's claim: what was neither acknowledged nor dumped is lost"

_NO_CLASS: Final = re.compile(r'storageclass\S* "[^"]*" not found', re.IGNORECASE)
"""As the controller of claims says it: `storageclass.storage.k8s.io "fast" not found`."""
PULL: Final = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ImageInspectError", "RegistryUnavailable")
CONFIG: Final = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_LAST_WORDS: Final = {
    "StoreOfAnotherFleet": ProblemReason.STORE_OF_ANOTHER_FLEET,
    "StoreUnusable": ProblemReason.STORE_UNUSABLE,
    "StoreDamaged": ProblemReason.STORE_DAMAGED,
    "DamageFound": ProblemReason.STORE_DAMAGED,
    "BadKeyFile": ProblemReason.KEYS_MISSING,
    "ModelUnreadable": ProblemReason.TOKENIZER_UNREACHABLE,
    "BadSettings": ProblemReason.SETTINGS_REFUSED,
}
"""How a proxy begins its last words when it can't start, and what that is."""


def of_fleet(spec: FleetSpec, observed: ObservedFleet, now: float) -> Iterator[Problem]:
    """All that can be told without knowing what the operator is doing about it."""
    yield from observed.problems
    yield from _of_budget(spec.memory.rss_budget)
    yield from _of_claims(observed, spec.proxies.replicas, now)
    if observed.workload is not None and observed.workload.failed_create:
        yield _not_made(observed.workload.failed_create)
    for pod in observed.pods:
        yield from _of_proxy(pod, spec, observed, now)
    for deployment in (observed.gateway.deployment, observed.engines.deployment):
        yield from of_deployment(deployment, now)
    yield from _of_silent_engines(observed, now)


def _of_budget(budget: int) -> Iterator[Problem]:
    if budget < SMALLEST_BUDGET:
        message = (
            f"memory.rssBudget, {budget // MIB}Mi, has no room for two large requests beside all else. "
            f"{SMALLEST_BUDGET // MIB}Mi is the smallest that has"
        )
        yield Problem(ProblemReason.BUDGET_TOO_SMALL, message)


def _of_claims(observed: ObservedFleet, wanted: int, now: float) -> Iterator[Problem]:
    for claim in observed.claims:
        if claim.ordinal >= wanted:
            continue  # of a proxy that scaling down removed
        if claim.growing and claim.message:
            yield Problem(ProblemReason.STORAGE_CANT_GROW, f"claim {claim.name}: {claim.message}")
        elif not claim.bound and claim.message:
            no_class = _NO_CLASS.search(claim.message)
            reason = ProblemReason.STORAGE_CLASS_MISSING if no_class else ProblemReason.CLAIM_PENDING
            yield Problem(reason, f"claim {claim.name}: {claim.message}")
        elif not claim.bound and claim.provisioner is not None and now - claim.created > PROVISIONED_WITHIN:
            message = f"{claim.provisioner} has made no volume for it, and does not say why; does it run?"
            yield Problem(ProblemReason.CLAIM_PENDING, f"claim {claim.name}: {message}")


def _not_made(message: str) -> Problem:
    return Problem(ProblemReason.QUOTA_EXCEEDED if "exceeded quota" in message else ProblemReason.POD_REFUSED, message)


def of_deployment(deployment: ObservedDeployment | None, now: float) -> Iterator[Problem]:
    """Of its pods, and of making them."""
    if deployment is None:
        return
    if deployment.failed_create:
        yield _not_made(deployment.failed_create)
    for each in deployment.pods:
        # One that is to end has been replaced already, wherever its node is.
        pod = each if each.terminating_since is None else replace(each, node_lost=False)
        found = _of_pod(pod, now)
        if found is None and pod.is_late(now):
            found = Problem(ProblemReason.NOT_READY_IN_TIME, _late(pod.name), pod.name)
        if found is not None:
            yield found


def _of_silent_engines(observed: ObservedFleet, now: float) -> Iterator[Problem]:
    """Of engines that once were Ready and generate nothing though calls wait. In a pause, in which weights are loaded,
    none does."""
    engines, said = observed.engines.deployment, [pod.stats for pod in observed.pods if pod.stats is not None]
    if engines is None or any(each.paused for each in said) or not any(each.in_flight for each in said):
        return
    for pod in engines.pods:
        if pod.container.started and not pod.node_lost and pod.is_unready_for(SILENT_AFTER, now):
            message = f"calls wait, and it does not answer /health, which takes a generation; kubectl logs {pod.name}"
            yield Problem(ProblemReason.UNRESPONSIVE, message, pod.name)


def _of_proxy(pod: ObservedPod, spec: FleetSpec, observed: ObservedFleet, now: float) -> Iterator[Problem]:
    found = _of_pod(pod, now, gone=_VOLUME_IS_THERE if observed.node_local else _STARTS_ELSEWHERE)
    if found is not None:
        yield found
    elif pod.is_silent(for_seconds=spec.disruption.drain_timeout, samples=spec.memory.samples, now=now):
        yield Problem(
            ProblemReason.UNRESPONSIVE, "it answers neither the operator nor the kubelet; it is evicted", pod.name
        )
    elif pod.is_late(now):
        yield Problem(ProblemReason.NOT_READY_IN_TIME, _late(pod.name), pod.name)
    elif pod.key_refused:
        secret = spec.auth.secret or f"{observed.name}-keys"
        message = (
            f"it does not take the first key of the Secret {secret}, so callers with that key get 401 there; the "
            "operator makes the kubelet deliver it"
        )
        yield Problem(ProblemReason.KEY_NOT_TAKEN, message, pod.name)
    elif pod.serves and pod.unanswered >= UNANSWERED_POLLS:
        message = "it is not down, but does not answer the operator's GET /stats; see its log, and network policies"
        yield Problem(ProblemReason.STATS_UNKNOWN, message, pod.name)
    if pod.cordoned_node is not None and pod.terminating_since is None and not spec.disruption.maintenance:
        message = (
            f"node {pod.cordoned_node} is cordoned, and the proxy's volume is local to it: a drain can't evict the "
            "proxy unless spec.disruption.maintenance is true; its sessions then wait until the node is uncordoned"
        )
        yield Problem(ProblemReason.NODE_CORDONED, message, pod.name)
    yield from _of_answers(pod, observed, now)


def _of_answers(pod: ObservedPod, observed: ObservedFleet, now: float) -> Iterator[Problem]:
    stats = pod.stats
    if stats is None:
        return
    waits = ", ".join(stats.needs_restart) if pod.template_hash == observed.template_hash else ""
    overdue = observed.settings_since is not None and now - observed.settings_since > SETTINGS_IN_FORCE_WITHIN
    lost = ", ".join(stats.gateway_loses)
    full = "its volume is full: turns are refused with 507; grow storage.size"
    paused = "the trainer's pause has lasted longer than sessions.maxHold; calls get 503 until POST /continue"
    for reason, message, holds in (
        (ProblemReason.VOLUME_FULL, full, stats.store_full),
        (ProblemReason.DUMP_FAILING, stats.dump_error or "dumps can't be written", stats.dump_failing),
        (ProblemReason.SETTINGS_REFUSED, stats.settings_error or "", stats.settings_error),
        (ProblemReason.NEEDS_RESTART, f"{waits}: in effect after a restart; set spec.restart.id", waits and overdue),
        (ProblemReason.FIELDS_LOST, f"requests reach the engines without {lost}", lost),
        (ProblemReason.PAUSE_TOO_LONG, paused, stats.past_max_hold),
    ):
        if holds:
            yield Problem(reason, message, pod.name)


def _of_pod(pod: ObservedOtherPod, now: float, *, gone: str = _STARTS_ELSEWHERE) -> Problem | None:
    """What the cluster says of a pod, the first cause before what follows from it; `gone` is what to do without its
    node."""
    if pod.node_lost:
        return Problem(ProblemReason.NODE_LOST, f"its node does not respond; if it is gone for good, {gone}", pod.name)
    if pod.is_stuck(now):
        return Problem(
            ProblemReason.STUCK_TERMINATING, "it should have ended; see its finalizers and its node", pod.name
        )
    if pod.terminating_since is not None or pod.ready:
        return None
    if pod.unschedulable is not None:
        reason = (
            ProblemReason.WAITING_FOR_GPUS if "nvidia.com/gpu" in pod.unschedulable else ProblemReason.UNSCHEDULABLE
        )
        return Problem(reason, pod.unschedulable, pod.name)
    return _of_container(pod.name, pod.container)


def _of_container(name: str, container: ObservedContainer) -> Problem | None:
    if container.waiting in PULL:
        return Problem(ProblemReason.IMAGE_PULL_FAILED, f"{container.image or 'its image'} can't be pulled", name)
    if container.waiting in CONFIG:
        return Problem(ProblemReason.CONTAINER_CONFIG_ERROR, container.message, name)
    kind, _, words = container.last_words.partition(": ")
    if kind in _LAST_WORDS and container.last_end is not None and not container.started:
        return Problem(_LAST_WORDS[kind], words, name)
    if container.waiting == "CrashLoopBackOff" or (
        container.restarts >= CRASH_LOOP_RESTARTS and container.last_end and not container.started
    ):
        ended = f"it ends soon after each start ({container.last_end or 'Error'}, exit status {container.last_exit})"
        return Problem(ProblemReason.CRASH_LOOPING, f"{ended}; kubectl logs --previous {name}", name)
    return None


def _late(name: str) -> str:
    return f"not Ready within {READY_WITHIN:g} s; kubectl describe pod {name}"


def events_of_changes(before: FleetStatus, now: Iterable[Problem]) -> Iterator[EmitEvent]:
    """`now` are those that the status will show. Each loss of a store is one, also while the last is shown."""
    there = {(each.pod, each.reason.value): each for each in now}
    known = {(each.pod, each.reason): each.message for each in before.problems}
    for (pod, reason), each in there.items():
        if (pod, reason) not in known or (reason == ProblemReason.STORE_LOST and known[pod, reason] != each.message):
            yield EmitEvent(reason=reason, message=each.message, pod=pod, warning=True)
    for pod, reason in sorted(known.keys() - there.keys(), key=lambda key: (key[1], key[0] or "")):
        yield EmitEvent(reason=EventReason.PROBLEM_GONE, message=f"{reason} is over", pod=pod)
