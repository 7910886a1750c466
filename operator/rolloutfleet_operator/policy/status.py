"""A fleet's status, from the observed state and the decision.

Where nothing happened it equals the one before, and is not written. So no message holds a figure that keeps changing;
that of a condition names the worst problem and its pod.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import MOST_PROBLEMS, ConditionStatus, ConditionType, FleetStatus, ProblemStatus, RestartAnswer
from rolloutfleet_operator.policy.decide import Decision
from rolloutfleet_operator.policy.memory import Standing
from rolloutfleet_operator.policy.observed import ObservedDeployment, ObservedFleet, ObservedPod, text_of
from rolloutfleet_operator.policy.reasons import MAY_STAY_READY, NEEDS_SOMEBODY, ConditionReason, Problem, ProblemReason
from rolloutfleet_operator.policy.scaling import desired_of
from rolloutfleet_operator.policy.steps import dumps_outlive


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
        """The worst trouble of these kinds."""
        return next((each for each in self.decision.problems if each.reason in reasons), None)

    def because(self, *reasons: ProblemReason) -> "Condition | None":
        """False, for the worst trouble of these kinds."""
        return _because(self.worst(*reasons))

    def because_of(self, deployment: ObservedDeployment | None) -> "Condition | None":
        """False, for the worst trouble of that Deployment's pods, or of making them."""
        if deployment is None:
            return None
        names, refused = {pod.name for pod in deployment.pods}, deployment.failed_create
        of_it = (each for each in self.decision.problems if each.pod in names or (refused and each.message == refused))
        return _because(next(of_it, None))


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition without what is the same for all."""

    status: str
    """`True`, `False` or `Unknown`."""
    reason: str
    message: str = ""


def _because(found: Problem | None) -> Condition | None:
    return None if found is None else Condition("False", found.reason, _message_of(found))


def _message_of(found: Problem) -> str:
    return f"{found.pod}: {found.message}" if found.pod else found.message


NOT_AS_ASKED: Final = (
    ProblemReason.SPEC_INVALID,
    ProblemReason.TEMPLATE_INVALID,
    ProblemReason.SETTINGS_INVALID,
    ProblemReason.PERMISSION_DENIED,
    ProblemReason.NAME_TAKEN,
    ProblemReason.CHILD_REFUSED,
    ProblemReason.KEYS_MISSING,
    ProblemReason.QUOTA_EXCEEDED,
    ProblemReason.CHILD_FOUGHT_OVER,
)
"""What keeps the spec from being carried out, however well the pods are that are there."""
_NO_PODS: Final = (
    ProblemReason.POD_REFUSED,
    ProblemReason.STORAGE_CLASS_MISSING,
    ProblemReason.CLAIM_PENDING,
)
"""Why there may be no pod at all."""


def _ready(view: View) -> Condition:
    """True only when updated = ready = desired, for proxies, gateway and the fleet's own engines."""
    if view.decision.suspended:
        return Condition("True", ConditionReason.SUSPENDED, "nothing runs, as spec.suspend asks; the data is kept")
    if view.spec.suspend:
        return Condition("False", ConditionReason.SUSPENDING, "pods are still there")
    parts = (part for make in (_proxies, _gateway, _own_engines) if (part := make(view)).status != "True")
    found = view.because(*NOT_AS_ASKED) or next(parts, None)
    if found is None and view.decision.roll.outdated and not _waits(view):
        found = _progressing(view)
    found = found or _updating(view) or _other_than_asked(view) or _growing(view) or _not_live(view)
    if found is not None:
        return replace(found, status="False")
    return Condition("True", ConditionReason.SERVING, f"all parts are ready, and as the spec requires{_but(view)}")


def _other_than_asked(view: View) -> Condition | None:
    """The worst problem with which the fleet is not Ready, of those that have nothing to do with pods that leave."""
    found = (each for each in view.decision.problems if each.reason not in MAY_STAY_READY)
    return _because(next((each for each in found if each.pod not in view.decision.leaving), None))


