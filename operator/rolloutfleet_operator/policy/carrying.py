"""Restarts that are under way are carried on, one step a pass; what is not wanted any more is taken back in time."""

from collections.abc import Iterator
from dataclasses import dataclass

from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import RestartsStatus, RestartStatus
from rolloutfleet_operator.policy import causes, ledger, pods, slots, steps
from rolloutfleet_operator.policy.actions import Action, Mark, Say, UndoDrain
from rolloutfleet_operator.policy.causes import FleetState, RestartCause
from rolloutfleet_operator.policy.reasons import Happening, Problem
from rolloutfleet_operator.policy.scaling import desired_of
from rolloutfleet_operator.policy.seen import STEP_NOTE, FleetSeen, PodSeen
from rolloutfleet_operator.policy.steps import BEFORE_THE_END, Restart, Step
from rolloutfleet_operator.policy.troubles import Trouble, trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderWay:
    """A restart that goes on."""

    restart: Restart
    cause: RestartCause
    step: Step
    stuck: bool
    """It takes longer than it can."""
    holds_slot: bool
    """It takes one of the operator's slots."""

    @property
    def waits(self) -> bool:
        """Whether it has given its slot up and needs one to go on."""
        return self.stuck and not self.holds_slot and _is_early(self.step) and self.cause.slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What became of the restarts under way."""

    restarts: RestartsStatus
    under_way: tuple[UnderWay, ...]
    """The longest first."""
    actions: tuple[Action, ...]

    @property
    def busy(self) -> frozenset[str]:
        """Pods that are being restarted, and those whose drain is not undone yet."""
        return frozenset(each.restart.entry.pod for each in self.under_way)


def carry_on(state: FleetState) -> Carried:
    """One pass over the open entries of the ledger that was read."""
    spec, seen, now = state.spec, state.seen, state.now
    replaced = [pod for pod in state.roll.replaceable if pods.is_down(pod)]
    restarts, going, actions = seen.status.restarts, list[UnderWay](), list[Action]()
    for entry in sorted(ledger.open_entries(restarts).values(), key=lambda entry: (entry.time, entry.pod)):
        cause = causes.cause_of(entry)
        restart = _restart(entry, cause, state)
        step = steps.step_of(restart, now)
        leaves = _ordinal(restart, seen) >= desired_of(spec)
        gives_way = leaves or (restart.pod in replaced and cause.slot)
        if _can_go_back(restart, step, replaced) and (gives_way or not _is_wanted(restart, cause, state)):
            restarts = ledger.withdrawn(restarts, entry)
            actions += [*steps.take_back(restart), *_told(restart, None, "it is not needed any more")]
        elif leaves or _failed(restart, step, replaced) or (step is Step.DONE and _is_marked(restart, cause, spec)):
            restarts = ledger.closed(restarts, entry, _memory_of(restart.pod))
            actions += [*steps.actions_of(restart, step, now), *_told(restart, Step.DONE, "")]
        else:
            held = sum(each.holds_slot for each in going)
            each = _under_way(restart, cause, step, seen, held, now)
            going.append(each)
            acts = steps.take_back(restart) if each.waits else steps.actions_of(restart, step, now)
            actions += [*acts, *_notes(restart, step, spec)]
    return Carried(restarts=restarts, under_way=tuple(going), actions=(*actions, *_strays(seen)))


def troubles_of(carried: Carried) -> Iterator[Trouble]:
    """What does not go on."""
    for each in carried.under_way:
        pod, name = each.restart.pod, each.restart.entry.pod
        if each.step is Step.EMPTYING and (each.stuck or (pod is not None and pods.is_down(pod))):
            yield undumped(name)
        elif each.stuck and (pod is None or not pods.is_down(pod)):
            yield trouble(
                Problem.RESTART_STUCK, f"its restart ({each.restart.entry.reason}) stands at {each.step}", name
            )


def undumped(pod: str) -> Trouble:
    """Of an ephemeral pod that has to stay for its turns' sake."""
    allow = f"export them, wait until they are dumped, or set rolloutfleet.dev/allow-loss: {pod} on the fleet"
    return trouble(
        Problem.UNDUMPED_TURNS, f"its storage is ephemeral, and holds turns that would be lost: {allow}", pod
    )


