"""The command line: `python -m toolchain.kubernetes up`, `down` and others."""

import json
import shutil
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from pydantic import ValidationError

from toolchain.kubernetes import binaries, kubectl, lifecycle, records
from toolchain.kubernetes.docker import daemon
from toolchain.kubernetes.failures import ClusterError
from toolchain.kubernetes.paths import CLUSTER_CACHE
from toolchain.kubernetes.progress import say
from toolchain.kubernetes.records import Record
from toolchain.kubernetes.settings import ENV_PREFIX, Settings

HELP = """
The Kubernetes cluster that the tests run on: one control plane and two workers, made by kind.

\b
    python -m toolchain.kubernetes up
    export KUBECONFIG=$(python -m toolchain.kubernetes kubeconfig)
    kubectl get nodes
    python -m toolchain.kubernetes load my-image:1
    python -m toolchain.kubernetes down --all

`up` uses, in this order: the cluster that --use-kubeconfig names; kind with the node image that --node-image names;
with the image that kind publishes, where it can be pulled; with one made here from Debian packages and Go modules
(root, debootstrap; about 10 minutes on 2 cores, once: it is cached). It uses the Docker daemon of this machine, or
starts one of its own where none answers.

Before a cluster exists, this machine gets `unreachable` routes for its pods' and services' addresses, so that no packet
for a cluster's address leaves it; `down` removes them. Two clusters side by side: --name, and ranges of their own.

Every option is a variable too: --pod-range is ROLLOUTFLEET_E2E_POD_RANGE.
"""

app = typer.Typer(help=HELP, no_args_is_help=True, add_completion=False, rich_markup_mode=None)

Name = Annotated[str | None, typer.Option(help="Which cluster [rolloutfleet].", show_default=False)]


