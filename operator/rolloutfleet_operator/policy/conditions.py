"""The conditions of a fleet, each from the observed state and what was decided.

A message names the worst thing and its pod. None holds a figure that moves, for a status is written when it changes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import ConditionStatus, ConditionType
from rolloutfleet_operator.policy.decide import Decision
from rolloutfleet_operator.policy.memory import Standing
from rolloutfleet_operator.policy.observed import ObservedDeployment, ObservedFleet, ObservedPod
from rolloutfleet_operator.policy.problems import Problem
from rolloutfleet_operator.policy.reasons import ConditionReason, ProblemReason
from rolloutfleet_operator.policy.scaling import desired_of

Truth = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that a condition may be made of."""

    spec: FleetSpec
    observed: ObservedFleet
    decision: Decision

    @property
    def members(self) -> tuple[ObservedPod, ...]:
        """The pods that are asked for and there."""
        return self.decision.roll.members

    @property
    def desired(self) -> int:
        return desired_of(self.spec)

    @property
    def ready(self) -> list[ObservedPod]:
        return [pod for pod in self.members if pod.ready and pod.terminating_since is None]

    def worst(self, *reasons: ProblemReason) -> Problem | None:
        """The worst trouble of these kinds; of any, where none is named."""
        return next((each for each in self.decision.problems if not reasons or each.reason in reasons), None)

    def worst_among(self, deployment: ObservedDeployment | None) -> Problem | None:
        """The worst trouble of that Deployment's pods, or of making them."""
        if deployment is None:
            return None
        names, refused = {pod.name for pod in deployment.pods}, deployment.failed_create
        return next(
            (each for each in self.decision.problems if each.pod in names or (refused and each.message == refused)),
            None,
        )


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition without what is the same for all."""

    status: Truth
    reason: str
    message: str = ""


_NOT_AS_ASKED: Final = (
    *(
        ProblemReason.SPEC_INVALID,
        ProblemReason.TEMPLATE_INVALID,
        ProblemReason.SETTINGS_INVALID,
        ProblemReason.PERMISSION_DENIED,
    ),
    *(ProblemReason.NAME_TAKEN, ProblemReason.CHILD_REFUSED, ProblemReason.KEYS_MISSING),
)
"""What keeps the spec from being carried out, however well the pods are that are there."""
_NO_PODS: Final = (
    *(
        ProblemReason.QUOTA_EXCEEDED,
        ProblemReason.POD_REFUSED,
        ProblemReason.STORAGE_CLASS_MISSING,
        ProblemReason.CLAIM_PENDING,
    ),
)
"""Why there may be no pod at all."""


def all_of(view: View) -> list[ConditionStatus]:
    """Every condition, in the order of the status, without times."""
    return [
        ConditionStatus(type=kind, status=found.status, reason=found.reason, message=found.message)
        for kind, make in _MAKERS.items()
        for found in [make(view)]
    ]


def _ready(view: View) -> Condition:
    """True only when updated = ready = desired, for proxies, gateway and the fleet's own engines."""
    if view.spec.suspend:
        return Condition("False", ConditionReason.SUSPENDED, "spec.suspend is true")
    fault = view.worst(*_NOT_AS_ASKED)
    if fault is not None:
        return _because(fault)
    for part in (_proxies(view), _gateway(view), _own_engines(view)):
        if part.status != "True":
            return Condition("False", part.reason, part.message)
    if view.decision.roll.outdated:
        progressing = _progressing(view)
        return Condition("False", progressing.reason, progressing.message)
    locked = view.worst(ProblemReason.KEY_NOT_TAKEN)
    if locked is not None:
        return _because(locked)
    return Condition("True", ConditionReason.SERVING, f"all parts are ready, and as the spec asks for{_but(view)}")


