"""An operator's handling of fleets, edits and refusals, at an API server in memory."""

import asyncio
import base64
import contextlib
import copy
import json
from collections import Counter
from collections.abc import Callable, Set
from itertools import pairwise
from typing import Any

import pytest
from tests.unit.operator.cluster.api_server import ApiServer, Place, Refusal, api_of, now
from tests.unit.operator.cluster.fleets import CHILDREN, OPERATOR, fleet_of
from tests.unit.operator.cluster.operating import FleetThere, operating
from tests.waiting import comes_true

from rolloutfleet.spec import KIND
from rolloutfleet.wire import Drain
from rolloutfleet_operator.cluster import fleets as operators_fleets
from rolloutfleet_operator.cluster import other_operators
from rolloutfleet_operator.cluster.api import Object
from rolloutfleet_operator.cluster.apply import CONFLICTS_ALLOWED
from rolloutfleet_operator.cluster.children import proxies
from rolloutfleet_operator.cluster.children.names import APPLIED_HASH, Fleet
from rolloutfleet_operator.cluster.children.templates import UPDATING_SINCE
from rolloutfleet_operator.cluster.executor import Endpoints, Executor
from rolloutfleet_operator.cluster.fleets import BACKOFF
from rolloutfleet_operator.cluster.gateway_client import GatewayClient
from rolloutfleet_operator.cluster.lease import LeaseLost
from rolloutfleet_operator.cluster.proxy_client import POLL_TIMEOUT, KeyRefused, ProxyClient
from rolloutfleet_operator.cluster.reconciler import REFUSED_FOR, Reconciler
from rolloutfleet_operator.cluster.run import DEFINITION_GONE, CantRun
from rolloutfleet_operator.cluster.slots import LOOKED_AT_WITHIN
from rolloutfleet_operator.policy.actions import Action, AddWorker, AskDrain, Evict, RemoveWorker
from rolloutfleet_operator.policy.observed import ObservedWorker, OtherFleets, ProxyStats
from rolloutfleet_operator.policy.reasons import Metric
from rolloutfleet_operator.policy.scaling import SETTINGS_IN_FORCE_WITHIN

A_LOOK = 2 * other_operators.INTERVAL + BACKOFF.longest
"""Seconds until an operator knows of another, and each fleet of that."""


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


@pytest.fixture
async def fleet(server: ApiServer) -> FleetThere:
    made = FleetThere(server)
    made.apply()
    return made


async def test_one_resource_becomes_all_children(server: ApiServer, fleet: FleetThere) -> None:
    async with operating(server):
        await comes_true(lambda: fleet.children() == CHILDREN)
        await comes_true(lambda: fleet.condition().get("status") == "False")
    assert ("Secret", "rl", "math-keys") in server.objects


async def test_edits_reach_children_and_removed_fields_remove_theirs(server: ApiServer, fleet: FleetThere) -> None:
    fleet.apply(networkPolicy={}, endpoint={"ingress": {"host": "a.b"}})
    async with operating(server):
        await comes_true(lambda: fleet.children() >= CHILDREN)
        kinds = Counter(each.partition("/")[0] for each in fleet.children() - CHILDREN)
        assert kinds == {"NetworkPolicy": 2, "Ingress": 1}
        before = fleet.child("StatefulSet", "math-proxy")["spec"]["template"]
        fleet.apply(sessions={"staleAfter": "90s"})
        await comes_true(lambda: fleet.settings()["sessions"].get("stale_after") == "90s")
        await comes_true(lambda: fleet.children() == CHILDREN)
        assert fleet.child("StatefulSet", "math-proxy")["spec"]["template"] == before, "no pod is outdated by that"
        fleet.apply(image="another:2")
        await comes_true(lambda: "another:2" in json.dumps(fleet.child("StatefulSet", "math-proxy")))


async def test_edits_and_removals_by_hand_are_put_back(server: ApiServer, fleet: FleetThere) -> None:
    async with operating(server) as operator:
        await comes_true(lambda: fleet.children() == CHILDREN)
        await operator.until_passes(2)
        fleet.edit("StatefulSet", "math-proxy", replicas=7)
        await comes_true(lambda: fleet.child("StatefulSet", "math-proxy")["spec"]["replicas"] == 1)
        server.remove("ConfigMap", "rl", "math-settings")
        await comes_true(lambda: fleet.children() == CHILDREN)


async def test_a_child_that_others_change_again_and_again_is_left_for_a_while_and_they_are_named(
    server: ApiServer, fleet: FleetThere
) -> None:
    async with operating(server) as operator:
        await comes_true(lambda: fleet.children() == CHILDREN)
        await operator.until_passes(2)
        for number in range(CONFLICTS_ALLOWED):
            fleet.edit("StatefulSet", "math-proxy", replicas=7 + number)
            await comes_true(lambda: fleet.child("StatefulSet", "math-proxy")["spec"]["replicas"] == 1)
        fleet.edit("StatefulSet", "math-proxy", replicas=20)
        await comes_true(lambda: "ChildFoughtOver" in fleet.problems())
        await comes_true(lambda: fleet.child("StatefulSet", "math-proxy")["spec"]["replicas"] == 1)


async def test_an_event_that_is_said_again_is_counted_up(server: ApiServer, fleet: FleetThere) -> None:
    def refuse(method: str, place: Place, _body: Any) -> None:
        if (method, place.kind) == ("apply", "Service"):
            raise Refusal(403, "Forbidden", "not yours")

    def said() -> list[int]:
        return [each["count"] for each in server.of_kind("Event") if each["reason"] == "PermissionDenied"]

    async with operating(server):
        await comes_true(lambda: fleet.children() == CHILDREN)
        for times in (1, 2, 3):
            server.refusing.append(refuse)
            server.remove("Service", "rl", "math-gateway")
            await comes_true(lambda times=times: said() == [times])  # type: ignore[misc]
            server.refusing.clear()
            await comes_true(lambda: fleet.children() == CHILDREN and "PermissionDenied" not in fleet.problems())


