"""Fewer proxies: cordoned, served until empty or out of time, quiesced, and only then let go. More: once others know.

A fleet that is suspended takes the same way with all its proxies, without the wait for sessions to end. What a proxy
still holds stays on its claim, and is counted in `status.parked` before it goes; with ephemeral storage it stays until
there is nothing to lose.

A StatefulSet gives up its highest ordinals first, so a proxy waits for those above it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import ParkedStatus
from rolloutfleet.wire import DrainMode
from rolloutfleet_operator.policy.actions import Action, AskDrain, AskDumps, Say, UndoDrain
from rolloutfleet_operator.policy.observed import (
    FleetSeen,
    PodSeen,
    holds_turns,
    is_down,
    is_stuck,
    never_ran,
    seconds_of,
)
from rolloutfleet_operator.policy.reasons import Happening
from rolloutfleet_operator.policy.steps import dumps_outlive, is_quiet

RETIRE_ID: Final = "rolloutfleet-retire"
"""The id of every drain of a proxy on its way out."""
RETIRE_TTL: Final = 3600.0
SETTLE: Final = 120.0
"""Seconds that settings have to come into force in."""


class Leaving(StrEnum):
    """How far a proxy is on its way out, as `status.current.step` has it."""

    CORDONED = "Cordoned"
    """It serves what it knows."""
    QUIESCING = "Quiescing"
    DUMPING = "Dumping"
    """Its storage is ephemeral: what it holds is dumped."""
    SILENT = "Silent"
    """It gives no answer, so what it holds is not known."""
    HOLDING_TURNS = "HoldingTurns"
    """Its storage is ephemeral, and there are turns that would be lost."""
    MAY_GO = "MayGo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What is to be done about the number of proxies."""

    replicas: int
    """For the StatefulSet now."""
    leaving: dict[str, Leaving]
    """By pod."""
    parked: ParkedStatus
    actions: tuple[Action, ...]
    since: float | None = None
    """When the first of them was cordoned."""


def desired_of(spec: FleetSpec) -> int:
    """How many proxies are asked for."""
    return 0 if spec.suspend else spec.proxies.replicas


def present_of(seen: FleetSeen) -> int:
    """How many proxies the StatefulSet makes; a pod above that which is not on its way out counts as made."""
    made = 0 if seen.workload is None else seen.workload.replicas
    return max([made, *(pod.ordinal + 1 for pod in seen.pods if pod.terminating_since is None)])


def scale(spec: FleetSpec, seen: FleetSeen, busy: frozenset[str], now: float) -> Scale:
    """`busy` are pods with a restart that is not over: it is undone first."""
    desired, present = desired_of(spec), present_of(seen)
    by_ordinal = {pod.ordinal: pod for pod in seen.pods}
    leaving = {
        pod.name: _leaving(pod, spec, seen, now)
        for ordinal, pod in by_ordinal.items()
        if ordinal >= desired and pod.terminating_since is None
    }
    parked = _unparked(seen, min(desired, present))
    replicas = max(desired, present) if _may_grow(seen, present, now) else present
    for ordinal in range(present - 1, desired - 1, -1):
        pod = by_ordinal.get(ordinal)
        if pod is not None and not _may_go(pod, leaving, now):
            break
        if pod is not None and pod.terminating_since is None:
            parked = _parked(parked, pod, spec)
        if not _is_written(seen.status.parked, parked, ordinal):
            break
        replicas = ordinal
    return Scale(
        replicas=replicas,
        leaving=leaving,
        parked=parked,
        actions=(*_drains(spec, seen, leaving, busy, now), *_undrains(seen, desired)),
        since=min(
            (since for pod in seen.pods if (since := _since(pod)) is not None and pod.name in leaving), default=None
        ),
    )


def _may_grow(seen: FleetSeen, present: int, now: float) -> bool:
    """Proxies hear of new ones from their settings, and send away the calls of one that they have not heard of."""
    if present == 0:
        return True
    if seen.settings_since is None:
        return False
    heard = all(pod.stats is None or pod.stats.settings_generation >= seen.generation for pod in seen.pods)
    return heard or now - seen.settings_since > SETTLE


def is_retiring(pod: PodSeen) -> bool:
    """Whether it is in a drain that leads to its going."""
    return pod.stats is not None and pod.stats.drain is not None and pod.stats.drain.id == RETIRE_ID


def _may_go(pod: PodSeen, leaving: dict[str, Leaving], now: float) -> bool:
    """One that ends for another reason comes back first, so that what it holds can be counted; if it ends at all."""
    if pod.terminating_since is not None:
        return is_stuck(pod, now)
    return leaving[pod.name] is Leaving.MAY_GO


def _leaving(pod: PodSeen, spec: FleetSpec, seen: FleetSeen, now: float) -> Leaving:
    ephemeral = spec.proxies.storage.ephemeral and pod.name not in seen.allow_loss
    if pod.stats is None:
        return _without_an_answer(pod, spec, seen, ephemeral, now)
    if _is_empty(pod):
        return Leaving.MAY_GO
    drain = pod.stats.drain
    if drain is None or not (spec.suspend or _is_over(pod, spec, now)):
        return Leaving.CORDONED
    if ephemeral and holds_turns(pod) and not dumps_outlive(spec):
        return Leaving.HOLDING_TURNS
    quiet = drain.id != RETIRE_ID or (drain.mode == "quiesce" and is_quiet(drain, now))
    if not quiet or pod.stats.held_turns is None:
        return Leaving.QUIESCING
    return Leaving.DUMPING if ephemeral and holds_turns(pod) else Leaving.MAY_GO


