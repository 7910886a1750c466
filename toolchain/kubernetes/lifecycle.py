"""How a cluster comes and goes: every step in order, and what undoes it."""

import os
import sys
import time
from ipaddress import IPv4Network
from pathlib import Path

from toolchain.cache import alone
from toolchain.kubernetes import kind, kubectl, node_image, records, routes
from toolchain.kubernetes.docker import daemon
from toolchain.kubernetes.docker.client import Docker
from toolchain.kubernetes.failures import ClusterError, CommandFailed
from toolchain.kubernetes.paths import LOCKS
from toolchain.kubernetes.progress import say, step
from toolchain.kubernetes.records import Record
from toolchain.kubernetes.settings import Settings

READY_SECONDS = 400


def up(settings: Settings) -> Record:
    """The cluster, made if need be. What was begun is undone where it fails. Raises ClusterError."""
    if settings.kubeconfig is not None:
        return _yours(settings)
    with alone(LOCKS / settings.name):
        return _up(settings)


def _up(settings: Settings) -> Record:
    if (there := records.read(settings.name)) is not None:
        if _alive(there):
            _check_same(there, settings)
            say(f"the cluster {settings.name} is there already")
            return there
        say(f"the cluster {settings.name} is there but does not answer: making it anew")
        _undo(there)
    return _make(settings)


def prepare(settings: Settings) -> None:
    """Make and cache all that takes long, and no cluster yet. Raises ClusterError."""
    if settings.kubeconfig is None:
        was_there = daemon.running() is not None
        docker = daemon.ensure(data=settings.docker_data, addresses=settings.docker_range)
        try:
            node_image.ensure(docker, settings)
        finally:
            if not was_there:
                daemon.stop()
    kubectl.ensure_programs()


def why_not(settings: Settings) -> str | None:
    """Why no cluster can be had here, or None, as far as can be told without trying."""
    if settings.kubeconfig is not None or records.read(settings.name) is not None:
        return None
    if sys.platform != "linux":
        return "A cluster is made on Linux only."
    if not daemon.can_be_had():
        return daemon.CAN_T_START
    if os.geteuid() != 0 and routes.missing((settings.pod_range, settings.service_range), routes.shown()):
        return "Root has to make a cluster's addresses unreachable first (python -m toolchain.kubernetes --help)."
    return None


def down(name: str) -> bool:
    """Remove a cluster with all that was made for it. False where there was none."""
    with alone(LOCKS / name):
        record = records.read(name)
        if record is None:
            return False
        with step(f"Removing the cluster {name}"):
            _undo(record)
    return True


def docker_of(record: Record) -> Docker:
    return Docker(record.docker_host, private=record.private_daemon)


def load(record: Record, images: list[str], docker: Docker) -> list[str]:
    """Give the cluster images that `docker` has. Returns the names by which pods can ask for them."""
    absent = [image for image in images if not docker.has_image(image)]
    if absent:
        raise ClusterError(f"Docker ({docker.host or 'the default'}) has no image {', '.join(absent)}: build it first")
    cluster = record.name if record.made_here else (record.context or "").removeprefix("kind-")
    if record.made_here or (record.context or "").startswith("kind-"):
        with step(f"Loading {', '.join(images)}"):
            # No pod of a fleet goes to the control plane of a cluster that was made here, unless it is the only node.
            workers = [node for node in kind.nodes(docker, cluster) if "-worker" in node] if record.made_here else []
            kind.load(docker, cluster, images, nodes=workers)
        return images
    if record.registry is None:
        raise ClusterError(
            "this cluster can't be given images directly: name a registry that it pulls from and you may push to"
            " (--registry, ROLLOUTFLEET_E2E_REGISTRY) when you run `up`"
        )
    return [_pushed(docker, image, record.registry) for image in images]


def _pushed(docker: Docker, image: str, registry: str) -> str:
    name = f"{registry.rstrip('/')}/{image}"
    with step(f"Pushing {name}"):
        docker("tag", image, name)
        docker("push", "--quiet", name)
    return name