async def test_an_object_of_somebody_else_is_left_alone_and_named(server: ApiServer, fleet: FleetThere) -> None:
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"theirs": "1"}}
    server.put({**theirs, "metadata": {"name": "math-settings", "namespace": "rl"}})
    async with operating(server):
        await comes_true(lambda: fleet.condition().get("reason") == "NameTaken")
        assert fleet.child("ConfigMap", "math-settings")["data"] == {"theirs": "1"}
        server.remove("ConfigMap", "rl", "math-settings")
        await comes_true(lambda: fleet.condition().get("reason") != "NameTaken")
        assert fleet.settings()["generation"] == 1


@pytest.mark.parametrize(
    ("status", "message", "causes", "reason", "said"),
    [
        (
            500,
            ".spec.template.spec.contaners: field not declared in schema",
            (),
            "TemplateInvalid",
            "spec.proxies.podTemplate.spec.contaners: no such field",
        ),
        (
            422,
            "invalid",
            ({"field": "spec.template.spec.containers[0].image", "message": "required"},),
            "TemplateInvalid",
            "spec.containers[0].image: required",
        ),
        (403, "exceeded quota: pods", (), "QuotaExceeded", "exceeded quota"),
        (403, "not yours", (), "PermissionDenied", "not yours"),
        (422, "odd", (), "ChildRefused", "odd"),
    ],
)
async def test_a_refused_child_is_named_and_made_once_it_is_taken(
    server: ApiServer,
    fleet: FleetThere,
    status: int,
    message: str,
    causes: tuple[Any, ...],
    reason: str,
    said: str,
) -> None:
    def refuse(method: str, place: Place, _body: Any) -> None:
        if (method, place.kind) == ("apply", "StatefulSet"):
            raise Refusal(status, "Invalid", message, causes=list(causes))

    server.refusing.append(refuse)
    async with operating(server):
        await comes_true(lambda: reason in fleet.problems())
        assert said in fleet.problems()[reason]
        assert fleet.children() == CHILDREN - {"StatefulSet/math-proxy"}
        server.refusing.clear()
        await comes_true(lambda: fleet.children() == CHILDREN)
        await comes_true(lambda: reason not in fleet.problems())


async def test_a_spec_that_can_not_be_used_is_said_and_a_template_keeps_the_pods(
    server: ApiServer, fleet: FleetThere
) -> None:
    async with operating(server):
        await comes_true(lambda: fleet.children() == CHILDREN)
        before = fleet.child("StatefulSet", "math-proxy")["spec"]["template"]
        fleet.apply(proxies={"podTemplate": {"spec": {"containers": "none"}}})
        await comes_true(lambda: fleet.condition().get("reason") == "TemplateInvalid")
        assert fleet.child("StatefulSet", "math-proxy")["spec"]["template"] == before
        fleet.apply(memory={"samples": 0})
        await comes_true(lambda: "spec.memory.samples" in fleet.condition().get("message", ""))


async def test_a_field_that_it_does_not_know_is_named_and_the_rest_is_made(
    server: ApiServer, fleet: FleetThere
) -> None:
    fleet.apply(proxies={"replicas": 2, "invented": True})
    async with operating(server):
        await comes_true(lambda: "spec.proxies.invented" in fleet.problems().get("FieldsUnknown", ""))
        assert fleet.child("StatefulSet", "math-proxy")["spec"]["replicas"] == 2
        fleet.apply(proxies={"replicas": 2})
        await comes_true(lambda: "FieldsUnknown" not in fleet.problems())


def bind(server: ApiServer, fleet: FleetThere) -> Object:
    """The claim of its first proxy, bound to a volume named pv."""
    [template] = fleet.child("StatefulSet", "math-proxy")["spec"]["volumeClaimTemplates"]
    meta = {**template["metadata"], "name": "state-math-proxy-0", "namespace": "rl"}
    status = {"phase": "Bound", "capacity": template["spec"]["resources"]["requests"]}
    kind = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
    return server.put({**kind, "metadata": meta, "spec": {**template["spec"], "volumeName": "pv"}, "status": status})


async def test_a_claim_that_is_smaller_than_asked_for_grows(server: ApiServer, fleet: FleetThere) -> None:
    async with operating(server):
        await comes_true(lambda: fleet.children() == CHILDREN)
        claim = bind(server, fleet)
        fleet.apply(proxies={"storage": {"size": "90Gi"}})
        asked = {"requests": {"storage": "90Gi"}}
        await comes_true(lambda: fleet.child(claim["kind"], claim["metadata"]["name"])["spec"]["resources"] == asked)


def on_a_cordoned_node(server: ApiServer, fleet: FleetThere, *, label: str) -> None:
    """The first proxy is on node-a, its volume where `label` says, and the node is drained."""
    term = {"matchExpressions": [{"key": label, "operator": "In", "values": ["a"]}]}
    affinity = {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}
    server.put({"kind": "PersistentVolume", "metadata": {"name": "pv", "namespace": ""}, "spec": affinity})
    for name, spec in (("node-a", {"unschedulable": True}), ("node-b", {})):
        server.put({"kind": "Node", "metadata": {"name": name, "namespace": ""}, "spec": spec})
    bind(server, fleet)
    fleet.edit("Pod", "math-proxy-0", nodeName="node-a")


def budget(fleet: FleetThere) -> tuple[int, str]:
    spec = fleet.child("PodDisruptionBudget", "math-proxy")["spec"]
    return spec["maxUnavailable"], spec["unhealthyPodEvictionPolicy"]


OPEN, SHUT = (1, "AlwaysAllow"), (0, "IfHealthyBudget")


