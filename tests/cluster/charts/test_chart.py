"""The chart as Helm reads it: every value does something, and what is installed with others than the defaults."""

import json
from typing import Any

import pytest
from images.recipes import project_version
from monitoring.alerts import rules
from monitoring.dashboard import dashboard
from monitoring.files import DASHBOARD
from tests.cluster.charts.helm import NAMESPACE, HelmFailed, helm, manifests, of_kind, template, the
from tests.unit.charts.values import CHART, DEFAULTS

from rolloutfleet_operator import crd

DIGEST = "sha256:" + "0123456789abcdef" * 4
KEPT = {"helm.sh/resource-policy": "keep"}

PROBES: dict[str, Any] = {
    "images.pullPolicy": "Always",
    "images.pullSecrets": [{"name": "login"}],
    "watchNamespace": "somewhere",
    "maxConcurrentDisruptions": 7,
    "replicas": 3,
    "log.format": "plain",
    "log.level": "debug",
    "metrics.podMonitor.interval": "77s",
    "resources": {"requests": {"memory": "333Mi"}},
    "tolerations": [{"key": "probe", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
}
"""Another value than the default, where its type alone does not give one."""

MONITORED = {"metrics": {"podMonitor": {"enabled": True}}}
ALERTING = {"metrics": {"prometheusRule": {"enabled": True}}}
SHOWN = {"metrics": {"dashboard": {"enabled": True}}}
BESIDE: dict[str, Any] = {
    "metrics.podMonitor.labels": MONITORED,
    "metrics.podMonitor.interval": MONITORED,
    "metrics.prometheusRule.labels": ALERTING,
    **{f"metrics.dashboard.{name}": SHOWN for name in ("sidecarLabel", "namespace", "labels", "annotations")},
    "serviceAccount.create": {"serviceAccount": {"name": "theirs"}},
}
"""What else has to be said for a value to count."""


def probe(path: str) -> Any:
    if path in PROBES:
        return PROBES[path]
    if path.endswith(".digest"):
        return DIGEST
    default = DEFAULTS[path]
    if isinstance(default, bool):
        return not default
    return {"probe": "a-probe"} if isinstance(default, dict) else "a-probe"


def nested(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return value  # type: ignore[no-any-return]


def together(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    both = dict(one)
    for name, value in other.items():
        within = isinstance(value, dict) and isinstance(both.get(name), dict)
        both[name] = together(both[name], value) if within else value
    return both


def test_helm_finds_nothing_to_complain_of() -> None:
    helm("lint", "--strict", "--quiet", str(CHART))


@pytest.mark.parametrize("path", DEFAULTS)
def test_every_value_does_something(path: str) -> None:
    beside = BESIDE.get(path, {})
    assert template(together(beside, nested(path, probe(path)))) != template(beside)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"log": {"levle": "info"}}, "levle"),
        ({"replicas": 0}, "/replicas"),
        ({"images": {"operator": {"digest": "sha256:abc"}}}, "/images/operator/digest"),
        ({"maxConcurrentDisruptions": 0}, "/maxConcurrentDisruptions"),
        ({"watchNamespace": "Not_A_Name"}, "/watchNamespace"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name"),
        ({"metrics": {"dashboard": {"sidecarLabel": "no label"}}}, "/metrics/dashboard/sidecarLabel"),
    ],
)
def test_a_wrong_value_is_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(HelmFailed, match=said):
        template(values)


def test_as_a_part_of_another_chart_it_takes_what_helm_hands_down() -> None:
    assert template({"global": {"anything": 1}})


def test_the_definition_is_the_models_and_is_kept_at_uninstall() -> None:
    definition = the("CustomResourceDefinition")
    assert definition["spec"] == crd.definition()["spec"]
    assert definition["metadata"]["annotations"] == KEPT
    assert "annotations" not in the("CustomResourceDefinition", {"crds": {"keep": False}})["metadata"]
    assert of_kind("CustomResourceDefinition", {"crds": {"enabled": False}}) == []


def test_what_fleets_go_on_needing_is_kept_at_uninstall_and_nothing_else() -> None:
    kept = [each for each in manifests() if each["metadata"].get("annotations") == KEPT]
    assert {each["metadata"]["name"] for each in kept} == {crd.NAME}
    assert not any("annotations" in each["metadata"] for each in manifests({"crds": {"keep": False}}))


def test_no_role_of_one_namespace_has_a_wildcard_and_none_lists_or_watches_secrets() -> None:
    values = {"watchNamespace": "training"}
    roles = [*of_kind("ClusterRole", values), *of_kind("Role", values)]
    for rule in (rule for role in roles for rule in role["rules"]):
        assert "*" not in {*rule["verbs"], *rule["resources"], *rule["apiGroups"]}
        if "secrets" in rule["resources"]:
            assert set(rule["verbs"]) == {"get", "create", "patch"}
        assert {"escalate", "impersonate", "bind"}.isdisjoint(rule["verbs"])
        assert {"rolebindings", "serviceaccounts"}.isdisjoint(rule["resources"])


def test_an_operator_of_one_namespace_has_rights_there_and_for_its_lease_only() -> None:
    values = {"watchNamespace": "training", "clusterRoles": {"enabled": False}}
    assert of_kind("ClusterRole", values) == of_kind("ClusterRoleBinding", values) == []
    where = {role["metadata"]["name"]: role["metadata"]["namespace"] for role in of_kind("Role", values)}
    assert where == {"rolloutfleet-operator": "training", "rolloutfleet-operator-lease": NAMESPACE}
    bound = {each["metadata"]["name"]: each["metadata"]["namespace"] for each in of_kind("RoleBinding", values)}
    assert bound == where
    arguments = the("Deployment", values)["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--namespace=training" in arguments


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ({}, f"rolloutfleet-operator:{project_version()}"),
        ({"registry": "example.com/rl/"}, f"example.com/rl/rolloutfleet-operator:{project_version()}"),
        ({"operator": {"tag": "next"}}, "rolloutfleet-operator:next"),
        ({"operator": {"tag": "next", "digest": DIGEST}}, f"rolloutfleet-operator@{DIGEST}"),
    ],
)
def test_an_image_is_named_by_tag_or_by_digest(values: dict[str, Any], image: str) -> None:
    pod = the("Deployment", {"images": values})["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == image


@pytest.mark.parametrize("release", ["rolloutfleet", "x", "team-operator", "a" * 53])
def test_names_are_valid_whatever_the_release_is_called(release: str) -> None:
    names = [manifest["metadata"]["name"] for manifest in manifests(release=release)]
    assert max(len(name) for name in names) <= 63
    assert not any("-operator-operator" in name for name in names)


def test_a_users_labels_do_not_take_the_operators_away() -> None:
    values = {"podLabels": {"app.kubernetes.io/name": "mine", "team": "rl"}}
    deployment = the("Deployment", values)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels["team"] == "rl"
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_one_pod_monitor_finds_operator_and_fleets_by_label() -> None:
    assert of_kind("PodMonitor") == []
    monitor = the("PodMonitor", {"metrics": {"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}}})
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["namespaceSelector"] == {"any": True}
    for endpoint in monitor["spec"]["podMetricsEndpoints"]:
        assert "fleet" in {each.get("targetLabel") for each in endpoint["relabelings"]}
    (chosen,) = monitor["spec"]["selector"]["matchExpressions"]
    assert chosen["values"] == ["rolloutfleet", "rolloutfleet-operator"]
    values = {"metrics": {"podMonitor": {"enabled": True}}, "watchNamespace": "training"}
    assert the("PodMonitor", values)["spec"]["namespaceSelector"] == {"matchNames": ["training", NAMESPACE]}


def test_the_rules_are_the_generated_ones() -> None:
    assert of_kind("PrometheusRule") == []
    rule = the(
        "PrometheusRule", {"metrics": {"prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}}}}
    )
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    assert rule["spec"] == rules()


def test_grafanas_sidecar_finds_the_dashboard() -> None:
    assert of_kind("ConfigMap") == []
    asked = {"enabled": True, "namespace": "grafana", "annotations": {"folder": "RL"}}
    found = the("ConfigMap", {"metrics": {"dashboard": asked}})
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert (found["metadata"]["namespace"], found["metadata"]["annotations"]) == ("grafana", {"folder": "RL"})
    assert {name: json.loads(text) for name, text in found["data"].items()} == {DASHBOARD: dashboard()}