def _yours(settings: Settings) -> Record:
    assert settings.kubeconfig is not None
    kubeconfig = settings.kubeconfig.expanduser().resolve()
    if not kubeconfig.is_file():
        raise ClusterError(f"there is no kubeconfig {kubeconfig}")
    context = settings.context or kubectl.Kubectl(kubeconfig)("config", "current-context").strip()
    record = Record(
        name=settings.name, kubeconfig=kubeconfig, context=context, made_here=False, registry=settings.registry
    )
    try:
        kubectl.of(record)("version", seconds=60)
    except CommandFailed as error:
        raise ClusterError(f"the cluster of context {context} does not answer: {error}") from None
    record.write()
    return record


def _make(settings: Settings) -> Record:
    started = time.monotonic()
    was_there = daemon.running() is not None
    docker = daemon.ensure(data=settings.docker_data, addresses=settings.docker_range)
    with daemon.stopped_on_failure(docker, was_there=was_there):
        image = node_image.ensure(docker, settings)
        record = _recorded(settings, docker, image)
        try:
            routes.add(routes.missing(record.ranges, routes.shown()))
            _create(docker, settings, record)
        except BaseException:
            say("undoing what was begun")
            _undo(record)
            raise
    say(f"the cluster {settings.name} is ready after {time.monotonic() - started:.0f} s")
    return record


def _recorded(settings: Settings, docker: Docker, image: str) -> Record:
    ranges = (settings.pod_range, settings.service_range)
    others = records.every()
    # What another cluster of ours added is removed by whichever of them goes last.
    shared = {network for other in others for network in other.added_routes}
    lacking = set(routes.missing(ranges, routes.shown()))
    record = Record(
        name=settings.name,
        kubeconfig=records.kubeconfig_of(settings.name),
        made_here=True,
        docker_host=docker.host,
        private_daemon=docker.private,
        node_image=image,
        ranges=ranges,
        added_routes=tuple(network for network in ranges if network in lacking | shared),
    )
    record.write()
    return record


def _create(docker: Docker, settings: Settings, record: Record) -> None:
    # Nodes that outlived their record: those of a daemon that ended without `down`.
    kind.delete(docker, settings.name, kubeconfig=record.kubeconfig)
    nodes = settings.workers + 1
    with step(f"Making {nodes} node{'s' if nodes > 1 else ''} (about half a minute)"):
        kind.create(docker, settings, image=record.node_image or "", kubeconfig=record.kubeconfig, shared=record.shared)
    with step("Waiting for nodes, name service and storage"):
        _wait_until_ready(record)


def _wait_until_ready(record: Record) -> None:
    target = kubectl.of(record)
    limit = f"--timeout={READY_SECONDS}s"
    target("wait", "node", "--all", "--for=condition=Ready", limit, seconds=READY_SECONDS + 10)
    for namespace, deployment in (("kube-system", "coredns"), ("local-path-storage", "local-path-provisioner")):
        rollout = ("rollout", "status", f"deployment/{deployment}", limit)
        target.within(namespace)(*rollout, seconds=READY_SECONDS + 10)


def _undo(record: Record) -> None:
    if record.made_here:
        docker = docker_of(record)
        if daemon.found() is None:
            say("no Docker daemon runs, and so no node; what its data still holds goes with the next `up` of that name")
        else:
            kind.delete(docker, record.name, kubeconfig=record.kubeconfig)
        routes.remove(_ours_to_remove(record))
    record.forget()


def _ours_to_remove(record: Record) -> list[IPv4Network]:
    return records.routes_only_needed_by(record, records.every())


def _alive(record: Record) -> bool:
    return record.kubeconfig.exists() and kubectl.of(record).succeeds("get", "--raw", "/readyz", seconds=60)


def _check_same(record: Record, settings: Settings) -> None:
    if record.made_here and record.ranges != (settings.pod_range, settings.service_range):
        there = " and ".join(map(str, record.ranges))
        raise ClusterError(f"the cluster {record.name} is there with other ranges ({there}): `down` first")


def kubeconfig(name: str) -> Path:
    record = records.read(name)
    if record is None:
        raise ClusterError(f"there is no cluster {name}: python -m toolchain.kubernetes up")
    return record.kubeconfig
