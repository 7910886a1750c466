"""A fleet's status in each situation that objects of the API server show."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
from tests.unit.operator.cluster.api_server import ApiServer, now
from tests.unit.operator.cluster.operating import FleetThere, operating
from tests.waiting import comes_true

from rolloutfleet_operator.cluster.api import Object
from rolloutfleet_operator.cluster.children.names import COMPONENT, FLEET_LABEL
from rolloutfleet_operator.policy.observed import text_of

PROXY, CLAIM = ("Pod", "math-proxy-0"), ("PersistentVolumeClaim", "state-math-proxy-0")
LONG_AGO = {"creationTimestamp": "2025-11-01T00:00:00Z"}
NOT_READY = {"metadata": LONG_AGO, "status": {"phase": "Running"}}
NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
NO_NODE = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
NO_CLASS = 'storageclass.storage.k8s.io "fast" not found'
QUOTA = 'pods "math-proxy-0" is forbidden: exceeded quota: small, requested: cpu=2'
WEBHOOK = 'admission webhook "policy.example" denied the request: no such label'


def waits(reason: str, message: str = "", *, container: str = "proxy", kind: str = "containerStatuses") -> Object:
    """The status of a pod, one of whose containers waits."""
    waiting = {"waiting": {"reason": reason, "message": message}}
    return {"status": {kind: [{"name": container, "image": "there:1", "restartCount": 0, "state": waiting}]}}


def ended(words: str, *, reason: str = "Error", exit_code: int = 1) -> Object:
    """The status of a pod whose container ended with these last words, and waits to be started again."""
    last = {"reason": reason, "exitCode": exit_code, "message": words}
    container = {"name": "proxy", "restartCount": 1, "lastState": {"terminated": last}}
    return {"status": {"containerStatuses": [{**container, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}}


def unscheduled(message: str) -> Object:
    return {"status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}}


def provisioned_by(provisioner: str) -> Object:
    return {"metadata": {**LONG_AGO, "annotations": {"volume.kubernetes.io/storage-provisioner": provisioner}}}


def refused(message: str) -> Object:
    return {"status": {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": message}]}}


@dataclass(frozen=True)
class Situation:
    """An object with something that is wrong with it, and what status says of that."""

    of: tuple[str, str]
    """Kind and name."""
    shows: Object
    """The object's own fields then."""
    reason: str
    says: str
    """A part of the message."""
    event: str = ""
    """The message of its warning Event."""


