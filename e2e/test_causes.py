"""What can keep a fleet from being Ready, produced for real: each has a reason of its own, and heals by itself.

The fleet is made well, then given the trouble; when the cause goes, it is Ready again and nobody touched it.
"""

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from toolchain.kubernetes.failures import CommandFailed
from toolchain.kubernetes.kubectl import Kubectl

from e2e.fleets import Fleet, manifest
from e2e.installing import Images, Operator

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("operator")]
SOON = 30
"""Seconds to a key that the kubelet is asked to bring: by itself it would in a minute or two."""


@pytest.fixture
def fleet(namespace: Kubectl, images: Images, operator: Operator) -> Fleet:
    return Fleet(namespace, images, "demo", {"proxies": {"replicas": 1}})


def begin(fleet: Fleet, spec: dict[str, Any] | None = None) -> None:
    """Without waiting for it to be Ready."""
    fleet.namespace("apply", "--filename", "-", stdin=json.dumps(manifest(fleet.name, {**fleet.spec, **(spec or {})})))


def until_reason(fleet: Fleet, *reasons: str) -> str:
    """Until that is why the fleet is not Ready; the message."""
    ready: dict[str, Any] = {}

    def holds() -> bool:
        ready.update(fleet.condition("Ready"))
        return ready.get("reason") in reasons

    fleet.until(" or ".join(reasons), holds)
    assert ready["status"] == "False"
    message: str = ready["message"]
    return message


@contextmanager
def trouble(fleet: Fleet, manifests: dict[str, Any], *, gone: str) -> Iterator[None]:
    """An object in the namespace, until the block ends."""
    fleet.namespace("apply", "--filename", "-", stdin=json.dumps(manifests))
    yield
    fleet.namespace("delete", gone)


def test_an_image_that_cant_be_pulled(fleet: Fleet) -> None:
    begin(fleet, {"image": "rolloutfleet-proxy:there-is-none"})
    assert "rolloutfleet-proxy:there-is-none" in until_reason(fleet, "ImagePullFailed")
    fleet.patch({"image": None})
    fleet.until_ready()


def test_a_storage_class_that_is_not_there(fleet: Fleet) -> None:
    begin(fleet, {"proxies": {"replicas": 1, "storage": {"size": "1Gi", "className": "none-such"}}})
    assert "none-such" in until_reason(fleet, "StorageClassMissing")
    standard = fleet.namespace.get("storageclass", "standard")
    kept = {key: standard[key] for key in ("apiVersion", "kind", "provisioner", "volumeBindingMode", "reclaimPolicy")}
    made = {**kept, "metadata": {"name": "none-such"}}
    with trouble(fleet, made, gone="storageclass/none-such"):
        fleet.until_ready()


def test_a_quota_that_leaves_no_pod(fleet: Fleet) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    with trouble(fleet, quota, gone="resourcequota/few"):  # the operator's own pod is that one
        begin(fleet)
        assert "exceeded quota: few" in until_reason(fleet, "QuotaExceeded")
    fleet.until_ready()


def test_keys_of_ones_own_that_are_not_there(fleet: Fleet) -> None:
    begin(fleet, {"auth": {"secret": "mine"}})
    assert "Secret mine" in until_reason(fleet, "KeysMissing")
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "mine"},
        "stringData": {"admin-keys": "rfa-a-key-of-my-own-that-is-long-enough\n"},
    }
    fleet.namespace("apply", "--filename", "-", stdin=json.dumps(secret))
    fleet.until_ready()


def test_a_generated_secret_that_is_deleted(fleet: Fleet) -> None:
    """The new key is another one; it is said until the proxy takes it, and that is soon."""
    fleet.make()
    before = key_of(fleet)
    fleet.namespace("delete", "secret/demo-keys")
    assert "Secret demo-keys" in until_reason(fleet, "KeyNotTaken")
    made = time.monotonic()
    assert key_of(fleet) != before
    fleet.until_ready()
    assert time.monotonic() - made < SOON
    assert fleet.stats("demo-proxy-0")["ordinal"] == 0
    reasons = {event["reason"] for event in fleet.namespace.get("events")["items"] if event["type"] == "Warning"}
    assert "KeyNotTaken" in reasons


def key_of(fleet: Fleet) -> str:
    text: str = fleet.namespace.get("secret", "demo-keys")["data"]["admin-keys"]
    return base64.b64decode(text).decode().split()[0]


@pytest.mark.parametrize(
    ("kind", "name", "content"),
    [
        ("Service", "demo", {"spec": {"ports": [{"port": 1}]}}),
        ("ConfigMap", "demo-settings", {"data": {"theirs": "1"}}),
        ("Secret", "demo-keys", {"stringData": {"theirs": "1"}}),
    ],
)
def test_a_name_that_somebody_has_taken(fleet: Fleet, kind: str, name: str, content: dict[str, Any]) -> None:
    theirs = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **content}
    with trouble(fleet, theirs, gone=f"{kind}/{name}"):
        before = fleet.namespace.get(kind, name)["metadata"]["resourceVersion"]
        begin(fleet)
        assert f"{kind} {name}" in until_reason(fleet, "NameTaken")
        assert fleet.namespace.get(kind, name)["metadata"]["resourceVersion"] == before
    fleet.until_ready()