def _growing(view: View) -> Condition | None:
    claims = (claim for claim in view.observed.claims if claim.growing and claim.ordinal < view.desired)
    growing = next((claim.name for claim in claims), None)
    if growing is None:
        return None
    return Condition("True", ConditionReason.VOLUMES_GROW, f"the volume of {growing} has not the size of the spec yet")


def _not_live(view: View) -> Condition | None:
    """A proxy that has not taken the settings that change while it runs, as far as is known."""
    newest = view.observed.generation
    before = any(_true_before(view, kind, generation=newest) for kind in ("Ready", "SettingsInForce"))
    for pod in view.members:
        live = (newest if before else 0) if pod.stats is None else pod.stats.live_generation
        if live is not None and live < newest:
            message = f"{pod.name} has not applied the settings of this spec yet"
            return Condition("True", ConditionReason.SETTINGS_PENDING, message)
    return None


def _proxies(view: View) -> Condition:
    if view.desired == 0:
        return Condition("True", ConditionReason.NONE_WANTED, "no proxies are requested")
    missing = [pod for pod in view.members if pod not in view.ready]
    if len(view.ready) == view.desired:
        return Condition("True", ConditionReason.ALL_READY, "all proxies are ready")
    of_pods = {pod.name for pod in missing}
    of_all = (*NOT_AS_ASKED, *_NO_PODS)
    found = (each for each in view.decision.problems if each.pod in of_pods or each.reason in of_all)
    if (worst := _because(next(found, None))) is not None:
        return worst
    current = view.decision.current
    if current is not None and current.pod in of_pods:
        return Condition("False", ConditionReason.RESTARTING, f"{current.pod}: {current.action}")
    lacking = set(range(view.desired)) - {pod.ordinal for pod in view.members}
    name = missing[0].name if missing else f"{view.observed.name}-proxy-{min(lacking, default=0)}"
    return Condition("False", ConditionReason.PROXIES_NOT_READY, f"{name} is not ready yet")


def _gateway(view: View) -> Condition:
    deployment = view.observed.gateway.deployment
    if view.decision.suspended:
        return Condition("False", ConditionReason.SUSPENDED, "spec.suspend is true")
    wanted = view.decision.gateway_replicas
    if deployment is not None and wanted > 0 and deployment.is_complete(wanted):
        return Condition("True", ConditionReason.ALL_READY, "the gateway is ready")
    if (worst := view.because_of(deployment)) is not None:
        return worst
    if deployment is not None and deployment.ready >= wanted > 0:
        return _rolls(view, deployment, f"{view.observed.name}-gateway")
    workers = view.observed.gateway.workers
    if workers is not None and not any(worker.healthy for worker in workers):
        return view.because_of(view.observed.engines.deployment) or Condition(
            "False", ConditionReason.NO_ENGINES, "the gateway runs, and knows no healthy engine"
        )
    return Condition("False", ConditionReason.GATEWAY_NOT_READY, f"{view.observed.name}-gateway is not ready yet")


def _own_engines(view: View) -> Condition:
    """Whether the engines that the fleet runs itself are all there, new and ready; True where others run them."""
    wanted, own = view.decision.engine_replicas, view.observed.engines.deployment
    if wanted is None or (own is not None and own.is_complete(wanted)):
        return Condition("True", ConditionReason.ALL_READY)
    if (worst := view.because_of(own)) is not None:
        return worst
    if own is not None and own.ready >= wanted:
        return _rolls(view, own, f"{view.observed.name}-engine")
    return Condition(
        "False", ConditionReason.ENGINES_NOT_READY, f"{view.observed.name}-engine has pods that are not ready yet"
    )


def _engines(view: View) -> Condition:
    """Whether every engine that there should be serves."""
    if view.decision.suspended:
        return Condition("False", ConditionReason.SUSPENDED, "spec.suspend is true")
    if (worst := view.because_of(view.observed.engines.deployment)) is not None:
        return worst
    workers = view.observed.gateway.workers
    if workers is None:
        return Condition("Unknown", ConditionReason.NOT_KNOWN, "no gateway says which engines it knows")
    healthy = {worker.url for worker in workers if worker.healthy}
    wanted = set(view.observed.engines.urls or ())
    if not healthy:
        return Condition("False", ConditionReason.NO_ENGINES, "no healthy engine")
    if late := wanted - healthy:
        return Condition("False", ConditionReason.ENGINES_NOT_READY, f"{min(late)} is not healthy")
    own = _own_engines(view)
    return replace(own, message="all engines are healthy") if own.status == "True" else own