ENGINE, GATEWAY = ("Pod", "math-engine-7f9c-x2"), ("Pod", "math-gateway-5d8b-k9")
SITUATIONS = {
    "an image that can't be pulled": Situation(PROXY, waits("ImagePullBackOff"), "ImagePullFailed", "there:1"),
    "a name that is no image's": Situation(PROXY, waits("InvalidImageName"), "ImagePullFailed", "there:1"),
    "an init container's image": Situation(
        PROXY, waits("ErrImagePull", container="own", kind="initContainerStatuses"), "ImagePullFailed", "there:1"
    ),
    "a gateway's image": Situation(GATEWAY, waits("ErrImagePull", container="gateway"), "ImagePullFailed", "there:1"),
    "an engine's image": Situation(ENGINE, waits("ErrImagePull", container="engine"), "ImagePullFailed", "there:1"),
    "a Secret that is not there": Situation(
        PROXY, waits("CreateContainerConfigError", 'secret "s" not found'), "ContainerConfigError", 'secret "s"'
    ),
    "a command that is not there": Situation(
        ENGINE, waits("RunContainerError", "no such file", container="engine"), "ContainerConfigError", "no such file"
    ),
    "a proxy that crashes": Situation(PROXY, ended("Traceback"), "CrashLooping", "exit status 1"),
    "a container that the kernel ends": Situation(
        PROXY, ended("", reason="OOMKilled", exit_code=137), "CrashLooping", "OOMKilled, exit status 137"
    ),
    "an earlier fleet's store": Situation(
        PROXY, ended("StoreOfAnotherFleet: made by r/old"), "StoreOfAnotherFleet", "made by r/old"
    ),
    "a store that can't be opened": Situation(PROXY, ended("StoreUnusable: read only"), "StoreUnusable", "read only"),
    "a damaged store": Situation(PROXY, ended("StoreDamaged: page 7"), "StoreDamaged", "page 7"),
    "damage found while it ran": Situation(PROXY, ended("DamageFound: page 9"), "StoreDamaged", "page 9"),
    "keys that are no keys": Situation(PROXY, ended("BadKeyFile: empty"), "KeysMissing", "empty"),
    "a tokenizer that can't be had": Situation(
        PROXY, ended("ModelUnreadable: m was not reached"), "TokenizerUnreachable", "m was not reached"
    ),
    "settings that a proxy refuses": Situation(PROXY, ended("BadSettings: port"), "SettingsRefused", "port"),
    "no node for a proxy": Situation(PROXY, unscheduled(NO_NODE), "Unschedulable", "node affinity"),
    "no GPU for an engine": Situation(ENGINE, unscheduled(NO_GPU), "WaitingForGpus", "nvidia.com/gpu"),
    "a proxy's node that is gone": Situation(
        PROXY, {"spec": {"nodeName": "gone"}}, "NodeLost", "its node does not respond"
    ),
    "a pod that does not end": Situation(
        PROXY,
        {"metadata": {"deletionTimestamp": "2025-11-01T00:00:00Z", "deletionGracePeriodSeconds": 30}},
        "StuckTerminating",
        "finalizers",
    ),
    "a proxy that is not ready for long": Situation(PROXY, NOT_READY, "NotReadyInTime", "600 s"),
    "a gateway that is not ready for long": Situation(GATEWAY, NOT_READY, "NotReadyInTime", "600 s"),
    "a storage class that is not there": Situation(CLAIM, {}, "StorageClassMissing", '"fast"', NO_CLASS),
    "a claim that is refused": Situation(CLAIM, {}, "ClaimPending", "out of space", "out of space"),
    "a provisioner that does not run": Situation(
        CLAIM, provisioned_by("csi.example"), "ClaimPending", "csi.example has made no volume"
    ),
    "a volume that can't grow": Situation(
        CLAIM,
        {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}},
        "StorageCantGrow",
        "not supported",
        "not supported",
    ),
    "a quota for proxies": Situation(("StatefulSet", "math-proxy"), {}, "QuotaExceeded", "quota: small", QUOTA),
    "a quota for engines": Situation(("Deployment", "math-engine"), refused(QUOTA), "QuotaExceeded", "quota: small"),
    "a webhook that refuses proxies": Situation(
        ("StatefulSet", "math-proxy"), {}, "PodRefused", "no such label", WEBHOOK
    ),
    "a webhook that refuses gateways": Situation(
        ("Deployment", "math-gateway"), refused(WEBHOOK), "PodRefused", "no such label"
    ),
}


@pytest.mark.parametrize("name", SITUATIONS)
async def test_status_names_what_is_wrong(name: str) -> None:
    situation, server = SITUATIONS[name], ApiServer()
    fleet = FleetThere(server)
    fleet.apply(proxies={"storage": {"size": "2Gi"}})
    async with operating(server):
        await comes_true(lambda: PROXY[1] in {pod["metadata"]["name"] for pod in server.of_kind("Pod")})
        there = server.put(_merged(_there(server, *situation.of), situation.shows))
        if situation.event:
            server.put(_warning(there, situation.event))
        await comes_true(lambda: situation.says in fleet.problems().get(situation.reason, ""))


def _there(server: ApiServer, kind: str, name: str) -> Object:
    """The object, made as its controller does where the operator does not."""
    labels = {FLEET_LABEL: "math", COMPONENT: name.split("-")[1]}
    meta = {"name": name, "namespace": "rl", "labels": labels}
    specs: dict[str, Any] = {
        "Pod": {"containers": [{"name": name.split("-")[1]}]},
        "PersistentVolumeClaim": {"resources": {"requests": {"storage": "2Gi"}}},
    }
    made = {"apiVersion": "v1", "kind": kind, "metadata": meta, "spec": specs.get(kind), "status": {}}
    return copy.deepcopy(server.objects.get((kind, "rl", name), made))


def _merged(there: Any, more: Any) -> Any:
    if not (isinstance(there, dict) and isinstance(more, dict)):
        return more
    return {**there, **{key: _merged(there.get(key, {}), part) for key, part in more.items()}}


def _warning(about: Object, message: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "why", "namespace": "rl"},
        "involvedObject": {"uid": about["metadata"]["uid"]},
        "type": "Warning",
        "reason": "Failed",
        "message": message,
        "lastTimestamp": text_of(now()),
    }
