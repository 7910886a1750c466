"""The chart: what its pages say, and with which rights the operator of all defaults is installed.

The manifests are those of examples/kubernetes/operator.yaml: tests/cluster sees that Helm makes them of the chart.
"""

from typing import Any, Final

import pytest
import yaml
from images.recipes import RECIPES, project_version
from tests.paths import ROOT
from tests.unit.charts.values import CHART, DEFAULTS

from rolloutfleet.spec import KIND
from rolloutfleet_operator import chart, crd
from rolloutfleet_operator.chart import Values
from rolloutfleet_operator.cluster.children.names import API_KINDS
from rolloutfleet_operator.cluster.reading import WATCHED

MANIFESTS: Final = [*yaml.safe_load_all((ROOT / "examples" / "kubernetes" / "operator.yaml").read_text())]
README = (CHART / chart.README).read_text()


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [manifest for manifest in MANIFESTS if manifest["kind"] == kind]


def the(kind: str) -> dict[str, Any]:
    """The only manifest of that kind."""
    (manifest,) = of_kind(kind)
    return manifest


def grants(manifest: dict[str, Any]) -> dict[str, set[str]]:
    """The verbs that a role gives, by resource."""
    given: dict[str, set[str]] = {}
    for rule in manifest["rules"]:
        for resource in rule["resources"]:
            given.setdefault(resource, set()).update(rule["verbs"])
    return given


@pytest.mark.parametrize("name", [chart.VALUES, chart.SCHEMA, chart.README])
def test_the_generated_files_are_what_the_model_says(name: str) -> None:
    assert (CHART / name).read_text() == chart.pages(README)[name], "make chart"


def test_chart_and_project_have_one_version() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (about["version"], about["appVersion"]) == (project_version(), project_version())


def test_the_images_are_those_that_make_images_makes() -> None:
    images = Values().images
    named = [images.proxy, images.operator, images.gateway, images.simulated_engine]
    assert [f"{image.repository}:{project_version()}" for image in named] == [
        recipe.name(registry=None, tag=project_version()) for recipe in RECIPES.values()
    ]


@pytest.mark.parametrize("path", DEFAULTS)
def test_every_value_is_told_in_the_readme(path: str) -> None:
    assert f"| `{path}` |" in README


def test_no_role_has_a_wildcard_and_none_lists_or_watches_secrets() -> None:
    roles = [*of_kind("ClusterRole"), *of_kind("Role")]
    for rule in (rule for role in roles for rule in role["rules"]):
        assert "*" not in {*rule["verbs"], *rule["resources"], *rule["apiGroups"]}
        if "secrets" in rule["resources"]:
            assert set(rule["verbs"]) == {"get", "create", "patch"}
        assert {"escalate", "impersonate", "bind"}.isdisjoint(rule["verbs"])
        assert {"rolebindings", "serviceaccounts"}.isdisjoint(rule["resources"])


@pytest.mark.parametrize("kind", sorted({KIND, "EndpointSlice", *WATCHED}))
def test_the_operator_may_watch_what_it_does(kind: str) -> None:
    (role,) = [role for role in of_kind("ClusterRole") if role["metadata"]["name"] == "rolloutfleet-operator"]
    group, plural = API_KINDS[kind][0].rpartition("/")[0], API_KINDS[kind][1]
    (rule,) = [rule for rule in role["rules"] if group in rule["apiGroups"] and plural in rule["resources"]]
    assert {"get", "list", "watch"} <= set(rule["verbs"])


def test_the_operator_deletes_no_pod_no_claim_and_no_fleet() -> None:
    (role,) = [role for role in of_kind("ClusterRole") if role["metadata"]["name"] == "rolloutfleet-operator"]
    may = grants(role)
    for resource in ("pods", "persistentvolumeclaims", "rolloutfleets", "secrets", "nodes"):
        assert "delete" not in may[resource]
    assert may["pods/eviction"] == {"create"}
    assert may["rolloutfleets"] == {"get", "list", "watch"}


def test_who_has_view_edit_or_admin_has_it_for_fleets_too() -> None:
    roles = {role["metadata"]["name"]: role for role in of_kind("ClusterRole")}
    aggregated = {
        name.rsplit("-", 1)[-1]
        for role in ("rolloutfleet-view", "rolloutfleet-edit")
        for name in roles[role]["metadata"]["labels"]
        if name.startswith("rbac.authorization.k8s.io/aggregate-to-")
    }
    assert aggregated == {"view", "edit", "admin"}
    assert grants(roles["rolloutfleet-view"])["rolloutfleets"] == {"get", "list", "watch"}
    edits = grants(roles["rolloutfleet-edit"])
    assert edits["rolloutfleets"] == {"create", "update", "patch", "delete", "deletecollection"}
    assert edits["rolloutfleets/scale"] == {"update", "patch"}
    assert "rolloutfleets/status" not in edits


def test_the_operators_pod_meets_the_restricted_standard() -> None:
    pod = the("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert [list(volume) for volume in pod["volumes"]] == [["name", "emptyDir"]]


def test_there_are_two_operators_apart_of_which_no_eviction_and_no_upgrade_takes_both() -> None:
    spec = the("Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (2, "RollingUpdate")
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 1
    tolerated = {each["key"]: each["tolerationSeconds"] for each in spec["template"]["spec"]["tolerations"]}
    assert tolerated == {"node.kubernetes.io/not-ready": 20, "node.kubernetes.io/unreachable": 20}
    (spread,) = spec["template"]["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    budget = the("PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"] == spec["selector"] and spread["labelSelector"] == spec["selector"]


def test_the_chart_has_the_definition_that_is_in_crds() -> None:
    assert (CHART / "files" / f"{crd.NAME}.yaml").read_text() == crd.page(), "make crd"