def _proxies(view: View) -> Condition:
    if view.desired == 0:
        return Condition("True", ConditionReason.NONE_WANTED, "no proxies are asked for")
    missing = [pod for pod in view.members if pod not in view.ready]
    if len(view.ready) == view.desired:
        return Condition("True", ConditionReason.ALL_READY, "all proxies are ready")
    of_pods = {pod.name for pod in missing}
    of_all = (*_NOT_AS_ASKED, *_NO_PODS)
    worst = next((each for each in view.decision.problems if each.pod in of_pods or each.reason in of_all), None)
    if worst is not None:
        return _because(worst)
    current = view.decision.current
    if current is not None and current.pod in of_pods:
        return Condition("False", ConditionReason.RESTARTING, f"{current.pod}: {current.action}")
    name = missing[0].name if missing else f"{view.observed.name}-proxy-{_first_missing(view)}"
    return Condition("False", ConditionReason.PROXIES_NOT_READY, f"{name} is not ready yet")


def _first_missing(view: View) -> int:
    there = {pod.ordinal for pod in view.members}
    return next((ordinal for ordinal in range(view.desired) if ordinal not in there), 0)


def _gateway(view: View) -> Condition:
    deployment = view.observed.gateway.deployment
    if view.decision.suspended:
        return Condition("False", ConditionReason.SUSPENDED, "spec.suspend is true")
    wanted = view.decision.gateway_replicas
    if deployment is not None and wanted > 0 and deployment.is_complete(wanted):
        return Condition("True", ConditionReason.ALL_READY, "the gateway is ready")
    worst = view.worst_among(deployment)
    if worst is not None:
        return _because(worst)
    if deployment is not None and deployment.ready >= wanted > 0:
        return _rolls(view, deployment, f"{view.observed.name}-gateway")
    workers = view.observed.gateway.workers
    if workers is not None and not any(worker.healthy for worker in workers):
        why = view.worst_among(view.observed.engines.deployment)
        if why is not None:
            return _because(why)
        return Condition("False", ConditionReason.NO_ENGINES, "the gateway runs, and knows no healthy engine")
    return Condition("False", ConditionReason.GATEWAY_NOT_READY, f"{view.observed.name}-gateway is not ready yet")


def _own_engines(view: View) -> Condition:
    """Whether the engines that the fleet runs itself are all there, new and ready; True where others run them."""
    wanted, own = view.decision.engine_replicas, view.observed.engines.deployment
    if wanted is None or (own is not None and own.is_complete(wanted)):
        return Condition("True", ConditionReason.ALL_READY)
    worst = view.worst_among(own)
    if worst is not None:
        return _because(worst)
    if own is not None and own.ready >= wanted:
        return _rolls(view, own, f"{view.observed.name}-engine")
    return Condition(
        "False", ConditionReason.ENGINES_NOT_READY, f"{view.observed.name}-engine has pods that are not ready yet"
    )


def _engines(view: View) -> Condition:
    """Whether every engine that there should be serves."""
    if view.decision.suspended:
        return Condition("False", ConditionReason.SUSPENDED, "spec.suspend is true")
    own = view.observed.engines.deployment
    worst = view.worst_among(own)
    if worst is not None:
        return _because(worst)
    workers = view.observed.gateway.workers
    if workers is None:
        return Condition("Unknown", ConditionReason.NOT_KNOWN, "no gateway says which engines it knows")
    healthy = {worker.url for worker in workers if worker.healthy}
    wanted = set(view.observed.engines.urls or ())
    if not healthy:
        return Condition("False", ConditionReason.NO_ENGINES, "no healthy engine")
    late = sorted(wanted - healthy)
    if late:
        return Condition("False", ConditionReason.ENGINES_NOT_READY, f"{late[0]} is not healthy")
    lacking = _own_engines(view)
    return (
        Condition("True", ConditionReason.ALL_READY, "all engines are healthy") if lacking.status == "True" else lacking
    )


def _rolls(view: View, deployment: ObservedDeployment, name: str) -> Condition:
    """Enough pods are ready, but not all are what the spec asks for."""
    fault = view.worst(*_NOT_AS_ASKED)
    if fault is not None and not deployment.as_asked:
        return _because(fault)
    return Condition(
        "False", ConditionReason.ROLLING_OUT, f"{name} gets its new template; pods of the old one serve meanwhile"
    )


