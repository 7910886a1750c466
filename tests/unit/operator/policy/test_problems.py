"""Each cause has a reason of its own, and the reason goes with the cause."""

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.operator.policy.executor import NONE, Operator, settle
from tests.unit.operator.policy.fleets import fleet
from tests.unit.operator.policy.world import ENGINE, GATEWAY, World

from rolloutfleet.spec import EngineSourceSpec, FleetSpec, RestartSpec
from rolloutfleet.status import ConditionStatus, FleetStatus, RestartStatus
from rolloutfleet_operator.policy.actions import EmitEvent
from rolloutfleet_operator.policy.crashes import OOM_SHOWN_FOR
from rolloutfleet_operator.policy.decide import decide
from rolloutfleet_operator.policy.observed import (
    LOADED_WITHIN,
    READY_WITHIN,
    STUCK_AFTER,
    ObservedClaim,
    ObservedContainer,
    ObservedDeployment,
    ObservedEngines,
    ObservedFleet,
    ObservedGateway,
    ObservedOtherPod,
    text_of,
)
from rolloutfleet_operator.policy.problems import PROVISIONED_WITHIN, SILENT_AFTER
from rolloutfleet_operator.policy.reasons import Problem, ProblemReason
from rolloutfleet_operator.policy.status import status, unusable
from rolloutfleet_operator.policy.stores import LOSS_SHOWN_FOR

SPEC = fleet(replicas=2, gateway={"replicas": 1})
OTHERS = EngineSourceSpec(selector={"app": "sglang"})


def healthy() -> tuple[ObservedFleet, float]:
    """A fleet at rest, and the time."""
    world, operator = World(SPEC), Operator()
    settle([world], operator, passes=100)
    return operator.see(world, NONE), world.now


SEEN, NOW = healthy()
FIRST = SEEN.pods[0]


def with_pod(**changes: Any) -> ObservedFleet:
    """The fleet with its first pod changed; `stats` are changes to its figures."""
    stats = changes.pop("stats", {})
    if stats is None:
        pod = replace(FIRST, stats=None, **changes)
    else:
        assert FIRST.stats is not None
        pod = replace(FIRST, stats=replace(FIRST.stats, **stats), **changes)
    return replace(SEEN, pods=(pod, *SEEN.pods[1:]))


def down(container: ObservedContainer, **changes: Any) -> ObservedFleet:
    return with_pod(**{"ready": False, "ready_since": NOW - 30, "stats": None, "container": container, **changes})


def found(observed: ObservedFleet, now: float = NOW) -> list[tuple[str | None, str]]:
    said = status(SPEC, observed, decide(SPEC, observed, now), now)
    return [(each.pod, each.reason) for each in said.problems]


OF_A_POD = {
    ProblemReason.IMAGE_PULL_FAILED: down(ObservedContainer(waiting="ErrImagePull", image="registry/proxy:9")),
    ProblemReason.CONTAINER_CONFIG_ERROR: down(
        ObservedContainer(waiting="CreateContainerConfigError", message='secret "keys" not found')
    ),
    ProblemReason.CRASH_LOOPING: down(
        ObservedContainer(waiting="CrashLoopBackOff", restarts=2, last_end="Error", last_exit=1)
    ),
    ProblemReason.STORE_OF_ANOTHER_FLEET: down(
        ObservedContainer(restarts=1, last_end="Error", last_words="StoreOfAnotherFleet: it belongs to 77")
    ),
    ProblemReason.STORE_UNUSABLE: down(
        ObservedContainer(restarts=1, last_end="Error", last_words="StoreUnusable: newer")
    ),
    ProblemReason.STORE_DAMAGED: down(
        ObservedContainer(restarts=1, last_end="Error", last_words="StoreDamaged: file is not a database")
    ),
    ProblemReason.TOKENIZER_UNREACHABLE: down(
        ObservedContainer(
            waiting="CrashLoopBackOff", restarts=1, last_end="Error", last_words="ModelUnreadable: no hub"
        )
    ),
    ProblemReason.KEYS_MISSING: down(ObservedContainer(restarts=1, last_end="Error", last_words="BadKeyFile: empty")),
    ProblemReason.NODE_LOST: with_pod(ready=False, node_lost=True, stats=None),
    ProblemReason.STUCK_TERMINATING: with_pod(terminating_since=NOW - FIRST.grace - STUCK_AFTER - 1, stats=None),
    ProblemReason.UNSCHEDULABLE: down(
        ObservedContainer(), unschedulable="0/3 nodes are available: 3 Insufficient memory."
    ),
    ProblemReason.WAITING_FOR_GPUS: down(ObservedContainer(), unschedulable="0/3 nodes: Insufficient nvidia.com/gpu."),
    ProblemReason.NOT_READY_IN_TIME: with_pod(
        ready=False, created=NOW - 2 * READY_WITHIN, ready_since=NOW - READY_WITHIN - 1, stats=None
    ),
    ProblemReason.UNRESPONSIVE: down(
        ObservedContainer(running=True, started=True), unanswered=5, ready_since=NOW - 100
    ),
    ProblemReason.STATS_UNKNOWN: with_pod(stats=None, unanswered=5),
    ProblemReason.NODE_CORDONED: with_pod(cordoned_node="node-a"),
    ProblemReason.KEY_NOT_TAKEN: with_pod(stats=None, key_refused=True),
    ProblemReason.OOM_KILLED: with_pod(
        container=ObservedContainer(running=True, last_end="OOMKilled", last_ended_at=NOW - 60)
    ),
    ProblemReason.VOLUME_FULL: with_pod(stats={"store_full": True}),
    ProblemReason.DUMP_FAILING: with_pod(stats={"dump_failing": True, "dump_error": "no space"}),
    ProblemReason.SETTINGS_REFUSED: with_pod(stats={"settings_error": "sessions.staleAfter: …"}),
    ProblemReason.NEEDS_RESTART: replace(with_pod(stats={"needs_restart": ("log.level",)}), settings_since=NOW - 1000),
    ProblemReason.FIELDS_LOST: with_pod(stats={"gateway_loses": ("sampling parameters",)}),
    ProblemReason.PAUSE_TOO_LONG: with_pod(stats={"paused": True, "past_max_hold": True}),
}


