"""The restarts of a fleet: recorded in its status before they begin, and advanced by one step per pass.

`status.restarts.last` is the operator's ledger of what it has begun. An entry is there before the first step is taken,
and each step only if the status that was read has it; so the successor of an operator that dies in between continues
there, and begins nothing twice. An entry is open while it has an id and no `after`. A restart that turns out not to be
needed is withdrawn.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import MOST_RESTARTS, RestartsStatus, RestartStatus
from rolloutfleet_operator.policy import causes, slots, steps
from rolloutfleet_operator.policy.actions import Action, EmitEvent, PatchMetadata, UndoDrain
from rolloutfleet_operator.policy.causes import Due, FleetState, RestartCause, dues
from rolloutfleet_operator.policy.observed import (
    STEP_NOTE,
    ObservedFleet,
    ObservedPod,
    SlotRequest,
    ordinal_of,
    seconds_of,
    text_of,
)
from rolloutfleet_operator.policy.reasons import EventReason, Problem, ProblemReason
from rolloutfleet_operator.policy.rollout import Roll
from rolloutfleet_operator.policy.scaling import desired_of
from rolloutfleet_operator.policy.steps import BEFORE_THE_END, Restart, Step


def is_open(entry: RestartStatus) -> bool:
    """Whether that restart is under way."""
    return entry.id is not None and entry.after is None


def open_entries(restarts: RestartsStatus) -> dict[str, RestartStatus]:
    """What is under way, by pod."""
    return {entry.pod: entry for entry in restarts.last if is_open(entry)}


def opened(restarts: RestartsStatus, due: Due, now: float) -> RestartsStatus:
    """With one more under way; counted from now on."""
    pod = due.pod
    before = None if pod.stats is None else pod.stats.rss
    entry = RestartStatus(
        pod=pod.name, reason=due.cause.counter, time=text_of(now), before=before, id=due.id, uid=pod.uid
    )
    return noted(restarts, entry)


def closed(restarts: RestartsStatus, entry: RestartStatus, after: int) -> RestartsStatus:
    """With that one done; `after` is what the proxy has in memory now."""
    done = entry.model_copy(update={"after": after})
    return _with(restarts, (done if each is entry else each for each in restarts.last))


def withdrawn(restarts: RestartsStatus, entry: RestartStatus) -> RestartsStatus:
    """Without that one, which was not begun."""
    return _counted(restarts, entry.reason, -1, (each for each in restarts.last if each is not entry))


def noted(restarts: RestartsStatus, entry: RestartStatus) -> RestartsStatus:
    """With one more, which may have happened by itself."""
    return _counted(restarts, entry.reason, +1, (entry, *restarts.last))


def _counted(restarts: RestartsStatus, counter: str, by: int, last: Iterable[RestartStatus]) -> RestartsStatus:
    if counter in causes.counters():
        restarts = restarts.model_copy(update={counter: max(0, restarts.count(counter) + by)})
    return _with(restarts, last)


def _with(restarts: RestartsStatus, last: Iterable[RestartStatus]) -> RestartsStatus:
    """The newest, and whatever is open: that never makes room for what is over."""
    entries = sorted(last, key=lambda entry: entry.time, reverse=True)
    room = MOST_RESTARTS - sum(is_open(entry) for entry in entries)
    kept = []
    for entry in entries:
        if is_open(entry) or room > 0:
            kept.append(entry)
            room -= not is_open(entry)
    return restarts.model_copy(update={"last": kept})


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartInProgress:
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
class Progress:
    """What became of the restarts under way."""

    restarts: RestartsStatus
    under_way: tuple[RestartInProgress, ...]
    """The longest first."""
    actions: tuple[Action, ...]

    @property
    def busy(self) -> frozenset[str]:
        """Pods that are being restarted, and those whose drain is not undone yet."""
        return frozenset(each.restart.entry.pod for each in self.under_way)


def advance(state: FleetState, *, rolling: int) -> Progress:
    """One pass over the open entries of the ledger that was read. `rolling` Deployments of the fleet hold a slot."""
    spec, observed, now = state.spec, state.observed, state.now
    replaced = [pod for pod in state.roll.replaceable if pod.is_down]
    restarts, going, actions = observed.status.restarts, list[RestartInProgress](), list[Action]()
    for entry in sorted(open_entries(restarts).values(), key=lambda entry: (entry.time, entry.pod)):
        cause = causes.cause_of(entry)
        restart = _restart(entry, cause, state)
        step = steps.step_of(restart, now)
        leaves = ordinal_of(restart.entry.pod) >= desired_of(spec)
        gives_way = leaves or (restart.pod in replaced and cause.slot)
        if _can_go_back(restart, step, replaced) and (gives_way or not _is_wanted(restart, cause, state)):
            restarts = withdrawn(restarts, entry)
            actions += [*steps.take_back(restart), *_transition(restart, None, "it is not needed any more")]
        elif leaves or _failed(restart, step, replaced) or (step is Step.DONE and _is_marked(restart, cause, spec)):
            restarts = closed(restarts, entry, _memory_of(restart.pod))
            actions += [*steps.actions_of(restart, step, now), *_transition(restart, Step.DONE, "")]
        else:
            held = rolling + sum(each.holds_slot for each in going)
            each = _under_way(restart, cause, step, observed, held, now)
            going.append(each)
            acts = steps.take_back(restart) if each.waits else steps.actions_of(restart, step, now)
            actions += [*acts, *_notes(restart, step, spec)]
    return Progress(restarts=restarts, under_way=tuple(going), actions=(*actions, *_strays(observed)))


def stuck_of(progress: Progress) -> Iterator[Problem]:
    """What does not go on."""
    for each in progress.under_way:
        pod, name = each.restart.pod, each.restart.entry.pod
        if each.step is Step.EMPTYING and (each.stuck or (pod is not None and pod.is_down)):
            yield undumped(name)
        elif each.stuck and (pod is None or not pod.is_down):
            yield Problem(
                ProblemReason.RESTART_STUCK, f"its restart ({each.restart.entry.reason}) stands at {each.step}", name
            )


def undumped(pod: str) -> Problem:
    """Of an ephemeral pod that has to stay for its turns' sake."""
    allow = f"export them, wait until they are dumped, or set rolloutfleet.dev/allow-loss: {pod} on the fleet"
    return Problem(
        ProblemReason.UNDUMPED_TURNS, f"its storage is ephemeral, and holds turns that would be lost: {allow}", pod
    )


