"""Unplanned restarts, each counted once from the proxies' logs of boots.

A crash is added to the ledger in one write of the status, and noted on the pod (BOOTS_NOTE) when that write was read
back: a crash that is neither in the ledger nor older than the note is not counted yet. One pass counts at most as many
as fit into the ledger.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from rolloutfleet import boots
from rolloutfleet.spec import FleetSpec, memory_limit
from rolloutfleet.status import MOST_RESTARTS, RestartsStatus, RestartStatus
from rolloutfleet.wire import Boot
from rolloutfleet_operator.policy.actions import Action, EmitEvent, PatchMetadata
from rolloutfleet_operator.policy.causes import CRASH, CRASHES, OOM
from rolloutfleet_operator.policy.observed import BOOTS_NOTE, ObservedFleet, ObservedPod, seconds_of, text_of
from rolloutfleet_operator.policy.reasons import EventReason, Problem, ProblemReason
from rolloutfleet_operator.policy.restarts import noted, open_entries

OOM_SHOWN_FOR: Final = 600.0
"""Seconds that a kill for memory is shown after it."""
NEAR_THE_LIMIT: Final = 0.95
"""A worker killed with so much of its container's limit was killed for its memory, where no cgroup could be read."""


def counted(
    restarts: RestartsStatus, read: RestartsStatus, members: Iterable[ObservedPod], spec: FleetSpec
) -> tuple[RestartsStatus, list[RestartStatus], list[Action]]:
    """The ledger with new crashes, these, and the notes on pods whose crashes are written already."""
    members = list(members)
    marks = [mark for pod in members if (mark := _mark(pod, read)) is not None]
    room = MOST_RESTARTS - len(open_entries(restarts)) - len(marks)
    fresh = sorted(
        ((boot.time, pod.name, entry) for pod in members for boot, entry in _crashes(pod, read, spec)),
        key=lambda found: found[:2],
    )
    new = [entry for _, _, entry in fresh[: max(0, room)]]
    for entry in new:
        restarts = noted(restarts, entry)
    return restarts, new, list(marks)


def _mark(pod: ObservedPod, read: RestartsStatus) -> PatchMetadata | None:
    newest = max((entry.time for entry in _of_itself(pod, read)), default="")
    if seconds_of(newest) <= seconds_of(pod.notes.get(BOOTS_NOTE, "")):
        return None
    return PatchMetadata(pod=pod.name, uid=pod.uid, annotations={BOOTS_NOTE: newest})


def _crashes(pod: ObservedPod, read: RestartsStatus, spec: FleetSpec) -> Iterator[tuple[Boot, RestartStatus]]:
    if pod.stats is None:
        return
    known = [seconds_of(pod.notes.get(BOOTS_NOTE, "")), *(seconds_of(entry.time) for entry in _of_itself(pod, read))]
    # What a former pod of this volume logged was that pod's.
    since = max(pod.created - 1.0, *known)
    before: Boot | None = None
    for boot in pod.stats.boots:
        if boot.reason.startswith(boots.CRASH) and boot.id is None and int(boot.time) > since:
            yield (
                boot,
                RestartStatus(
                    pod=pod.name,
                    reason=OOM if _was_killed_for_memory(pod, boot, before, spec) else CRASH,
                    time=text_of(boot.time),
                    before=boot.rss_before,
                    after=boot.rss_after,
                    uid=pod.uid,
                ),
            )
        before = boot


def _was_killed_for_memory(pod: ObservedPod, boot: Boot, before: Boot | None, spec: FleetSpec) -> bool:
    """The kubelet says so, or the proxy's parent; or the worker was killed with nearly all that its container may have.

    The boot before that one is None where it is not known.
    """
    began, ended = 0.0 if before is None else before.time, pod.container.last_ended_at
    if pod.container.last_end == "OOMKilled" and ended is not None and began < ended <= boot.time + 1:
        return True
    if boots.KILLED_FOR_MEMORY in boot.reason:
        return True
    return "SIGKILL" in boot.reason and (boot.rss_before or 0) >= NEAR_THE_LIMIT * memory_limit(spec)


def _of_itself(pod: ObservedPod, read: RestartsStatus) -> Iterator[RestartStatus]:
    return (entry for entry in read.last if entry.uid == pod.uid and entry.id is None)


def events_of(entries: Iterable[RestartStatus]) -> Iterator[EmitEvent]:
    for entry in entries:
        yield EmitEvent(reason=EventReason.CRASHED, message=CRASHES[entry.reason], pod=entry.pod, warning=True)


def problems_of(observed: ObservedFleet, now: float) -> Iterator[Problem]:
    """Kills for memory, for a while."""
    for pod in observed.pods:
        if _was_killed(pod, observed, now):
            message = "the kernel killed it for its memory; see memory.rssBudget and proxies.resources.limits.memory"
            yield Problem(ProblemReason.OOM_KILLED, message, pod.name)


def _was_killed(pod: ObservedPod, observed: ObservedFleet, now: float) -> bool:
    """As the kubelet says of a container; where the worker alone was killed, as the ledger does."""
    ended_at = [pod.container.last_ended_at or 0.0] if pod.container.last_end == "OOMKilled" else []
    noted = (entry for entry in observed.status.restarts.last if entry.uid == pod.uid and entry.reason == OOM)
    return any(now - at < OOM_SHOWN_FOR for at in (*ended_at, *(seconds_of(entry.time) for entry in noted)))