@pytest.mark.parametrize("reason", OF_A_POD, ids=str)
def test_of_a_pod(reason: ProblemReason) -> None:
    name = FIRST.name
    if reason is ProblemReason.UNRESPONSIVE:
        observed = replace(
            OF_A_POD[reason], pods=(replace(OF_A_POD[reason].pods[0], ready_since=NOW - 100), *SEEN.pods[1:])
        )
    else:
        observed = OF_A_POD[reason]
    assert found(observed) == [(name, reason.value)]


OF_THE_FLEET = {
    ProblemReason.STORAGE_CLASS_MISSING: 'storageclass.storage.k8s.io "fast" not found',
    ProblemReason.CLAIM_PENDING: 'failed to provision volume with StorageClass "x": serviceaccount "y" not found',
}


@pytest.mark.parametrize("reason", OF_THE_FLEET, ids=str)
def test_of_a_claim(reason: ProblemReason) -> None:
    claim = ObservedClaim(name="state-math-proxy-0", ordinal=0, bound=False, message=OF_THE_FLEET[reason])
    assert found(replace(SEEN, claims=(claim,))) == [(None, reason.value)]
    assert found(replace(SEEN, claims=(replace(claim, bound=True),))) == []


def test_the_cause_goes_before_what_comes_of_it() -> None:
    claim = ObservedClaim(
        name="state-math-proxy-0", ordinal=0, bound=False, message=OF_THE_FLEET[ProblemReason.STORAGE_CLASS_MISSING]
    )
    waits = down(ObservedContainer(), unschedulable="0/3 nodes are available: unbound PersistentVolumeClaims.")
    observed = replace(waits, claims=(claim,))
    said = {each.type: each.reason for each in status(SPEC, observed, decide(SPEC, observed, NOW), NOW).conditions}
    assert said["Ready"] == said["ProxiesReady"] == "StorageClassMissing"


def test_a_gateway_without_engines_says_what_the_engines_lack() -> None:
    waits = ObservedOtherPod(
        name="math-engine-x", ready=False, created=NOW, unschedulable="Insufficient nvidia.com/gpu."
    )
    engines = ObservedEngines(urls=(), deployment=ObservedDeployment(replicas=1, pods=(waits,)))
    gateway = ObservedGateway(deployment=ObservedDeployment(replicas=1, ready=0), lists={GATEWAY: ()})
    observed = replace(SEEN, engines=engines, gateway=gateway)
    said = {each.type: each.reason for each in status(SPEC, observed, decide(SPEC, observed, NOW), NOW).conditions}
    assert said["Ready"] == said["EnginesReady"] == "WaitingForGpus"


@pytest.mark.parametrize("waiting", ["ErrImagePull", "RegistryUnavailable"])
def test_a_roll_that_is_stopped_says_what_stopped_it(waiting: str) -> None:
    container = ObservedContainer(waiting=waiting, image="registry/proxy:9")
    new = replace(down(container).pods[0], template_hash="t9")
    observed = replace(SEEN, template_hash="t9", pods=(new, *SEEN.pods[1:]))
    said = conditions(observed)
    assert {said[kind].reason for kind in ("Ready", "Progressing")} == {"RollStopped"}
    for kind in ("Ready", "Progressing"):
        message = said[kind].message
        assert message.startswith(f"{FIRST.name}: ImagePullFailed: registry/proxy:9 can't be pulled; "), message


