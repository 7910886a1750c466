"""Scaling down: proxies are cordoned, serve until empty or out of time, are quiesced, and only then removed.

New proxies are started once the others know of them.

A suspended fleet does the same with all its proxies, without the wait for sessions to end. What a proxy still holds
stays on its claim, and is counted in `status.parked` before it goes; with ephemeral storage the proxy stays until
there is nothing to lose.

A StatefulSet removes its highest ordinals first, so a proxy waits for those above it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import ParkedStatus
from rolloutfleet.wire import DrainMode
from rolloutfleet_operator.policy.actions import Action, AskDrain, AskDumps, EmitEvent, UndoDrain
from rolloutfleet_operator.policy.observed import ObservedFleet, ObservedPod, seconds_of
from rolloutfleet_operator.policy.reasons import CurrentAction, EventReason
from rolloutfleet_operator.policy.steps import dumps_outlive, is_quiet

RETIRE_ID: Final = "rolloutfleet-retire"
"""The id of every drain of a proxy on its way out."""
RETIRE_TTL: Final = 3600.0
SETTINGS_IN_FORCE_WITHIN: Final = 120.0
"""Seconds that settings have to come into force in."""


class RetireStep(StrEnum):
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
class ScalePlan:
    """What is to be done about the number of proxies."""

    replicas: int
    """For the StatefulSet now."""
    leaving: dict[str, RetireStep]
    """By pod."""
    parked: ParkedStatus
    actions: tuple[Action, ...]
    since: float | None = None
    """When the first of them was cordoned."""


def desired_of(spec: FleetSpec) -> int:
    """How many proxies are asked for."""
    return 0 if spec.suspend else spec.proxies.replicas


def present_of(observed: ObservedFleet) -> int:
    """How many proxies the StatefulSet makes; a pod above that which is not on its way out counts as made."""
    made = 0 if observed.workload is None else observed.workload.replicas
    return max([made, *(pod.ordinal + 1 for pod in observed.pods if pod.terminating_since is None)])


def scale(spec: FleetSpec, observed: ObservedFleet, busy: frozenset[str], now: float) -> ScalePlan:
    """`busy` are pods with a restart that is not over: it is undone first."""
    desired, present = desired_of(spec), present_of(observed)
    by_ordinal = {pod.ordinal: pod for pod in observed.pods}
    leaving = {
        pod.name: _leaving(pod, spec, observed, now)
        for ordinal, pod in by_ordinal.items()
        if ordinal >= desired and pod.terminating_since is None
    }
    parked = _unparked(observed, min(desired, present))
    replicas = max(desired, present) if _may_grow(observed, present, now) else present
    for ordinal in range(present - 1, desired - 1, -1):
        pod = by_ordinal.get(ordinal)
        if pod is not None and not _may_go(pod, leaving, now):
            break
        if pod is not None and pod.terminating_since is None:
            parked = _parked(parked, pod, spec)
        if not _is_written(observed.status.parked, parked, ordinal):
            break
        replicas = ordinal
    began = [at for pod in observed.pods if pod.name in leaving and (at := _since(pod, observed)) is not None]
    return ScalePlan(
        replicas=replicas,
        leaving=leaving,
        parked=parked,
        actions=(*_drains(spec, observed, leaving, busy, now), *_undrains(observed, desired)),
        since=min(began, default=None),
    )


def _may_grow(observed: ObservedFleet, present: int, now: float) -> bool:
    """Proxies hear of new ones from their settings, and send away the calls of one that they have not heard of."""
    if present == 0:
        return True
    if observed.settings_since is None:
        return False
    heard = all(pod.stats is None or pod.stats.settings_generation >= observed.generation for pod in observed.pods)
    return heard or now - observed.settings_since > SETTINGS_IN_FORCE_WITHIN


def _may_go(pod: ObservedPod, leaving: dict[str, RetireStep], now: float) -> bool:
    """One that ends for another reason comes back first, so that what it holds can be counted; if it ends at all."""
    if pod.terminating_since is not None:
        return pod.is_stuck(now)
    return leaving[pod.name] is RetireStep.MAY_GO


def _leaving(pod: ObservedPod, spec: FleetSpec, observed: ObservedFleet, now: float) -> RetireStep:
    ephemeral = spec.proxies.storage.ephemeral and pod.name not in observed.allow_loss
    stats = pod.stats
    if stats is None:
        return _without_an_answer(pod, spec, observed, ephemeral, now)
    drain = stats.drain
    if drain is not None and stats.held_sessions == 0 and stats.held_turns == 0 and stats.in_flight == 0:
        return RetireStep.MAY_GO  # nobody would miss it
    if drain is None or not (spec.suspend or _is_over(pod, spec, observed, now)):
        return RetireStep.CORDONED
    if ephemeral and pod.holds_turns and not dumps_outlive(spec):
        return RetireStep.HOLDING_TURNS
    # Somebody else's drain stays as it is: calls in flight have their time when the pod ends.
    quiet = drain.id != RETIRE_ID or (drain.mode == "quiesce" and is_quiet(drain, now))
    if not quiet or stats.held_turns is None:
        return RetireStep.QUIESCING
    return RetireStep.DUMPING if ephemeral and pod.holds_turns else RetireStep.MAY_GO


def _without_an_answer(
    pod: ObservedPod, spec: FleetSpec, observed: ObservedFleet, ephemeral: bool, now: float
) -> RetireStep:
    """One that serves nobody is let go, and one that has had its time: on a claim, all that it holds stays."""
    if pod.never_ran:
        return RetireStep.MAY_GO
    current = observed.status.current
    waits = current is not None and current.pod == pod.name and current.step == RetireStep.SILENT
    waited = now - seconds_of(current.since) if waits and current is not None else 0.0
    if not ephemeral and waited > spec.disruption.retire_timeout:
        return RetireStep.MAY_GO
    down_for = now - max(pod.created, pod.ready_since or 0.0)
    if pod.is_down and not ephemeral and down_for > spec.disruption.drain_timeout:
        return RetireStep.MAY_GO
    return RetireStep.SILENT


def _since(pod: ObservedPod, observed: ObservedFleet) -> float | None:
    """When its time began: with our drain. In somebody else's, when the status first said that it is to go."""
    if pod.drain is None or pod.drain.id == RETIRE_ID:
        return None if pod.drain is None else pod.drain.since
    current = observed.status.current
    waits = current is not None and (current.action, current.pod) == (CurrentAction.SCALE_DOWN, pod.name)
    return seconds_of(current.since) if waits and current is not None else None