def _rolls(view: View, deployment: ObservedDeployment, name: str) -> Condition:
    """Enough pods are ready, but not all are what the spec asks for."""
    problem = None if deployment.as_asked else view.because(*NOT_AS_ASKED)
    return problem or Condition(
        "False", ConditionReason.ROLLING_OUT, f"{name} gets its new template; pods of the old one serve meanwhile"
    )


def _progressing(view: View) -> Condition:
    decision, current = view.decision, view.decision.current
    if view.decision.suspended:
        return Condition("False", ConditionReason.SUSPENDED, "nothing runs")
    if view.spec.suspend:
        return Condition("True", ConditionReason.SUSPENDING, "the proxies end, then gateway and engines")
    if (stopped := view.because(ProblemReason.ROLL_STOPPED)) is not None:
        return stopped
    if decision.leaving:
        return Condition("True", ConditionReason.RETIRING, "proxies to be removed still serve their sessions")
    if (problem := view.because(*NOT_AS_ASKED, *_NO_PODS)) is not None:
        return problem
    if decision.roll.outdated and not _waits(view):
        return Condition("True", ConditionReason.ROLLING_OUT, "pods get the new template, one after another")
    if current is not None and current.pod is not None and current.waiting_for not in ("slot", "cooldown"):
        return Condition("True", ConditionReason.RESTARTING, f"{current.pod}: {current.action}")
    if len(view.ready) < view.desired:
        return Condition("True", ConditionReason.STARTING, "proxies start")
    if (going := _updating(view) or _rolling(view) or _growing(view) or _not_live(view)) is not None:
        return going
    if (waiting := _update(view)).status == "True":
        return replace(waiting, status="False")
    return Condition("False", ConditionReason.AS_ASKED_FOR, "there is nothing to do")


def _updating(view: View) -> Condition | None:
    """A Deployment whose pods are being replaced, or are about to be."""
    due = next((each for each in view.decision.updates if each.since is not None or each.waits), None)
    if due is None:
        return None
    waits = "waits to be given" if due.refused else "waits for a slot to get"
    what = f"{waits} its new template" if due.waits else "gets its new template"
    return Condition("True", ConditionReason.ROLLING_OUT, f"{due.name} {what}")


def _update(view: View) -> Condition:
    parts = ["proxies"] if view.decision.roll.outdated and _waits(view) else []
    parts += [each.part for each in view.decision.updates if each.available]
    if not parts:
        return Condition("False", ConditionReason.UP_TO_DATE, "no update waits for spec.restart.id")
    message = f"{' and '.join(parts)} get the new template when spec.restart.id is set"
    return Condition("True", ConditionReason.UPDATE_WAITS, message)


def _rolling(view: View) -> Condition | None:
    """A Deployment whose pods are not all of the spec that was seen."""
    deployments = (view.observed.gateway.deployment, view.observed.engines.deployment)
    for deployment, update in zip(deployments, view.decision.updates, strict=False):
        if deployment is not None and not deployment.is_rolled_out(update.replicas):
            return Condition("True", ConditionReason.ROLLING_OUT, f"{update.name} gets its new template")
    return None


def _waits(view: View) -> bool:
    """Whether no outdated pod may be updated before a restart is asked for."""
    roll = view.decision.roll
    return view.spec.update_policy == "OnRequest" and not any(
        pod in roll.restart_pending or pod in roll.replaceable for pod in roll.outdated
    )


def _memory(view: View) -> Condition:
    if (worst := view.because(ProblemReason.BUDGET_TOO_SMALL, ProblemReason.OVER_BUDGET)) is not None:
        return worst
    if all(verdict.standing is Standing.UNKNOWN for verdict in view.decision.verdicts.values()):
        before = _true_before(view, "MemoryWithinBudget")
        return before or Condition("Unknown", ConditionReason.NOT_SAMPLED, "no proxy was sampled yet")
    return Condition("True", ConditionReason.WITHIN_BUDGET, "all proxies are within memory.rssBudget")