def test_it_is_not_ready_for_a_trainer_until_every_proxy_takes_the_key_of_the_secret() -> None:
    said = conditions(OF_A_POD[ProblemReason.KEY_NOT_TAKEN])
    assert (said["Ready"].status, said["Ready"].reason) == ("False", "KeyNotTaken")
    assert f"{FIRST.name}: " in said["Ready"].message and "Secret math-keys" in said["Ready"].message
    assert said["ProxiesReady"].status == "True"
    named = SPEC.model_copy(update={"auth": SPEC.auth.model_copy(update={"secret": "mine"})})
    assert "Secret mine" in conditions(OF_A_POD[ProblemReason.KEY_NOT_TAKEN], named)["Ready"].message


def test_a_claim_that_does_not_grow() -> None:
    claim = ObservedClaim(name="state-math-proxy-0", ordinal=0, bound=True, growing=True, message="not allowed")
    observed = replace(SEEN, claims=(claim,))
    assert found(observed) == [(None, "StorageCantGrow")]
    assert conditions(observed)["Ready"].reason == "StorageCantGrow"


def test_ready_waits_for_a_claim_that_grows() -> None:
    claim = ObservedClaim(name="state-math-proxy-0", ordinal=0, bound=True, growing=True)
    said = conditions(replace(SEEN, claims=(claim,)))
    assert (said["Ready"].status, said["Ready"].reason) == ("False", "VolumesGrow")
    assert claim.name in said["Ready"].message and said["Progressing"].status == "True"


def test_a_claim_that_scaling_down_left_is_no_problem() -> None:
    left = ObservedClaim(name="state-math-proxy-2", ordinal=2, bound=True, growing=True, message="no file system yet")
    said = status(SPEC, seen := replace(SEEN, claims=(left,)), decide(SPEC, seen, NOW), NOW)
    assert said.problems == [] and said.conditions[0].status == "True"


def test_a_gateway_that_ends_with_its_lost_node_and_was_replaced_is_no_problem() -> None:
    ends = ObservedOtherPod(name="math-gateway-x", created=NOW - 900, node_lost=True, terminating_since=NOW - 5)
    assert SEEN.gateway.deployment is not None
    pods = (*SEEN.gateway.deployment.pods, ends)
    gateway = replace(SEEN.gateway, deployment=replace(SEEN.gateway.deployment, pods=pods))
    assert found(replace(SEEN, gateway=gateway)) == []


def test_a_lost_node_is_to_be_deleted_with_the_claim_where_the_volume_is_on_it() -> None:
    lost = OF_A_POD[ProblemReason.NODE_LOST]
    (elsewhere,) = said_of(lost).problems
    (local,) = said_of(replace(lost, node_local=True)).problems
    assert "the pod starts elsewhere" in elsewhere.message and "claim" not in elsewhere.message
    assert "kubectl delete node and the pod's claim" in local.message and "elsewhere" not in local.message
    assert SEEN.gateway.deployment is not None
    gateway = ObservedOtherPod(name="math-gateway-x", created=NOW, node_lost=True)
    deployment = replace(SEEN.gateway.deployment, pods=(gateway,))
    (other,) = said_of(replace(SEEN, node_local=True, gateway=ObservedGateway(deployment=deployment))).problems
    assert "the pod starts elsewhere" in other.message


def test_a_claim_is_pending_when_its_provisioner_has_had_time_and_says_nothing() -> None:
    asked = ObservedClaim(name="state-math-proxy-0", ordinal=0, bound=False, created=NOW, provisioner="csi.example.com")
    observed = replace(down(ObservedContainer()), claims=(asked,))
    assert found(observed, NOW + PROVISIONED_WITHIN) == []
    assert found(observed, NOW + PROVISIONED_WITHIN + 1) == [(None, "ClaimPending")]
    said = status(SPEC, observed, decide(SPEC, observed, NOW + 200), NOW + 200).conditions
    assert (said[0].reason, "csi.example.com" in said[0].message) == ("ClaimPending", True)
    waits_for_a_node = replace(observed, claims=(replace(asked, provisioner=None),))
    assert found(waits_for_a_node, NOW + 200) == []


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("pods is forbidden: exceeded quota: few, requested: pods=1", ProblemReason.QUOTA_EXCEEDED),
        ("admission webhook denied the request", ProblemReason.POD_REFUSED),
    ],
)
def test_pods_that_cannot_be_made(message: str, reason: ProblemReason) -> None:
    assert SEEN.workload is not None
    observed = replace(SEEN, workload=replace(SEEN.workload, failed_create=message), pods=SEEN.pods[:1])
    assert found(observed) == [(None, reason.value)]
    said = status(SPEC, observed, decide(SPEC, observed, NOW), NOW)
    assert (said.conditions[0].status, said.conditions[0].reason) == ("False", reason.value)


