"""The operator against a real API server: from the outside, as kubectl sees it. No pod runs here."""

import base64
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cluster.apiserver import ApiServer
from tests.cluster.operators import OperatorProcess, running
from tests.processes import free_port
from tests.unit.operator.cluster.fleets import CHILDREN
from tests.waiting import PATIENCE, until

from rolloutfleet_operator.cluster.children.names import FLEET_LABEL, MANAGED_BY
from rolloutfleet_operator.cluster.failpoints import STATUS_UNWRITTEN, TEMPLATE_APPLIED, VARIABLE
from rolloutfleet_operator.cluster.other_operators import INTERVAL
from rolloutfleet_operator.policy.reasons import Metric

KINDS = "statefulsets,deployments,services,configmaps,poddisruptionbudgets"


@pytest.fixture
def operator(apiserver: ApiServer, namespace: str, tmp_path: Path) -> Iterator[OperatorProcess]:
    with running(apiserver, tmp_path, free_port(), namespace, f"--namespace={namespace}") as operator:
        yield operator


class FleetThere:
    """A fleet in a namespace of the API server."""

    def __init__(self, server: ApiServer, namespace: str, operator: OperatorProcess, name: str = "math") -> None:
        self.server, self.namespace, self.operator, self.name = server, namespace, operator, name

    def apply(self, **fields: Any) -> None:
        spec = {"model": "simulated", "engine": {"gpus": 0}, **fields}
        meta = {"name": self.name}
        manifest = {"apiVersion": "rolloutfleet.dev/v1alpha1", "kind": "RolloutFleet", "metadata": meta, "spec": spec}
        self.server.apply(manifest, namespace=self.namespace)

    def get(self, kinds: str, name: str = "", **selectors: str) -> Any:
        return self.server.get(kinds, name, namespace=self.namespace, **selectors)

    def kubectl(self, *words: str) -> str:
        return self.server.kubectl("-n", self.namespace, *words)

    def children(self) -> set[str]:
        chosen = f"rolloutfleet.dev/fleet={self.name}"
        return {f"{each['kind']}/{each['metadata']['name']}" for each in self.get(KINDS, labelSelector=chosen)}

    def until_children(self, wanted: set[str]) -> None:
        self.operator.until(lambda: self.children() == wanted)

    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get("configmap", f"{self.name}-settings")["data"]["settings.json"])
        return found

    def condition(self, kind: str = "Ready") -> dict[str, Any]:
        status = self.get("rolloutfleet", self.name).get("status", {})
        return next((each for each in status.get("conditions", ()) if each["type"] == kind), {})

    def problems(self) -> str:
        """Reasons and messages, as text."""
        return json.dumps(self.get("rolloutfleet", self.name).get("status", {}).get("problems", ()))

    def stateful_set(self) -> Any:
        return self.get("statefulset", f"{self.name}-proxy")

    def writes(self, since: float = 0.0) -> list[str]:
        """What the operator wrote in this namespace."""
        return [each for each in self.server.writes("OpenAPI-Generator", since) if f"/{self.namespace}/" in each]

    def until_steady(self, what: Callable[[], Any]) -> None:
        """Until three passes leave it as it was."""

        def steady() -> bool:
            before = what()
            self.operator.until_passes(3)
            return bool(what() == before)

        self.operator.until(steady)


@pytest.fixture
def fleet(apiserver: ApiServer, namespace: str, operator: OperatorProcess) -> FleetThere:
    return FleetThere(apiserver, namespace, operator)


def test_one_resource_becomes_all_children(fleet: FleetThere) -> None:
    fleet.apply(proxies={"replicas": 2})
    fleet.until_children(CHILDREN)
    assert fleet.get("secret", "math-keys")["data"]["admin-keys"]
    assert fleet.operator.until(lambda: fleet.condition().get("status")) == "False"
    pods = fleet.operator.until(lambda: fleet.get("pods", labelSelector="app.kubernetes.io/component=proxy"))
    assert {pod["metadata"]["name"] for pod in pods} <= {"math-proxy-0", "math-proxy-1"}


