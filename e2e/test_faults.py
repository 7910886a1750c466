"""What goes wrong on its own: processes and pods that are killed, the gateway down, hands that meddle."""

import json
from contextlib import suppress
from typing import Any, Final

import pytest
from toolchain.kubernetes.failures import CommandFailed
from toolchain.kubernetes.kubectl import Kubectl
from toolchain.kubernetes.records import Record

from e2e import faults
from e2e.fleets import Fleet, not_terminating
from e2e.installing import OPERATOR, Images, Operator
from rolloutfleet_operator.cluster.failpoints import (
    BOOTING,
    DRAIN_ASKED,
    EVICTION_SENT,
    QUIESCED,
    RESTART_ASKED,
    STATUS_UNWRITTEN,
    TEMPLATE_APPLIED,
    VARIABLE,
)

pytestmark = pytest.mark.full

OPERATORS: Final = "--selector=app.kubernetes.io/component=operator"
STANDS: Final = "/tmp/stands"
"""The file that an operator makes when it stands at its failpoint."""
RESTART: Final[dict[str, Any]] = {"restart": {"id": "one"}}
OTHER_TEMPLATE: Final[dict[str, Any]] = {"disruption": {"drainTimeout": "21s"}}


def test_an_operator_that_is_killed_restarts_no_proxy_twice(
    operator: Operator, record: Record, namespace: Kubectl, images: Images
) -> None:
    fleet = Fleet(namespace, images).make()
    before = {pod: len(fleet.boots(pod)) for pod in fleet.proxies()}
    killed = namespace.get("pods", OPERATORS)["items"][0]["metadata"]["name"]

    with fleet.traffic() as traffic:
        fleet.patch(RESTART)
        fleet.until("a restart is under way", lambda: _under_way(fleet))
        faults.kill(record, namespace, killed)
        fleet.until("the restart is answered", lambda: fleet.has_restarted("one"))
        fleet.until_ready()

    restarts = namespace.get("pods", OPERATORS)["items"][0]["status"]["containerStatuses"][0]["restartCount"]
    assert restarts == 1
    assert {pod: len(fleet.boots(pod)) - before[pod] for pod in before} == dict.fromkeys(before, 1)
    assert fleet.status()["restarts"]["requested"] == 2
    assert traffic.errors == []
    assert traffic.lost(fleet.export(2)) == {}


def _under_way(fleet: Fleet) -> bool:
    """Written down before it is begun, and not over."""
    return any(entry.get("after") is None for entry in fleet.status()["restarts"]["last"])