async def test_no_drain_takes_a_proxy_whose_volume_is_node_local_until_maintenance_is_announced(
    server: ApiServer, fleet: FleetThere
) -> None:
    async with operating(server) as operator:
        await comes_true(lambda: fleet.children() == CHILDREN)
        assert budget(fleet) == OPEN
        on_a_cordoned_node(server, fleet, label="kubernetes.io/hostname")
        await comes_true(lambda: budget(fleet) == SHUT and "node-a" in fleet.problems().get("NodeCordoned", ""))
        await operator.until_passes(2)
        assert server.asked.count("GET PersistentVolume/pv") == 1
        fleet.apply(disruption={"maintenance": True})
        await comes_true(lambda: budget(fleet) == OPEN and "NodeCordoned" not in fleet.problems())


async def test_a_volume_that_cant_be_read_for_a_moment_is_read_again(server: ApiServer, fleet: FleetThere) -> None:
    def refuse(method: str, place: Place, _body: Any) -> None:
        if place.kind == "PersistentVolume":
            raise Refusal(429, "TooManyRequests", "later")

    async with operating(server):
        await comes_true(lambda: fleet.children() == CHILDREN)
        server.refusing.append(refuse)
        on_a_cordoned_node(server, fleet, label="kubernetes.io/hostname")
        await comes_true(lambda: server.asked.count("GET PersistentVolume/pv") > 1)
        server.refusing.clear()
        await comes_true(lambda: budget(fleet) == SHUT)


async def test_a_volume_that_other_nodes_reach_leaves_its_proxy_to_drains(server: ApiServer, fleet: FleetThere) -> None:
    async with operating(server) as operator:
        await comes_true(lambda: fleet.children() == CHILDREN)
        on_a_cordoned_node(server, fleet, label="topology.kubernetes.io/zone")
        await operator.until_passes(2)
        assert budget(fleet) == OPEN
        assert "NodeCordoned" not in fleet.problems()


def forbidden(*kinds: str) -> Callable[[str, Place, Any], None]:
    """Refuses what is asked of these kinds, as to an operator without the right."""

    def refuse(method: str, place: Place, _body: Any) -> None:
        if place.kind in kinds:
            raise Refusal(403, "Forbidden", "not yours")

    return refuse


async def test_node_local_is_taken_from_the_spec_where_volumes_may_not_be_read(
    server: ApiServer, fleet: FleetThere
) -> None:
    server.refusing.append(forbidden("PersistentVolume", "Node"))
    async with operating(server) as operator:
        await comes_true(lambda: fleet.children() == CHILDREN)
        on_a_cordoned_node(server, fleet, label="kubernetes.io/hostname")
        await operator.until_passes(2)
        assert budget(fleet) == OPEN
        fleet.apply(proxies={"storage": {"nodeLocal": True}})
        await comes_true(lambda: budget(fleet) == SHUT)
        assert "NodeCordoned" not in fleet.problems()


async def test_a_volume_is_read_once_the_right_to_it_is_given(server: ApiServer, fleet: FleetThere) -> None:
    server.refusing.append(forbidden("PersistentVolume"))
    async with operating(server) as operator:
        await comes_true(lambda: fleet.children() == CHILDREN)
        on_a_cordoned_node(server, fleet, label="kubernetes.io/hostname")
        await operator.until_passes(2)
        assert budget(fleet) == OPEN
        server.refusing.clear()
        await comes_true(lambda: budget(fleet) == SHUT)


@pytest.mark.parametrize(("status", "still"), [(403, []), (429, [0]), (500, [0])])
async def test_a_node_stays_lost_while_it_cant_be_read_and_is_unknown_without_the_right(
    server: ApiServer, fleet: FleetThere, status: int, still: list[int]
) -> None:
    def refuse(method: str, place: Place, _body: Any) -> None:
        if place.kind == "Node":
            raise Refusal(status, "Refused", "later")

    def lost() -> list[int]:
        named: list[int] = fleet.settings().get("lost_proxies", [])
        return named

    fleet.apply(memory={"interval": "1s"})
    async with operating(server) as operator:
        await comes_true(lambda: fleet.children() == CHILDREN)
        fleet.edit("Pod", "math-proxy-0", nodeName="gone")
        await comes_true(lambda: lost() == [0] and "NodeLost" in fleet.problems())
        server.refusing.append(refuse)
        await operator.until_passes(3)
        assert lost() == still and ("NodeLost" in fleet.problems()) == bool(still)


async def test_another_operators_defaults_change_the_gateway_at_once_and_engines_when_asked(
    server: ApiServer, fleet: FleetThere
) -> None:
    def image(part: str) -> str:
        (container,) = fleet.child("Deployment", f"math-{part}")["spec"]["template"]["spec"]["containers"]
        return str(container["image"])

    def updating() -> list[str]:
        made = (fleet.child("Deployment", f"math-{part}") for part in ("gateway", "engine"))
        return [each["metadata"]["name"] for each in made if UPDATING_SINCE in each["metadata"]["annotations"]]

    fleet.apply(disruption={"maxUnavailable": 2})  # one proxy is missing
    async with operating(server):
        await comes_true(lambda: fleet.children() == CHILDREN)
    fleet.roll_out()
    engines = fleet.child("Deployment", "math-engine")["metadata"]["generation"]
    later = OPERATOR.model_copy(update={"gateway_image": "gateway:2", "simulated_engine_image": "engine:2"})
    async with operating(server, later):
        await comes_true(lambda: image("gateway") == "gateway:2")
        fleet.roll_out()
        await comes_true(lambda: updating() == [] and fleet.condition("UpdateAvailable")["status"] == "True")
        now = fleet.child("Deployment", "math-engine")["metadata"]["generation"]
        assert (image("engine"), now) == ("engine:1", engines)
        fleet.apply(disruption={"maxUnavailable": 2}, restart={"id": "now"})
        await comes_true(lambda: image("engine") == "engine:2")
        fleet.roll_out()
        await comes_true(lambda: fleet.condition("UpdateAvailable")["status"] == "False")