def _settings(view: View) -> Condition:
    refused = (ProblemReason.SETTINGS_INVALID, ProblemReason.SETTINGS_REFUSED, ProblemReason.NEEDS_RESTART)
    if (worst := view.because(*refused)) is not None:
        return worst
    if not view.members:
        return Condition("Unknown", ConditionReason.NOT_KNOWN, "no proxy runs")
    for pod in view.members:
        if pod.stats is None or pod.stats.settings_generation < view.observed.generation:
            return _pending(view, pod)
    return Condition("True", ConditionReason.IN_FORCE, f"every proxy has the settings of this spec{_but(view)}")


def _but(view: View) -> str:
    """What of the spec is left out, being another release's."""
    unknown = view.worst(ProblemReason.FIELDS_UNKNOWN)
    return "" if unknown is None else f"; but {unknown.message}"


def _pending(view: View, pod: ObservedPod) -> Condition:
    """A proxy that fails to answer for a moment had what it was last seen to have."""
    before = _true_before(view, "SettingsInForce", generation=view.observed.generation)
    if pod.stats is None and before is not None:
        return before
    waiting = pod.stats.needs_restart if pod.stats is not None else ()
    what = f"; {', '.join(waiting)} waits for its restart" if waiting else ""
    return Condition(
        "False", ConditionReason.SETTINGS_PENDING, f"{pod.name} has not applied the settings of this spec yet{what}"
    )


def _cleanup(view: View) -> Condition:
    as_asked = Condition("True", ConditionReason.DUMPING, "stale sessions are dumped")
    if view.spec.sessions.dump.path == "":
        as_asked = Condition("True", ConditionReason.DUMPS_OFF, "dumps are turned off")
    return view.because(ProblemReason.DUMP_FAILING, ProblemReason.VOLUME_FULL) or as_asked


def _durable(view: View) -> Condition:
    if (lost := view.because(ProblemReason.STORE_LOST)) is not None:
        return lost
    if not view.spec.proxies.storage.ephemeral:
        return Condition("True", ConditionReason.ON_CLAIMS, "turns are kept on the proxies' claims")
    if view.spec.sessions.dump.path != "" and not dumps_outlive(view.spec):
        message = "turns and dumps are lost with their pod: give a sessions.dump.volume that outlives it, or claims"
        return Condition("False", ConditionReason.DUMPS_ON_POD, message)
    return Condition(
        "False",
        ConditionReason.EPHEMERAL_STORAGE,
        "turns that are neither acknowledged nor dumped are lost with their pod",
    )


def _stalled(view: View) -> Condition:
    """As kstatus has it: somebody has to do something."""
    if (worst := view.worst(*NEEDS_SOMEBODY)) is not None:
        return Condition("True", worst.reason, _message_of(worst))
    return Condition("False", ConditionReason.NOT_STALLED, "nothing that time alone won't mend")


def _paused(view: View) -> Condition:
    if (late := view.because(ProblemReason.PAUSE_TOO_LONG)) is not None:
        return replace(late, status="True")
    if any(pod.stats is not None and pod.stats.paused for pod in view.members):
        return Condition("True", ConditionReason.PAUSED_BY_TRAINER, "generation is paused until POST /continue")
    return Condition("False", ConditionReason.NOT_PAUSED, "generation is not paused")


def _suspended(view: View) -> Condition:
    if not view.spec.suspend:
        return Condition("False", ConditionReason.NOT_SUSPENDED, "spec.suspend is false")
    if view.decision.suspended:
        return Condition("True", ConditionReason.SUSPENDED, "no pods run; the proxies' data is kept")
    return view.because(ProblemReason.UNDUMPED_TURNS) or Condition(
        "False", ConditionReason.SUSPENDING, "pods are still there"
    )