def _is_over(pod: ObservedPod, spec: FleetSpec, observed: ObservedFleet, now: float) -> bool:
    since = _since(pod, observed)
    return since is not None and now >= since + spec.disruption.retire_timeout


def _drains(
    spec: FleetSpec, observed: ObservedFleet, leaving: dict[str, RetireStep], busy: frozenset[str], now: float
) -> Iterator[Action]:
    for pod in observed.pods:
        how = leaving.get(pod.name)
        if how is None or pod.stats is None or pod.name in busy:
            continue
        quiesces = spec.suspend or _is_over(pod, spec, observed, now)
        # What has turns that would be lost serves on, so that they can be taken.
        mode: DrainMode = "quiesce" if quiesces and how is not RetireStep.HOLDING_TURNS else "cordon"
        drain = pod.stats.drain
        if how is RetireStep.DUMPING:
            yield AskDumps(pod=pod.name)
        if drain is not None and drain.id != RETIRE_ID:
            continue
        lasts = drain is not None and (drain.expires is None or drain.expires - now > RETIRE_TTL / 2)
        if drain is None or drain.mode != mode or not lasts:
            reason = "suspend" if spec.suspend else "scale"
            yield AskDrain(pod=pod.name, id=RETIRE_ID, mode=mode, then="stay", ttl=RETIRE_TTL, reason=reason)


def _undrains(observed: ObservedFleet, desired: int) -> Iterator[Action]:
    """Raised again in the middle of it, and after a suspension."""
    for pod in observed.pods:
        leaves = pod.drain is not None and pod.drain.id == RETIRE_ID
        if leaves and pod.ordinal < desired and pod.terminating_since is None:
            yield UndoDrain(pod=pod.name, id=RETIRE_ID)


def _parked(parked: ParkedStatus, pod: ObservedPod, spec: FleetSpec) -> ParkedStatus:
    """With what that one leaves on its claim."""
    if spec.proxies.storage.ephemeral or pod.ordinal in parked.ordinals or pod.never_ran:
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


def _unparked(observed: ObservedFleet, wanted: int) -> ParkedStatus:
    """Without what is served again, each at its proxy's first answer."""
    parked = observed.status.parked
    for pod in observed.pods:
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


def events_of_parking(before: ParkedStatus, now: ParkedStatus) -> Iterator[EmitEvent]:
    """What was left on claims, and what is served again."""
    for ordinal in sorted(set(now.ordinals) - set(before.ordinals)):
        yield EmitEvent(
            reason=EventReason.PARKED, message=f"what proxy {ordinal} holds stays on its claim until it is back"
        )
    for ordinal in sorted(set(before.ordinals) - set(now.ordinals)):
        yield EmitEvent(reason=EventReason.UNPARKED, message=f"proxy {ordinal} is back with what it held")