def _without_an_answer(pod: PodSeen, spec: FleetSpec, seen: FleetSeen, ephemeral: bool, now: float) -> Leaving:
    """One that serves nobody is let go, and one that has had its time: on a claim, all that it holds stays."""
    if never_ran(pod):
        return Leaving.MAY_GO
    current = seen.status.current
    waits = current is not None and current.pod == pod.name and current.step == Leaving.SILENT
    waited = now - seconds_of(current.since) if waits and current is not None else 0.0
    if not ephemeral and waited > spec.disruption.retire_timeout:
        return Leaving.MAY_GO
    down_for = now - max(pod.created, pod.ready_since or 0.0)
    if is_down(pod) and not ephemeral and down_for > spec.disruption.drain_timeout:
        return Leaving.MAY_GO
    return Leaving.SILENT


def _is_empty(pod: PodSeen) -> bool:
    """Whether it is cordoned, and nobody would miss it."""
    stats = pod.stats
    if stats is None or stats.drain is None:
        return False
    return stats.held_sessions == 0 and stats.held_turns == 0 and stats.in_flight == 0


def _since(pod: PodSeen) -> float | None:
    return None if pod.stats is None or pod.stats.drain is None else pod.stats.drain.since


def _is_over(pod: PodSeen, spec: FleetSpec, now: float) -> bool:
    since = _since(pod)
    return since is not None and now >= since + spec.disruption.retire_timeout


def _drains(
    spec: FleetSpec, seen: FleetSeen, leaving: dict[str, Leaving], busy: frozenset[str], now: float
) -> Iterator[Action]:
    for pod in seen.pods:
        how = leaving.get(pod.name)
        if how is None or pod.stats is None or pod.name in busy:
            continue
        quiesces = spec.suspend or _is_over(pod, spec, now)
        # What has turns that would be lost serves on, so that they can be taken.
        mode: DrainMode = "quiesce" if quiesces and how is not Leaving.HOLDING_TURNS else "cordon"
        drain = pod.stats.drain
        if how is Leaving.DUMPING:
            yield AskDumps(pod=pod.name)
        if drain is not None and drain.id != RETIRE_ID:
            continue
        lasts = drain is not None and (drain.expires is None or drain.expires - now > RETIRE_TTL / 2)
        if drain is None or drain.mode != mode or not lasts:
            reason = "suspend" if spec.suspend else "scale"
            yield AskDrain(pod=pod.name, id=RETIRE_ID, mode=mode, then="stay", ttl=RETIRE_TTL, reason=reason)


def _undrains(seen: FleetSeen, desired: int) -> Iterator[Action]:
    """Raised again in the middle of it, and after a suspension."""
    for pod in seen.pods:
        if pod.ordinal < desired and is_retiring(pod) and pod.terminating_since is None:
            yield UndoDrain(pod=pod.name, id=RETIRE_ID)


def _parked(parked: ParkedStatus, pod: PodSeen, spec: FleetSpec) -> ParkedStatus:
    """With what that one leaves on its claim."""
    if spec.proxies.storage.ephemeral or pod.ordinal in parked.ordinals or never_ran(pod):
        return parked
    sessions = 0 if pod.stats is None else pod.stats.held_sessions or 0
    turns = 0 if pod.stats is None else pod.stats.held_turns or 0
    if pod.stats is not None and sessions == turns == 0:
        return parked
    return ParkedStatus(
        ordinals=sorted([*parked.ordinals, pod.ordinal]),
        sessions=parked.sessions + sessions,
        turns=parked.turns + turns,
    )


def _is_written(before: ParkedStatus, now: ParkedStatus, ordinal: int) -> bool:
    """Whether the status that was read says already what that ordinal leaves behind: it goes only then."""
    return (ordinal in now.ordinals) == (ordinal in before.ordinals)


def _unparked(seen: FleetSeen, wanted: int) -> ParkedStatus:
    """Without what is served again, each at its proxy's first answer."""
    parked = seen.status.parked
    for pod in seen.pods:
        held = pod.stats
        if pod.ordinal not in parked.ordinals or pod.ordinal >= wanted or held is None or held.held_turns is None:
            continue
        ordinals = [ordinal for ordinal in parked.ordinals if ordinal != pod.ordinal]
        sessions, turns = parked.sessions - (held.held_sessions or 0), parked.turns - held.held_turns
        parked = ParkedStatus(
            ordinals=ordinals,
            sessions=max(0, sessions) if ordinals else 0,
            turns=max(0, turns) if ordinals else 0,
        )
    return parked


def events_of_parking(before: ParkedStatus, now: ParkedStatus) -> Iterator[Say]:
    """What was left on claims, and what is served again."""
    for ordinal in sorted(set(now.ordinals) - set(before.ordinals)):
        yield Say(reason=Happening.PARKED, message=f"what proxy {ordinal} holds stays on its claim until it is back")
    for ordinal in sorted(set(before.ordinals) - set(now.ordinals)):
        yield Say(reason=Happening.UNPARKED, message=f"proxy {ordinal} is back with what it held")
