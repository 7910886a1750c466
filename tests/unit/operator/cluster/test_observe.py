"""What the API server's objects come to."""

from typing import Any

import pytest
from tests.unit.operator.cluster.fleets import OPERATOR, fleet_of

from rolloutfleet_operator.cluster import observe
from rolloutfleet_operator.cluster.children import gateway
from rolloutfleet_operator.cluster.children.hashes import content_hash
from rolloutfleet_operator.cluster.children.names import APPLIED_HASH
from rolloutfleet_operator.policy.observed import seconds_of

NOW = seconds_of("2026-11-21T18:00:00Z")


def pod(name: str = "math-proxy-3", **more: Any) -> dict[str, Any]:
    meta = {
        "name": name,
        "uid": "u",
        "creationTimestamp": "2026-11-21T17:00:00Z",
        "annotations": {"rolloutfleet.dev/template-hash": "h", "theirs": "x"},
        "labels": {"rolloutfleet.dev/state": "ready"},
        **more.pop("metadata", {}),
    }
    spec = {"terminationGracePeriodSeconds": 90, "nodeName": "n1", "containers": [{"name": "proxy"}]}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running", "podIP": "10.0.0.3", **more}}


def observed(which: dict[str, Any], lost: frozenset[str] = frozenset()) -> Any:
    (found,) = observe.proxy_pods([which], {}, lost, frozenset())
    return found


def test_a_pod_is_read_with_its_ordinal_hash_and_our_notes_only() -> None:
    found = observed(pod())
    assert (found.ordinal, found.template_hash, found.grace) == (3, "h", 90.0)
    assert found.notes == {"rolloutfleet.dev/template-hash": "h", "rolloutfleet.dev/state": "ready"}
    assert (found.stats, found.ready, found.terminating_since) == (None, False, None)


def test_a_pod_that_ends_was_told_so_its_grace_before_the_deadline() -> None:
    meta = {"deletionTimestamp": "2026-11-21T18:01:30Z", "deletionGracePeriodSeconds": 90}
    assert observed(pod(metadata=meta)).terminating_since == NOW


def test_a_node_that_is_not_heard_of_is_lost() -> None:
    assert observed(pod(), frozenset(("n1",))).node_lost
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    unknown = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    assert [observe.lost_node(node) for node in (None, unknown, ready)] == [True, True, False]


def on(key: str, *values: str, operator: str = "In") -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": [*values]}


HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"


@pytest.mark.parametrize(
    ("terms", "is_local"),
    [
        ([[on(HOST, "a")]], True),
        ([[on(ZONE, "z"), on("topology.topolvm.io/node", "a")]], True),
        ([[on("openebs.io/nodename", "a")]], True),
        ([[on(ZONE, "z")]], False),
        ([[on(HOST, "a", "b")]], False),
        ([[on(HOST, "a")], [on(HOST, "b")]], False),
        ([[on(HOST, "a", operator="NotIn")]], False),
        ([], False),
    ],
)
def test_a_volume_is_node_local_where_its_affinity_names_one_node(terms: Any, is_local: bool) -> None:
    required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    affinity = {"nodeAffinity": {"required": required}} if terms else {}
    assert observe.is_node_local({"spec": affinity}) is is_local


def test_a_pod_that_the_node_controller_found_unready_is_on_a_lost_node() -> None:
    def conditions(ready: dict[str, str], containers: str) -> list[dict[str, str]]:
        return [{"type": "Ready", **ready}, {"type": "ContainersReady", "status": containers}]

    gated = {"status": "False", "reason": "ReadinessGatesNotReady"}
    unready = {"status": "False", "reason": "ContainersNotReady"}
    assert observed(pod(conditions=conditions({"status": "False"}, "True"))).node_lost
    assert not observed(pod(conditions=conditions({"status": "True"}, "True"))).node_lost
    assert not observed(pod(conditions=conditions(gated, "True"))).node_lost
    assert not observed(pod(conditions=conditions(unready, "False"))).node_lost


