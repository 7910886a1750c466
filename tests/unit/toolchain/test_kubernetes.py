"""What the test cluster decides before it touches anything: capabilities, routes, ranges, names, what to undo."""

import json
import shutil
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from toolchain.kubernetes import binaries, cli, kind, lifecycle, pod_network, routes
from toolchain.kubernetes.docker import held_capabilities
from toolchain.kubernetes.failures import ClusterError
from toolchain.kubernetes.records import Record, routes_only_needed_by
from toolchain.kubernetes.settings import Settings

PODS, SERVICES = IPv4Network("10.244.0.0/16"), IPv4Network("10.96.0.0/16")


def shown(*table: dict[str, Any]) -> str:
    return json.dumps([{"type": "unicast", "dst": "default", "dev": "eth0"}, *table])


def test_both_ranges_are_made_unreachable_where_nothing_is_there() -> None:
    assert routes.missing((PODS, SERVICES), shown()) == [PODS, SERVICES]


def test_a_range_that_is_unreachable_already_is_left_alone() -> None:
    there = {"type": "unreachable", "dst": "10.96.0.0/12"}
    assert routes.missing((PODS, SERVICES), shown(there)) == [PODS]


@pytest.mark.parametrize("taken", ["10.244.7.0/24", "10.0.0.0/8", "10.244.0.9"])
def test_a_range_that_the_machine_uses_is_refused_by_name(taken: str) -> None:
    with pytest.raises(ClusterError, match=r"10\.244\.0\.0/16 is in use.*--pod-range"):
        routes.missing((PODS, SERVICES), shown({"type": "unicast", "dst": taken, "dev": "tun0"}))


def record(name: str, *, added: tuple[IPv4Network, ...] = (), ranges: tuple[IPv4Network, ...]) -> Record:
    return Record(name=name, kubeconfig=Path("/none"), made_here=True, ranges=ranges, added_routes=added)


def test_down_removes_the_routes_that_up_added_and_no_others() -> None:
    ours = record("one", added=(PODS,), ranges=(PODS, SERVICES))
    assert routes_only_needed_by(ours, [ours]) == [PODS]


def test_down_keeps_the_routes_that_another_cluster_stands_behind() -> None:
    ours = record("one", added=(PODS, SERVICES), ranges=(PODS, SERVICES))
    other = record("two", ranges=(IPv4Network("10.245.0.0/16"), SERVICES))
    assert routes_only_needed_by(ours, [ours, other]) == [PODS]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"pod_range": "10.244.0.0/24"}, "too small"),
        ({"service_range": "8.8.0.0/16"}, "not a private range"),
        ({"pod_range": "10.96.0.0/16"}, "overlap"),
        ({"docker_range": "10.96.0.0/24"}, "overlap"),
        ({"name": "Upper"}, "pattern"),
        ({"workers": -1}, "greater than or equal"),
    ],
)
def test_settings_that_no_cluster_can_have_are_refused(given: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        Settings(**given)


def test_settings_can_be_given_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUTFLEET_E2E_POD_RANGE", "10.200.0.0/16")
    assert Settings().pod_range == IPv4Network("10.200.0.0/16")


@pytest.mark.parametrize(
    ("why_not", "said"), [("Start Docker.", "Start Docker."), (None, "apt-get install debootstrap")]
)
def test_prepare_says_what_is_missing_before_it_makes_anything(
    monkeypatch: pytest.MonkeyPatch, why_not: str | None, said: str
) -> None:
    done: list[str] = []
    monkeypatch.setattr(lifecycle, "why_not", lambda settings: why_not)
    monkeypatch.setattr(lifecycle, "prepare", lambda settings: done.append("prepared"))
    monkeypatch.setattr(shutil, "which", lambda program: None)
    monkeypatch.setattr(binaries, "program", done.append)
    monkeypatch.setattr(cli, "say", done.append)
    cli.prepare(if_possible=True)
    assert said in done[0]
    assert sorted(done[1:]) == sorted([*binaries.BARE_API, "helm", *(["prepared"] if why_not is None else [])])


def test_kind_is_told_of_ranges_workers_and_the_image() -> None:
    told = yaml.safe_load(kind.configuration(Settings(name="two", workers=1), "some-image:1", Path("/there")))
    assert told["name"] == "two"
    assert told["networking"] == {"podSubnet": str(PODS), "serviceSubnet": str(SERVICES)}
    assert [(node["role"], node["image"]) for node in told["nodes"]] == [
        ("control-plane", "some-image:1"),
        ("worker", "some-image:1"),
    ]
    shared = [{"hostPath": "/there", "containerPath": kind.SHARED}]
    assert all(node["extraMounts"] == shared for node in told["nodes"])


def test_a_container_asks_for_no_capability_that_is_not_held() -> None:
    process: dict[str, Any] = {
        "args": ["sh"],
        "capabilities": {"bounding": ["CAP_CHOWN", "CAP_SYS_RESOURCE"], "ambient": None},
    }
    held_capabilities.without_lacking(process, {"CAP_CHOWN"})
    assert process == {"args": ["sh"], "capabilities": {"bounding": ["CAP_CHOWN"], "ambient": []}}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--log", "l", "create", "--bundle", "/b", "id"], (Path("/b/config.json"), ["process"])),
        (["run", "--bundle=/b", "id"], (Path("/b/config.json"), ["process"])),
        (["exec", "--process", "/p.json", "id"], (Path("/p.json"), [])),
        (["exec", "id", "sh"], None),
        (["delete", "--force", "id"], None),
    ],
)
def test_the_runtime_looks_where_docker_describes_a_process(words: list[str], found: object) -> None:
    assert held_capabilities.description(words) == found


def test_every_module_names_its_version_and_where_it_is_kept() -> None:
    assert binaries.KUBERNETES.version.startswith("v1.34.")
    assert f"gitVersion={binaries.KUBERNETES.version}" in binaries.KUBERNETES.linking
    assert len({module.built for module in binaries.ALL}) == len(binaries.ALL)


def node(name: str, pods: str | None, address: str) -> dict[str, Any]:
    addresses = [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": address}]
    spec = {"podCIDR": pods} if pods else {}
    return {"metadata": {"name": name}, "spec": spec, "status": {"addresses": addresses}}


def test_pods_of_other_nodes_are_reached_by_their_nodes() -> None:
    nodes = [node("a", "10.244.0.0/24", "172.30.0.2"), node("b", "10.244.1.0/24", "172.30.0.3"), node("c", None, "x")]
    assert pod_network.routes(nodes, besides="a") == {IPv4Network("10.244.1.0/24"): "172.30.0.3"}
    assert pod_network.pods_of(nodes, "a") == IPv4Network("10.244.0.0/24")
    assert pod_network.pods_of(nodes, "c") is None
