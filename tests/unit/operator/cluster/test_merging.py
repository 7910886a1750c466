"""podTemplate: merged by Kubernetes' merge keys, and kept off what our own working depends on."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.operator.cluster.fleets import OPERATOR, fleet_of

from rolloutfleet_operator.cluster.children import proxies
from rolloutfleet_operator.cluster.children.merging import Fixed, TemplateInvalid, merge
from rolloutfleet_operator.cluster.children.settings import proxy_settings

BASE: dict[str, Any] = {
    "metadata": {"labels": {"chosen": "by"}},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "ours",
                "env": [{"name": "A", "value": "1"}],
                "ports": [{"name": "http", "containerPort": 80}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }
        ],
        "volumes": [{"name": "data", "emptyDir": {}}],
        "tolerations": [{"key": "a"}],
    },
}
FIXED = Fixed(container="main", volumes=frozenset(("data",)))


def merged(overlay: dict[str, Any]) -> dict[str, Any]:
    return merge(copy.deepcopy(BASE), overlay, path="t", fixed=FIXED)


def test_a_sidecar_comes_beside_our_container() -> None:
    sidecar = {"name": "side", "image": "x"}
    assert merged({"spec": {"containers": [sidecar]}})["spec"]["containers"] == [
        BASE["spec"]["containers"][0],
        sidecar,
    ]


def test_our_container_is_merged_by_name_and_its_environment_too() -> None:
    overlay = {"name": "main", "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}]}
    made = merged({"spec": {"containers": [overlay]}})["spec"]["containers"][0]
    assert made == BASE["spec"]["containers"][0] | {"env": overlay["env"]}


def test_other_lists_are_replaced_and_null_takes_away() -> None:
    made = merged({"spec": {"tolerations": [{"key": "b"}], "nodeSelector": {"x": "y"}}})["spec"]
    assert (made["tolerations"], made["nodeSelector"]) == ([{"key": "b"}], {"x": "y"})
    assert "tolerations" not in merged({"spec": {"tolerations": None}})["spec"]


def test_a_volume_of_the_same_name_is_replaced_whole_for_it_has_one_source() -> None:
    first = merged({"spec": {"volumes": [{"name": "more", "emptyDir": {}}]}})
    again = merge(first, {"spec": {"volumes": [{"name": "more", "hostPath": {"path": "/x"}}]}}, path="t", fixed=FIXED)
    assert again["spec"]["volumes"][1:] == [{"name": "more", "hostPath": {"path": "/x"}}]


REFUSED: dict[str, dict[str, Any]] = {
    "t.spec.terminationGracePeriodSeconds": {"spec": {"terminationGracePeriodSeconds": 5}},
    "t.spec.restartPolicy": {"spec": {"restartPolicy": "Never"}},
    "t.spec.enableServiceLinks": {"spec": {"enableServiceLinks": True}},
    "t.spec.volumes[0]": {"spec": {"volumes": [{"name": "data", "emptyDir": {"medium": "Memory"}}]}},
    "t.spec.containers[main].ports[80]": {"spec": {"containers": [{"name": "main", "ports": None}]}},
    "t.spec.containers[main].volumeMounts[/data]": {
        "spec": {"containers": [{"name": "main", "volumeMounts": [{"name": "other", "mountPath": "/data"}]}]}
    },
    "t.spec.containers[main].volumeMounts[/data/x]": {
        "spec": {"containers": [{"name": "main", "volumeMounts": [{"name": "other", "mountPath": "/data/x"}]}]}
    },
    "t.metadata.labels[chosen]": {"metadata": {"labels": {"chosen": "otherwise"}}},
    "t.metadata.annotations[rolloutfleet.dev/template-hash]": {
        "metadata": {"annotations": {"rolloutfleet.dev/template-hash": "x"}}
    },
    "t.metadata.name": {"metadata": {"name": "x"}},
    "t.spec.containers": {"spec": {"containers": None}},
    "t.spec.containers[0].name": {"spec": {"containers": [{"image": "x"}]}},
    "t.spec": {"spec": None},
    "t.metadata.labels": {"metadata": {"labels": None}},
    "t.sepc": {"sepc": {}},
}


@pytest.mark.parametrize(("path", "overlay"), REFUSED.items(), ids=list(REFUSED))
def test_what_is_ours_is_refused_with_its_path(path: str, overlay: dict[str, Any]) -> None:
    with pytest.raises(TemplateInvalid) as refused:
        merged(overlay)
    assert str(refused.value).startswith(f"{path}: ")


def test_a_proxys_environment_may_set_what_the_spec_does_not() -> None:
    def template(name: str) -> Any:
        env = [{"name": name, "value": "x"}]
        fleet = fleet_of(proxies={"podTemplate": {"spec": {"containers": [{"name": "proxy", "env": env}]}}})
        return proxies.template(fleet, OPERATOR, proxy_settings(fleet, OPERATOR, peers=1))

    assert template("ROLLOUTFLEET_LOG__LEVEL") and template("SENTRY_DSN")
    decided = ("STATE_DIR", "ORDINAL", "SERVICE_URL", "SESSIONS__STALE_AFTER")
    for taken in (f"ROLLOUTFLEET_{name}" for name in decided):
        with pytest.raises(TemplateInvalid, match=rf"spec.proxies.podTemplate.spec.containers\[0\].env\[0\]: {taken}"):
            template(taken)


def _name(element: dict[str, Any]) -> str:
    return str(element["name"])


names = st.sampled_from(("a", "b", "c"))
values = st.one_of(st.integers(0, 3), st.text("xyz", max_size=2), st.lists(st.integers(0, 2), max_size=2))
environment = st.lists(st.fixed_dictionaries({"name": names, "value": values}), max_size=3, unique_by=_name)
containers = st.lists(
    st.fixed_dictionaries({"name": names}, optional={"image": values, "env": environment}),
    max_size=3,
    unique_by=_name,
)
overlays = st.fixed_dictionaries(
    {},
    optional={
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": containers,
                "tolerations": st.one_of(st.none(), st.lists(names)),
                "nodeSelector": st.dictionaries(names, names),
            },
        )
    },
)


@given(overlays)
def test_merging_again_changes_nothing(overlay: dict[str, Any]) -> None:
    once = merged(overlay)
    assert merge(copy.deepcopy(once), overlay, path="t", fixed=FIXED) == once


@given(overlays)
def test_what_is_given_is_there_afterwards_and_what_is_not_given_stays(overlay: dict[str, Any]) -> None:
    made = {each["name"]: each for each in merged(overlay)["spec"]["containers"]}
    assert made["main"] == BASE["spec"]["containers"][0]
    for container in overlay.get("spec", {}).get("containers", ()):
        assert container.items() <= made[container["name"]].items()


@given(overlays)
def test_neither_side_is_changed(overlay: dict[str, Any]) -> None:
    base, before = copy.deepcopy(BASE), copy.deepcopy(overlay)
    made = merge(base, overlay, path="t", fixed=FIXED)
    made["spec"]["containers"][0]["image"] = "changed"
    assert (base["spec"]["tolerations"], overlay) == (BASE["spec"]["tolerations"], before)
