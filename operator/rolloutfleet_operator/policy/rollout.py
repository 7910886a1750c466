"""The rollout of a template: which pods are outdated, which may get the new template, and what stops a roll.

A new template, and a restart that is requested by id or with kubectl, go from proxy to proxy. A roll stops at the first
proxy that has the new template and does not become Ready. A corrected template makes that one outdated and down, so it
comes first.
"""

from dataclasses import dataclass
from typing import Final

from rolloutfleet.spec import FleetSpec
from rolloutfleet_operator.policy.observed import RESTART_NOTE, ObservedFleet, ObservedPod
from rolloutfleet_operator.policy.problems import CONFIG, PULL

CANT_START: Final = frozenset((*PULL, *CONFIG, "CrashLoopBackOff"))
"""What the kubelet says of a container that time alone won't start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roll:
    """How the fleet's pods stand to what is asked for."""

    members: tuple[ObservedPod, ...]
    """The pods that the spec asks for."""
    outdated: tuple[ObservedPod, ...]
    """Of another template than the one that is asked for, or older than a `kubectl rollout restart`."""
    restart_pending: tuple[ObservedPod, ...]
    """Those for which the restart that is asked for by id has not been made."""
    replaceable: tuple[ObservedPod, ...]
    """The outdated pods that may get the new template; of a stopped roll only those that are down."""
    stopped_by: ObservedPod | None
    """The pod with the new template that does not become Ready."""

    @property
    def begun(self) -> bool:
        """Whether some have the new template, and some have not."""
        return 0 < len(self.outdated) < len(self.members)


def is_unanswered(spec: FleetSpec, observed: ObservedFleet) -> bool:
    """True where a restart is asked for by an id that was not answered yet."""
    return spec.restart is not None and spec.restart.id != observed.status.restart.observed_id


def is_outdated(pod: ObservedPod, observed: ObservedFleet) -> bool:
    """True where a pod made now would differ."""
    return pod.template_hash != observed.template_hash or _is_restarted_by_hand(pod, observed)


def _is_restarted_by_hand(pod: ObservedPod, observed: ObservedFleet) -> bool:
    """True where it is older than the newest `kubectl rollout restart` of the proxies."""
    restarted_at = "" if observed.workload is None else observed.workload.restarted_at
    return restarted_at not in ("", pod.restarted_at)


def roll_of(spec: FleetSpec, observed: ObservedFleet, members: tuple[ObservedPod, ...], now: float) -> Roll:
    """`members` are the pods that the spec asks for, by ordinal."""
    asked = None if spec.restart is None else spec.restart.id
    unanswered = is_unanswered(spec, observed)
    # A pod says itself that it has had that restart: it got the id with its template, or when its proxy had booted.
    restart_pending = tuple(pod for pod in members if unanswered and pod.notes.get(RESTART_NOTE) != asked)
    outdated = tuple(pod for pod in members if is_outdated(pod, observed))
    updated = [pod for pod in members if pod not in outdated]
    stopped_by = next((pod for pod in updated if outdated and _fails(pod, now)), None)
    may = outdated
    if spec.update_policy != "Automatic":
        # What a restart by id left broken is part of it.
        may = tuple(
            pod
            for pod in outdated
            if pod in restart_pending or _is_restarted_by_hand(pod, observed) or (unanswered and pod.is_down)
        )
    replaceable = tuple(pod for pod in may if stopped_by is None or pod.is_down)
    return Roll(
        members=members,
        outdated=outdated,
        restart_pending=restart_pending,
        replaceable=replaceable if _is_applied(observed, asked) else (),
        stopped_by=stopped_by,
    )


def _is_applied(observed: ObservedFleet, asked: str | None) -> bool:
    """Whether new pods get the template that is asked for, with the id of the restart that is."""
    workload = observed.workload
    if workload is None or not workload.current:
        return False
    return workload.template_hash == observed.template_hash and workload.restart_id == asked


def _fails(pod: ObservedPod, now: float) -> bool:
    return pod.is_late(now) or (pod.is_down and pod.container.waiting in CANT_START)
