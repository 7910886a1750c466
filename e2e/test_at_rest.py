"""Fleets at rest cost next to nothing: no writes at the API server, and little of the operator's memory and time."""

import json
import time
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families
from toolchain.kubernetes.kubectl import Kubectl
from toolchain.kubernetes.records import Record

from e2e import writes
from e2e.fleets import Fleet, manifest
from e2e.installing import Images, Operator
from e2e.processes import resident_bytes

pytestmark = [pytest.mark.full, pytest.mark.alone, pytest.mark.timeout(1800)]
MIB: Final = 2**20
SECONDS_COUNTED: Final = 300
QUIET: Final = 30
SUSPENDED: Final = 200
MOST_MEMORY: Final = 250 * MIB
"""Half of the chart's limit."""
SLOWEST_MEAN_PASS: Final = 1.0


@pytest.fixture
def fleets(operator: Operator, namespace: Kubectl, images: Images) -> list[Fleet]:
    """Three that serve."""
    specs = {"proxies": {"replicas": 1}}
    return [Fleet(namespace, images, name, specs).make() for name in ("one", "two", "three")]


def until_nothing_is_written(cluster: Kubectl) -> None:
    """Whatever earlier tests left has gone."""
    deadline = time.monotonic() + 300
    earlier = writes.counted(cluster)
    time.sleep(QUIET)
    while written := writes.since(cluster, earlier):
        assert time.monotonic() < deadline, written
        earlier = writes.counted(cluster)
        time.sleep(QUIET)


def operators_pod(namespace: Kubectl) -> str:
    name: str = namespace.get("pods", "--selector=app.kubernetes.io/component=operator")["items"][0]["metadata"]["name"]
    return name


def passes(namespace: Kubectl) -> dict[str, float]:
    """How many passes the operator has made, how many seconds they took, and how many failed."""
    path = f"/api/v1/namespaces/{namespace.namespace}/pods/{operators_pod(namespace)}:8080/proxy/metrics"
    families = text_string_to_metric_families(namespace("get", "--raw", path))
    return {
        sample.name.removeprefix("rolloutfleet_operator_"): sample.value
        for family in families
        for sample in family.samples
        if "pass_" in sample.name and not sample.name.endswith("_bucket")
    }


def mean_pass(namespace: Kubectl, *, seconds: float) -> float:
    before = passes(namespace)
    time.sleep(seconds)
    after = passes(namespace)
    assert after["pass_errors_total"] == before["pass_errors_total"]
    taken = {name: after[name] - before[name] for name in ("pass_seconds_count", "pass_seconds_sum")}
    return taken["pass_seconds_sum"] / taken["pass_seconds_count"]


def test_three_fleets_at_rest_write_nothing_but_leases_for_five_minutes(fleets: list[Fleet], cluster: Kubectl) -> None:
    until_nothing_is_written(cluster)
    earlier, uids = writes.counted(cluster), [fleet.uids() for fleet in fleets]
    before = passes(fleets[0].namespace)
    time.sleep(SECONDS_COUNTED)
    assert writes.since(cluster, earlier) == {}
    renewed = (writes.counted(cluster) - earlier)[f"PUT {writes.LEASES}"]
    assert renewed > SECONDS_COUNTED / 10, "that Leases are renewed was not seen, so nothing was counted"
    assert passes(fleets[0].namespace)["pass_seconds_count"] > before["pass_seconds_count"], "nobody looked"
    assert [fleet.uids() for fleet in fleets] == uids


def test_two_hundred_suspended_fleets_beside_three_that_run_cost_little(
    fleets: list[Fleet], cluster: Kubectl, record: Record, namespace: Kubectl
) -> None:
    few = mean_pass(namespace, seconds=60)
    memory_of_few = resident_bytes(record, namespace, operators_pod(namespace))
    began = time.monotonic()
    asleep = [manifest(f"asleep-{number}", {"suspend": True}) for number in range(SUSPENDED)]
    namespace("create", "--filename", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": asleep}))
    fleets[0].until("all are suspended", lambda: suspended(fleets[0]) == SUSPENDED, seconds=900)
    print(f"{SUSPENDED} fleets suspended after {time.monotonic() - began:.0f} s")

    until_nothing_is_written(cluster)
    many = mean_pass(namespace, seconds=120)
    memory = resident_bytes(record, namespace, operators_pod(namespace))
    print(f"a pass: {few:.3f} s with 3 fleets, {many:.3f} s with {SUSPENDED} more")
    print(f"the operator's memory: {memory_of_few // MIB} MiB with 3 fleets, {memory // MIB} MiB with {SUSPENDED} more")
    assert memory < MOST_MEMORY
    assert many < SLOWEST_MEAN_PASS

    changed = fleets[0]
    changed.patch({"sessions": {"staleAfter": "2h"}})
    changed.until("an edit is in force", changed.settings_in_force, seconds=60)


def suspended(beside: Fleet) -> int:
    """How many say so in that fleet's namespace."""
    found = beside.namespace.get("rolloutfleets")["items"]
    return [beside.condition("Suspended", seen).get("status") for seen in found].count("True")