def test_a_pod_of_somebody_elses_that_wears_the_fleets_labels_is_left_alone(fleet: Fleet, images: Images) -> None:
    labels = {"rolloutfleet.dev/fleet": "demo", "app.kubernetes.io/component": "proxy"}
    container = {"name": "proxy", "image": images.proxy, "command": ["sleep", "3600"]}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
    meta = {"name": "stranger", "labels": labels}
    with trouble(fleet, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, gone="pod/stranger"):
        uid = fleet.namespace.get("pod", "stranger")["metadata"]["uid"]
        fleet.make()
        assert (fleet.status()["replicas"], fleet.problems()) == (1, {})
        fleet.patch({"restart": {"id": "one"}})
        fleet.until("it is answered", lambda: fleet.has_restarted("one"))
        fleet.until_ready()
        assert fleet.uids()["stranger"] == uid
        assert fleet.status()["restarts"]["requested"] == 1


def test_a_right_that_the_operator_lacks(fleet: Fleet) -> None:
    """To make Services: its role lets it read them only."""
    role = fleet.namespace.get("role", "rolloutfleet-operator")
    fewer = [
        {**rule, "resources": [each for each in rule["resources"] if each != "services"]} for rule in role["rules"]
    ]
    reading = {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "list", "watch"]}
    fleet.make()
    set_rules(fleet, [*(rule for rule in fewer if rule["resources"]), reading])
    fleet.namespace("delete", "service/demo-gateway")
    assert "services" in until_reason(fleet, "PermissionDenied")
    set_rules(fleet, role["rules"])
    fleet.until_ready()


def set_rules(fleet: Fleet, rules: list[dict[str, Any]]) -> None:
    """Of the operator's role."""
    fleet.namespace("patch", "role/rolloutfleet-operator", "--type=merge", "--patch", json.dumps({"rules": rules}))


def test_gpus_that_no_node_has(fleet: Fleet) -> None:
    """The engines alone wait; a template of one's own lets the simulated engine ask for a GPU."""
    container = {"name": "engine", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    asking = {"replicas": 1, "gpus": 0, "podTemplate": {"spec": {"containers": [container]}}}
    begin(fleet, {"engine": asking})
    assert "nvidia.com/gpu" in until_reason(fleet, "WaitingForGpus")
    fleet.patch({"engine": {"podTemplate": {"spec": None}}})
    fleet.until_ready()


def test_a_node_selector_that_no_node_has(fleet: Fleet) -> None:
    begin(fleet, {"proxies": {"replicas": 1, "nodeSelector": {"there": "is-none"}}})
    assert "demo-proxy-0" in until_reason(fleet, "Unschedulable")
    fleet.patch({"proxies": {"nodeSelector": None}})
    fleet.until_ready()


@pytest.mark.parametrize(("part", "field"), [("gateway", "gateway"), ("engine", "engine.podTemplate.spec")])
def test_a_roll_that_is_stuck_while_the_old_pods_serve(fleet: Fleet, part: str, field: str) -> None:
    """From the edit on it is not Ready, so whoever waits for that waits for the new pods."""
    fleet.make()
    nowhere: dict[str, Any] = {"nodeSelector": {"there": "is-none"}}
    back: dict[str, Any] = {"nodeSelector": None}
    for name in reversed(field.split(".")):
        nowhere, back = {name: nowhere}, {name: back}
    fleet.patch(nowhere)
    with pytest.raises(CommandFailed, match="timed out"):
        fleet.namespace("wait", fleet.resource, "--for=condition=Ready", "--timeout=20s")
    assert f"demo-{part}-" in until_reason(fleet, "Unschedulable")
    fleet.patch(back)
    fleet.until_ready()


def test_a_typo_in_the_pod_template_changes_nothing(fleet: Fleet) -> None:
    fleet.make()
    uids = fleet.uids()
    fleet.patch({"proxies": {"podTemplate": {"spec": {"contaners": []}}}})
    assert until_reason(fleet, "TemplateInvalid") == "spec.proxies.podTemplate.spec.contaners: no such field"
    assert fleet.uids() == uids
    fleet.patch({"proxies": {"podTemplate": None}})
    fleet.until_ready()
    assert fleet.uids() == uids


def test_the_store_of_an_earlier_fleet_of_that_name(fleet: Fleet) -> None:
    fleet.make()
    earlier = fleet.namespace.get(fleet.resource)["metadata"]["uid"]
    fleet.namespace("delete", fleet.resource, "--wait=true")
    fleet.until("its pods are gone", lambda: not fleet.proxies())
    begin(fleet)
    assert earlier in until_reason(fleet, "StoreOfAnotherFleet")
    fleet.patch({"proxies": {"storage": {"adopt": earlier}}})
    fleet.until_ready()


def test_a_model_whose_tokenizer_cant_be_had(fleet: Fleet) -> None:
    begin(fleet, {"tokenizer": {"hub": "nobody/has-this"}})
    assert "demo-proxy-0" in until_reason(fleet, "TokenizerUnreachable")
    fleet.patch({"tokenizer": {"hub": None}})
    fleet.until_ready()


def test_a_pod_that_hangs_in_its_end(fleet: Fleet) -> None:
    """Somebody's finalizer holds it; nothing of ours forces it."""
    begin(fleet, {"disruption": {"drainTimeout": "1s"}})
    fleet.until_ready()
    hold = {"metadata": {"finalizers": ["example.com/hold"]}}
    fleet.namespace("patch", "pod/demo-proxy-0", "--type=merge", "--patch", json.dumps(hold))
    uid = fleet.uids()["demo-proxy-0"]
    fleet.namespace("delete", "pod/demo-proxy-0", "--wait=false")
    assert "demo-proxy-0" in until_reason(fleet, "StuckTerminating")
    assert fleet.uids()["demo-proxy-0"] == uid
    fleet.namespace("patch", "pod/demo-proxy-0", "--type=merge", "--patch", '{"metadata": {"finalizers": null}}')
    fleet.until_ready()