MAY_STAY_READY = {
    ProblemReason.SPEC_INVALID: False,
    ProblemReason.PASS_FAILED: False,
    ProblemReason.TEMPLATE_INVALID: False,
    ProblemReason.SETTINGS_INVALID: False,
    ProblemReason.PERMISSION_DENIED: False,
    ProblemReason.NAME_TAKEN: False,
    ProblemReason.CHILD_REFUSED: False,
    ProblemReason.KEYS_MISSING: False,
    ProblemReason.QUOTA_EXCEEDED: False,
    ProblemReason.POD_REFUSED: False,
    ProblemReason.STORAGE_CLASS_MISSING: False,
    ProblemReason.CLAIM_PENDING: False,
    ProblemReason.STORE_OF_ANOTHER_FLEET: False,
    ProblemReason.STORE_UNUSABLE: False,
    ProblemReason.STORE_DAMAGED: False,
    ProblemReason.TOKENIZER_UNREACHABLE: False,
    ProblemReason.ROLL_STOPPED: False,
    ProblemReason.IMAGE_PULL_FAILED: False,
    ProblemReason.CONTAINER_CONFIG_ERROR: False,
    ProblemReason.CRASH_LOOPING: False,
    ProblemReason.NODE_LOST: False,
    ProblemReason.STUCK_TERMINATING: True,  # whatever takes its place is there and ready
    ProblemReason.WAITING_FOR_GPUS: False,
    ProblemReason.UNSCHEDULABLE: False,
    ProblemReason.UNRESPONSIVE: False,
    ProblemReason.NOT_READY_IN_TIME: False,
    ProblemReason.UNDUMPED_TURNS: True,  # of a pod that leaves
    ProblemReason.VOLUME_FULL: False,  # turns are refused
    ProblemReason.STORE_LOST: True,  # it is over; `Durable` says it
    ProblemReason.OOM_KILLED: True,
    ProblemReason.BUDGET_TOO_SMALL: True,  # `MemoryWithinBudget` says it
    ProblemReason.DUMP_FAILING: True,  # `CleanupHealthy` says it
    ProblemReason.RESTART_STUCK: True,
    ProblemReason.DRAINED_BY_HAND: True,
    ProblemReason.NODE_CORDONED: True,  # it serves, and a drain waits
    ProblemReason.KEY_NOT_TAKEN: False,
    ProblemReason.STATS_UNKNOWN: True,  # agents may reach it nevertheless
    ProblemReason.SETTINGS_REFUSED: False,
    ProblemReason.NEEDS_RESTART: False,
    ProblemReason.PAUSE_TOO_LONG: True,  # the trainer's will; `Paused` says it
    ProblemReason.STORAGE_CANT_GROW: False,
    ProblemReason.FIELDS_LOST: False,
    ProblemReason.OVER_BUDGET: True,  # `MemoryWithinBudget` says it
    ProblemReason.FIELDS_UNKNOWN: True,  # the message says so
    ProblemReason.CHILD_FOUGHT_OVER: False,
    ProblemReason.TWO_OPERATORS: True,
}


def test_a_cordoned_node_names_pod_and_field_unless_maintenance_is_announced() -> None:
    observed = with_pod(cordoned_node="node-a")
    (problem,) = decide(SPEC, observed, NOW).problems
    assert problem.pod == FIRST.name
    assert "node-a" in problem.message and "spec.disruption.maintenance" in problem.message
    assert decide(fleet(replicas=2, disruption={"maintenance": True}), observed, NOW).problems == ()
    assert found(with_pod(cordoned_node="node-a", terminating_since=NOW)) == []


@pytest.mark.parametrize("reason", ProblemReason)
def test_ready_stays_true_with_these_problems_and_no_others(reason: ProblemReason) -> None:
    observed = replace(SEEN, problems=(Problem(reason, "so it is"),))
    assert found(observed) == [(None, reason.value)]
    ready = conditions(observed)["Ready"]
    if MAY_STAY_READY[reason]:
        assert (ready.status, ready.reason) == ("True", "Serving")
    else:
        assert (ready.status, ready.reason, ready.message) == ("False", reason.value, "so it is")