def _restart(entry: RestartStatus, cause: RestartCause, state: FleetState) -> Restart:
    pod = next((pod for pod in state.observed.pods if pod.name == entry.pod), None)
    may_lose = entry.pod in state.observed.allow_loss
    return Restart(entry=entry, pod=pod, way=cause.way(pod, state), may_lose=may_lose, spec=state.spec)


def _under_way(
    restart: Restart, cause: RestartCause, step: Step, observed: ObservedFleet, held: int, now: float
) -> RestartInProgress:
    """One that is stuck gives its slot up, and goes on trying only while nobody else wants one."""
    stuck = now > steps.deadline_of(restart, step)
    takes = cause.slot
    if stuck and takes:
        takes = _is_early(step) and slots.to_spare(
            observed.other_fleets, held=held, most=observed.most_disruptions, now=now
        )
    return RestartInProgress(restart=restart, cause=cause, step=step, stuck=stuck, holds_slot=takes)


def _is_early(step: Step) -> bool:
    """Whether nothing has ended yet, as far as is known."""
    return step in BEFORE_THE_END or step is Step.EVICTING


def _can_go_back(restart: Restart, step: Step, replaced: list[ObservedPod]) -> bool:
    """Whether nothing has ended yet. Where no answer says so, it does not matter if the pod serves nobody."""
    pod = restart.pod
    if pod is None or pod.uid != restart.entry.uid:
        return False
    return (_is_early(step) and pod.stats is not None) or (pod.stats is None and pod in replaced)


def _failed(restart: Restart, step: Step, replaced: list[ObservedPod]) -> bool:
    """Whether what came of it has to be replaced in its turn: it is down, and of a template that is corrected since."""
    return step is Step.BOOTING and restart.pod in replaced


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
        yield PatchMetadata(pod=restart.pod.name, uid=restart.pod.uid, annotations=marks)
    else:
        yield from _transition(restart, step, "")


def _transition(restart: Restart, step: Step | None, why: str) -> Iterator[Action]:
    """An Event and a note on the pod, at each change of the step; None where the restart is taken back."""
    pod, entry = restart.pod, restart.entry
    note = None if step in (None, Step.DONE) else f"{restart.id} {step}"
    if pod is not None and pod.notes.get(STEP_NOTE) != note:
        yield PatchMetadata(pod=pod.name, uid=pod.uid, annotations={STEP_NOTE: note})
    elif step not in (None, Step.DONE):
        return
    reason = EventReason.WITHDRAWN if step is None else EventReason(step.value)
    yield EmitEvent(reason=reason, message=f"restart ({entry.reason}) {why}".rstrip(), pod=entry.pod)


