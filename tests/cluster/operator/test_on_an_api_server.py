"""The operator against a real API server: from the outside, as kubectl sees it. No pod runs here."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cluster.apiserver import ApiServer
from tests.cluster.operators import OperatorProcess, running
from tests.processes import free_port
from tests.unit.operator.cluster.fleets import CHILDREN
from tests.waiting import START

from rolloutfleet_operator.cluster.children.names import FLEET_LABEL, MANAGED_BY
from rolloutfleet_operator.cluster.failpoints import STATUS_UNWRITTEN, TEMPLATE_APPLIED, VARIABLE

KINDS = "statefulsets,deployments,services,configmaps,poddisruptionbudgets"


@pytest.fixture(scope="module")
def shared(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator["FleetThere"]:
    """A fleet that is not there, in a namespace whose operator serves all tests that leave it running."""
    apiserver.kubectl("create", "namespace", "shared")
    folder = tmp_path_factory.mktemp("operator")
    with running(apiserver, folder, free_port(), "shared", "--namespace=shared") as operator:
        yield FleetThere(apiserver, "shared", operator)


@pytest.fixture
def fleet(shared: "FleetThere") -> Iterator["FleetThere"]:
    """A fleet to apply. It goes with the test, and all that is its own."""
    yield shared
    shared.kubectl("delete", "rolloutfleets", "--all", "--timeout=120s")
    # Kubernetes' garbage collector looks for new kinds, such as the definition's, twice a minute.
    shared.operator.until(lambda: not shared.children() and not shared.get("secret"), seconds=START)


class FleetThere:
    """A fleet in a namespace of the API server."""

    def __init__(self, server: ApiServer, namespace: str, operator: OperatorProcess, name: str = "math") -> None:
        self.server, self.namespace, self.operator, self.name = server, namespace, operator, name

    def apply(self, **fields: Any) -> None:
        spec = {"model": "simulated", "engine": {"gpus": 0}, "memory": {"interval": "1s"}, **fields}
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


def test_one_resource_becomes_all_children(fleet: FleetThere) -> None:
    fleet.apply(proxies={"replicas": 2})
    fleet.until_children(CHILDREN)
    assert fleet.get("secret", "math-keys")["data"]["admin-keys"]
    assert fleet.operator.until(lambda: fleet.condition().get("status")) == "False"
    pods = fleet.operator.until(lambda: fleet.get("pods", labelSelector="app.kubernetes.io/component=proxy"))
    assert {pod["metadata"]["name"] for pod in pods} <= {"math-proxy-0", "math-proxy-1"}
    assert "finalizers" not in fleet.get("rolloutfleet", "math")["metadata"], "deleting it needs no operator"


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
    fleet.operator.until_passes(2)
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
    fleet.operator.until_passes(3)
    before = fleet.get(*child.split("/"))["metadata"]
    fleet.kubectl("label", child, f"{label}-")
    fleet.operator.until(lambda: label in fleet.get(*child.split("/"))["metadata"]["labels"])
    assert fleet.get(*child.split("/"))["metadata"]["uid"] == before["uid"]


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
    fleet.apply()
    fleet.until_children(CHILDREN)
    fleet.until_steady(lambda: [each for each in fleet.writes() if "/leases/" not in each])
    since, lists = time.time(), fleet.server.lists("statefulsets")
    fleet.operator.until_passes(10)
    assert fleet.server.lists("statefulsets") <= lists + 1, "what is watched is not read again and again"
    written = fleet.operator.until(lambda: fleet.writes(since + 1))
    assert {each for each in written if "/leases/" not in each} == set()
    assert not [each for each in fleet.server.writes("kopf", 0) if fleet.namespace in each]


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
        keys = fleet.get("secret")
        operator.kill()
        fleet.apply(sessions={"staleAfter": "77s"})
        operator.start_again()
        fleet.until_children(CHILDREN)
        operator.until(lambda: fleet.settings()["sessions"].get("stale_after") == "77s")
        operator.until(fleet.condition)
        assert not keys or fleet.get("secret") == keys


def test_two_fleets_in_one_namespace_keep_apart(fleet: FleetThere) -> None:
    other = FleetThere(fleet.server, fleet.namespace, fleet.operator, "code")
    fleet.apply()
    other.apply(proxies={"replicas": 2})
    fleet.until_children(CHILDREN)
    other.until_children({each.replace("math", "code") for each in CHILDREN})
    other.kubectl("delete", "rolloutfleet", "code", "--wait=true", "--timeout=120s")
    other.until_children(set())
    fleet.until_children(CHILDREN)


def test_a_second_operator_waits_until_the_first_has_let_go_of_its_lease(
    apiserver: ApiServer, namespace: str, tmp_path: Path
) -> None:
    def operator(folder: str) -> AbstractContextManager[OperatorProcess]:
        return running(apiserver, tmp_path / folder, free_port(), namespace, f"--namespace={namespace}")

    with operator("first") as first:
        first.until(lambda: "acts now" in first.said())
        with operator("second") as second:
            second.until(lambda: "manages" in second.said())
            fleet = FleetThere(apiserver, namespace, first)
            fleet.apply()
            fleet.until_children(CHILDREN)
            assert second.passes() == 0 and "acts now" not in second.said()
            assert first.stop() == 0
            second.until(lambda: "acts now" in second.said())
            fleet.kubectl("delete", "service", "math")
            second.until(lambda: fleet.children() == CHILDREN)
            assert second.stop() == 0
        assert fleet.get("lease", "rolloutfleet-operator")["spec"]["holderIdentity"] == ""