async def test_a_template_that_is_refused_is_tried_now_and_then_and_takes_no_slot(
    server: ApiServer, fleet: FleetThere
) -> None:
    fleet.apply(disruption={"maxUnavailable": 2})
    async with operating(server):
        await comes_true(lambda: fleet.children() == CHILDREN)
    fleet.roll_out()
    asked: list[float] = []

    def refuse(method: str, place: Place, body: Any) -> None:
        if (method, place.kind) == ("apply", "Deployment") and "engine:2" in json.dumps(body["spec"]):
            asked.append(now())
            raise Refusal(422, "Invalid", "no such thing")

    server.refusing.append(refuse)
    later = OPERATOR.model_copy(update={"simulated_engine_image": "engine:2"})
    fleet.apply(disruption={"maxUnavailable": 2}, restart={"id": "now"})
    async with operating(server, later) as operator:
        await comes_true(lambda: "ChildRefused" in fleet.problems())
        before = len(asked)
        await asyncio.sleep(REFUSED_FOR / 2)
        assert len(asked) == before, "not at every pass"
        assert operator.shared.slots.held == 0 and "ChildRefused" in fleet.problems()
        assert fleet.status["restart"].get("observedID") is None
        server.refusing.clear()
        await asyncio.sleep(REFUSED_FOR)
        await comes_true(lambda: "engine:2" in json.dumps(fleet.child("Deployment", "math-engine")["spec"]))


async def test_an_engine_made_by_an_earlier_release_is_left_as_it_is(server: ApiServer, fleet: FleetThere) -> None:
    """That wrote no note of what it had given."""
    async with operating(server):
        await comes_true(lambda: fleet.children() == CHILDREN)
    made = copy.deepcopy(fleet.child("Deployment", "math-engine"))
    notes = {name: text for name, text in made["metadata"]["annotations"].items() if name == APPLIED_HASH}
    made["spec"]["template"]["spec"]["dnsPolicy"] = "ClusterFirst"  # a default of the API server
    made["status"] = dict.fromkeys(("replicas", "readyReplicas", "updatedReplicas"), 1)
    server.put({**made, "metadata": {**made["metadata"], "annotations": {**notes, APPLIED_HASH: "another"}}})
    template = fleet.child("Deployment", "math-engine")["spec"]["template"]
    async with operating(server):
        await comes_true(lambda: fleet.condition("UpdateAvailable").get("status") == "True")
        assert fleet.child("Deployment", "math-engine")["spec"]["template"] == template
        server.put(made := copy.deepcopy(fleet.child("Deployment", "math-engine")))
        fleet.apply(engine={"gpus": 0, "simulated": {"latency": 1}}, disruption={"maxUnavailable": 2})
        await comes_true(lambda: fleet.child("Deployment", "math-engine")["spec"]["template"] != template)
        assert made["spec"]["template"] == template, "an edit of its own part is due nevertheless"


async def test_ready_stays_false_under_the_next_operator_while_a_child_is_refused(
    server: ApiServer, fleet: FleetThere
) -> None:
    def refuse(method: str, place: Place, _body: Any) -> None:
        if (method, place.kind) == ("apply", "Ingress"):
            raise Refusal(403, "Forbidden", "exceeded quota: few")

    fleet.apply(proxies={"replicas": 0}, endpoint={"ingress": {"host": "a.b"}})
    async with operating(server):
        await comes_true(lambda: fleet.children() >= CHILDREN)
        fleet.roll_out()
        await comes_true(lambda: fleet.condition()["status"] == "True")
        server.remove("Ingress", "rl", "math")
        server.refusing.append(refuse)
        await comes_true(lambda: fleet.condition()["reason"] == "QuotaExceeded")
    told: list[str] = []
    server.watchers.append(lambda kind, of: told.append(fleet.condition()["status"]) if kind == KIND else None)
    said = copy.deepcopy(server.of_kind("Event"))
    async with operating(server) as operator:
        await operator.until_passes(3)
        assert set(told) <= {"False"} and server.of_kind("Event") == said
        server.refusing.clear()
        await comes_true(lambda: fleet.condition()["status"] == "True")


