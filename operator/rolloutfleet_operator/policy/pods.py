"""What a pod's own words come to: does it serve, is it down, was it restarted."""

from typing import Final

from rolloutfleet_operator.policy.seen import OtherPodSeen, PodSeen

READY_WITHIN: Final = 600.0
"""Seconds that a pod has to become Ready in: an image is pulled, a full store recovered, a tokenizer fetched."""
STUCK_AFTER: Final = 60.0
"""Seconds beyond its grace after which a pod that ends has not ended for a reason."""
SILENT_POLLS: Final = 3
"""So many failed polls in a row, at least, make a proxy unresponsive."""


def serves(pod: PodSeen) -> bool:
    """Whether its sessions are served, as far as is known.

    Not every proxy that does is Ready: one that drains is not, nor one that did a moment ago. A failed poll is unknown.
    """
    if pod.terminating_since is not None:
        return False
    stats = pod.stats
    if stats is None:
        return pod.ready or (pod.container.started and pod.unanswered < SILENT_POLLS)
    return pod.ready or stats.drain is not None or stats.in_flight + stats.sessions_open > 0


def is_down(pod: PodSeen) -> bool:
    """Whether nobody loses anything by its replacement: it is there, not on its way out, and does not serve."""
    return pod.terminating_since is None and not serves(pod)


def is_stuck(pod: PodSeen | OtherPodSeen, now: float) -> bool:
    """Whether it should have ended long ago."""
    return pod.terminating_since is not None and now - pod.terminating_since > pod.grace + STUCK_AFTER


def never_ran(pod: PodSeen) -> bool:
    """Whether its proxy was never started, so that an ephemeral volume of it is empty."""
    seen = pod.container
    return pod.stats is None and not (seen.running or seen.started or seen.restarts or seen.last_end)


def is_silent(pod: PodSeen, *, for_seconds: float, samples: int, now: float) -> bool:
    """Whether it gives no answer, and the kubelet, which saw it start, finds it unready as well."""
    if pod.ready or pod.terminating_since is not None or pod.node_lost or not pod.container.started:
        return False
    if pod.stats is not None or pod.unanswered < max(samples, SILENT_POLLS):
        return False
    return pod.ready_since is not None and now - pod.ready_since >= for_seconds


def is_late(pod: PodSeen, now: float) -> bool:
    """Whether it is not Ready for longer than any start takes, and for no drain."""
    if pod.ready or pod.terminating_since is not None or (pod.stats is not None and pod.stats.drain is not None):
        return False
    return now - max(pod.created, pod.ready_since or 0.0) > READY_WITHIN


def has_booted(pod: PodSeen, id: str) -> bool:
    """Whether a life of its proxy was ended by the drain of that id."""
    return pod.stats is not None and any(boot.id == id for boot in pod.stats.boots)


def holds_turns(pod: PodSeen) -> bool:
    """Whether turns are lost with its volume. What was not asked, or not answered, is held."""
    if never_ran(pod):
        return False
    return pod.stats is None or pod.stats.held_turns is None or pod.stats.held_turns > 0
