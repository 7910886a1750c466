"""A fleet is edited, rolled and scaled under agents that know of nothing."""

from typing import Any

import pytest
from toolchain.kubernetes.kubectl import Kubectl

from e2e import agents
from e2e.fleets import Fleet
from e2e.installing import Images, Operator

BAD_IMAGE = "rolloutfleet.invalid/absent:1"


def reasons(fleet: Fleet) -> set[str]:
    return {problem["reason"] for problem in fleet.status().get("problems", [])}


@pytest.mark.full
def test_edited_settings_are_in_force_without_a_restart(operator: Operator, namespace: Kubectl, images: Images) -> None:
    spec: dict[str, Any] = {"sessions": {"staleAfter": "1h", "cleanupInterval": "5s", "dump": {"path": "/dumps/first"}}}
    fleet = Fleet(namespace, images, spec=spec).make()
    uids = fleet.uids()
    boots = {pod: fleet.boots(pod) for pod in uids}
    watch = agents.start(namespace, "staleness.py", fleet=fleet.name, image=images.proxy)
    fleet.until("sessions are there", lambda: "begun" in fleet.log(watch))

    true_since = fleet.condition("SettingsInForce")["lastTransitionTime"]
    fleet.patch({"sessions": {"staleAfter": "15s", "dump": {"path": "/dumps/second"}}})
    fleet.until("settings are in force", fleet.settings_in_force)
    assert fleet.condition("SettingsInForce")["lastTransitionTime"] > true_since, "it was False meanwhile"
    said = agents.finish(namespace, watch)

    assert said["idle_status"] == 410
    assert said["busy_turns"] > 3
    assert said["busy_errors"] == []
    owner = f"{fleet.name}-proxy-{said['idle_owner']}"
    assert said["idle"] in namespace("exec", owner, "--", "ls", "-R", "/dumps/second")
    namespace("exec", owner, "--", "rolloutfleet", "dumps", "verify", "--dir", "/dumps/second")
    assert fleet.uids() == uids
    assert {pod: fleet.boots(pod) for pod in uids} == boots


@pytest.mark.full
def test_a_roll_stops_at_an_image_that_is_nowhere_and_goes_on_when_it_is_corrected(
    operator: Operator, namespace: Kubectl, images: Images
) -> None:
    fleet = Fleet(namespace, images).make()
    before = fleet.uids()
    with fleet.traffic(retries=10) as traffic:
        fleet.patch({"image": BAD_IMAGE})
        fleet.until("the roll is stopped", lambda: {"RollStopped", "ImagePullFailed"} & reasons(fleet))
        assert fleet.condition("Ready")["status"] == "False"
        kept = set(before.values()) & set(fleet.uids().values())
        assert len(kept) == 1, "the roll went on to the next proxy"

        fleet.patch({"image": images.proxy})
        fleet.until_ready()
    assert reasons(fleet) == set()
    lost = traffic.lost(fleet.export(2))
    assert lost == {}


def test_a_fleet_that_is_scaled_in_and_out_again_keeps_every_turn(
    operator: Operator, namespace: Kubectl, images: Images
) -> None:
    fleet = Fleet(namespace, images, spec={"proxies": {"replicas": 3}, "disruption": {"retireTimeout": "20s"}}).make()
    with fleet.traffic(retries=10) as traffic:
        namespace("scale", fleet.resource, "--replicas=1")
        fleet.until("one proxy is left", lambda: set(fleet.proxies()) == {f"{fleet.name}-proxy-0"})
        fleet.until_ready()
        assert sorted(fleet.status()["parked"]["ordinals"]) in ([], [1], [2], [1, 2])
        namespace("scale", fleet.resource, "--replicas=3")
        fleet.until("three proxies are there", lambda: len(fleet.proxies()) == 3)
        fleet.until_ready()
    assert traffic.lost(fleet.export(3)) == {}
    assert fleet.status()["parked"]["ordinals"] == []


@pytest.mark.full
def test_a_fleet_that_is_suspended_and_resumed_under_agents_keeps_every_turn(
    operator: Operator, namespace: Kubectl, images: Images
) -> None:
    fleet = Fleet(namespace, images).make()
    with fleet.traffic(retries=10) as traffic:
        fleet.until("both hold sessions", lambda: all(fleet.stats(pod)["sessions"]["open"] for pod in fleet.proxies()))
        fleet.patch({"suspend": True})
        fleet.until("nothing of it runs", lambda: fleet.condition("Suspended")["status"] == "True")
        assert pods(fleet) == []
        parked = fleet.status()["parked"]
        assert parked["ordinals"] == [0, 1] and parked["turns"] > 0

        fleet.patch({"suspend": False})
        fleet.until_ready()
        assert fleet.status()["parked"]["ordinals"] == []
    assert sum(len(turns) for turns in traffic.answered.values()) >= parked["turns"]
    assert traffic.lost(fleet.export(2)) == {}


def pods(fleet: Fleet) -> list[str]:
    """What runs, gateway and engines included."""
    return fleet.namespace("get", "pods", f"--selector=rolloutfleet.dev/fleet={fleet.name}", "--output=name").split()