def test_a_fleet_answers_to_its_own_names_only(apiserver: ApiServer, namespace: str) -> None:
    """Other operators' commands, and `kubectl delete all --all`, leave it alone."""
    spec = {"model": "m", "gateway": {"engines": {"urls": ["http://10.0.0.1:30000"]}}}
    manifest = {"apiVersion": "rolloutfleet.dev/v1alpha1", "kind": "RolloutFleet", "metadata": {"name": "math"}}
    apiserver.apply({**manifest, "spec": spec}, namespace=namespace)
    for name in ("rolloutfleets", "rolloutfleet", "rfleet"):
        assert apiserver.get(name, "math", namespace=namespace)["kind"] == "RolloutFleet"
    apiserver.kubectl("-n", namespace, "delete", "all", "--all", "--timeout=120s")
    for name in ("rf", "rollouts", "rollout"):
        assert "the server doesn't have a resource type" in apiserver.kubectl(
            "-n", namespace, "delete", name, "--all", fails=True
        )
    assert apiserver.get("rolloutfleets", "math", namespace=namespace)


def test_edits_reach_children_and_removed_fields_remove_theirs(fleet: FleetThere) -> None:
    fleet.apply(networkPolicy={}, endpoint={"ingress": {"host": "a.b"}})
    fleet.until_children(CHILDREN)
    fleet.operator.until(lambda: fleet.get("ingress") and len(fleet.get("networkpolicy")) == 2)
    before = fleet.stateful_set()["spec"]["template"]
    fleet.apply(sessions={"staleAfter": "90s"})
    fleet.operator.until(lambda: fleet.settings()["sessions"].get("stale_after") == "90s")
    assert fleet.settings()["generation"] == 2
    fleet.operator.until(lambda: not fleet.get("ingress") and not fleet.get("networkpolicy"))
    assert fleet.stateful_set()["spec"]["template"] == before  # no pod is outdated by that
    fleet.apply(image="another:2")
    container = "spec.template.spec.containers[0].image"
    fleet.operator.until(
        lambda: "another:2" in fleet.kubectl("get", "sts", "math-proxy", "-o", f"jsonpath={{.{container}}}")
    )


def test_edits_and_removals_by_hand_are_put_back(fleet: FleetThere) -> None:
    fleet.apply()
    fleet.until_children(CHILDREN)
    fleet.operator.until(lambda: fleet.operator.passes() >= 2)
    fleet.kubectl("scale", "statefulset/math-proxy", "--replicas=5")
    fleet.operator.until(lambda: fleet.stateful_set()["spec"]["replicas"] == 1)
    fleet.kubectl("patch", "configmap", "math-settings", "-p", '{"data": {"settings.json": "{}"}}')
    fleet.operator.until(lambda: fleet.settings())
    fleet.kubectl("delete", "service", "math-proxies")
    fleet.until_children(CHILDREN)


@pytest.mark.parametrize("label", [FLEET_LABEL, MANAGED_BY])
@pytest.mark.parametrize("child", ["configmap/math-settings", "statefulset/math-proxy"])
def test_a_label_that_is_removed_by_hand_is_put_back(fleet: FleetThere, child: str, label: str) -> None:
    """By these labels the operator finds its children, and watches them."""
    fleet.apply()
    fleet.until_children(CHILDREN)
    fleet.operator.until(lambda: fleet.operator.passes() >= 3)
    before = fleet.get(*child.split("/"))["metadata"]
    fleet.kubectl("label", child, f"{label}-")
    fleet.operator.until(lambda: label in fleet.get(*child.split("/"))["metadata"]["labels"])
    assert fleet.get(*child.split("/"))["metadata"]["uid"] == before["uid"]


def test_an_object_of_somebody_else_is_left_alone_and_named(fleet: FleetThere) -> None:
    fleet.kubectl("create", "configmap", "math-settings", "--from-literal=theirs=1")
    fleet.apply()
    fleet.operator.until(lambda: fleet.condition().get("reason") == "NameTaken")
    assert "ConfigMap math-settings" in fleet.condition()["message"]
    assert fleet.get("configmap", "math-settings")["data"] == {"theirs": "1"}
    fleet.kubectl("delete", "configmap", "math-settings")
    fleet.operator.until(lambda: fleet.condition().get("reason") not in (None, "NameTaken"))
    assert fleet.settings()["fleet"] == "math"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ({"spec": {"contaners": []}}, "spec.proxies.podTemplate.spec.contaners: no such field"),
        ({"spec": {"dnsPolicy": "Nonsense"}}, "spec.proxies.podTemplate.spec.dnsPolicy: "),
        ({"spec": {"restartPolicy": "Never"}}, "spec.proxies.podTemplate.spec.restartPolicy: is Always"),
    ],
)
def test_a_bad_pod_template_is_named_by_its_path_and_changes_nothing(
    fleet: FleetThere, template: dict[str, Any], said: str
) -> None:
    fleet.apply()
    fleet.until_children(CHILDREN)
    before = fleet.stateful_set()["spec"]
    fleet.apply(proxies={"podTemplate": template})
    fleet.operator.until(lambda: fleet.condition().get("reason") == "TemplateInvalid")
    assert fleet.condition()["message"].startswith(said)
    assert fleet.stateful_set()["spec"] == before
    fleet.apply()
    fleet.operator.until(lambda: fleet.condition().get("reason") != "TemplateInvalid")


