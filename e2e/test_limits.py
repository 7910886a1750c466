"""A full disk, dumps that can't be written, memory that runs out: each is said, and heals when its cause goes."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from toolchain.kubernetes.kubectl import Kubectl
from toolchain.kubernetes.records import Record

from e2e import agents, disks
from e2e.fleets import Fleet
from e2e.installing import Images, Operator

pytestmark = pytest.mark.full
PROXY: Final = "demo-proxy-0"
TURNS: Final = 100
"""Their dump is larger than the 100 KB that ext4 keeps back on a full disk."""


@pytest.fixture
def disk(record: Record, cluster: Kubectl) -> Iterator[str]:
    """The storage class of one small disk."""
    with disks.disk(record, cluster, megabytes=160) as name:
        yield name


def fill(fleet: Fleet, folder: str) -> None:
    fleet.namespace("exec", PROXY, "--", "sh", "-c", f"cat /dev/zero > {folder}/filler || sync")


def make_room(fleet: Fleet, folder: str) -> None:
    fleet.namespace("exec", PROXY, "--", "rm", f"{folder}/filler")


def ask(fleet: Fleet, most: int) -> tuple[dict[str, list[str]], int | None]:
    """Turns answered, by session, and the status by which the agent was refused."""
    said = agents.run(fleet.namespace, "asking.py", str(most), fleet=fleet.name, image=fleet.images.proxy)
    return said["answered"], said["refused"]


def test_a_full_volume_refuses_turns_keeps_those_that_were_answered_and_heals(
    operator: Operator, namespace: Kubectl, images: Images, disk: str
) -> None:
    storage = {"size": disks.CLAIMED, "className": disk}
    fleet = Fleet(namespace, images, spec={"proxies": {"replicas": 1, "storage": storage}}).make()
    uids, boots = fleet.uids(), fleet.boots(PROXY)
    answered, refused = ask(fleet, 5)
    assert refused is None

    fill(fleet, "/state")
    more, refused = ask(fleet, 400)
    assert refused == 507
    fleet.until("it is said", lambda: fleet.problems().get(PROXY) == "VolumeFull")

    make_room(fleet, "/state")
    fleet.until("it is over", lambda: fleet.problems() == {})
    fleet.until_ready()
    last, refused = ask(fleet, 5)
    assert refused is None
    every = answered | more | last
    agents.run(namespace, "rewards.py", *(each for each in every if every[each]), fleet=fleet.name, image=images.proxy)
    kept = {session: sorted(turns) for session, turns in fleet.export(1).items()}
    assert kept == {session: sorted(turns) for session, turns in every.items() if turns}
    assert (fleet.uids(), fleet.boots(PROXY)) == (uids, boots)


def test_dumps_that_cant_be_written_are_said_keep_the_session_and_are_written_when_there_is_room(
    operator: Operator, namespace: Kubectl, images: Images, disk: str
) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "dumps"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": disk,
            "resources": {"requests": {"storage": disks.CLAIMED}},
        },
    }
    namespace("apply", "--filename", "-", stdin=json.dumps(claim))
    volume = {"persistentVolumeClaim": {"claimName": "dumps"}}
    sessions = {"staleAfter": "20s", "cleanupInterval": "5s", "dump": {"volume": volume}}
    fleet = Fleet(namespace, images, spec={"proxies": {"replicas": 1}, "sessions": sessions}).make()

    fill(fleet, "/dumps")
    answered, refused = ask(fleet, TURNS)
    assert refused is None
    fleet.until("it is said", lambda: fleet.problems().get(PROXY) == "DumpFailing")
    assert fleet.condition("CleanupHealthy")["status"] == "False"
    assert fleet.condition("Ready")["status"] == "True"
    assert audit(fleet)["turns"]["live"] == TURNS

    make_room(fleet, "/dumps")
    fleet.until("it is over", lambda: fleet.problems() == {})
    fleet.until("it is dumped", lambda: audit(fleet)["turns"]["dumped"] == TURNS)
    assert audit(fleet)["balanced"] is True
    namespace("exec", PROXY, "--", "rolloutfleet", "dumps", "verify", "--dir", "/dumps")
    assert dumped(fleet) == {turn for turns in answered.values() for turn in turns}


def audit(fleet: Fleet) -> dict[str, Any]:
    code = (
        "import httpx, pathlib; key = pathlib.Path('/etc/rolloutfleet/keys/admin-keys').read_text().split()[0];"
        "print(httpx.get('http://127.0.0.1:8080/audit', headers={'Authorization': 'Bearer ' + key}).text)"
    )
    found: dict[str, Any] = json.loads(fleet.namespace("exec", PROXY, "--", "python", "-c", code))
    return found


def dumped(fleet: Fleet) -> set[str]:
    """The turns that are in dumps."""
    code = (
        "import json, pathlib; files = pathlib.Path('/dumps').rglob('*.json');"
        "print(json.dumps([turn['turn_id'] for file in files for turn in json.loads(file.read_text())['turns']]))"
    )
    return set(json.loads(fleet.namespace("exec", PROXY, "--", "python", "-c", code)))


def test_a_proxy_that_the_kernel_kills_for_its_memory_is_named_and_serves_on_with_all_that_was_answered(
    operator: Operator, namespace: Kubectl, images: Images
) -> None:
    """Real work does it: bodies of many megabytes, more at once than the limit has room for."""
    limit = {"resources": {"limits": {"memory": "240Mi"}}}
    spec = {"proxies": {"replicas": 1, **limit}, "memory": {"rssBudget": "230Mi"}}
    fleet = Fleet(namespace, images, spec=spec).make()
    uids, boots = fleet.uids(), fleet.boots(PROXY)
    said = agents.run(namespace, "bodies.py", "10", "48", fleet=fleet.name, image=images.proxy)
    assert said["ended"] is not None

    fleet.until("it is said", lambda: fleet.problems().get(PROXY) == "OOMKilled")
    fleet.until_ready()
    assert fleet.status()["restarts"]["oom"] >= 1
    assert fleet.status()["restarts"]["memory"] == 0
    assert fleet.uids() == uids
    assert {boot["reason"].partition(":")[0] for boot in fleet.boots(PROXY)[len(boots) :]} == {"crash"}
    last, refused = ask(fleet, 5)
    assert refused is None
    answered = said["answered"] | last
    agents.run(namespace, "rewards.py", *answered, fleet=fleet.name, image=images.proxy)
    kept = fleet.export(1)
    assert {session for session, turns in answered.items() if set(turns) - set(kept.get(session, []))} == set()
