"""What the tests on a cluster share: the cluster, a namespace for each test, and what a failure leaves behind."""

import os
import re
import secrets
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from toolchain.kubernetes import kubectl, lifecycle, records
from toolchain.kubernetes.docker import daemon
from toolchain.kubernetes.docker.client import Docker
from toolchain.kubernetes.failures import ClusterError
from toolchain.kubernetes.kubectl import Kubectl
from toolchain.kubernetes.records import Record
from toolchain.kubernetes.settings import Settings

from e2e.diagnostics import collect
from e2e.installing import (
    LOADED,
    Images,
    Operator,
    as_told,
    build_images,
    load_images,
    of_one_namespace,
    of_the_whole_cluster,
    remove_everything,
    share_definition,
)

HERE = Path(__file__).parent
DIAGNOSTICS = HERE.parent / ".cache" / "e2e"
SECONDS_FOR_A_TEST = 900


def pytest_configure() -> None:
    """Let SIGTERM end a run as Ctrl-C does: what a shell starts in the background ignores SIGINT."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    for item in ours:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS_FOR_A_TEST))
    if ours and (why := lifecycle.why_not(Settings())):
        raise pytest.UsageError(f"No cluster can be had here. {why}")


@pytest.fixture(scope="session")
def record() -> Iterator[Record]:
    """The cluster. One that was there before stays; one that is made for this run goes with it."""
    settings = Settings()
    daemon_ran, cluster_ran = daemon.running() is not None, records.read(settings.name) is not None
    record = lifecycle.up(settings)
    yield record
    if not cluster_ran:
        lifecycle.down(record.name)
        if not daemon_ran:
            daemon.stop()


@pytest.fixture(scope="session")
def cluster(record: Record) -> Kubectl:
    """kubectl and helm for the whole cluster."""
    return kubectl.of(record)


@pytest.fixture(scope="session")
def docker(record: Record) -> Docker:
    """The daemon that images are built with."""
    found = lifecycle.docker_of(record) if record.made_here else daemon.found()
    if found is None:
        raise ClusterError(daemon.CAN_T_START)
    return found


@pytest.fixture(scope="session")
def images(record: Record, docker: Docker) -> Images:
    """The project's images as this working tree makes them, on the cluster."""
    told = os.environ.get(LOADED)
    return as_told(told) if told else load_images(record, docker, build_images(docker))


@pytest.fixture(scope="session")
def definition(cluster: Kubectl) -> None:
    """The CustomResourceDefinition is there, and what else operators of single namespaces share."""
    share_definition(cluster)


@pytest.fixture
def operator(definition: None, namespace: Kubectl, images: Images) -> Operator:
    """An operator that serves the test's namespace and no other, so that tests run side by side."""
    return of_one_namespace(namespace, images)


@pytest.fixture
def release(cluster: Kubectl, images: Images) -> Iterator[Operator]:
    """The operator of the whole cluster, not installed yet; for tests beside which no other operator runs."""
    release = of_the_whole_cluster(cluster, images)
    yield release
    remove_everything(cluster, release)


@pytest.fixture
def namespace(cluster: Kubectl, request: pytest.FixtureRequest) -> Iterator[Kubectl]:
    """kubectl and helm in a namespace of the test's own, which goes with it."""
    slug = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_"))[:40].strip("-")
    name = f"{slug}-{secrets.token_hex(3)}"
    cluster("create", "namespace", name)
    yield cluster.within(name)
    cluster("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    namespace = getattr(item, "funcargs", {}).get("namespace")
    if report.failed and call.when == "call" and isinstance(namespace, Kubectl):
        folder = DIAGNOSTICS / re.sub(r"\W+", "-", item.name)
        report.sections.append((f"the namespace, more of it in {folder}", collect(namespace, folder)))
    return report
