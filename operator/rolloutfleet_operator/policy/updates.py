"""Updates of the Deployments of gateway and engines: which of them get their newest template now.

What runs keeps the template that it was given until an update is due. The gateway's is due by `updatePolicy`, as for
proxies. An engine is slow to load and may be the only one, so another default of the operator's is no reason to replace
it: its update is due when its own part of the spec has changed, under `Automatic`, or when `spec.restart.id` asks. One
that is due takes a slot until all its pods are replaced, one after another, unless that is stuck.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import CurrentStatus
from rolloutfleet_operator.policy import causes, slots
from rolloutfleet_operator.policy.actions import EmitEvent
from rolloutfleet_operator.policy.observed import ObservedDeployment, ObservedFleet, SlotRequest, text_of
from rolloutfleet_operator.policy.reasons import CurrentAction, EventReason
from rolloutfleet_operator.policy.rollout import CANT_START, is_unanswered


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """How one Deployment stands to its newest template."""

    name: str
    """The Deployment's."""
    part: str
    """What it runs: `gateway` or `engines`."""
    replicas: int
    """So many pods are wanted."""
    apply: bool = True
    """It is given that template now, or has it; else it keeps the one that it has."""
    due: bool = False
    """It has another one, and is to be given the newest."""
    available: bool = False
    """It has another one, and keeps it until that is asked for."""
    since: float | None = None
    """When its pods began to be replaced; None where they are not being."""
    refused: bool = False
    """It was refused a moment ago, and is not tried again yet."""
    holds_slot: bool = False

    @property
    def waits(self) -> bool:
        """Whether it waits for a slot."""
        return self.due and not self.apply

    @property
    def current(self) -> CurrentStatus:
        """What the operator is doing about it; since when is empty while it waits."""
        action = CurrentAction.GATEWAY_UPDATE if self.part == "gateway" else CurrentAction.ENGINE_UPDATE
        since = "" if self.since is None else text_of(self.since)
        return CurrentStatus(action=action, since=since, waiting_for="slot" if self.waits else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateAdmission:
    """What becomes of the updates in this pass."""

    updates: tuple[Update, ...]
    slot_requests: tuple[SlotRequest, ...] = ()
    actions: tuple[EmitEvent, ...] = ()

    @property
    def held(self) -> int:
        """Of the operator's slots."""
        return sum(each.holds_slot for each in self.updates)


def of_fleet(
    spec: FleetSpec, observed: ObservedFleet, *, gateways: int, engines: int | None, now: float
) -> tuple[Update, ...]:
    """Of each Deployment; the numbers are those of the pods that are wanted."""
    found = [_update(f"{observed.name}-gateway", "gateway", observed.gateway.deployment, gateways, spec, observed, now)]
    if engines is not None:
        own = observed.engines.deployment
        found.append(_update(f"{observed.name}-engine", "engines", own, engines, spec, observed, now))
    return tuple(found)


def _update(
    name: str,
    part: str,
    deployment: ObservedDeployment | None,
    replicas: int,
    spec: FleetSpec,
    observed: ObservedFleet,
    now: float,
) -> Update:
    update = Update(name=name, part=part, replicas=replicas)
    if deployment is None or replicas == 0 or not (deployment.there or deployment.pods):
        return update  # nothing runs
    if deployment.outdated:
        due = _is_due(deployment, part, spec, observed)
        # Where none of its pods ever ran, nobody loses anything by it.
        ran = not deployment.pods or any(not pod.never_ran for pod in deployment.pods)
        update = replace(update, apply=not ran, due=due, available=not due)
        if deployment.refused:
            return replace(update, apply=False, refused=True)
    since = deployment.updating_since
    if since is None or (not update.due and deployment.is_complete(replicas)):
        return update
    # Of a template that is corrected in the middle of its roll no more pods are away than there are already.
    goes_on = replace(update, apply=update.apply or update.due, since=now if update.due else since)
    return replace(goes_on, holds_slot=not _is_stuck(deployment, since, now))


def _is_due(deployment: ObservedDeployment, part: str, spec: FleetSpec, observed: ObservedFleet) -> bool:
    if is_unanswered(spec, observed) or deployment.key_changed or (part == "gateway" and deployment.part_changed):
        return True  # a gateway with another key, or before other engines, is of no use
    return spec.update_policy == "Automatic" and (part == "gateway" or deployment.part_changed)


def _is_stuck(deployment: ObservedDeployment, since: float, now: float) -> bool:
    """True where it has had its time, or has a new pod that time alone won't start or that is late: then it gives its
    slot up."""
    new = [pod for pod in deployment.pods if pod.created >= since]
    fails = any(pod.container.waiting in CANT_START or pod.is_late(now) for pod in new)
    return fails or deployment.is_overdue(since, now)


def admit(
    updates: tuple[Update, ...], spec: FleetSpec, observed: ObservedFleet, *, held: int, down: int, now: float
) -> UpdateAdmission:
    """Let the first that waits begin, if it may.

    `held` are the slots of the operator that restarts of this fleet's proxies take, and `down` its proxies that do not
    serve.
    """
    waiting = next((each for each in updates if each.waits and not each.refused), None)
    rolling = sum(each.holds_slot for each in updates)
    if waiting is None or spec.suspend:
        return UpdateAdmission(updates=updates)
    if slots.free_here(max_unavailable=spec.disruption.max_unavailable, down=down + rolling) == 0:
        return UpdateAdmission(updates=updates)
    request = SlotRequest(fleet=observed.key, priority=len(causes.CAUSES), since=0.0, renewed=now, begun=rolling > 0)
    if not slots.granted(request, observed.other_fleets, held=held + rolling, most=observed.most_disruptions):
        return UpdateAdmission(updates=updates, slot_requests=(request,))
    begun = replace(waiting, apply=True, since=now, holds_slot=True)
    changed = tuple(begun if each is waiting else each for each in updates)
    return UpdateAdmission(updates=changed, actions=tuple(_events(begun)))


def _events(begun: Update) -> Iterator[EmitEvent]:
    message = f"{begun.name} gets its new template, one pod after another"
    if begun.part == "engines" and begun.replicas == 1:
        message += "; it is the only engine, and until the new one is ready there is none"
    yield EmitEvent(reason=EventReason.UPDATING, message=message)