async def test_engines_of_others_are_seen_to_come_and_go_by_the_slices_of_the_fleets_service(
    server: ApiServer, fleet: FleetThere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their pods have no label of ours, so that no watch tells of them."""
    listed: dict[str, ObservedWorker] = {}

    async def lists(*_: Any) -> dict[str, tuple[ObservedWorker, ...]]:
        return {"http://gateway": tuple(listed.values())}

    async def add(_client: GatewayClient, action: AddWorker, *_: Any) -> None:
        listed[action.url] = ObservedWorker(url=action.url, healthy=True, id=action.url)

    async def remove(_client: GatewayClient, action: RemoveWorker, *_: Any) -> None:
        del listed[action.url]

    def slice_changes(ready: bool) -> None:
        labels = fleet.child("Service", "math-engine-pods")["metadata"]["labels"]
        meta = {"name": "math-engine-pods-a", "namespace": "rl", "labels": labels}
        server.put({"kind": "EndpointSlice", "metadata": meta, "endpoints": [{"conditions": {"ready": ready}}]})

    for name, does in (("lists", lists), ("add", add), ("remove", remove)):
        monkeypatch.setattr(GatewayClient, name, does)
    fleet.apply(engine=None, gateway={"engines": {"selector": {"app": "sglang"}}}, memory={"interval": "1h"})
    async with operating(server) as operator:
        await comes_true(lambda: "StatefulSet/math-proxy" in fleet.children())
        await asyncio.sleep(600)
        passes = operator.passes
        status = {"podIP": "10.0.0.9", "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        meta = {"name": "theirs", "namespace": "rl", "labels": {"app": "sglang"}}
        server.put({"kind": "Pod", "metadata": meta, "status": status})
        await asyncio.sleep(600)
        assert operator.passes == passes and not listed
        slice_changes(True)
        await comes_true(lambda: listed.keys() == {"http://10.0.0.9:30000"})
        server.remove("Pod", "rl", "theirs")
        slice_changes(False)
        await comes_true(lambda: not listed)


@pytest.mark.parametrize("right", ["list Pod", "list Deployment", "list ConfigMap", "GET Secret"])
async def test_a_right_to_read_that_is_missing_is_said_and_passes_are_made_again(
    server: ApiServer, fleet: FleetThere, right: str
) -> None:
    def refuse(method: str, place: Place, _body: Any) -> None:
        if f"{method} {place.kind}" == right:
            raise Refusal(403, "Forbidden", f"cannot {right}")

    server.refusing.append(refuse)
    async with operating(server) as operator:
        await comes_true(lambda: operator.figure(Metric.PASS_ERRORS) >= 3)
        assert fleet.children() == set()
        assert f"cannot {right}" in fleet.problems()["PermissionDenied"]
        server.refusing.clear()
        await comes_true(lambda: fleet.children() == CHILDREN)
        await comes_true(lambda: "PermissionDenied" not in fleet.problems())


@pytest.mark.parametrize("reason", ["SpecInvalid", "PermissionDenied"])
async def test_metrics_show_a_fleet_that_cant_be_carried_out_as_its_status_does(
    server: ApiServer, fleet: FleetThere, reason: str
) -> None:
    def refuse(method: str, place: Place, _body: Any) -> None:
        if (method, place.kind) == ("GET", "Secret"):
            raise Refusal(403, "Forbidden")

    fleet.apply(proxies={"replicas": 0})
    async with operating(server) as operator:

        def figures() -> tuple[float | None, ...]:
            shown = operator.shared.metrics.registry.get_sample_value
            ready = (shown(Metric.FLEETS, {"condition": "Ready", "status": each}) for each in ("True", "False"))
            return (*ready, shown(Metric.PROBLEMS, {"reason": reason}))

        await comes_true(lambda: fleet.children() == CHILDREN)
        fleet.roll_out()
        await comes_true(lambda: figures() == (1, None, None))
        if reason == "PermissionDenied":
            server.refusing.append(refuse)
        fleet.apply(memory={"samples": 0 if reason == "SpecInvalid" else 2})
        await comes_true(lambda: fleet.condition()["reason"] == reason)
        assert figures() == (None, 1, 1)


@pytest.mark.parametrize("reason", ["NameTaken", "SpecInvalid", "PermissionDenied"])
async def test_a_status_names_the_lease_of_the_operator_that_wrote_it(
    server: ApiServer, fleet: FleetThere, reason: str
) -> None:
    def refuse(method: str, place: Place, _body: Any) -> None:
        if (method, place.kind) == ("GET", "Secret"):
            raise Refusal(403, "Forbidden")

    async with operating(server):
        await comes_true(lambda: fleet.status.get("operator") == f"ops/{OPERATOR.lease_name}")
    if reason == "NameTaken":
        server.remove("ConfigMap", "rl", "math-settings")
        server.put({"kind": "ConfigMap", "metadata": {"name": "math-settings", "namespace": "rl"}})
    elif reason == "PermissionDenied":
        server.refusing.append(refuse)
    else:
        fleet.apply(memory={"samples": 0})
    async with operating(server, OPERATOR.model_copy(update={"lease_namespace": "other"})):
        await comes_true(lambda: reason in fleet.problems(), seconds=A_LOOK)
        assert fleet.status["operator"] == f"other/{OPERATOR.lease_name}"
        assert fleet.status["operatorVersion"] == "0.1.0"


async def test_a_fleet_that_is_deleted_goes_with_all_that_is_its_own(server: ApiServer, fleet: FleetThere) -> None:
    async with operating(server) as operator:
        await comes_true(lambda: fleet.children() == CHILDREN)
        server.remove(KIND, "rl", "math")
        await operator.until_passes(1)
        assert fleet.children() == set()
        assert operator.shared.slots.other_fleets("rl/another", 0.0).known


async def test_a_fleet_made_again_while_its_pass_finds_it_gone_is_looked_after(
    server: ApiServer, fleet: FleetThere, monkeypatch: pytest.MonkeyPatch
) -> None:
    reconcile = Reconciler.reconcile

    async def made_again(self: Reconciler, changed: Set[str]) -> float | None:
        next_in = await reconcile(self, changed)
        if next_in is None and not server.of_kind(KIND):
            fleet.apply()
            await asyncio.sleep(1)  # the watch tells of it
        return next_in

    monkeypatch.setattr(Reconciler, "reconcile", made_again)
    async with operating(server):
        await comes_true(lambda: fleet.children() == CHILDREN)
        server.remove(KIND, "rl", "math")
        await comes_true(lambda: fleet.children() == CHILDREN)


async def test_at_rest_nothing_is_written_but_the_lease_and_a_change_makes_it_read_little(
    server: ApiServer, fleet: FleetThere
) -> None:
    fleet.apply(memory={"interval": "1s"})
    async with operating(server) as operator:
        await comes_true(lambda: fleet.children() == CHILDREN)
        await operator.until_passes(3)
        server.asked.clear()
        await operator.until_passes(3)
        written = {each for each in server.asked if not each.startswith(("GET", "list"))}
        assert written <= {"PUT Lease/rolloutfleet-operator"}
        assert not any(each.startswith("list Ingress") for each in server.asked)
        server.asked.clear()
        fleet.apply(proxies={"replicas": 3}, memory={"interval": "1s"})
        more = 2 * SETTINGS_IN_FORCE_WITHIN
        await comes_true(lambda: fleet.child("StatefulSet", "math-proxy")["spec"]["replicas"] == 3, seconds=more)
        assert not any(each.startswith("list Ingress") for each in server.asked)


async def test_a_second_operator_waits_until_the_first_is_gone(server: ApiServer, fleet: FleetThere) -> None:
    async with operating(server) as first:
        await comes_true(lambda: fleet.children() == CHILDREN)
        async with operating(server, identity="two") as second:
            await asyncio.sleep(60)
            assert first.lease.leading.is_set() and not second.lease.leading.is_set() and second.passes == 0
            first.task.cancel()
            await comes_true(second.lease.leading.is_set)
            server.remove("Service", "rl", "math")
            await comes_true(lambda: fleet.children() == CHILDREN)


async def test_a_pass_under_way_ends_with_the_lease(
    server: ApiServer, fleet: FleetThere, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, cut = asyncio.Event(), asyncio.Event()

    async def hangs(*_: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cut.set()

    def refuse(method: str, place: Place, _body: Any) -> None:
        if (method, place.kind) == ("PUT", "Lease"):
            raise Refusal(503, "ServiceUnavailable")

    monkeypatch.setattr(Reconciler, "reconcile", hangs)
    async with operating(server) as operator:
        await begun.wait()
        server.refusing.append(refuse)
        await comes_true(cut.is_set)
        assert not operator.lease.leading.is_set()
        begun.clear()
        server.refusing.clear()
        await begun.wait()  # and another begins when it is held again


@pytest.mark.parametrize("method", ["apply", "DELETE"])
async def test_a_machine_that_was_suspended_writes_no_further_child_before_it_has_the_lease_again(
    server: ApiServer, fleet: FleetThere, method: str
) -> None:
    slept, lease = 0.0, "PUT Lease/rolloutfleet-operator"
    fleet.apply(networkPolicy={})

    def suspend(asked: str, place: Place, _body: Any) -> None:
        nonlocal slept
        if asked == method and place.kind != "Secret" and not slept:
            slept = 30.0
            server.asked.clear()

    async with operating(server, boot=lambda: now() + slept):
        if method == "DELETE":
            await comes_true(lambda: "NetworkPolicy/math" in fleet.children())
        server.refusing.append(suspend)
        fleet.apply()
        await comes_true(lambda: lease in server.asked)
        before = server.asked[: server.asked.index(lease)]
        assert slept and not [each for each in before if each.startswith(method)]
        await comes_true(lambda: fleet.children() == CHILDREN)


@pytest.mark.parametrize(
    "action",
    [
        AskDrain(pod="math-proxy-0", id="1", mode="cordon", then="stay", ttl=60, reason=""),
        Evict(pod="math-proxy-0", uid="1", why=""),
    ],
)
async def test_an_operator_that_may_not_act_any_more_disturbs_no_proxy(server: ApiServer, action: Action) -> None:
    def lost() -> None:
        raise LeaseLost

    nobody: Any = None
    there = Endpoints(pods={}, proxies={"math-proxy-0": ("http://10.0.0.1:1", "a key")}, gateways=[])
    async with api_of(server) as api:
        with pytest.raises(LeaseLost):
            await Executor(api, nobody, nobody).execute(fleet_of(), [action], there, check=lost, now=now())
    assert server.asked == []


async def test_figures_of_fleets_are_shown_only_by_the_operator_that_acts(server: ApiServer, fleet: FleetThere) -> None:
    def refuse(method: str, place: Place, _body: Any) -> None:
        if (method, place.kind) == ("PUT", "Lease"):
            raise Refusal(503, "ServiceUnavailable")

    not_ready = {"condition": "Ready", "status": "False"}
    async with operating(server) as operator:
        registry = operator.shared.metrics.registry
        await comes_true(lambda: registry.get_sample_value(Metric.FLEETS, not_ready) == 1)
        await operator.until_passes(2)
        operator.shared.slots.note("rl/math", held=1, slot_requests=())
        assert operator.figure(Metric.SLOTS_HELD) == 1
        server.refusing.append(refuse)
        await comes_true(lambda: not operator.lease.leading.is_set())
        assert registry.get_sample_value(Metric.FLEETS, not_ready) is None
        assert operator.figure(Metric.SLOTS_HELD) == 0
        server.refusing.clear()
        await comes_true(lambda: registry.get_sample_value(Metric.FLEETS, not_ready) == 1)


async def test_a_pass_that_is_cut_while_it_waits_for_a_turn_gives_none_back(
    server: ApiServer, fleet: FleetThere, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered, turns = asyncio.Event(), asyncio.Event(), asyncio.Semaphore(1)

    async def stats(*_: Any, **__: Any) -> None:
        asked.set()
        await answered.wait()

    async with operating(server) as operator:
        await comes_true(lambda: fleet.children() == CHILDREN)
        operator.task.cancel()
        await asyncio.wait({operator.task})
        monkeypatch.setattr(ProxyClient, "stats", stats)
        fleet.become_ready("math-proxy-0")
        one = Reconciler(operator.shared, "rl", "math", turns=turns, check=operator.lease.check)
        under_way = asyncio.create_task(one.reconcile(frozenset()))
        await asked.wait()
        async with turns:
            answered.set()
            await asyncio.sleep(1)
            under_way.cancel()
            await asyncio.gather(under_way, return_exceptions=True)
            assert turns.locked()
        assert not turns.locked()


async def test_of_two_operators_of_the_whole_cluster_the_older_acts_and_the_fleet_says_so(
    server: ApiServer, fleet: FleetThere
) -> None:
    younger = OPERATOR.model_copy(update={"lease_namespace": "other"})
    async with operating(server) as first:
        await comes_true(first.lease.leading.is_set)
        async with operating(server, younger, identity="two") as second:
            await comes_true(lambda: "TwoOperators" in fleet.problems(), seconds=A_LOOK)
            assert second.passes == 0
            first.task.cancel()
            await comes_true(lambda: second.passes > 0, seconds=A_LOOK)
            await comes_true(lambda: "TwoOperators" not in fleet.problems(), seconds=A_LOOK)


async def test_an_operator_of_the_whole_cluster_leaves_a_namespace_to_its_own(
    server: ApiServer, fleet: FleetThere
) -> None:
    own = OPERATOR.model_copy(update={"namespace": "rl", "lease_namespace": "rl"})
    async with operating(server, own) as first:
        await comes_true(lambda: fleet.children() == CHILDREN)
        async with operating(server, identity="two") as wide:
            await asyncio.sleep(120)
            assert wide.lease.leading.is_set() and wide.passes == 0
            first.task.cancel()
            server.remove("Service", "rl", "math")
            await comes_true(lambda: fleet.children() == CHILDREN, seconds=A_LOOK)


async def test_it_waits_for_the_definition_and_ends_when_that_is_gone(server: ApiServer, fleet: FleetThere) -> None:
    def refuse(_method: str, place: Place, _body: Any) -> None:
        if place.kind == KIND:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")

    server.refusing.append(refuse)
    async with operating(server) as operator:
        await asyncio.sleep(60)
        assert fleet.children() == set() and not operator.task.done()
        server.refusing.clear()
        await comes_true(lambda: fleet.children() == CHILDREN)
        server.refusing.append(refuse)
        server.definition_gone.set()
        with pytest.raises(CantRun, match=DEFINITION_GONE):
            await operator.task


async def test_a_new_key_comes_before_the_old_one_goes(server: ApiServer, fleet: FleetThere) -> None:
    none: dict[str, Any] = {"proxies": {"replicas": 0}, "memory": {"interval": "1s"}}
    fleet.apply(**none, auth={"overlap": "15s"})
    async with operating(server):
        await comes_true(lambda: fleet.children() == CHILDREN)
        [old] = fleet.keys()
        fleet.apply(**none, auth={"overlap": "15s", "rotate": {"id": "2"}})
        await comes_true(lambda: len(fleet.keys()) == 2)
        await comes_true(lambda: fleet.keys()[-1] == old)
        await comes_true(lambda: len(fleet.keys()) == 1)
        assert fleet.keys() != [old]


def put_keys(server: ApiServer, name: str) -> None:
    """A Secret of somebody's own, whose admin key is its name."""
    data = {"admin-keys": base64.b64encode(name.encode()).decode()}
    server.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "rl"}, "data": data})


