"""Operator and definition of two releases side by side, whichever is the newer one."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.cluster.apiserver import ApiServer, running
from tests.cluster.operators import running as operating
from tests.processes import free_port

import rolloutfleet
from rolloutfleet_operator import crd

UNKNOWN: Final = "spec.sessions.maxHold"
"""What the earlier release has no field for. The definition of this one gives it a default, so every fleet has it."""
WITHOUT: Final = {
    "spec_for_proxies.py": (
        ("from typing import Annotated, ", "from typing import Annotated, ClassVar, "),
        ("    max_hold: PositiveDuration =", "    max_hold: ClassVar[float] ="),
    ),
    "status.py": (
        ("from typing import Annotated, ", "from typing import Annotated, ClassVar, "),
        ("    operator_version: str | None =", "    operator_version: ClassVar[str | None] ="),
    ),
}
"""How the earlier release differs: a setting, and a field of the status."""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the packages of an earlier release."""
    folder = tmp_path_factory.mktemp("earlier")
    package = folder / "rolloutfleet"
    shutil.copytree(Path(rolloutfleet.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, changes in WITHOUT.items():
        text = (package / name).read_text()
        for now, then in changes:
            assert text.count(now) == 1, now
            text = text.replace(now, then)
        (package / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def earlier_definition(earlier: Path) -> dict[str, Any]:
    words = [sys.executable, "-m", "rolloutfleet_operator.crd"]
    environment = {**os.environ, "PYTHONPATH": str(earlier)}
    page = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    assert "maxHold" not in page and "operatorVersion" not in page
    definition: dict[str, Any] = yaml.safe_load(page)
    return definition


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with running(tmp_path_factory.mktemp("kubernetes")) as server:
        yield server


@pytest.fixture
def namespace(server: ApiServer, request: pytest.FixtureRequest) -> str:
    name = f"test-{abs(hash(request.node.name)) % 10**8}"
    server.kubectl("create", "namespace", name)
    return name


class Fleet:
    """The fleet `math` of a namespace."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self.server, self.namespace = server, namespace

    def apply(self, **fields: Any) -> None:
        spec = {"model": "simulated", "engine": {"gpus": 0}, "memory": {"interval": "1s"}, **fields}
        manifest = {"apiVersion": "rolloutfleet.dev/v1alpha1", "kind": "RolloutFleet", "metadata": {"name": "math"}}
        self.server.apply({**manifest, "spec": spec}, namespace=self.namespace)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.server.get("rolloutfleet", "math", namespace=self.namespace).get("status", {})
        return found

    def problems(self) -> dict[str, str]:
        return {each["reason"]: each["message"] for each in self.status().get("problems", ())}

    def ready(self) -> dict[str, Any]:
        return next((each for each in self.status().get("conditions", ()) if each["type"] == "Ready"), {})

    def is_served(self) -> bool:
        """Its children are there, and its status is of its newest spec."""
        fleet = self.server.get("rolloutfleet", "math", namespace=self.namespace)
        sets = self.server.get("statefulsets", namespace=self.namespace)
        observed = fleet.get("status", {}).get("observedGeneration")
        return len(sets) == 1 and bool(observed == fleet["metadata"]["generation"])

    def replicas(self) -> int:
        """That its StatefulSet asks for."""
        (made,) = self.server.get("statefulsets", namespace=self.namespace)
        asked: int = made["spec"]["replicas"]
        return asked

    def warnings(self) -> set[str]:
        """Reasons of the Events of type Warning."""
        events = self.server.get("events", fieldSelector="type=Warning", namespace=self.namespace)
        return {event["reason"] for event in events if event["involvedObject"]["kind"] == "RolloutFleet"}


@pytest.fixture
def fleet(server: ApiServer, namespace: str) -> Fleet:
    return Fleet(server, namespace)


def of_namespace(fleet: Fleet, folder: Path, *, code: Path | None = None) -> Any:
    return operating(fleet.server, folder, free_port(), fleet.namespace, f"--namespace={fleet.namespace}", code=code)


def test_under_a_newer_definition_fleets_are_served_and_what_is_not_known_is_named(
    fleet: Fleet, earlier: Path, tmp_path: Path
) -> None:
    """The documented order of an upgrade, and, read backwards, a downgrade that leaves the definition."""
    fleet.server.define(crd.definition())
    fleet.apply()
    with of_namespace(fleet, tmp_path / "old", code=earlier) as old:
        old.until(fleet.is_served)
        old.until(lambda: "FieldsUnknown" in fleet.problems())
        assert UNKNOWN in fleet.problems()["FieldsUnknown"]
        assert "SpecInvalid" not in json.dumps(fleet.status())
        old.until(lambda: "FieldsUnknown" in fleet.warnings())
        fleet.apply(proxies={"replicas": 2}, sessions={"maxHold": "77s"})
        old.until(lambda: fleet.is_served() and fleet.replicas() == 2)
        old.stop()
    with of_namespace(fleet, tmp_path / "new") as new:
        new.until(lambda: fleet.ready() and "FieldsUnknown" not in fleet.problems())
        assert fleet.status()["operatorVersion"]
        new.stop()
    with of_namespace(fleet, tmp_path / "again", code=earlier) as old:
        old.until(lambda: "FieldsUnknown" in fleet.problems())


def test_under_an_older_definition_fleets_are_served_and_their_status_is_written(
    fleet: Fleet, earlier_definition: dict[str, Any], tmp_path: Path
) -> None:
    fleet.server.define(earlier_definition)
    fleet.apply()
    with of_namespace(fleet, tmp_path / "new") as new:
        # The controller of StatefulSets makes the pod a moment later, which the status says as well.
        new.until(lambda: fleet.is_served() and fleet.status().get("updatedReplicas") == 1)
        assert fleet.ready()["reason"] == "ProxiesNotReady"
        assert fleet.problems() == {}
        written = fleet.status()
        passes = new.passes()
        new.until(lambda: new.passes() > passes + 3)
        assert fleet.status() == written
        assert "was refused" not in new.said() and "a pass failed" not in new.said()


def test_an_older_operator_of_one_namespace_beside_a_newer_one_of_the_cluster(
    server: ApiServer, fleet: Fleet, earlier: Path, tmp_path: Path
) -> None:
    server.define(crd.definition())
    other_fleets = Fleet(server, f"{fleet.namespace}-wide")
    server.kubectl("create", "namespace", other_fleets.namespace)
    with (
        of_namespace(fleet, tmp_path / "old", code=earlier) as old,
        operating(server, tmp_path / "new", free_port(), other_fleets.namespace) as new,
    ):
        new.until(lambda: "left alone" in new.said())
        for each in (fleet, other_fleets):
            each.apply()
        old.until(lambda: fleet.is_served() and "FieldsUnknown" in fleet.problems())
        new.until(other_fleets.is_served)
        assert other_fleets.problems() == {}


def test_without_its_definition_it_ends_with_a_sentence_and_begun_again_waits_for_one(
    fleet: Fleet, tmp_path: Path
) -> None:
    fleet.server.define(crd.definition())
    fleet.apply()
    with of_namespace(fleet, tmp_path / "operator") as operator:
        operator.until(fleet.is_served)
        fleet.server.kubectl("delete", f"crd/{crd.NAME}", "--timeout=60s")
        operator.until(lambda: operator.process.poll() is not None)
        assert operator.process.returncode == 2
        assert "the definition of RolloutFleets is gone" in operator.said()
        assert "Traceback" not in operator.said()
        lease = fleet.server.get("lease", "rolloutfleet-operator", namespace=fleet.namespace)
        assert lease["spec"]["holderIdentity"] == ""
        operator.start_again()
        operator.until(lambda: "waiting until RolloutFleets can be read" in operator.said())
        fleet.server.define(crd.definition())
        fleet.apply(proxies={"replicas": 0})
        operator.until(fleet.ready)


def test_told_to_stop_while_it_waits_for_a_definition_it_lets_go_of_its_lease(fleet: Fleet, tmp_path: Path) -> None:
    fleet.server.define(crd.definition())
    fleet.apply()
    fleet.server.kubectl("delete", f"crd/{crd.NAME}", "--timeout=60s")
    with of_namespace(fleet, tmp_path / "operator") as operator:
        operator.until(lambda: all(text in operator.said() for text in ("acts now", "waiting until")))
        assert operator.stop() == 0
        lease = fleet.server.get("lease", "rolloutfleet-operator", namespace=fleet.namespace)
        assert lease["spec"]["holderIdentity"] == ""


def test_what_a_newer_operator_wrote_into_the_status_is_kept_as_far_as_it_is_known(
    fleet: Fleet, tmp_path: Path
) -> None:
    """A newer kind of condition, a newer word, and a part that has another shape there."""
    fleet.server.define(crd.definition())
    fleet.apply(proxies={"replicas": 0})
    status = {
        "conditions": [{"type": "Newer", "status": "Perhaps", "reason": "SoItIs"}],
        "current": {"action": "Newer", "since": "2026-11-21T08:00:00Z", "waitingFor": "moon"},
        "restarts": {"memory": 3},
        "parked": {"ordinals": [4], "sessions": 2, "turns": 7},
    }
    patch = ("patch", "rolloutfleet/math", "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    fleet.server.kubectl("-n", fleet.namespace, *patch)
    with of_namespace(fleet, tmp_path / "operator") as operator:
        operator.until(fleet.ready)
    said = fleet.status()
    assert "Newer" not in {each["type"] for each in said["conditions"]}
    assert said["restarts"]["memory"] == 3
    assert said["parked"] == status["parked"]
