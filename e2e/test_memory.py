"""Proxies whose memory grows by the work of agents are kept within their budget, one at a time."""

import time
from datetime import datetime
from typing import Any, Final

import pytest
from tests.waiting import until
from toolchain.kubernetes.kubectl import Kubectl
from toolchain.kubernetes.records import Record

from e2e.fleets import Fleet
from e2e.installing import Images, Operator
from e2e.processes import resident_bytes

pytestmark = pytest.mark.full
MIB: Final = 2**20
BUDGET: Final = 170 * MIB
"""Between what a proxy takes after its start, 140 MiB, and what it takes once its caches are filled, 200 MiB."""
CHARACTERS: Final = 100_000
"""Of each session's first message."""
COOLDOWN: Final = 20


def memory(**over: Any) -> dict[str, Any]:
    """The spec of a fleet whose proxies have room to spare, sampled often."""
    return {
        "proxies": {"resources": {"limits": {"memory": "1500Mi"}}},
        "memory": {"rssBudget": "1Gi", "samples": 2, "interval": "2s", **over},
    }


def over_budget(fleet: Fleet) -> set[str]:
    """Proxies that the status says are over it."""
    return {problem["pod"] for problem in fleet.status().get("problems", []) if problem["reason"] == "OverBudget"}


def entries(fleet: Fleet) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = fleet.status().get("restarts", {}).get("last", [])
    return [entry for entry in found if entry["reason"] == "memory"]


def not_serving(fleet: Fleet) -> list[str]:
    conditions = {name: pod["status"].get("conditions", []) for name, pod in fleet.proxies().items()}
    ready = {name for name, found in conditions.items() if {"Ready": "True"}.items() <= _by_type(found).items()}
    return [name for name in conditions if name not in ready]


def _by_type(conditions: list[dict[str, Any]]) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in conditions}


@pytest.mark.parametrize("way", ["Process", "Container", "Pod"])
def test_proxies_over_their_budget_are_restarted_one_after_the_other(
    operator: Operator, record: Record, namespace: Kubectl, images: Images, way: str
) -> None:
    fleet = Fleet(namespace, images, spec=memory(restart=way, cooldown="10m")).make()
    uids, counts = fleet.uids(), fleet.container_restarts()
    boots = {pod: len(fleet.boots(pod)) for pod in uids}

    with fleet.traffic(number=4, characters=CHARACTERS) as traffic:
        fleet.until("both have grown", lambda: all(resident_bytes(record, namespace, pod) > BUDGET for pod in uids))
        for pod in uids:
            assert fleet.stats(pod)["rss_bytes"] == pytest.approx(resident_bytes(record, namespace, pod), rel=0.15)

        fleet.patch({"memory": {"rssBudget": str(BUDGET)}})
        fleet.until("both are over their budget at once", lambda: over_budget(fleet) == set(uids))
        until(lambda: restarted(fleet, pods=2), seconds=240, state=fleet.status)
    fleet.until_ready()

    first, second = sorted(entries(fleet), key=lambda entry: entry["time"])
    assert {first["pod"], second["pod"]} == set(uids)
    assert all(entry["before"] > BUDGET and entry["after"] < entry["before"] for entry in (first, second))
    booted = fleet.boots(first["pod"])[-1]["time"]
    assert booted <= _seconds(second["time"]), "the second did not wait for its turn"

    assert {pod: len(fleet.boots(pod)) - boots[pod] for pod in uids} == dict.fromkeys(uids, 1)
    assert (fleet.uids() == uids) is (way != "Pod")
    risen = 1 if way == "Container" else 0
    assert way == "Pod" or fleet.container_restarts() == {pod: count + risen for pod, count in counts.items()}
    assert fleet.status()["restarts"]["memory"] == 2
    assert traffic.errors == []
    assert traffic.lost(fleet.export(2)) == {}


def restarted(fleet: Fleet, *, pods: int) -> bool:
    """Return whether so many have been. Raises AssertionError where more than one does not serve."""
    assert len(not_serving(fleet)) <= 1
    return len([entry for entry in entries(fleet) if entry.get("after") is not None]) >= pods


def _seconds(text: str) -> float:
    """Since 1970, of a time of Kubernetes: the end of that second, as fractions are left out."""
    return datetime.fromisoformat(text).timestamp() + 1


def test_a_budget_below_what_a_proxy_starts_with_is_said_to_be_too_small_and_served_all_the_same(
    operator: Operator, namespace: Kubectl, images: Images
) -> None:
    spec = memory(rssBudget="64Mi", cooldown=f"{COOLDOWN}s")
    spec["proxies"]["replicas"] = 1
    fleet = Fleet(namespace, images, spec=spec).make()
    (pod,) = fleet.proxies()
    with fleet.traffic() as traffic:
        fleet.until("restarts are given up", lambda: fleet.problems().get(pod) == "BudgetTooSmall")
        condition = fleet.condition("MemoryWithinBudget")
        assert (condition["status"], condition["reason"]) == ("False", "BudgetTooSmall")
        boots = [boot["reason"] for boot in fleet.boots(pod)]
        assert boots == ["first", "planned: memory", "planned: memory"]
        time.sleep(2 * COOLDOWN + 10)
        assert [boot["reason"] for boot in fleet.boots(pod)] == boots
        assert fleet.reasons() == {"BudgetTooSmall"}

        fleet.patch({"memory": {"rssBudget": "1Gi"}})
        fleet.until("the new budget is kept", lambda: fleet.condition("MemoryWithinBudget")["status"] == "True")
        assert fleet.reasons() == set()
        fleet.until_ready()
    assert traffic.errors == []
    assert traffic.lost(fleet.export(1)) == {}