def _memory_of(pod: ObservedPod | None) -> int:
    """Resident bytes just after the boot, as the proxy noted them, or now; 0 where nobody can tell."""
    if pod is None or pod.stats is None:
        return 0
    newest = pod.stats.boots[-1].rss_after if pod.stats.boots else None
    return pod.stats.rss if newest is None else newest


def _strays(observed: ObservedFleet) -> Iterator[Action]:
    """Drains of ours that no entry stands for: of an undoing that was lost, or a status that was."""
    known = {entry.id for entry in open_entries(observed.status.restarts).values()}
    for pod in observed.pods:
        if pod.drain is not None and causes.is_ours(pod.drain.id) and pod.drain.id not in known:
            yield UndoDrain(pod=pod.name, id=pod.drain.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartAdmission:
    restarts: RestartsStatus
    due: Due | None = None
    """What begins: written down now, and asked for when that can be read."""
    waiting: Due | None = None
    """What waits for a slot."""
    by_hand: tuple[ObservedPod, ...] = ()
    """Those that are due, but in a drain that somebody else asked for."""
    slot_requests: tuple[SlotRequest, ...] = ()
    actions: tuple[Action, ...] = ()


def admit(state: FleetState, progress: Progress, *, rolling: int) -> RestartAdmission:
    """Of what is due, the first that may begin. `rolling` Deployments of the fleet are being updated meanwhile."""
    spec, observed, now = state.spec, state.observed, state.now
    made, due_now = _made_already(state)
    due_now = [due for due in due_now if due.pod.name not in progress.busy]
    by_hand = tuple(due.pod for due in due_now if due.cause.slot and due.pod.drain is not None)
    ready = [due for due in due_now if _may_begin(due, state)]
    admission = RestartAdmission(restarts=progress.restarts, by_hand=by_hand, actions=made)
    # As many can be under way as the status can hold.
    if not ready or spec.suspend or len(open_entries(progress.restarts)) >= MOST_RESTARTS:
        return admission
    due = ready[0]
    begins = replace(admission, restarts=opened(progress.restarts, due, now), due=due)
    if not due.cause.slot:
        return begins
    rolling = 0 if due.cause is causes.MEMORY else rolling  # engines may load for hours
    others = down(spec, state.roll, progress) - {due.pod.ordinal}
    if slots.free_here(max_unavailable=spec.disruption.max_unavailable, down=len(others) + rolling) == 0:
        return replace(admission, waiting=due)
    request = _slot_request(due, observed, state.roll, now)
    held = held_by(progress) + rolling
    if not slots.granted(request, observed.other_fleets, held=held, most=observed.most_disruptions):
        return replace(admission, waiting=due, slot_requests=(request,))
    return begins


def _may_begin(due: Due, state: FleetState) -> bool:
    """True of a proxy that answers and does not drain, or serves nobody, unless its new pod would have to wait for a
    cordoned node."""
    pod, waits = due.pod, due.pod.cordoned_node is not None and not state.spec.disruption.maintenance
    may_go = not due.cause.slot or (pod.stats is not None and pod.drain is None)
    return may_go and not (waits and due.cause.way(pod, state) == "Pod")


def held_by(progress: Progress) -> int:
    """How many of the operator's slots this fleet's restarts under way take."""
    return sum(each.holds_slot for each in progress.under_way)


def _made_already(state: FleetState) -> tuple[tuple[Action, ...], list[Due]]:
    """A proxy whose log has the restart that is due is only to be marked: the mark was lost."""
    spec, due = state.spec, dues(state)
    made = [each for each in due if each.cause.marks(spec) and each.pod.has_booted(each.id)]
    marks = tuple(
        PatchMetadata(pod=each.pod.name, uid=each.pod.uid, annotations=each.cause.marks(spec)) for each in made
    )
    return marks, [each for each in due if each not in made]


def down(spec: FleetSpec, roll: Roll, progress: Progress) -> set[int]:
    """Ordinals that are asked for and do not serve, whatever the cause, and those that are being restarted."""
    up = {
        pod.ordinal
        for pod in roll.members
        if pod.ready and pod.terminating_since is None and pod.drain is None and pod.name not in progress.busy
    }
    return set(range(desired_of(spec))) - up


def _slot_request(due: Due, observed: ObservedFleet, roll: Roll, now: float) -> SlotRequest:
    """Waiting since it was due, or since this fleet was last served, so that many dues of one don't hold up others.

    The ledger's times are cut to seconds: who came in the second in which this fleet was served goes first.
    """
    served = max(
        (seconds_of(entry.time) for entry in observed.status.restarts.last if entry.id is not None), default=0.0
    )
    return SlotRequest(
        fleet=observed.key, priority=due.priority, since=max(due.since, served + 1.0), renewed=now, begun=roll.begun
    )