def _progressing(view: View) -> Condition:
    decision, current = view.decision, view.decision.current
    stopped = view.worst(ProblemReason.ROLL_STOPPED)
    if view.decision.suspended:
        return Condition("False", ConditionReason.SUSPENDED, "nothing runs")
    if view.spec.suspend:
        return Condition("True", ConditionReason.SUSPENDING, "the proxies end, then gateway and engines")
    if stopped is not None:
        return _because(stopped)
    if decision.leaving:
        return Condition("True", ConditionReason.RETIRING, "proxies that are scaled away serve what they know")
    fault = view.worst(*_NOT_AS_ASKED, *_NO_PODS)
    if fault is not None:
        return _because(fault)
    if decision.roll.outdated and not _waits(view):
        return Condition("True", ConditionReason.ROLLING_OUT, "pods get the new template, one after another")
    if current is not None and current.waiting_for not in ("slot", "cooldown"):
        return Condition("True", ConditionReason.RESTARTING, f"{current.pod}: {current.action}")
    if len(view.ready) < view.desired:
        return Condition("True", ConditionReason.STARTING, "proxies start")
    rolling = _rolling(view)
    if rolling is not None:
        return Condition("True", ConditionReason.ROLLING_OUT, f"{rolling} gets its new template")
    if decision.roll.outdated:
        return Condition("False", ConditionReason.UPDATE_WAITS, "pods get the new template when spec.restart.id is set")
    return Condition("False", ConditionReason.AS_ASKED_FOR, "nothing is to be done")


def _rolling(view: View) -> str | None:
    """A Deployment whose pods are not all of the spec that was seen."""
    gateway, engines, decision = view.observed.gateway.deployment, view.observed.engines.deployment, view.decision
    if gateway is not None and not gateway.is_rolled_out(decision.gateway_replicas):
        return f"{view.observed.name}-gateway"
    if engines is not None and not engines.is_rolled_out(decision.engine_replicas or 0):
        return f"{view.observed.name}-engine"
    return None


def _waits(view: View) -> bool:
    """Whether no outdated pod may be updated before a restart is asked for."""
    roll = view.decision.roll
    return view.spec.update_policy == "OnRequest" and not any(pod in roll.unasked for pod in roll.outdated)


def _memory(view: View) -> Condition:
    worst = view.worst(ProblemReason.BUDGET_TOO_SMALL, ProblemReason.OVER_BUDGET)
    if worst is not None:
        return _because(worst)
    if all(verdict.standing is Standing.UNKNOWN for verdict in view.decision.verdicts.values()):
        before = _before(view, "MemoryWithinBudget")
        if before is not None and before.status == "True":
            return Condition("True", before.reason, before.message)
        return Condition("Unknown", ConditionReason.NOT_SAMPLED, "no proxy was sampled yet")
    return Condition("True", ConditionReason.WITHIN_BUDGET, "all proxies are within memory.rssBudget")


def _settings(view: View) -> Condition:
    worst = view.worst(ProblemReason.SETTINGS_INVALID, ProblemReason.SETTINGS_REFUSED, ProblemReason.NEEDS_RESTART)
    if worst is not None:
        return _because(worst)
    if not view.members:
        return Condition("Unknown", ConditionReason.NOT_KNOWN, "no proxy runs")
    for pod in view.members:
        if pod.stats is None:
            return _pending(view, pod)
        if pod.stats.settings_generation < view.observed.generation:
            return _pending(view, pod)
    return Condition("True", ConditionReason.IN_FORCE, f"every proxy has the settings of this spec{_but(view)}")


def _but(view: View) -> str:
    """What of the spec is left out, being another release's."""
    unknown = view.worst(ProblemReason.FIELDS_UNKNOWN)
    return "" if unknown is None else f"; but {unknown.message}"


