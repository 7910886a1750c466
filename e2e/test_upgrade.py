"""The operator is upgraded over three live fleets: two of them roll, one after another; one waits until it is asked."""

from dataclasses import replace
from typing import Any, Final

import pytest
from tests.waiting import until
from toolchain.kubernetes.docker.client import Docker
from toolchain.kubernetes.kubectl import Kubectl
from toolchain.kubernetes.records import Record

from e2e.fleets import Fleet
from e2e.installing import Images, Operator
from e2e.releases import UNKNOWN, as_version

pytestmark = [pytest.mark.full, pytest.mark.alone, pytest.mark.timeout(1800)]
EARLIER: Final = "0.0.9"
SLOWEST_END: Final = 200 + 60
"""Seconds from a deletion to the end of all: the longest grace of a pod (the gateway's), and a minute."""


@pytest.fixture(scope="module")
def earlier(record: Record, docker: Docker, images: Images) -> Images:
    """An earlier release."""
    return as_version(record, docker, images, EARLIER)


@pytest.fixture
def fleets(release: Operator, earlier: Images, namespace: Kubectl) -> list[Fleet]:
    """Three that live, made by the earlier release; the last one waits with updates until it is asked."""
    replace(release, images=earlier).install()
    two, one = {"proxies": {"replicas": 2}}, {"proxies": {"replicas": 1}}
    specs: dict[str, Any] = {"one": two, "two": one, "three": {**one, "updatePolicy": "OnRequest"}}
    return [Fleet(namespace, earlier, name, spec).make() for name, spec in specs.items()]


def images_of(fleet: Fleet) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in fleet.proxies().values()}


def down(fleets: list[Fleet]) -> list[str]:
    """Proxies of all of them that don't serve, or are not there."""
    wanted = {f"{fleet.name}-proxy-{n}" for fleet in fleets for n in range(fleet.spec["proxies"]["replicas"])}
    found = fleets[0].namespace.get("pods", "--selector=app.kubernetes.io/component=proxy")["items"]  # of one moment
    pods = {pod["metadata"]["name"]: pod for pod in found}
    return sorted(name for name in wanted if name not in pods or not serves(pods[name]))


def serves(pod: dict[str, Any]) -> bool:
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True"


def updated(fleets: list[Fleet], images: Images) -> bool:
    return all(images_of(fleet) == {images.proxy} for fleet in fleets) and all(fleet.is_ready() for fleet in fleets)


def engines(fleets: list[Fleet]) -> dict[str, str]:
    """The uids of all their engines' pods."""
    found = fleets[0].namespace.get("pods", "--selector=app.kubernetes.io/component=engine")["items"]
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}


def waits_for(fleet: Fleet, setting: str) -> bool:
    return f"{setting} waits for its restart" in fleet.condition("SettingsInForce").get("message", "")


def ends(fleet: Fleet) -> None:
    """Nothing is left of it but its claims, which are as many as it had proxies."""
    chosen = f"--selector=rolloutfleet.dev/fleet={fleet.name}"
    kinds = "pods,statefulsets,deployments,services,configmaps,secrets,poddisruptionbudgets"

    def left() -> str:
        return fleet.namespace("get", kinds, chosen, "--output", "name")

    until(lambda: not left().split(), seconds=SLOWEST_END, rest=1.0, state=left)
    assert len(fleet.namespace.get("pvc", chosen)["items"]) == fleet.spec["proxies"]["replicas"]


def test_an_upgrade_rolls_fleets_one_after_another_and_serves_the_earlier_releases_proxies(
    fleets: list[Fleet], release: Operator, images: Images, earlier: Images
) -> None:
    rolled, waits = fleets[:2], fleets[2]
    assert {fleet.status()["operatorVersion"] for fleet in fleets} == {EARLIER}
    uids, of_engines = waits.uids(), engines(fleets)
    with fleets[0].traffic() as traffic:
        release.install()

        def rolled_one_by_one() -> bool:
            assert len(down(fleets)) <= 1
            return updated(rolled, images)

        until(rolled_one_by_one, seconds=400, state=lambda: [fleet.status() for fleet in fleets])
    assert traffic.errors == []
    assert traffic.lost(fleets[0].export(2)) == {}

    assert engines(fleets) == of_engines, "another default replaces no engine"
    for fleet in fleets:
        fleet.until("an update is there", lambda fleet=fleet: fleet.condition("UpdateAvailable")["status"] == "True")  # type: ignore[misc]
        assert fleet.is_ready()
    assert waits.condition("Progressing")["reason"] == "UpdateWaits"
    assert waits.uids() == uids and images_of(waits) == {earlier.proxy}
    assert waits.status()["operatorVersion"] != EARLIER
    with waits.traffic() as traffic:
        waits.patch({"sessions": {"staleAfter": "2h"}})
        waits.until("an edit reaches the earlier release's proxy", waits.settings_in_force)
        waits.patch({"sessions": {UNKNOWN: "77s"}})
        waits.until("what it does not know waits", lambda: waits_for(waits, "sessions.max_hold"))
        waits.patch({"restart": {"id": "update"}})
        waits.until_ready()
        waits.until("it is updated", lambda: updated([waits], images))
        waits.until("and knows it then", waits.settings_in_force)
    assert waits.uids() != uids
    assert len(engines(fleets).items() & of_engines.items()) == len(of_engines) - 1, "only those that were asked for"
    assert traffic.lost(waits.export(1)) == {}


def test_fleets_end_before_the_operator_and_after_it(fleets: list[Fleet], release: Operator) -> None:
    first, *others = fleets
    first.namespace("delete", first.resource, "--timeout=30s")
    ends(first)
    release.uninstall()
    for fleet in others:
        assert down([fleet]) == []
        fleet.namespace("delete", fleet.resource, "--timeout=30s")
    for fleet in others:
        ends(fleet)
