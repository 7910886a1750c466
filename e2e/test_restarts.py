"""A proxy is restarted in each of the three ways, under agents, and nothing that a client saw answered is lost."""

from functools import partial

import pytest
from toolchain.kubernetes.failures import CommandFailed
from toolchain.kubernetes.kubectl import Kubectl

from e2e.fleets import Fleet
from e2e.installing import Images, Operator


def _is_another(fleet: Fleet, pod: str, uid: str) -> bool:
    """True once the pod of that name has been replaced."""
    return fleet.uids().get(pod, uid) != uid


@pytest.mark.full
def test_a_restart_by_id_reaches_every_process_once(operator: Operator, namespace: Kubectl, images: Images) -> None:
    _restart_by_id(Fleet(namespace, images, spec={"memory": {"restart": "Process"}}), "Process")


@pytest.mark.full
def test_a_restart_by_id_reaches_every_container_once(operator: Operator, namespace: Kubectl, images: Images) -> None:
    _restart_by_id(Fleet(namespace, images, spec={"memory": {"restart": "Container"}}), "Container")


@pytest.mark.full
def test_a_restart_by_id_reaches_every_pod_once(operator: Operator, namespace: Kubectl, images: Images) -> None:
    spec = {"memory": {"restart": "Pod"}, "proxies": {"storage": {"nodeLocal": True}}}
    _restart_by_id(Fleet(namespace, images, spec=spec), "Pod")


@pytest.mark.full
def test_a_rollout_restart_with_kubectl_reaches_every_pod_once(
    operator: Operator, namespace: Kubectl, images: Images
) -> None:
    fleet = Fleet(namespace, images)
    fleet.make()
    uids = fleet.uids()
    with fleet.traffic() as traffic:
        namespace("rollout", "restart", f"statefulset/{fleet.name}-proxy")
        fleet.until("every pod is another", lambda: not set(uids.values()) & set(fleet.uids().values()))
        fleet.until_ready()
    assert fleet.status()["restarts"]["rollout"] == len(uids)
    assert traffic.errors == []
    assert len(traffic.answered) > 3
    assert traffic.lost(fleet.export(2)) == {}


@pytest.mark.parametrize("replicas", [2, pytest.param(3, marks=pytest.mark.full)])
def test_agents_notice_no_proxy_that_is_restarted_deleted_evicted_or_rolled(
    operator: Operator, namespace: Kubectl, images: Images, replicas: int
) -> None:
    fleet = Fleet(namespace, images, spec={"proxies": {"replicas": replicas}}).make()
    with fleet.traffic(number=6) as traffic:
        for way in ("Container", "Pod"):
            fleet.patch({"memory": {"restart": way}, "restart": {"id": way}})
            fleet.until(f"the {way} is restarted", partial(fleet.has_restarted, way))
            fleet.until_ready()
        for remove, (pod, uid) in zip((_delete, _evict), fleet.uids().items(), strict=False):
            fleet.until(f"{remove.__name__} of {pod}", partial(remove, namespace, pod))
            fleet.until(f"{pod} is another", partial(_is_another, fleet, pod, uid))
            fleet.until_ready()
        before = set(fleet.uids().values())
        fleet.patch({"disruption": {"drainTimeout": "21s"}})  # another pod template
        fleet.until("every pod is another", lambda: not before & set(fleet.uids().values()))
        fleet.until_ready()
    assert traffic.errors == []
    assert len(traffic.answered) > 3
    assert traffic.lost(fleet.export(replicas)) == {}


def _delete(namespace: Kubectl, pod: str) -> bool:
    return namespace.succeeds("delete", "pod", pod, "--wait=false")


def _evict(namespace: Kubectl, pod: str) -> bool:
    """Return False while the disruption budget refuses it."""
    try:
        namespace.evict(pod)
    except CommandFailed:
        return False
    return True


def _restart_by_id(fleet: Fleet, way: str) -> None:
    """Let every proxy restart once, under agents; nothing else restarts."""
    fleet.make()
    uids, counts = fleet.uids(), fleet.container_restarts()
    boots = {pod: len(fleet.boots(pod)) for pod in uids}

    with fleet.traffic() as traffic:
        fleet.patch({"restart": {"id": "one"}})
        fleet.until("the restart is answered", lambda: fleet.has_restarted("one"))
        fleet.until_ready()

    assert {pod: len(fleet.boots(pod)) - boots[pod] for pod in uids} == dict.fromkeys(uids, 1)
    assert (fleet.uids() == uids) is (way != "Pod")
    risen = 1 if way == "Container" else 0
    assert way == "Pod" or fleet.container_restarts() == {pod: count + risen for pod, count in counts.items()}
    assert fleet.status()["restarts"]["requested"] == 2
    assert traffic.errors == []
    assert len(traffic.answered) > 3
    assert traffic.lost(fleet.export(2)) == {}
