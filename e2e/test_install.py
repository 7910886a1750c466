"""From `helm install` to an export, and back: what an administrator and a first user do.

These tests install and remove the operator of the whole cluster, so nothing else runs beside them.
"""

import json
import time
from typing import Final

import pytest
from tests.waiting import until
from toolchain.kubernetes.failures import CommandFailed
from toolchain.kubernetes.kubectl import Kubectl

from e2e import agents
from e2e.installing import CHART, DEFINITION, NAMESPACE, OPERATOR, Images, Operator

REPOSITORY: Final = CHART.parents[1]
EXAMPLE: Final = REPOSITORY / "examples" / "kubernetes" / "fleet-simulated.yaml"
FLEET: Final = "rolloutfleet/demo"
OF_THE_FLEET: Final = "--selector=rolloutfleet.dev/fleet=demo"
SLOWEST_END: Final = 200 + 60
"""Seconds from a deletion to the end of all: the longest grace of a pod (the gateway's), and a minute."""

pytestmark = [pytest.mark.whole_cluster, pytest.mark.timeout(1200)]


def make_fleet(namespace: Kubectl) -> None:
    namespace("apply", "--filename", EXAMPLE)
    ready(namespace)


def ready(namespace: Kubectl) -> None:
    namespace("wait", FLEET, "--for=condition=Ready", "--timeout=240s", seconds=250)


def until_reason(namespace: Kubectl, reason: str) -> None:
    """Until that is why the fleet is not Ready."""
    path = '{.status.conditions[?(@.type=="Ready")].reason}'
    namespace("wait", FLEET, f"--for=jsonpath={path}={reason}", "--timeout=240s", seconds=250)


def pods(namespace: Kubectl) -> dict[str, str]:
    """The fleet's pods and their uids."""
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in namespace.get("pods", OF_THE_FLEET)["items"]}


def left(namespace: Kubectl) -> list[str]:
    """What is still there of the fleet, its claims apart."""
    kinds = "statefulsets,deployments,services,configmaps,secrets,poddisruptionbudgets,pods"
    return namespace("get", kinds, OF_THE_FLEET, "--output", "name").split()


def ends(namespace: Kubectl) -> None:
    """Within its pods' grace and a minute nothing of the fleet is left but its claims."""
    until(lambda: not left(namespace), seconds=SLOWEST_END, rest=1.0, state=lambda: left(namespace))
    claims = {claim["metadata"]["name"] for claim in namespace.get("pvc", OF_THE_FLEET)["items"]}
    assert claims == {"state-demo-proxy-0", "state-demo-proxy-1"}


def serve(namespace: Kubectl, images: Images) -> dict[str, list[str]]:
    """Agents with the stock client; the turns that they saw answered, by session."""
    said = agents.run(namespace, "agents.py", "4", "4", fleet="demo", image=images.proxy)
    assert sum(len(turns) for turns in said["answered"].values()) == 16
    answered: dict[str, list[str]] = said["answered"]
    return answered


def test_from_install_to_export_and_on_without_the_operator(
    release: Operator, namespace: Kubectl, images: Images
) -> None:
    namespace("label", "namespace", str(namespace.namespace), "pod-security.kubernetes.io/enforce=restricted")
    release.install()
    release.where("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    make_fleet(namespace)
    answered = serve(namespace, images)
    before = pods(namespace)
    assert set(before) > {"demo-proxy-0", "demo-proxy-1"}

    release.install("--set", "log.level=debug")
    ready(namespace)
    assert pods(namespace) == before, "an upgrade that changes no pod's template restarts none"

    kept = release.uninstall()
    assert "rolloutfleets.rolloutfleet.dev" in kept
    answered |= serve(namespace, images)
    assert pods(namespace) == before

    release.install()
    time.sleep(10)
    ready(namespace)
    assert pods(namespace) == before

    taken = agents.run(namespace, "export.py", "2", fleet="demo", image=images.proxy)
    assert {session: sorted(turns) for session, turns in taken["exported"].items()} == {
        session: sorted(turns) for session, turns in answered.items()
    }
    assert taken["audit"]["balanced"] is True
    assert taken["audit"]["turns"]["acknowledged"] == 32


@pytest.mark.full
def test_a_fleet_ends_whether_the_operator_is_there_or_not_and_its_data_is_adopted_only_when_told(
    release: Operator, namespace: Kubectl
) -> None:
    release.install()
    make_fleet(namespace)
    uid = namespace.get(FLEET)["metadata"]["uid"]
    namespace("delete", FLEET, "--timeout=30s")
    ends(namespace)

    namespace("apply", "--filename", EXAMPLE)
    until_reason(namespace, "StoreOfAnotherFleet")
    adopt = {"spec": {"proxies": {"storage": {"adopt": uid}}}}
    namespace("patch", FLEET, "--type=merge", "--patch", json.dumps(adopt))
    ready(namespace)

    release.uninstall()
    namespace("delete", FLEET, "--timeout=30s")
    ends(namespace)


@pytest.mark.full
def test_the_definitions_deletion_ends_every_fleet_even_while_the_operator_crashes(
    release: Operator, namespace: Kubectl
) -> None:
    release.install()
    make_fleet(namespace)
    release.where(
        *("patch", OPERATOR, "--type=json", "--patch"),
        '[{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": ["no-such-command"]}]',
    )
    namespace("delete", DEFINITION, f"--timeout={SLOWEST_END}s", seconds=SLOWEST_END + 10)
    ends(namespace)


@pytest.mark.full
def test_a_namespaces_deletion_ends_its_fleet(release: Operator, cluster: Kubectl, namespace: Kubectl) -> None:
    release.install()
    make_fleet(namespace)
    cluster("delete", "namespace", str(namespace.namespace), f"--timeout={SLOWEST_END}s", seconds=SLOWEST_END + 10)
    cluster("create", "namespace", str(namespace.namespace))


@pytest.mark.full
def test_what_was_applied_by_hand_serves_and_is_taken_over_by_helm(
    release: Operator, cluster: Kubectl, namespace: Kubectl, images: Images
) -> None:
    text = (REPOSITORY / "examples" / "kubernetes" / "operator.yaml").read_text()
    for name in ("proxy", "operator", "gateway", "engine"):
        text = text.replace(f"rolloutfleet-{name}:0.1.0", getattr(images, name))
    cluster("apply", "--filename", REPOSITORY / "crds")
    cluster("apply", "--filename", "-", stdin=text)
    release.where("rollout", "status", OPERATOR, "--timeout=240s", seconds=250)
    make_fleet(namespace)
    before = pods(namespace)

    with pytest.raises(CommandFailed, match="invalid ownership metadata"):
        release.install()
    release.install("--take-ownership")
    ready(namespace)
    assert pods(namespace) == before


@pytest.mark.full
def test_an_operator_of_one_namespace_serves_it_and_no_other(release: Operator, namespace: Kubectl) -> None:
    there = Operator(namespace, release.images)
    there.install("--set", f"watchNamespace={namespace.namespace}")
    make_fleet(namespace)
    elsewhere = release.where
    elsewhere("create", "namespace", NAMESPACE)
    elsewhere("apply", "--filename", EXAMPLE)
    time.sleep(15)
    assert "status" not in elsewhere.get(FLEET)
    assert left(elsewhere) == []
    namespace("delete", FLEET, "--timeout=30s")
    ends(namespace)
    there.uninstall()