_MAKERS: Final[dict[ConditionType, Callable[[View], Condition]]] = {
    "Ready": _ready,
    "ProxiesReady": _proxies,
    "GatewayReady": _gateway,
    "EnginesReady": _engines,
    "Progressing": _progressing,
    "MemoryWithinBudget": _memory,
    "SettingsInForce": _settings,
    "UpdateAvailable": _update,
    "CleanupHealthy": _cleanup,
    "Durable": _durable,
    "Stalled": _stalled,
    "Paused": _paused,
    "Suspended": _suspended,
}
"""Every condition, in the order of the status."""


def _true_before(view: View, kind: ConditionType, *, generation: int | None = None) -> Condition | None:
    """As the status before has it, if it was true then, of that generation where one is named."""
    found = (each for each in view.observed.status.conditions if (each.type, each.status) == (kind, "True"))
    fitting = (each for each in found if generation is None or each.observed_generation == generation)
    return next((Condition("True", each.reason, each.message) for each in fitting), None)


def with_times(
    made: Mapping[ConditionType, Condition], before: Sequence[ConditionStatus], generation: int, now: str
) -> list[ConditionStatus]:
    """With the generation they are about, and when each one's status last changed."""
    since = {(each.type, each.status): each.last_transition_time for each in before}
    return [
        ConditionStatus(
            type=kind,
            status=each.status,
            reason=each.reason,
            message=each.message,
            observed_generation=generation,
            last_transition_time=since.get((kind, each.status)) or now,
        )
        for kind, each in made.items()
    ]


_SPEC_KINDS: Final[tuple[ConditionType, ...]] = ("Ready", "Progressing", "SettingsInForce")


def status(spec: FleetSpec, observed: ObservedFleet, decision: Decision, now: float) -> FleetStatus:
    """The whole status but for who writes it, which is done under the version that `observed.status` has, where it
    differs from that."""
    view = View(spec=spec, observed=observed, decision=decision)
    there = [pod for pod in observed.pods if pod.terminating_since is None]
    time = text_of(now)
    conditions = {kind: make(view) for kind, make in _MAKERS.items()}
    return FleetStatus(
        observed_generation=observed.generation,
        replicas=len(observed.pods),
        ready_replicas=len(view.ready),
        updated_replicas=sum(pod.template_hash == observed.template_hash for pod in view.members),
        draining_replicas=sum(pod.drain is not None for pod in there),
        selector=observed.selector,
        endpoint=observed.endpoint,
        template_hash=observed.template_hash,
        parked=decision.parked,
        current=decision.current,
        problems=_problems(decision.problems, observed.status, time),
        restarts=decision.restarts,
        restart=RestartAnswer(observed_id=decision.observed_restart),
        stores=decision.stores,
        conditions=with_times(conditions, observed.status.conditions, observed.generation, time),
    )


def unusable(earlier: FleetStatus, problem: Problem, generation: int, now: float) -> FleetStatus:
    """Of a spec that can't be read, or not be carried out at all: nothing is changed, and that is said."""
    time = text_of(now)
    said = {each.type: Condition(each.status, each.reason, each.message) for each in earlier.conditions}
    made = {kind: said.get(kind, Condition("Unknown", ConditionReason.NOT_KNOWN)) for kind in _MAKERS}
    made |= dict.fromkeys(_SPEC_KINDS, Condition("False", problem.reason, problem.message))
    if problem.reason in NEEDS_SOMEBODY:
        made["Stalled"] = Condition("True", problem.reason, problem.message)
    return earlier.model_copy(
        update={
            "observed_generation": generation,
            "problems": _problems((problem,), earlier, time),
            "conditions": with_times(made, earlier.conditions, generation, time),
        }
    )


def _problems(found: tuple[Problem, ...], earlier: FleetStatus, now: str) -> list[ProblemStatus]:
    """The worst, each since it was first seen."""
    since = {(each.pod, each.reason): each.since for each in earlier.problems}
    return [
        ProblemStatus(
            pod=each.pod,
            reason=each.reason.value,
            message=each.message,
            since=since.get((each.pod, each.reason.value), now),
        )
        for each in found[:MOST_PROBLEMS]
    ]
