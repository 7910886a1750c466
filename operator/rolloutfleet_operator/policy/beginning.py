"""The next restart to begin: at most one a pass, and none but what `maxUnavailable` and the operator's slots allow."""

from dataclasses import dataclass

from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import RestartsStatus
from rolloutfleet_operator.policy import ledger, pods, slots
from rolloutfleet_operator.policy.actions import Action, Mark
from rolloutfleet_operator.policy.carrying import Carried
from rolloutfleet_operator.policy.causes import Due, FleetState, dues
from rolloutfleet_operator.policy.rollout import Roll
from rolloutfleet_operator.policy.scaling import desired_of
from rolloutfleet_operator.policy.seen import FleetSeen, PodSeen, Want
from rolloutfleet_operator.policy.times import seconds_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    restarts: RestartsStatus
    due: Due | None = None
    """What is begun: written down now, and asked for when that can be read."""
    waiting: Due | None = None
    """What waits for a slot."""
    by_hand: tuple[PodSeen, ...] = ()
    """Those that are due, but in a drain that somebody else asked for."""
    wants: tuple[Want, ...] = ()
    actions: tuple[Action, ...] = ()


def begin(state: FleetState, carried: Carried) -> Begun:
    """Of what is due, the first that may begin."""
    spec, seen, now = state.spec, state.seen, state.now
    made, due_now = _made_already(state)
    due_now = [due for due in due_now if due.pod.name not in carried.busy]
    by_hand = tuple(due.pod for due in due_now if due.cause.slot and _is_drained(due.pod))
    ready = [due for due in due_now if not due.cause.slot or (due.pod.stats is not None and not _is_drained(due.pod))]
    if not ready or spec.suspend or not ledger.has_room(carried.restarts):
        return Begun(restarts=carried.restarts, by_hand=by_hand, actions=made)
    due = ready[0]
    begun = Begun(restarts=ledger.opened(carried.restarts, due, now), due=due, by_hand=by_hand, actions=made)
    if not due.cause.slot:
        return begun
    others = _down(spec, state.roll, carried) - {due.pod.ordinal}
    if slots.free_here(max_unavailable=spec.disruption.max_unavailable, down=len(others)) == 0:
        return Begun(restarts=carried.restarts, waiting=due, by_hand=by_hand, actions=made)
    want = _want(due, seen, state.roll, now)
    if not slots.granted(want, seen.elsewhere, held=held_by(carried), most=seen.most_disruptions):
        return Begun(restarts=carried.restarts, waiting=due, by_hand=by_hand, wants=(want,), actions=made)
    return begun


def held_by(carried: Carried) -> int:
    """How many of the operator's slots this fleet's restarts under way take."""
    return sum(each.holds_slot for each in carried.under_way)


def _made_already(state: FleetState) -> tuple[tuple[Action, ...], list[Due]]:
    """A proxy whose log has the restart that is due is only to be marked: the mark was lost."""
    spec, due = state.spec, dues(state)
    made = [each for each in due if each.cause.marks(spec) and pods.has_booted(each.pod, each.id)]
    marks = tuple(Mark(pod=each.pod.name, uid=each.pod.uid, annotations=each.cause.marks(spec)) for each in made)
    return marks, [each for each in due if each not in made]


def _is_drained(pod: PodSeen) -> bool:
    return pod.stats is not None and pod.stats.drain is not None


def _down(spec: FleetSpec, roll: Roll, carried: Carried) -> set[int]:
    """Ordinals that are asked for and do not serve, whatever the cause, and those that are being restarted."""
    up = {
        pod.ordinal
        for pod in roll.members
        if pod.ready and pod.terminating_since is None and not _is_drained(pod) and pod.name not in carried.busy
    }
    return set(range(desired_of(spec))) - up


def _want(due: Due, seen: FleetSeen, roll: Roll, now: float) -> Want:
    """Waiting since it was due, or since this fleet was last served, so that many dues of one don't hold up others.

    The ledger's times are cut to seconds: who came in the second in which this fleet was served goes first.
    """
    served = max((seconds_of(entry.time) for entry in seen.status.restarts.last if entry.id is not None), default=0.0)
    return Want(fleet=seen.key, priority=due.priority, since=max(due.since, served + 1.0), said=now, begun=roll.begun)