def test_the_container_in_trouble_is_the_one_that_is_told_of() -> None:
    sidecar = {"name": "side", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    ours = {"name": "proxy", "state": {"running": {}}, "started": True, "restartCount": 2}
    found = observed(pod(containerStatuses=[ours, sidecar])).container
    assert (found.waiting, found.message) == ("ImagePullBackOff", "no such image")
    assert observed(pod(containerStatuses=[ours])).container.restarts == 2


def test_the_last_words_of_a_container_are_kept() -> None:
    ended = {"reason": "Error", "exitCode": 2, "message": "BadKeyFile: none", "finishedAt": "2026-11-21T18:00:00Z"}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    status = {"name": "proxy", "state": waiting, "lastState": {"terminated": ended}, "restartCount": 1}
    found = observed(pod(containerStatuses=[status])).container
    assert (found.waiting, found.last_words, found.last_exit) == ("CrashLoopBackOff", "BadKeyFile: none", 2)
    assert found.last_ended_at == NOW


def event(uid: str, message: str, at: str, kind: str = "Warning") -> dict[str, Any]:
    return {
        "metadata": {"creationTimestamp": at},
        "involvedObject": {"uid": uid},
        "type": kind,
        "reason": "FailedCreate",
        "message": message,
        "lastTimestamp": at,
    }


def test_of_an_objects_warnings_the_newest_counts_while_it_is_news() -> None:
    said = observe.warnings(
        [
            event("a", "newer", "2026-11-21T17:59:00Z"),
            event("a", "older", "2026-11-21T17:58:00Z"),
            event("a", "all is well", "2026-11-21T17:59:30Z", "Normal"),
            event("b", "long ago", "2026-11-21T12:00:00Z"),
        ]
    )
    assert said.of("a", now=NOW) == "FailedCreate: newer"
    assert (said.of("b", now=NOW), said.of("c", now=NOW)) == ("", "")


def test_engines_are_named_as_a_gateway_names_them() -> None:
    going = pod("gone", metadata={"deletionTimestamp": "2026-11-21T18:00:00Z"})
    nowhere = pod("new", podIP=None)
    six = pod("six", podIP="fd00::1")
    assert observe.engine_urls([pod(), going, nowhere, six], 30000) == (
        "http://10.0.0.3:30000",
        "http://[fd00::1]:30000",
    )


def test_a_claim_grows_until_its_volume_has_what_is_asked_for() -> None:
    claim = {
        "metadata": {"name": "state-math-proxy-1", "uid": "c", "creationTimestamp": "2026-11-21T17:00:00Z"},
        "spec": {},
        "status": {"phase": "Bound", "capacity": {"storage": "5Gi"}},
    }
    (found,) = observe.claims([claim], 9 * 2**30, observe.Warnings(), now=NOW)
    assert (found.ordinal, found.bound, found.growing) == (1, True, True)
    (found,) = observe.claims([claim], 5 * 2**30, observe.Warnings(), now=NOW)
    assert not found.growing


def test_a_claim_tells_who_is_to_make_its_volume() -> None:
    meta = {"name": "state-math-proxy-1", "uid": "c", "creationTimestamp": "2026-11-21T17:00:00Z"}
    claim: dict[str, Any] = {"metadata": meta, "spec": {}, "status": {"phase": "Pending"}}
    (found,) = observe.claims([claim], None, observe.Warnings(), now=NOW)
    assert (found.bound, found.provisioner) == (False, None)
    meta["annotations"] = {"volume.kubernetes.io/storage-provisioner": "csi.example.com"}  # type: ignore[assignment]
    (found,) = observe.claims([claim], None, observe.Warnings(), now=NOW)
    assert (found.created, found.provisioner) == (seconds_of("2026-11-21T17:00:00Z"), "csi.example.com")


def deployment(replicas: int = 1, **said: Any) -> dict[str, Any]:
    counts = {"replicas": replicas, "readyReplicas": replicas, "updatedReplicas": replicas}
    live = gateway.deployment(fleet_of(), OPERATOR, replicas=replicas, control_key="hash")
    meta = {**live["metadata"], "generation": 4, "annotations": {APPLIED_HASH: content_hash(live)}}
    return {**live, "metadata": meta, "status": {"observedGeneration": 4, **counts, **said}}


def rolled_out(live: dict[str, Any], **fields: Any) -> bool:
    wanted = gateway.deployment(fleet_of(**fields), OPERATOR, replicas=live["spec"]["replicas"], control_key="hash")
    observed = observe.deployment(live, (), frozenset(), wanted=wanted)
    assert observed is not None
    return observed.is_complete(live["spec"]["replicas"])


def test_a_deployment_is_complete_once_all_its_pods_are_new_and_ready_and_of_the_newest_spec() -> None:
    assert rolled_out(deployment())
    assert not rolled_out(deployment(replicas=1, updatedReplicas=0))
    stuck = {"replicas": 2, "updatedReplicas": 1, "readyReplicas": 1}
    assert not rolled_out({**deployment(), "status": {"observedGeneration": 4, **stuck}})
    assert not rolled_out(deployment(observedGeneration=3))
    assert not rolled_out(deployment(readyReplicas=0))
    assert not rolled_out(deployment(), gateway={"nodeSelector": {"gpu": "h100"}})
    none = observe.deployment(deployment(), (), frozenset(), wanted=None)
    assert none is not None and not none.is_complete(1)