def _pending(view: View, pod: ObservedPod) -> Condition:
    """A proxy that fails to answer for a moment had what it was last seen to have."""
    before = _before(view, "SettingsInForce")
    same = before is not None and before.observed_generation == view.observed.generation and before.status == "True"
    if pod.stats is None and same and before is not None:
        return Condition("True", before.reason, before.message)
    waiting = pod.stats.needs_restart if pod.stats is not None else ()
    what = f"; {', '.join(waiting)} waits for its restart" if waiting else ""
    return Condition(
        "False", ConditionReason.SETTINGS_PENDING, f"{pod.name} has not taken the settings of this spec yet{what}"
    )


def _cleanup(view: View) -> Condition:
    worst = view.worst(ProblemReason.DUMP_FAILING, ProblemReason.VOLUME_FULL)
    if worst is not None:
        return _because(worst)
    if view.spec.sessions.dump.path == "":
        return Condition("True", ConditionReason.DUMPS_OFF, "dumps are turned off")
    return Condition("True", ConditionReason.DUMPING, "what goes stale is dumped")


def _durable(view: View) -> Condition:
    dump = view.spec.sessions.dump
    if not view.spec.proxies.storage.ephemeral:
        return Condition("True", ConditionReason.ON_CLAIMS, "turns are kept on the proxies' claims")
    if dump.volume is None and dump.path != "":
        message = "turns and dumps are lost with their pod: give sessions.dump.volume, or storage that is not ephemeral"
        return Condition("False", ConditionReason.DUMPS_ON_POD, message)
    return Condition(
        "False",
        ConditionReason.EPHEMERAL_STORAGE,
        "turns that are neither acknowledged nor dumped are lost with their pod",
    )


def _paused(view: View) -> Condition:
    late = view.worst(ProblemReason.PAUSE_TOO_LONG)
    if late is not None:
        return Condition("True", late.reason, _message_of(late))
    paused = next((pod for pod in view.members if pod.stats is not None and pod.stats.paused), None)
    if paused is not None:
        return Condition("True", ConditionReason.PAUSED_BY_TRAINER, "generation is paused until POST /continue")
    return Condition("False", ConditionReason.NOT_PAUSED, "generation is not paused")


def _suspended(view: View) -> Condition:
    if not view.spec.suspend:
        return Condition("False", ConditionReason.NOT_SUSPENDED, "spec.suspend is false")
    if view.decision.suspended:
        return Condition("True", ConditionReason.SUSPENDED, "nothing runs; what the proxies held is kept")
    undumped = view.worst(ProblemReason.UNDUMPED_TURNS)
    return (
        _because(undumped)
        if undumped is not None
        else Condition("False", ConditionReason.SUSPENDING, "pods are still there")
    )


_MAKERS: Final[dict[ConditionType, Callable[[View], Condition]]] = {
    "Ready": _ready,
    "ProxiesReady": _proxies,
    "GatewayReady": _gateway,
    "EnginesReady": _engines,
    "Progressing": _progressing,
    "MemoryWithinBudget": _memory,
    "SettingsInForce": _settings,
    "CleanupHealthy": _cleanup,
    "Durable": _durable,
    "Paused": _paused,
    "Suspended": _suspended,
}

KINDS: Final = tuple(_MAKERS)
"""Every condition, in the order of the status."""


def _because(found: Problem) -> Condition:
    return Condition("False", found.reason, _message_of(found))


def _message_of(found: Problem) -> str:
    return f"{found.pod}: {found.message}" if found.pod else found.message


def _before(view: View, kind: ConditionType) -> ConditionStatus | None:
    return next((each for each in view.observed.status.conditions if each.type == kind), None)


def with_times(
    made: Iterable[ConditionStatus], before: Sequence[ConditionStatus], generation: int, now: str
) -> list[ConditionStatus]:
    """With the generation they are about, and when each one's status last changed."""
    known = {each.type: each for each in before}
    timed = []
    for each in made:
        earlier = known.get(each.type)
        same = earlier is not None and earlier.status == each.status
        since = earlier.last_transition_time if same and earlier is not None else None
        timed.append(each.model_copy(update={"observed_generation": generation, "last_transition_time": since or now}))
    return timed