def test_at_rest_nothing_is_written_but_the_lease_and_little_is_read(fleet: FleetThere) -> None:
    fleet.apply(memory={"interval": "1s"})
    fleet.until_children(CHILDREN)
    fleet.until_steady(lambda: [each for each in fleet.writes() if "/leases/" not in each])
    since, lists = time.time(), fleet.server.lists("statefulsets")
    fleet.operator.until_passes(10)
    assert fleet.server.lists("statefulsets") <= lists + 1, "what is watched is not read again and again"
    written = fleet.operator.until(lambda: fleet.writes(since + 1))
    assert {each for each in written if "/leases/" not in each} == set()
    assert not [each for each in fleet.server.writes("kopf", 0) if fleet.namespace in each]


def test_a_change_makes_it_read_what_changed_and_no_more(fleet: FleetThere) -> None:
    fleet.apply(proxies={"replicas": 1}, memory={"interval": "1s"})
    fleet.until_children(CHILDREN)
    fleet.until_steady(lambda: (fleet.server.lists("ingresses"), fleet.server.lists("statefulsets")))
    unchanged, sets = fleet.server.lists("ingresses"), fleet.server.lists("statefulsets")
    fleet.apply(proxies={"replicas": 2}, memory={"interval": "1s"})
    fleet.operator.until(lambda: fleet.stateful_set()["spec"]["replicas"] == 2)
    proxies = "app.kubernetes.io/component=proxy"
    fleet.operator.until(lambda: len(fleet.get("pods", labelSelector=proxies)) == 2)
    fleet.operator.until_passes(3)
    assert fleet.server.lists("ingresses") == unchanged
    assert fleet.server.lists("statefulsets") > sets


def test_killed_in_the_middle_it_goes_on_where_it_was(fleet: FleetThere) -> None:
    fleet.apply()
    fleet.operator.until(lambda: fleet.children())
    fleet.operator.kill()
    key = fleet.get("secret", "math-keys")["data"]
    fleet.apply(sessions={"staleAfter": "77s"})
    fleet.operator.start_again()
    fleet.until_children(CHILDREN)
    fleet.operator.until(lambda: fleet.settings()["sessions"].get("stale_after") == "77s")
    assert fleet.get("secret", "math-keys")["data"] == key