async def test_another_secret_of_admin_keys_reaches_a_proxy_that_takes_the_key_of_the_one_before(
    server: ApiServer, fleet: FleetThere, monkeypatch: pytest.MonkeyPatch
) -> None:
    drained: list[str] = []

    async def stats(_client: ProxyClient, url: str, key: str, **_: Any) -> ProxyStats:
        if key != "before":
            raise KeyRefused(url)
        return ProxyStats(rss=1)

    async def drain(_client: ProxyClient, _url: str, key: str, asked: AskDrain) -> str:
        drained.append(key)
        return ""

    monkeypatch.setattr(ProxyClient, "stats", stats)
    monkeypatch.setattr(ProxyClient, "drain", drain)
    put_keys(server, "before")
    put_keys(server, "after")
    fleet.apply(auth={"secret": "before"}, disruption={"maxUnavailable": 2})
    async with operating(server) as operator:
        await comes_true(lambda: fleet.children() == CHILDREN)
        fleet.roll_out()
        fleet.become_ready("math-proxy-0")
        await operator.until_passes(2)
        assert drained == []
        before = fleet.child("StatefulSet", "math-proxy")["metadata"]["generation"]
        fleet.apply(auth={"secret": "after"}, disruption={"maxUnavailable": 2})
        await comes_true(lambda: fleet.child("StatefulSet", "math-proxy")["metadata"]["generation"] > before)
        fleet.roll_out()
        await comes_true(lambda: drained != [])
        assert set(drained) == {"before"} and "KeyNotTaken" not in fleet.problems()
        server.remove("Secret", "rl", "before")
        await comes_true(lambda: "KeyNotTaken" in fleet.problems())