@pytest.mark.parametrize(
    ("reason", "stalled"),
    [
        (ProblemReason.TEMPLATE_INVALID, True),
        (ProblemReason.STORE_OF_ANOTHER_FLEET, True),
        (ProblemReason.QUOTA_EXCEEDED, False),
        (ProblemReason.IMAGE_PULL_FAILED, False),
        (ProblemReason.NODE_LOST, False),
    ],
)
def test_it_is_stalled_by_what_time_alone_does_not_mend(reason: ProblemReason, stalled: bool) -> None:
    said = conditions(replace(SEEN, problems=(Problem(reason, "so it is"),)))["Stalled"]
    assert (said.status, said.reason) == (("True", reason.value) if stalled else ("False", "NotStalled"))


@pytest.mark.parametrize(
    ("cause", "stalled"),
    [
        (ProblemReason.IMAGE_PULL_FAILED, ("False", "NotStalled")),
        (ProblemReason.CONTAINER_CONFIG_ERROR, ("True", "ContainerConfigError")),
    ],
)
def test_a_roll_that_is_stopped_is_stalled_where_its_cause_needs_somebody(
    cause: ProblemReason, stalled: tuple[str, str]
) -> None:
    new = replace(OF_A_POD[cause].pods[0], template_hash="t9")
    said = conditions(replace(SEEN, template_hash="t9", pods=(new, *SEEN.pods[1:])))
    assert said["Ready"].reason == "RollStopped"
    assert (said["Stalled"].status, said["Stalled"].reason) == stalled


def test_a_problem_of_a_pod_that_leaves_leaves_the_fleet_ready() -> None:
    leaving = replace(FIRST, name="math-proxy-2", uid="u9", ordinal=2)
    assert SEEN.workload is not None
    observed = replace(SEEN, pods=(*SEEN.pods, leaving), workload=replace(SEEN.workload, replicas=3))
    full = replace(observed, problems=(Problem(ProblemReason.VOLUME_FULL, "full", leaving.name),))
    assert conditions(full)["Ready"].status == "True"
    assert conditions(replace(full, problems=(replace(full.problems[0], pod=FIRST.name),)))["Ready"].status == "False"


def test_ready_waits_for_settings_that_are_taken_while_a_proxy_runs() -> None:
    observed = replace(SEEN, generation=SEEN.generation + 1)
    said = conditions(observed)
    assert (said["Ready"].status, said["Ready"].reason) == ("False", "SettingsPending")
    assert said["Progressing"].status == "True"


def test_ready_waits_for_proxies_that_do_not_answer_unless_they_had_the_settings() -> None:
    silent = replace(SEEN, pods=tuple(replace(pod, stats=None, unanswered=1) for pod in SEEN.pods))
    assert conditions(silent)["Ready"].status == "True"
    edited = conditions(replace(silent, generation=SEEN.generation + 1))["Ready"]
    assert (edited.status, edited.reason) == ("False", "SettingsPending")


def test_an_update_that_waits_for_a_request_is_said_and_leaves_it_ready() -> None:
    """The settings that change while it runs are in force; others wait with the template."""
    waits: dict[str, Any] = {"live_generation": SEEN.generation + 1, "needs_restart": ("log.level",)}
    assert FIRST.stats is not None
    pods = tuple(replace(pod, template_hash="t0", stats=replace(FIRST.stats, **waits)) for pod in SEEN.pods)
    observed = replace(SEEN, generation=SEEN.generation + 1, pods=pods)
    on_request = SPEC.model_copy(update={"update_policy": "OnRequest"})
    said = conditions(observed, on_request)
    assert (said["UpdateAvailable"].status, said["UpdateAvailable"].reason) == ("True", "UpdateWaits")
    assert said["Ready"].status == "True" and said["SettingsInForce"].status == "False"
    asked = on_request.model_copy(update={"restart": RestartSpec(id="now")})
    for spec in (SPEC, asked):
        said = conditions(observed, spec)
        assert (said["UpdateAvailable"].status, said["Ready"].status) == ("False", "False")


def test_a_store_that_is_another_than_before_is_counted_and_said_for_a_day() -> None:
    first = said_of(SEEN)
    assert [(each.ordinal, each.id, each.lost) for each in first.stores] == [(0, "s0", 0), (1, "s1", 0)]
    remade = replace(with_pod(stats={"store_id": "other"}), status=first)
    lost = said_of(remade)
    assert [(each.id, each.lost) for each in lost.stores] == [("other", 1), ("s1", 0)]
    assert [(each.pod, each.reason) for each in lost.problems] == [(FIRST.name, "StoreLost")]
    durable = {each.type: each for each in lost.conditions}["Durable"]
    assert (durable.status, durable.reason) == ("False", "StoreLost")
    events = [each for each in decide(SPEC, remade, NOW).actions if isinstance(each, EmitEvent)]
    assert [(each.reason, each.pod, each.warning) for each in events] == [("StoreLost", FIRST.name, True)]
    same = replace(remade, status=lost)
    assert said_of(same, NOW + 1000) == lost
    again = replace(with_pod(stats={"store_id": "third"}), status=lost)
    for seen, told in ((same, []), (again, [("StoreLost", FIRST.name)])):
        events = [each for each in decide(SPEC, seen, NOW + 1000).actions if isinstance(each, EmitEvent)]
        assert [(each.reason, each.pod) for each in events] == told
    later = said_of(same, NOW + LOSS_SHOWN_FOR)
    assert later.problems == [] and later.stores == lost.stores