@pytest.mark.parametrize("place", [STATUS_UNWRITTEN, TEMPLATE_APPLIED])
def test_killed_where_a_failpoint_holds_it_the_next_one_goes_on(
    apiserver: ApiServer, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    stands = tmp_path / "stands"
    monkeypatch.setenv(VARIABLE, f"{place}@{stands}")
    with running(apiserver, tmp_path, free_port(), namespace, f"--namespace={namespace}") as operator:
        fleet = FleetThere(apiserver, namespace, operator)
        fleet.apply()
        operator.until(stands.exists)
        there, said = fleet.children(), fleet.get("rolloutfleet", "math").get("status")
        with pytest.raises(httpx.ReadTimeout):  # its event loop stands still, and with it all that it might do
            httpx.get(f"{operator.url}/metrics", trust_env=False, timeout=2)
        assert (fleet.children(), fleet.get("rolloutfleet", "math").get("status")) == (there, said)
        assert (said is None) == (place == STATUS_UNWRITTEN)
        operator.kill()
        operator.start_again()
        fleet.until_children(CHILDREN)
        operator.until(fleet.condition)


def test_two_fleets_in_one_namespace_keep_apart(fleet: FleetThere) -> None:
    other = FleetThere(fleet.server, fleet.namespace, fleet.operator, "code")
    fleet.apply()
    other.apply(proxies={"replicas": 2})
    fleet.until_children(CHILDREN)
    other.until_children({each.replace("math", "code") for each in CHILDREN})
    other.kubectl("delete", "rolloutfleet", "code", "--wait=true", "--timeout=120s")
    other.until_children(set())
    fleet.until_children(CHILDREN)


def test_deleting_a_fleet_needs_no_operator(fleet: FleetThere) -> None:
    fleet.apply()
    fleet.until_children(CHILDREN)
    assert "finalizers" not in fleet.get("rolloutfleet", "math")["metadata"]
    fleet.operator.kill()
    fleet.kubectl("delete", "rolloutfleet", "math", "--timeout=120s")
    fleet.until_children(set())
    fleet.operator.until(lambda: not fleet.get("secret"))


def test_told_to_stop_it_lets_go_of_its_lease_at_once(fleet: FleetThere) -> None:
    fleet.operator.until(lambda: fleet.operator.said().count("acts now"))
    assert fleet.operator.stop() == 0
    assert fleet.get("lease", "rolloutfleet-operator")["spec"]["holderIdentity"] == ""
    fleet.operator.start_again()
    fleet.operator.until(lambda: fleet.operator.said().count("acts now") == 2)


def test_a_second_operator_waits_until_the_first_is_gone(fleet: FleetThere, tmp_path: Path) -> None:
    fleet.operator.until(lambda: "acts now" in fleet.operator.said())
    beside = tmp_path / "second"
    beside.mkdir()
    with running(fleet.server, beside, free_port(), fleet.namespace, f"--namespace={fleet.namespace}") as second:
        second.until(lambda: "manages" in second.said())
        fleet.apply()
        fleet.until_children(CHILDREN)
        assert second.passes() == 0
        fleet.operator.kill()
        second.until(lambda: "acts now" in second.said())
        fleet.kubectl("delete", "service", "math")
        second.until(lambda: fleet.children() == CHILDREN)


def test_an_operator_of_the_whole_cluster_leaves_a_namespace_to_its_own(fleet: FleetThere, tmp_path: Path) -> None:
    fleet.operator.until(lambda: "acts now" in fleet.operator.said())
    beside = tmp_path / "wide"
    beside.mkdir()
    other_fleets = f"{fleet.namespace}-elsewhere"
    fleet.server.kubectl("create", "namespace", other_fleets)
    with running(fleet.server, beside, free_port(), other_fleets) as wide:
        wide.until(lambda: "left alone" in wide.said() and fleet.namespace in wide.said())
        other = FleetThere(fleet.server, other_fleets, wide)
        other.apply()
        other.until_children(CHILDREN)
        fleet.apply()
        fleet.until_children(CHILDREN)
        assert f"{fleet.namespace}/math: applied" not in wide.said()
        # Its Lease would count for a minute, and stand in the way of the next operator of the whole cluster.
        assert wide.stop() == 0


def test_of_two_operators_of_the_whole_cluster_the_older_acts_and_says_so(
    apiserver: ApiServer, namespace: str, tmp_path: Path
) -> None:
    younger = f"{namespace}-younger"
    apiserver.kubectl("create", "namespace", younger)
    folders = [tmp_path / name for name in ("older", "younger")]
    for folder in folders:
        folder.mkdir()
    with running(apiserver, folders[0], free_port(), namespace) as first:
        first.until(lambda: "acts now" in first.said())
        assert first.figure(Metric.LEADING) == 1
        acts = time.time()
        until(lambda: int(time.time()) > int(acts))  # a Lease's age is known in whole seconds
        with running(apiserver, folders[1], free_port(), younger) as second:
            second.until(lambda: "this one stands aside" in second.said())
            first.until(lambda: "this one acts" in first.said(), seconds=INTERVAL + PATIENCE)
            fleet = FleetThere(apiserver, namespace, first)
            fleet.apply(proxies={"replicas": 0})
            fleet.until_children(CHILDREN)
            first.until(lambda: "TwoOperators" in json.dumps(fleet.get("rfleet", "math")["status"]))
            assert second.passes() == 0
            assert first.stop() == 0
            fleet.kubectl("delete", "service", "math")
            second.until(lambda: fleet.children() == CHILDREN, seconds=INTERVAL + PATIENCE)
            second.until(lambda: "TwoOperators" not in json.dumps(fleet.get("rfleet", "math")["status"]))


def test_a_new_key_comes_before_the_old_one_goes(fleet: FleetThere) -> None:
    def keys() -> list[str]:
        return base64.b64decode(fleet.get("secret", "math-keys")["data"]["admin-keys"]).decode().split()

    fleet.apply(proxies={"replicas": 0}, auth={"overlap": "15s"})
    fleet.until_children(CHILDREN)
    (old,) = keys()
    fleet.apply(proxies={"replicas": 0}, auth={"overlap": "15s", "rotate": {"id": "2"}}, memory={"interval": "1s"})
    fleet.operator.until(lambda: len(keys()) == 2)
    fleet.operator.until(lambda: keys()[-1] == old)
    fleet.operator.until(lambda: len(keys()) == 1)
    assert keys() != [old]