async def test_a_pass_that_ends_in_an_error_is_said_of_its_fleet_and_the_others_go_on(
    server: ApiServer, fleet: FleetThere, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = FleetThere(server, "other")
    other.apply()
    template, broken = proxies.template, [True]

    def breaks(of: Fleet, *more: Any) -> Any:
        if of.name == "math" and broken:
            raise RuntimeError("no such thing")
        return template(of, *more)

    monkeypatch.setattr(proxies, "template", breaks)
    async with operating(server):
        await comes_true(lambda: fleet.condition().get("reason") == "PassFailed")
        assert "RuntimeError: no such thing" in fleet.problems()["PassFailed"]
        assert fleet.condition("Progressing")["status"] == "False"
        assert fleet.condition("Stalled")["status"] == "True"
        await comes_true(lambda: "StatefulSet/other-proxy" in other.children())
        assert "StatefulSet/math-proxy" not in fleet.children()
        broken.clear()
        await comes_true(lambda: fleet.children() >= CHILDREN)
        await comes_true(lambda: fleet.problems() == {} and fleet.condition().get("reason") != "PassFailed")


@pytest.mark.parametrize(("status", "told"), [(400, True), (404, True), (409, False), (429, False), (500, False)])
async def test_a_read_that_is_refused_is_said_of_its_fleet_unless_that_passes_by_itself(
    server: ApiServer, fleet: FleetThere, status: int, told: bool
) -> None:
    def refuse(method: str, place: Place, _body: Any) -> None:
        if (method, place.kind) == ("list", "Pod"):
            raise Refusal(status, "Odd", "unable to parse requirement")

    server.refusing.append(refuse)
    async with operating(server) as operator:
        await comes_true(lambda: operator.figure(Metric.PASS_ERRORS) >= 2)
        assert ("unable to parse requirement" in fleet.problems().get("PassFailed", "")) == told
        server.refusing.clear()
        await comes_true(lambda: fleet.children() == CHILDREN and fleet.problems() == {})


@pytest.mark.parametrize("is_invalid", [True, False])
async def test_a_fleet_that_cant_be_carried_out_any_more_gives_its_slot_up_within_a_minute(
    server: ApiServer, fleet: FleetThere, is_invalid: bool
) -> None:
    def refuse(method: str, place: Place, _body: Any) -> None:
        if (method, place.kind) == ("GET", "Secret"):
            raise Refusal(403, "Forbidden")

    async with operating(server) as operator:
        slots = operator.shared.slots
        await comes_true(lambda: fleet.children() == CHILDREN)
        await operator.until_passes(2)
        slots.note("rl/math", held=1, slot_requests=())
        if not is_invalid:
            server.refusing.append(refuse)
        fleet.apply(memory={"samples": 0 if is_invalid else 2})
        await comes_true(lambda: fleet.condition()["reason"] in ("SpecInvalid", "PermissionDenied"))
        assert slots.other_fleets("rl/other", now()) == OtherFleets(held=1, known=False)
        assert slots.other_fleets("rl/other", now() + LOOKED_AT_WITHIN + 1) == OtherFleets()


async def test_whoever_acts_again_begins_nothing_before_each_fleet_was_looked_at(
    server: ApiServer, fleet: FleetThere
) -> None:
    def refuse(method: str, place: Place, _body: Any) -> None:
        if (method, place.kind) == ("PUT", "Lease"):
            raise Refusal(503, "ServiceUnavailable")

    fleet.apply(memory={"interval": "1h"})
    async with operating(server) as operator:
        slots = operator.shared.slots
        await comes_true(lambda: fleet.children() == CHILDREN)
        await operator.until_passes(2)
        await asyncio.sleep(60)
        assert slots.other_fleets("rl/other", now()).known
        server.refusing.append(refuse)
        await comes_true(lambda: not operator.lease.leading.is_set())
        await asyncio.sleep(60)
        assert not slots.other_fleets("rl/other", now()).known, "however long it waited for the Lease"
        server.refusing.clear()
        await comes_true(lambda: slots.other_fleets("rl/other", now()).known)


async def test_a_proxy_that_goes_silent_in_its_drain_is_not_taken_for_down(
    server: ApiServer, fleet: FleetThere, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain = Drain(id="by hand", mode="cordon", then="stay", since=now(), expires=now() + 60, holding=False)
    answers = [ProxyStats(rss=1, drain=drain)]

    async def stats(*_: Any, **__: Any) -> ProxyStats | None:
        return answers.pop() if answers else None

    monkeypatch.setattr(ProxyClient, "stats", stats)
    fleet.apply(memory={"interval": "1s"})
    async with operating(server):
        await comes_true(lambda: fleet.children() == CHILDREN)
        fleet.become_ready("math-proxy-0", ready="False")
        await comes_true(lambda: "StatsUnknown" in fleet.problems())
        await comes_true(lambda: "StatsUnknown" not in fleet.problems(), seconds=A_LOOK)


async def test_a_silent_proxy_is_left_alone_between_asks_and_heard_of_soon_when_it_is_back(
    server: ApiServer, fleet: FleetThere, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    answer: list[ProxyStats] = []

    async def stats(*_: Any, **__: Any) -> ProxyStats | None:
        asked.append(now())
        await asyncio.sleep(0 if answer else POLL_TIMEOUT)
        return answer[0] if answer else None

    monkeypatch.setattr(ProxyClient, "stats", stats)
    fleet.apply(memory={"interval": "2s"})
    async with operating(server) as operator:
        await comes_true(lambda: fleet.children() == CHILDREN)
        fleet.become_ready("math-proxy-0")
        await comes_true(lambda: "StatsUnknown" in fleet.problems())
        began, before = now(), operator.passes
        await asyncio.sleep(60)
        assert sum(at > began for at in asked) <= 5 and operator.passes - before >= 12
        answer.append(ProxyStats(rss=1))
        await comes_true(lambda: "StatsUnknown" not in fleet.problems(), seconds=3 * POLL_TIMEOUT)


async def test_fleets_whose_proxies_are_silent_keep_no_other_from_its_looks(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is looked at as often as its memory is to be sampled, and not after all those that wait for an answer."""
    monkeypatch.setattr(operators_fleets, "MAX_CONCURRENT_PASSES", 1)
    fleets = [FleetThere(server, f"fleet-{number}") for number in range(6)]
    looked: dict[str, list[float]] = {}

    async def silent(_client: ProxyClient, url: str, _key: str, **_: Any) -> None:
        looked.setdefault(url, []).append(now())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), POLL_TIMEOUT)

    monkeypatch.setattr(ProxyClient, "stats", silent)
    for each in fleets:
        each.apply(memory={"interval": "15s"})
    async with operating(server):
        await comes_true(lambda: len(server.of_kind("Pod")) == len(fleets))
        for number, pod in enumerate(server.of_kind("Pod")):
            server.put({**pod, "status": {"phase": "Running", "podIP": f"10.0.0.{number}"}})
        await comes_true(lambda: len(looked) == len(fleets))
        looked.clear()
        await comes_true(lambda: sum(len(times) > 3 for times in looked.values()) == len(fleets), seconds=A_LOOK)
    between = [later - time for times in looked.values() for time, later in pairwise(times)]
    assert max(between) <= 16