@pytest.mark.parametrize(
    ("place", "way", "edit"),
    [
        (STATUS_UNWRITTEN, "Process", RESTART),
        (f"{STATUS_UNWRITTEN}:3", "Pod", RESTART),
        (DRAIN_ASKED, "Pod", RESTART),
        (QUIESCED, "Pod", RESTART),
        (EVICTION_SENT, "Pod", RESTART),
        (RESTART_ASKED, "Process", RESTART),
        (RESTART_ASKED, "Container", RESTART),
        (BOOTING, "Container", RESTART),
        (TEMPLATE_APPLIED, "Process", OTHER_TEMPLATE),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_operator_that_is_killed_at_a_step_restarts_each_proxy_exactly_once(
    operator: Operator,
    record: Record,
    namespace: Kubectl,
    images: Images,
    place: str,
    way: str,
    edit: dict[str, Any],
) -> None:
    fleet = Fleet(namespace, images, spec={"memory": {"restart": way}}).make()
    before, uids = {pod: len(fleet.boots(pod)) for pod in fleet.proxies()}, fleet.uids()
    namespace("set", "env", OPERATOR, f"{VARIABLE}={place}@{STANDS}")
    namespace("rollout", "status", OPERATOR, "--timeout=240s", seconds=250)
    (pod,) = not_terminating(namespace.get("pods", OPERATORS)["items"])
    killed = pod["metadata"]["name"]

    with fleet.traffic() as traffic:
        fleet.patch(edit)
        stands = ("exec", killed, "--", "test", "-e", STANDS)
        fleet.until(f"the operator stands at {place}", lambda: namespace.succeeds(*stands))
        faults.kill(record, namespace, killed)
        fleet.until("all is done", lambda: _restarted(fleet) == 2)
        fleet.until_ready()

    assert {pod: len(fleet.boots(pod)) - before[pod] for pod in before} == dict.fromkeys(before, 1)
    assert all(fleet.uids()[pod] != uids[pod] for pod in uids) is (way == "Pod" or edit is OTHER_TEMPLATE)
    assert fleet.problems() == {}
    assert traffic.errors == []
    assert traffic.lost(fleet.export(2)) == {}


def _restarted(fleet: Fleet) -> int:
    """How many restarts are over, of those that were asked for."""
    said = fleet.status()["restarts"]
    counted = said.get("requested", 0) + said.get("rollout", 0)
    return counted if not _under_way(fleet) else -1


def test_a_proxys_pod_that_is_deleted_by_force_comes_back_with_all_that_was_answered(
    operator: Operator, namespace: Kubectl, images: Images
) -> None:
    fleet = Fleet(namespace, images).make()
    before = fleet.uids()
    with fleet.traffic() as traffic:
        namespace("delete", "pod", "demo-proxy-0", "--grace-period=0", "--force")
        fleet.until(
            "another pod is there", lambda: fleet.uids().get("demo-proxy-0") not in (None, before["demo-proxy-0"])
        )
        fleet.until_ready()
    assert fleet.uids()["demo-proxy-1"] == before["demo-proxy-1"]
    assert traffic.errors == []
    assert traffic.lost(fleet.export(2)) == {}


def test_a_gateway_that_ends_after_each_start_is_named_and_agents_wait_for_it(
    operator: Operator, record: Record, namespace: Kubectl, images: Images
) -> None:
    fleet = Fleet(namespace, images).make()
    uids, boots = fleet.uids(), {pod: fleet.boots(pod) for pod in fleet.proxies()}
    chosen = "--selector=rolloutfleet.dev/fleet=demo,app.kubernetes.io/component=gateway"
    gateway = namespace.get("pods", chosen)["items"][0]["metadata"]["name"]

    def killed_again() -> bool:
        if _runs(namespace, gateway):
            with suppress(CommandFailed):  # the kubelet may not know yet that it has ended
                faults.kill(record, namespace, gateway)
        return fleet.problems().get(gateway) == "CrashLooping"

    with fleet.traffic() as traffic:
        fleet.until("the gateway is named", killed_again)
        assert fleet.condition("GatewayReady")["status"] == "False"
        assert fleet.condition("ProxiesReady")["status"] == "True"
        fleet.until_ready()
    assert fleet.problems() == {}
    assert fleet.uids() == uids
    assert {pod: fleet.boots(pod) for pod in uids} == boots
    streams = [error for error in traffic.errors if _is_of_the_gateway(error) and _is_streamed(error)]
    assert traffic.errors == streams, "only a stream whose status line had left can't be tried again by a stock client"
    assert traffic.lost(fleet.export(2)) == {}


def _is_of_the_gateway(error: str) -> bool:
    """It was not there, or went away in the middle of a reply."""
    return "The gateway can't be reached" in error or "The engine's reply broke off" in error


def _is_streamed(error: str) -> bool:
    """`traffic.py` names the turn, and streams every other one."""
    return int(error.partition(" turn ")[2].partition(" ")[0]) % 2 == 1


def _runs(namespace: Kubectl, pod: str) -> bool:
    containers = namespace.get("pod", pod)["status"].get("containerStatuses", [])
    return any("running" in each["state"] for each in containers)


def test_what_hands_have_changed_is_put_back_and_nothing_is_lost(
    operator: Operator, namespace: Kubectl, images: Images
) -> None:
    fleet = Fleet(namespace, images).make()
    first = fleet.uids()["demo-proxy-0"]
    settings = namespace.get("configmap", "demo-settings")["data"]
    with fleet.traffic() as traffic:
        namespace("patch", "configmap", "demo-settings", "--patch", json.dumps({"data": {"settings.json": "{}"}}))
        namespace("patch", "service", "demo", "--type=merge", "--patch", json.dumps({"spec": {"selector": {"a": "b"}}}))
        namespace("delete", "poddisruptionbudget", "demo-proxy")
        namespace("delete", "service", "demo-gateway")
        namespace("scale", "statefulset/demo-proxy", "--replicas=1")
        fleet.until("the proxies are two again", lambda: _replicas(namespace) == 2)
        fleet.until("all is put back", lambda: _put_back(namespace, settings))
        fleet.until_ready()
    assert fleet.uids()["demo-proxy-0"] == first
    assert traffic.errors == []
    assert traffic.lost(fleet.export(2)) == {}


def _replicas(namespace: Kubectl) -> int:
    found: int = namespace.get("statefulset", "demo-proxy")["spec"]["replicas"]
    return found


def _put_back(namespace: Kubectl, settings: dict[str, str]) -> bool:
    return (
        namespace.get("configmap", "demo-settings")["data"] == settings
        and "a" not in namespace.get("service", "demo")["spec"]["selector"]
        and namespace.find("poddisruptionbudget", "demo-proxy") is not None
        and namespace.find("service", "demo-gateway") is not None
    )