@app.command()
def up(
    name: Name = None,
    workers: Annotated[int | None, typer.Option(help="Nodes beside the control plane [2].")] = None,
    pod_range: Annotated[str | None, typer.Option(help="Addresses of pods [10.244.0.0/16].")] = None,
    service_range: Annotated[str | None, typer.Option(help="Addresses of services [10.96.0.0/16].")] = None,
    docker_range: Annotated[
        str | None, typer.Option(help="Addresses of nodes, where the daemon is ours [172.30.0.0/16].")
    ] = None,
    docker_data: Annotated[
        Path | None, typer.Option(help="Where a daemon of ours keeps images, several GB [in the cache].")
    ] = None,
    node_image: Annotated[str | None, typer.Option(help="A kind node image [pulled, else made].")] = None,
    debian_mirror: Annotated[str | None, typer.Option(help="Where debootstrap gets packages from.")] = None,
    use_kubeconfig: Annotated[
        Path | None, typer.Option(help="Use the cluster of this kubeconfig instead of making one.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="Which of its contexts [the current one].")] = None,
    registry: Annotated[str | None, typer.Option(help="Where that cluster pulls from: `load` pushes there.")] = None,
) -> None:
    """Make the cluster and wait until it works. Does nothing where it is there already."""
    settings = _settings(
        name=name,
        workers=workers,
        pod_range=pod_range,
        service_range=service_range,
        docker_range=docker_range,
        docker_data=docker_data,
        node_image=node_image,
        debian_mirror=debian_mirror,
        kubeconfig=use_kubeconfig,
        context=context,
        registry=registry,
    )
    record = lifecycle.up(settings)
    say(f"export KUBECONFIG={record.kubeconfig}")


@app.command()
def prepare(
    name: Name = None,
    if_possible: Annotated[
        bool, typer.Option("--if-possible", help="Where none can be had, say why, and prepare an API server alone.")
    ] = False,
) -> None:
    """Make and cache all that takes long (programs, the node image), and no cluster yet. Says first what is missing."""
    settings = _settings(name=name)
    why_not = lifecycle.why_not(settings)
    if why_not is not None:
        if not if_possible:
            raise ClusterError(why_not)
        say(f"No cluster can be had here, so only what an API server needs is prepared. {why_not}")
    elif shutil.which("debootstrap") is None:
        say("debootstrap is missing; images that can't be pulled are made with it: apt-get install debootstrap")
    with ThreadPoolExecutor(1) as beside:  # a node image is made of packages first, for which nothing is compiled
        cluster = beside.submit(lifecycle.prepare, settings) if why_not is None else None
        for program in (*binaries.BARE_API, "helm"):
            binaries.program(program)
        if cluster is not None:
            cluster.result()


@app.command()
def down(
    name: Name = None,
    all: Annotated[bool, typer.Option("--all", help="Every cluster, and the Docker daemon that we started.")] = False,
    cache: Annotated[bool, typer.Option("--cache", help="With --all: what is cached too.")] = False,
) -> None:
    """Remove the cluster: nodes, volumes, routes. What was cached stays, for the next `up`."""
    names = [record.name for record in records.every()] if all else [_settings(name=name).name]
    removed = [each for each in names if lifecycle.down(each)]
    if all:
        stopped = daemon.stop()
        if cache:
            shutil.rmtree(CLUSTER_CACHE, ignore_errors=True)
        say(f"removed: {', '.join([*removed, *(['the Docker daemon'] if stopped else [])]) or 'nothing was there'}")
    elif not removed:
        say(f"there is no cluster {names[0]}")
    elif daemon.running() is not None:
        say("our Docker daemon goes on, with its images, for the next `up`; `down --all` stops it")


@app.command()
def status(as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False) -> None:
    """What there is: clusters, their nodes, and the Docker daemon below them."""
    found = daemon.found()
    told: dict[str, Any] = {
        "docker": None if found is None else {"host": found.host or "default", "ours": found.private},
        "clusters": [_told(record) for record in records.every()],
    }
    print(json.dumps(told, indent=2) if as_json else _readable(told))


@app.command()
def load(
    images: Annotated[list[str], typer.Argument(help="Names of images that Docker has.", show_default=False)],
    name: Name = None,
) -> None:
    """Give the cluster images that Docker has. Prints the names by which pods can ask for them."""
    record = _record(name)
    docker = lifecycle.docker_of(record) if record.made_here else daemon.found()
    if docker is None:
        raise ClusterError(daemon.CAN_T_START)
    for image in lifecycle.load(record, images, docker):
        print(image)


@app.command("kubeconfig")
def print_kubeconfig(name: Name = None) -> None:
    """Print the path of the cluster's kubeconfig."""
    print(_record(name).kubeconfig)


def main() -> None:
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        app()
    except ClusterError as error:
        sys.exit(f"toolchain.kubernetes: {error}")


def _interrupted(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _record(name: str | None) -> Record:
    wanted = _settings(name=name).name
    record = records.read(wanted)
    if record is None:
        raise ClusterError(f"there is no cluster {wanted}: python -m toolchain.kubernetes up")
    return record


def _settings(**given: Any) -> Settings:
    try:
        return Settings(**{key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc'])) or 'settings'}: {fault['msg']}" for fault in error.errors()]
        raise ClusterError("; ".join(faults) + f" (an option, or {ENV_PREFIX}… in the environment)") from None


def _told(record: Record) -> dict[str, Any]:
    answers = _try(lambda: kubectl.of(record).get("nodes")["items"]) or []
    return {
        "name": record.name,
        "made_here": record.made_here,
        "kubeconfig": str(record.kubeconfig),
        "node_image": record.node_image,
        "ranges": [str(network) for network in record.ranges],
        "nodes": {node["metadata"]["name"]: _is_ready(node) for node in answers},
    }


def _is_ready(node: dict[str, Any]) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"]["conditions"])


def _try(asked: Callable[[], Any]) -> Any | None:
    try:
        return asked()
    except ClusterError:
        return None


def _readable(told: dict[str, Any]) -> str:
    docker = told["docker"]
    lines = ["docker: none answers" if docker is None else f"docker: {docker['host']}{' (ours)' * docker['ours']}"]
    for cluster in told["clusters"]:
        lines += ["", f"{cluster['name']}: {'made here' if cluster['made_here'] else 'yours'}"]
        lines += [f"  kubeconfig  {cluster['kubeconfig']}"]
        lines += [f"  node image  {cluster['node_image']}"] * cluster["made_here"]
        lines += [f"  unreachable {', '.join(cluster['ranges'])}"] * cluster["made_here"]
        lines += [f"  {node}: {'Ready' if ready else 'not Ready'}" for node, ready in cluster["nodes"].items()]
        lines += ["  the API server does not answer"] * (not cluster["nodes"])
    if not told["clusters"]:
        lines.append("no cluster")
    return "\n".join(lines)
