"""The rollout of a template: which pods are outdated, which may get the new template, and what stops a roll.

A new template, and a restart that is requested by id, go from proxy to proxy. A roll stops at the first proxy that has
the new template and does not become Ready. A corrected template makes that one outdated and down, so it comes first.
"""

from dataclasses import dataclass

from rolloutfleet.spec import FleetSpec
from rolloutfleet_operator.policy.observed import RESTART_NOTE, ObservedFleet, ObservedPod

_CANT_START = frozenset(
    ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError")
)
"""What the kubelet says of a container that time alone won't start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roll:
    """How the fleet's pods stand to what is asked for."""

    members: tuple[ObservedPod, ...]
    """The pods that the spec asks for."""
    outdated: tuple[ObservedPod, ...]
    """Of another template than the one that is asked for."""
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


def roll_of(spec: FleetSpec, observed: ObservedFleet, members: tuple[ObservedPod, ...], now: float) -> Roll:
    """`members` are the pods that the spec asks for, by ordinal."""
    outdated = tuple(pod for pod in members if pod.template_hash != observed.template_hash)
    updated = [pod for pod in members if pod.template_hash == observed.template_hash]
    restart_pending = tuple(pod for pod in members if not has_restarted(pod, spec, observed))
    stopped_by = next((pod for pod in updated if outdated and _fails(pod, now)), None)
    may = (
        pod
        for pod in outdated
        if spec.update_policy == "Automatic" or _is_asked_for(pod, restart_pending, spec, observed)
    )
    replaceable = tuple(pod for pod in may if stopped_by is None or pod.is_down)
    return Roll(
        members=members,
        outdated=outdated,
        restart_pending=restart_pending,
        replaceable=replaceable if _is_applied(spec, observed) else (),
        stopped_by=stopped_by,
    )


def has_restarted(pod: ObservedPod, spec: FleetSpec, observed: ObservedFleet) -> bool:
    """Whether the restart that is asked for by id has been made of that pod; True where none is asked for.

    The pod says so itself: it got the id with its template, or when its proxy had booted.
    """
    if spec.restart is None or observed.status.restart.observed_id == spec.restart.id:
        return True
    return pod.notes.get(RESTART_NOTE) == spec.restart.id


def _is_applied(spec: FleetSpec, observed: ObservedFleet) -> bool:
    """Whether new pods get the template that is asked for."""
    workload, asked = observed.workload, None if spec.restart is None else spec.restart.id
    if workload is None or not workload.current:
        return False
    return workload.template_hash == observed.template_hash and workload.restart_id == asked


def _is_asked_for(
    pod: ObservedPod, restart_pending: tuple[ObservedPod, ...], spec: FleetSpec, observed: ObservedFleet
) -> bool:
    """Whether a restart by id is asked for, and not made; what one made and left broken is part of it."""
    unanswered = spec.restart is not None and spec.restart.id != observed.status.restart.observed_id
    return pod in restart_pending or (unanswered and pod.is_down)


def _fails(pod: ObservedPod, now: float) -> bool:
    fails = pod.container.waiting in _CANT_START or pod.container.waiting == "CrashLoopBackOff"
    return pod.is_late(now) or (pod.is_down and fails)
