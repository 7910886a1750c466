"""The chart on a real API server: what it may do there, who takes over what, and what is left behind."""

import json
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.cluster.apiserver import ApiServer, running
from tests.cluster.charts import raw
from tests.cluster.charts.helm import NAMESPACE, HelmFailed, helm, template, the
from tests.unit.charts.values import CHART
from tests.waiting import until

from rolloutfleet_operator import crd

REPOSITORY: Final = CHART.parents[1]
EXAMPLES: Final = sorted(raw.FILE.parent.glob("fleet-*.yaml"))
FLEET: Final = f"{crd.PLURAL}.{crd.GROUP}"
RELEASE: Final = "rolloutfleet"
INSTALL: Final = REPOSITORY / "docs" / "install.md"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with running(tmp_path_factory.mktemp("kubernetes")) as server:
        yield server


class Release:
    """The chart on the server, in a namespace."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self.server, self.namespace = server, namespace
        self.account = f"system:serviceaccount:{namespace}:{RELEASE}-operator"

    def install(self, *words: str, chart: Path = CHART) -> str:
        return self._helm("upgrade", "--install", RELEASE, str(chart), "--create-namespace", *words)

    def uninstall(self) -> str:
        if self.server.kubectl("get", f"crd/{crd.NAME}", "--ignore-not-found"):
            list_fleets(self.server)
        return self._helm("uninstall", RELEASE, "--wait", "--timeout", "100s")

    def may(self, verb: str, resource: str, namespace: str) -> bool:
        """Whether the operator may. A resource is `KIND`, `KIND/NAME` or `KIND:SUBRESOURCE`."""
        resource, _, part = resource.partition(":")
        asked = ("auth", "can-i", verb, resource, f"--subresource={part}", f"--as={self.account}", "-n", namespace)
        try:
            return self.server.kubectl(*asked).strip() == "yes"
        except AssertionError:
            return False

    def _helm(self, *words: str) -> str:
        helm.cache_clear()
        return helm(*words, "--namespace", self.namespace, "--kubeconfig", str(self.server.kubeconfig))


@pytest.fixture
def release(server: ApiServer, request: pytest.FixtureRequest) -> Iterator[Release]:
    """A release that is not there yet, on a server where none has left anything."""
    release = Release(server, re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[-50:].strip("-"))
    yield release
    try:
        release.uninstall()
    except HelmFailed as error:
        assert "not found" in str(error)
    server.kubectl("delete", f"crd/{crd.NAME}", "--ignore-not-found", "--timeout=60s")


def list_fleets(server: ApiServer) -> None:
    """Before their definition may be deleted: that lists them, too, from a cache that the first to ask has made.

    Where nobody asked before, the deletion's own list is refused, since the cache is still being filled. It then tries
    again at once or 5 minutes later, depending on which of its own writes it sees first.
    """
    server.until_established(crd.NAME)
    path = f"/apis/{crd.GROUP}/{crd.VERSION}/{crd.PLURAL}"
    server.kubectl("get", "--raw", f"{path}?limit=1")  # makes the cache, and is answered without it
    server.kubectl("get", "--raw", path)  # waits for it: where it is refused, kubectl asks again a second later


def fleet(name: str = "math") -> dict[str, Any]:
    spec = {"model": "m", "gateway": {"engines": {"urls": ["http://10.0.0.1:30000"]}}}
    return {
        "apiVersion": f"{crd.GROUP}/{crd.VERSION}",
        "kind": "RolloutFleet",
        "metadata": {"name": name},
        "spec": spec,
    }


def test_it_installs_and_its_examples_are_taken(release: Release) -> None:
    release.install()
    release.server.until_established(crd.NAME)
    assert EXAMPLES
    for file in EXAMPLES:
        release.server.kubectl("apply", "--dry-run=server", "--namespace", "default", "-f", str(file))


def test_kubernetes_knows_every_field_that_a_value_sets(server: ApiServer) -> None:
    values = {
        "images": {"pullSecrets": [{"name": "login"}]},
        "serviceAccount": {"annotations": {"a": "b"}},
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "podLabels": {"a": "b"},
        "podAnnotations": {"a": "b"},
        "metrics": {"dashboard": {"enabled": True, "annotations": {"a": "b"}}},
    }
    server.kubectl("create", "namespace", NAMESPACE)
    for scope in ({}, {"watchNamespace": "default"}):
        text = template({**values, **scope})
        server.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", said=text)
    server.kubectl("delete", "namespace", NAMESPACE)


def test_the_operators_pod_is_let_into_a_restricted_namespace(release: Release) -> None:
    release.install()
    release.server.kubectl("label", "namespace", release.namespace, "pod-security.kubernetes.io/enforce=restricted")
    template = the("Deployment")["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": template["spec"]}
    release.server.kubectl("-n", release.namespace, "create", "--dry-run=server", "-f", "-", said=json.dumps(pod))
    root = template["spec"] | {"securityContext": {}}
    refused = release.server.kubectl(
        *("-n", release.namespace, "create", "--dry-run=server", "-f", "-"),
        said=json.dumps(pod | {"spec": root}),
        fails=True,
    )
    assert "violates PodSecurity" in refused


def test_the_operator_may_do_what_it_does_everywhere_and_nothing_more(release: Release) -> None:
    release.install()
    for verb, resource in (
        ("list", FLEET),
        ("patch", f"{FLEET}:status"),
        ("create", "statefulsets.apps"),
        ("patch", "services"),
        ("get", "secrets"),
        ("create", "pods:eviction"),
        ("patch", "persistentvolumeclaims"),
        ("get", "nodes"),
        ("list", "leases.coordination.k8s.io"),
    ):
        until(partial(release.may, verb, resource, "default"))
    for verb, resource in (
        ("patch", FLEET),
        ("list", "secrets"),
        ("watch", "secrets"),
        ("delete", "pods"),
        ("delete", "persistentvolumeclaims"),
        ("create", "pods"),
        ("create", "pods:exec"),
        ("patch", "nodes"),
        ("create", "clusterrolebindings.rbac.authorization.k8s.io"),
        ("update", "leases.coordination.k8s.io"),
        ("delete", "customresourcedefinitions.apiextensions.k8s.io"),
    ):
        assert not release.may(verb, resource, "default"), f"{verb} {resource}"
    until(lambda: release.may("update", f"leases.coordination.k8s.io/{RELEASE}-operator", release.namespace))
    assert not release.may("update", "leases.coordination.k8s.io/another", release.namespace)


def test_an_operator_of_one_namespace_may_do_nothing_elsewhere(release: Release) -> None:
    release.install("--set", f"watchNamespace={release.namespace}")
    until(lambda: release.may("create", "statefulsets.apps", release.namespace))
    assert release.may("get", "secrets", release.namespace)
    for verb, resource in (("list", FLEET), ("get", "secrets"), ("list", "pods"), ("get", "nodes")):
        assert not release.may(verb, resource, "default"), f"{verb} {resource}"


@pytest.mark.parametrize("scope", ["everywhere", "in one namespace"])
def test_the_operator_gives_nobody_any_right(release: Release, scope: str) -> None:
    release.install(*(["--set", f"watchNamespace={release.namespace}"] if scope == "in one namespace" else []))
    for resource in ("rolebindings.rbac.authorization.k8s.io", "serviceaccounts"):
        assert not release.may("create", resource, release.namespace)


def test_uninstall_leaves_definition_and_fleets_and_the_next_install_goes_on(release: Release) -> None:
    release.install()
    release.server.until_established(crd.NAME)
    release.server.apply(fleet(), namespace="default")
    uid = release.server.get(FLEET, "math", namespace="default")["metadata"]["uid"]
    release.uninstall()
    release.install()
    assert release.server.get(FLEET, "math", namespace="default")["metadata"]["uid"] == uid


def test_a_definition_that_is_not_to_be_kept_goes_with_its_fleets(release: Release) -> None:
    release.install("--set", "crds.keep=false")
    release.server.until_established(crd.NAME)
    release.server.apply(fleet(), namespace="default")
    release.uninstall()
    release.server.kubectl("wait", "--for=delete", f"crd/{crd.NAME}", "--timeout=120s")


def test_the_documented_upgrade_keeps_what_was_set_and_knows_what_the_earlier_chart_did_not(
    release: Release, tmp_path: Path
) -> None:
    earlier = tmp_path / "chart"
    shutil.copytree(CHART, earlier)
    (earlier / "templates" / "metrics.yaml").unlink()
    values = yaml.safe_load((earlier / "values.yaml").read_text())
    del values["metrics"]
    (earlier / "values.yaml").write_text(yaml.safe_dump(values))
    release.install("--set", "log.level=debug", chart=earlier)
    with pytest.raises(HelmFailed, match=r"nil pointer|metrics"):
        release.install("--reuse-values")
    (line,) = re.findall(r"^helm upgrade rolloutfleet .*", INSTALL.read_text(), re.MULTILINE)
    release.install(*line.split("rolloutfleet-system")[1].split())
    kept = release.server.get("deployments", f"{RELEASE}-operator", namespace=release.namespace)
    assert "debug" in json.dumps(kept["spec"]["template"]["spec"]["containers"])
    assert release.server.get("services", f"{RELEASE}-operator-metrics", namespace=release.namespace)


def test_a_definition_of_an_earlier_release_is_upgraded(release: Release) -> None:
    release.install()
    release.server.until_established(crd.NAME)
    release.server.apply(fleet(), namespace="default")
    columns = "/spec/versions/0/additionalPrinterColumns"
    release.server.kubectl(
        *("patch", "crd", crd.NAME, "--type=json", "-p", json.dumps([{"op": "remove", "path": f"{columns}/0"}]))
    )
    release.install()
    there = release.server.get("crd", crd.NAME)["spec"]["versions"][0]["additionalPrinterColumns"]
    assert there == crd.definition()["spec"]["versions"][0]["additionalPrinterColumns"]
    assert release.server.get(FLEET, "math", namespace="default")


@pytest.mark.parametrize(
    "by_hand", [["crds"], ["crds", "examples/kubernetes/operator.yaml"]], ids=["definition", "all"]
)
def test_what_was_applied_by_hand_is_taken_over_with_its_fleets(release: Release, by_hand: list[str | Path]) -> None:
    release.namespace = "rolloutfleet-system"
    old = crd.definition()
    del old["spec"]["versions"][0]["additionalPrinterColumns"]
    release.server.apply(old)
    for path in by_hand:
        release.server.kubectl("apply", "-f", str(REPOSITORY / path))
    release.server.until_established(crd.NAME)
    release.server.apply(fleet(), namespace="default")
    uid = release.server.get(FLEET, "math", namespace="default")["metadata"]["uid"]
    with pytest.raises(HelmFailed, match="invalid ownership metadata"):
        release.install()
    release.install("--take-ownership")
    taken = release.server.get("crd", crd.NAME)
    assert taken["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert taken["spec"]["versions"][0]["additionalPrinterColumns"]
    assert release.server.get(FLEET, "math", namespace="default")["metadata"]["uid"] == uid
    release.uninstall()
    assert release.server.get(FLEET, "math", namespace="default")["metadata"]["uid"] == uid


def test_plain_manifests_go_as_they_came(release: Release) -> None:
    files = ("-f", str(REPOSITORY / "crds"), "-f", str(raw.FILE))
    release.server.kubectl("apply", *files)
    release.server.kubectl("apply", *files)
    made = [each for each in yaml.safe_load_all(Path(raw.FILE).read_text()) if each["kind"] == "ClusterRole"]
    assert len(made) == 3
    release.server.kubectl("delete", "-f", str(raw.FILE), "--wait=false")
    assert "rolloutfleet" not in release.server.kubectl("get", "clusterroles", "-o", "name")
    release.server.kubectl("get", "crd", crd.NAME)