def test_a_silent_proxy_has_the_store_that_it_had_and_ephemeral_ones_have_none() -> None:
    first = said_of(SEEN)
    assert said_of(replace(with_pod(stats=None), status=first)).stores == first.stores
    storage = SPEC.proxies.storage.model_copy(update={"ephemeral": True})
    ephemeral = SPEC.model_copy(update={"proxies": SPEC.proxies.model_copy(update={"storage": storage})})
    assert status(ephemeral, SEEN, decide(ephemeral, SEEN, NOW), NOW).stores == []


def said_of(observed: ObservedFleet, now: float = NOW) -> FleetStatus:
    return status(SPEC, observed, decide(SPEC, observed, now), now)


def test_of_engines_that_wait_for_gpus() -> None:
    waits = ObservedOtherPod(
        name="math-engine-0", ready=False, created=NOW, unschedulable="1 Insufficient nvidia.com/gpu"
    )
    observed = replace(SEEN, engines=ObservedEngines(urls=(), deployment=ObservedDeployment(replicas=1, pods=(waits,))))
    observed = replace(observed, gateway=replace(SEEN.gateway, lists={GATEWAY: ()}))
    assert found(observed) == [("math-engine-0", "WaitingForGpus")]
    said = {each.type: each for each in status(SPEC, observed, decide(SPEC, observed, NOW), NOW).conditions}
    assert (said["EnginesReady"].status, said["EnginesReady"].reason) == ("False", "WaitingForGpus")


def with_engine(stats: dict[str, Any], **changes: Any) -> ObservedFleet:
    """The fleet with an engine of its own, an old one that is not Ready, and figures of a proxy."""
    seen = {"ready": False, "created": NOW - 2 * READY_WITHIN, "ready_since": NOW - SILENT_AFTER - 1, **changes}
    container = ObservedContainer(running=True, started=True)
    engine = ObservedOtherPod(**{"name": "math-engine-0", "container": container, **seen})
    observed = replace(with_pod(stats=stats), gateway=replace(SEEN.gateway, lists={GATEWAY: ()}))
    return replace(
        observed, engines=ObservedEngines(urls=(), deployment=ObservedDeployment(replicas=1, pods=(engine,)))
    )


def test_an_engine_that_is_silent_while_calls_wait_is_named() -> None:
    assert found(with_engine({"in_flight": 1})) == [("math-engine-0", "Unresponsive")]


@pytest.mark.parametrize(
    ("stats", "changes"),
    [
        ({}, {}),
        ({"in_flight": 1, "paused": True}, {}),
        ({"in_flight": 1}, {"ready": True}),
        ({"in_flight": 1}, {"ready_since": NOW - SILENT_AFTER + 1}),
        ({"in_flight": 1}, {"terminating_since": NOW - 1}),
        ({"in_flight": 1}, {"container": ObservedContainer(running=True)}),
    ],
    ids=["no calls", "paused", "ready", "for a moment", "it ends", "it starts"],
)
def test_an_engine_that_has_a_reason_to_be_silent_is_no_problem(stats: Any, changes: Any) -> None:
    assert found(with_engine(stats, **changes)) == []


def test_an_engine_that_loads_its_weights_is_late_when_its_start_up_probe_has_failed() -> None:
    loads = ObservedContainer(running=True)

    def of_engine(container: ObservedContainer, age: float) -> list[tuple[str | None, str]]:
        return found(with_engine({}, container=container, created=NOW - age, ready_since=NOW - age))

    assert of_engine(loads, LOADED_WITHIN) == []
    assert of_engine(loads, LOADED_WITHIN + 1) == [("math-engine-0", "NotReadyInTime")]
    assert of_engine(ObservedContainer(), READY_WITHIN + 1) == [("math-engine-0", "NotReadyInTime")]


def test_an_oom_kill_is_forgotten_in_time() -> None:
    assert found(OF_A_POD[ProblemReason.OOM_KILLED], NOW + OOM_SHOWN_FOR) == []