def _restart(entry: RestartStatus, cause: RestartCause, state: FleetState) -> Restart:
    spec, seen = state.spec, state.seen
    pod = next((pod for pod in seen.pods if pod.name == entry.pod), None)
    return Restart(
        entry=entry,
        pod=pod,
        way=cause.way(pod, state),
        ephemeral=spec.proxies.storage.ephemeral,
        may_lose=entry.pod in seen.allow_loss,
        spec=spec,
    )


def _under_way(restart: Restart, cause: RestartCause, step: Step, seen: FleetSeen, held: int, now: float) -> UnderWay:
    """One that is stuck gives its slot up, and goes on trying only while nobody else wants one."""
    stuck = now > steps.deadline_of(restart, step)
    takes = cause.slot
    if stuck and takes:
        takes = _is_early(step) and slots.to_spare(seen.elsewhere, held=held, most=seen.most_disruptions, now=now)
    return UnderWay(restart=restart, cause=cause, step=step, stuck=stuck, holds_slot=takes)


def _is_early(step: Step) -> bool:
    """Whether nothing has ended yet, as far as is known."""
    return step in BEFORE_THE_END or step is Step.EVICTING


def _can_go_back(restart: Restart, step: Step, replaced: list[PodSeen]) -> bool:
    """Whether nothing has ended yet. Where no answer says so, it does not matter if the pod serves nobody."""
    pod = restart.pod
    if pod is None or pod.uid != restart.entry.uid:
        return False
    return (_is_early(step) and pod.stats is not None) or (pod.stats is None and pod in replaced)


def _failed(restart: Restart, step: Step, replaced: list[PodSeen]) -> bool:
    """Whether what came of it has to be replaced in its turn: it is down, and of a template that is corrected since."""
    return step is Step.BOOTING and restart.pod in replaced


def _ordinal(restart: Restart, seen: FleetSeen) -> int:
    """By the pod's name, which ends in it; -1 for a name that does not."""
    end = restart.entry.pod.rpartition("-")[2]
    return int(end) if end.isdecimal() else -1


def _is_wanted(restart: Restart, cause: RestartCause, state: FleetState) -> bool:
    assert restart.pod is not None, "a pod that is gone has no way back"
    return cause.wanted(restart.entry, restart.pod, state)


def _is_marked(restart: Restart, cause: RestartCause, spec: FleetSpec) -> bool:
    """Whether the pod itself says by now that this is done, where the cause asks for that."""
    return restart.pod is None or cause.marks(spec).items() <= restart.pod.notes.items()


def _notes(restart: Restart, step: Step, spec: FleetSpec) -> Iterator[Action]:
    """A restart that is done does what any cause asked for."""
    marks = causes.all_marks(spec)
    if step is Step.DONE and restart.pod is not None and marks:
        yield Mark(pod=restart.pod.name, uid=restart.pod.uid, annotations=marks)
    else:
        yield from _told(restart, step, "")


def _told(restart: Restart, step: Step | None, why: str) -> Iterator[Action]:
    """An Event and a note on the pod, at each change of the step; None where the restart is taken back."""
    pod, entry = restart.pod, restart.entry
    note = None if step in (None, Step.DONE) else f"{restart.id} {step}"
    if pod is not None and pod.notes.get(STEP_NOTE) != note:
        yield Mark(pod=pod.name, uid=pod.uid, annotations={STEP_NOTE: note})
    elif step not in (None, Step.DONE):
        return
    reason = Happening.WITHDRAWN if step is None else Happening(step.value)
    yield Say(reason=reason, message=f"restart ({entry.reason}) {why}".rstrip(), pod=entry.pod)


def _memory_of(pod: PodSeen | None) -> int:
    """Resident bytes just after the boot, as the proxy noted them, or now; 0 where nobody can tell."""
    if pod is None or pod.stats is None:
        return 0
    newest = pod.stats.boots[-1].rss_after if pod.stats.boots else None
    return pod.stats.rss if newest is None else newest


def _strays(seen: FleetSeen) -> Iterator[Action]:
    """Drains of ours that no entry stands for: of an undoing that was lost, or a status that was."""
    known = {entry.id for entry in ledger.open_entries(seen.status.restarts).values()}
    for pod in seen.pods:
        drain = None if pod.stats is None else pod.stats.drain
        if drain is not None and causes.is_ours(drain.id) and drain.id not in known:
            yield UndoDrain(pod=pod.name, id=drain.id)
