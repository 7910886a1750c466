"""A wrong type anywhere in a fleet's manifest is said of that fleet, in words that name the field."""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.operator.cluster.test_children import made

from rolloutfleet_operator.cluster import reading
from rolloutfleet_operator.cluster.children.merging import TemplateInvalid
from rolloutfleet_operator.cluster.children.names import Fleet
from rolloutfleet_operator.cluster.children.network import FieldInvalid
from rolloutfleet_operator.cluster.reading import SpecInvalid

POD: dict[str, Any] = {
    "metadata": {"labels": {"team": "rl"}, "annotations": {"note": "x"}},
    "spec": {
        "volumes": [{"name": "data", "emptyDir": {}}],
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "containers": [
            {
                "name": "proxy",
                "env": [{"name": "A", "value": "b"}],
                "volumeMounts": [{"name": "data", "mountPath": "/x"}],
            },
            {"name": "side", "image": "side:1", "ports": [{"name": "http", "containerPort": 80}]},
        ],
        "initContainers": [{"name": "first", "image": "first:1"}],
        "imagePullSecrets": [{"name": "login"}],
    },
}
SPEC: dict[str, Any] = {
    "model": "simulated",
    "models": {"names": ["gpt-4o"]},
    "tokenizer": {"renderer": "qwen3"},
    "imagePullSecrets": [{"name": "login"}],
    "proxies": {
        "replicas": 2,
        "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "9Gi"}},
        "storage": {"size": "1Gi"},
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "gpu"}],
        "podTemplate": POD,
    },
    "sessions": {
        "staleAfter": "1h",
        "dump": {"volume": {"emptyDir": {}}},
        "limits": {"bytes": "1Gi"},
    },
    "memory": {"rssBudget": "2Gi", "restart": "Pod"},
    "gateway": {"policy": "manual", "replicas": 1, "podTemplate": {"spec": {"volumes": [{"name": "more"}]}}},
    "engine": {
        "gpus": 0,
        "replicas": 1,
        "simulated": {"latency": "10ms", "cues": [{"cue": "a", "replies": [{"text": "b", "calls": [{"name": "c"}]}]}]},
        "podTemplate": {"spec": {"nodeName": "n"}},
    },
    "endpoint": {"publicURL": "https://rollouts.example.org"},
    "networkPolicy": {"from": [{"podSelector": {}}]},
}


def carried_out(spec: Any) -> None:
    """Raises what a pass over such a fleet is told."""
    meta = {"name": "math", "namespace": "rl", "uid": "u-1", "generation": 1}
    fleet: Fleet = reading.fleet_of({"metadata": meta, "spec": spec})
    made(fleet)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


def changed(path: tuple[Any, ...], value: Any) -> Any:
    spec = copy.deepcopy(SPEC)
    at: Any = spec
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return spec


PLACES = list(places(SPEC))
WRONG: list[Any] = [None, True, 7, -1.5, "", "text", [], ["a"], [None], [["a"]], {}, {"a": 1}, {"name": ["a"]}]


def test_the_manifest_itself_is_right() -> None:
    carried_out(SPEC)


@given(st.sampled_from(PLACES), st.sampled_from([*WRONG, *([each] for each in WRONG)]))
def test_whatever_stands_in_any_place_is_taken_or_refused_in_words(path: tuple[Any, ...], value: Any) -> None:
    try:
        carried_out(changed(path, value))
    except (SpecInvalid, TemplateInvalid, FieldInvalid) as refused:
        assert str(refused)


@pytest.mark.parametrize("policy", [["a"], {"a": 1}, 7, None])
def test_a_policy_of_a_wrong_type_is_named(policy: Any) -> None:
    with pytest.raises(SpecInvalid, match=r"gateway\.policy"):
        carried_out(changed(("gateway", "policy"), policy))


def test_a_volume_whose_name_is_a_list_is_named() -> None:
    with pytest.raises(TemplateInvalid, match=r"proxies\.podTemplate\.spec\.volumes\[0\]"):
        carried_out(changed(("proxies", "podTemplate", "spec", "volumes", 0, "name"), ["a"]))


@pytest.mark.parametrize("mounts", [True, 7, ["a"], [{"name": "own", "mountPath": ["a"]}]])
def test_mounts_of_a_wrong_type_are_taken_or_named(mounts: Any) -> None:
    with contextlib.suppress(TemplateInvalid):
        carried_out(changed(("proxies", "podTemplate", "spec", "containers", 0, "volumeMounts"), mounts))