def test_a_worker_alone_that_was_killed_for_its_memory_is_named_for_as_long() -> None:
    """The container went on, so that the kubelet says nothing."""
    entry = RestartStatus(pod=FIRST.name, uid=FIRST.uid, reason="oom", time=text_of(NOW - 60), before=1, after=1)
    observed = replace(SEEN, status=replace_restarts(last=[entry]))
    assert found(observed) == [(FIRST.name, "OOMKilled")]
    assert found(observed, NOW + OOM_SHOWN_FOR) == []
    crashed = entry.model_copy(update={"reason": "crash"})
    assert found(replace(SEEN, status=replace_restarts(last=[crashed]))) == []


def replace_restarts(last: list[RestartStatus]) -> FleetStatus:
    """The status at rest, with these restarts."""
    return SEEN.status.model_copy(update={"restarts": SEEN.status.restarts.model_copy(update={"last": last})})


def test_a_loop_is_a_loop_also_while_it_runs_for_a_moment() -> None:
    runs = ObservedContainer(running=True, restarts=5, last_end="Error", last_exit=1)
    assert found(down(runs)) == found(down(replace(runs, running=False, waiting="CrashLoopBackOff")))


def test_the_worst_comes_first_and_ten_at_most() -> None:
    all_there_are = tuple(Problem(reason, "so it is") for reason in reversed(ProblemReason))
    shown = found(replace(SEEN, problems=all_there_are))
    assert [reason for _, reason in shown] == [each.value for each in ProblemReason][:10]


def test_a_problem_is_known_since_it_was_first_seen() -> None:
    observed = OF_A_POD[ProblemReason.DUMP_FAILING]
    first = status(SPEC, observed, decide(SPEC, observed, NOW), NOW)
    later = replace(observed, status=first)
    assert status(SPEC, later, decide(SPEC, later, NOW + 500), NOW + 500) == first


def test_a_healthy_fleet_has_none_and_says_so() -> None:
    said = status(SPEC, SEEN, decide(SPEC, SEEN, NOW), NOW)
    assert said.problems == []
    assert said.current is None
    assert {each.type: each.status for each in said.conditions} == {
        **dict.fromkeys(["Ready", "ProxiesReady", "GatewayReady", "EnginesReady"], "True"),
        **dict.fromkeys(["MemoryWithinBudget", "SettingsInForce", "CleanupHealthy", "Durable"], "True"),
        **dict.fromkeys(["Progressing", "UpdateAvailable", "Stalled", "Paused", "Suspended"], "False"),
    }
    assert {each.observed_generation for each in said.conditions} == {SEEN.generation}


def test_it_is_the_same_at_any_later_time_and_whatever_figures_move() -> None:
    first = status(SPEC, SEEN, decide(SPEC, SEEN, NOW), NOW)
    moved = [
        replace(pod, stats=replace(pod.stats, rss=pod.stats.rss + place, in_flight=place, sessions_open=place))
        for place, pod in enumerate(SEEN.pods)
        if pod.stats is not None
    ]
    later = replace(SEEN, status=first, pods=tuple(moved))
    assert status(SPEC, later, decide(SPEC, later, NOW + 1e6), NOW + 1e6) == first


def test_ready_is_true_only_when_all_is_updated_and_ready_and_so_is_the_gateway() -> None:
    def ready(observed: ObservedFleet) -> tuple[str, str]:
        said = status(SPEC, observed, decide(SPEC, observed, NOW), NOW).conditions[0]
        return said.status, said.message

    assert ready(SEEN)[0] == "True"
    outdated = with_pod(template_hash="t0")
    assert ready(outdated)[0] == "False"
    assert ready(replace(SEEN, pods=SEEN.pods[:1]))[0] == "False"
    unready = ready(with_pod(ready=False, stats={}))
    assert unready[0] == "False"
    assert FIRST.name in unready[1]
    no_gateway = replace(SEEN.gateway, deployment=ObservedDeployment(replicas=1))
    assert ready(replace(SEEN, gateway=no_gateway)) == ("False", "math-gateway is not ready yet")


def conditions(observed: ObservedFleet, spec: FleetSpec = SPEC) -> dict[str, ConditionStatus]:
    return {each.type: each for each in status(spec, observed, decide(spec, observed, NOW), NOW).conditions}


def rolling(part: str, **changes: Any) -> ObservedFleet:
    """The fleet with a Deployment that is on its way to another template; the old pods are ready."""
    observed: ObservedGateway | ObservedEngines = getattr(SEEN, part)
    assert observed.deployment is not None
    changed: dict[str, Any] = {part: replace(observed, deployment=replace(observed.deployment, **changes))}
    return replace(SEEN, **changed)


STUCK = ObservedOtherPod(name="math-x", ready=False, created=NOW, unschedulable="0/3 nodes match the node selector.")
ROLLS: dict[str, tuple[dict[str, Any], str]] = {
    "the new pod comes beside the old one": ({"there": 2, "updated": 1, "ready": 1}, "RollingOut"),
    "the new pod finds no node": ({"there": 2, "updated": 1, "ready": 1, "pods": (STUCK,)}, "Unschedulable"),
    "no new pod is there yet": ({"updated": 0}, "RollingOut"),
    "its controller has not looked yet": ({"current": False}, "RollingOut"),
    "this generation is not applied yet": ({"as_asked": False}, "RollingOut"),
    "it was scaled by hand": ({"replicas": 2, "there": 2, "updated": 2, "ready": 2}, "RollingOut"),
    "no new pod can be made": ({"updated": 0, "failed_create": "exceeded quota: few"}, "QuotaExceeded"),
}


@pytest.mark.parametrize("part", ["gateway", "engines"])
@pytest.mark.parametrize("roll", ROLLS)
def test_ready_waits_for_a_roll_of_gateway_or_engines_that_is_not_over(part: str, roll: str) -> None:
    changes, reason = ROLLS[roll]
    said = conditions(rolling(part, **changes))
    assert (said["Ready"].status, said["Ready"].reason) == ("False", reason)
    of_the_part = said["GatewayReady" if part == "gateway" else "EnginesReady"]
    assert (of_the_part.status, of_the_part.reason) == ("False", reason)
    assert said["ProxiesReady"].status == "True"
    assert said["Progressing"].status == ("False" if reason == "QuotaExceeded" else "True")


def test_a_pod_template_of_the_gateway_that_cannot_be_used_is_why_it_is_not_as_asked() -> None:
    refused = Problem(ProblemReason.TEMPLATE_INVALID, "spec.gateway.podTemplate.x: no such field")
    said = conditions(replace(rolling("gateway", as_asked=False), problems=(refused,)))
    assert {said[kind].reason for kind in ("Ready", "GatewayReady", "Progressing")} == {"TemplateInvalid"}


def test_engines_of_others_roll_without_it() -> None:
    spec = SPEC.model_copy(update={"engine": None, "gateway": SPEC.gateway.model_copy(update={"engines": OTHERS})})
    observed = replace(SEEN, engines=ObservedEngines(urls=(ENGINE,)))
    assert conditions(observed, spec)["Ready"].status == "True"


def test_when_a_condition_changed_is_kept_until_it_changes() -> None:
    first = status(SPEC, SEEN, decide(SPEC, SEEN, NOW), NOW)
    broken = replace(with_pod(ready=False, stats={}), status=first)
    second = status(SPEC, broken, decide(SPEC, broken, NOW + 100), NOW + 100)
    before, after = ({each.type: each for each in said.conditions} for said in (first, second))
    assert before["Ready"].last_transition_time != after["Ready"].last_transition_time
    assert before["GatewayReady"] == after["GatewayReady"]


def test_settings_are_in_force_when_every_proxy_says_so() -> None:
    def in_force(observed: ObservedFleet) -> tuple[str, str]:
        said = status(SPEC, observed, decide(SPEC, observed, NOW), NOW)
        found = next(each for each in said.conditions if each.type == "SettingsInForce")
        return found.status, found.reason

    assert in_force(SEEN) == ("True", "InForce")
    assert in_force(replace(SEEN, generation=SEEN.generation + 1)) == ("False", "SettingsPending")
    silent = with_pod(stats=None)
    assert in_force(replace(silent, status=status(SPEC, SEEN, decide(SPEC, SEEN, NOW), NOW)))[0] == "True"


def test_a_spec_that_cannot_be_read_leaves_the_status_and_says_why() -> None:
    first = status(SPEC, SEEN, decide(SPEC, SEEN, NOW), NOW)
    no = Problem(ProblemReason.SPEC_INVALID, "spec.proxies: no")
    said = unusable(first, no, 7, NOW)
    assert (said.conditions[0].status, said.conditions[0].reason) == ("False", "SpecInvalid")
    assert {each.type: each.status for each in said.conditions}["Stalled"] == "True"
    assert [(each.reason, each.message) for each in said.problems] == [("SpecInvalid", "spec.proxies: no")]
    assert (said.observed_generation, said.ready_replicas) == (7, first.ready_replicas)
    assert unusable(said, no, 7, NOW + 100) == said
    assert len(said.conditions) == len(first.conditions)


def test_a_pod_in_trouble_is_no_pod_of_the_proxies_only() -> None:
    late = ObservedOtherPod(name="math-gateway-0", ready=False, created=NOW - READY_WITHIN - 1)
    gateway = ObservedGateway(deployment=ObservedDeployment(replicas=1, pods=(late,)), lists=SEEN.gateway.lists)
    assert found(replace(SEEN, gateway=gateway)) == [("math-gateway-0", "NotReadyInTime")]
