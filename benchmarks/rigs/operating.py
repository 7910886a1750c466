"""An operator with 500 fleets on a bare Kubernetes API: how soon it acts, what it holds, and whether it is quiet.

etcd, kube-apiserver and kube-controller-manager run as processes, as the operator's own tests have them; no pod ever
runs. A fleet's `proxies.replicas` is changed now and then, and its StatefulSet watched: the figure is the time from the
API's answer to the change until the API says that the StatefulSet has it.
"""

import json
import os
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
import yaml
from tests.cluster.apiserver import ApiServer, NoPrograms, running
from tests.processes import free_port

from benchmarks.rigs import processes
from benchmarks.rigs.background import Background
from benchmarks.rigs.bench import say
from benchmarks.rigs.figures import Outcome, at_most, exactly, figure
from benchmarks.rigs.plan import Plan
from benchmarks.rigs.processes import Running, StartFailed
from benchmarks.rigs.watching import quantile
from rolloutfleet_operator import crd

MB: Final = 1e6
NAMESPACE: Final = "bench"
FLEETS_PATH: Final = f"/apis/rolloutfleet.dev/v1alpha1/namespaces/{NAMESPACE}/rolloutfleets"
SETS_PATH: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets"
AGENT: Final = "OpenAPI-Generator"
"""What the operator's client calls itself; the rig's own has another name."""
CHANGES: Final = 150
CHANGES_A_SECOND: Final = 1.0
SETTLED: Final = 20.0
"""Seconds without a write by the operator after which it has made all there is to make."""
IDLE: Final = 60.0
TIMEOUT: Final = 900.0
IMAGES: Final = ("--proxy-image=proxy:1", "--gateway-image=gateway:1", "--simulated-engine-image=engine:1")


def operator(plan: Plan) -> Outcome:
    """So many fleets: time to act on a change, resident memory, and writes when there is nothing to do."""
    with TemporaryDirectory(prefix="rolloutfleet-bench-") as name:
        folder = Path(name)
        try:
            with running(folder / "kubernetes") as server:
                return _measured(server, folder, plan)
        except NoPrograms as error:
            return Outcome(figures=[], runs=[], notes=[f"the operator's figures are left out: {error}"])


def _measured(server: ApiServer, folder: Path, plan: Plan) -> Outcome:
    server.apply(crd.definition())
    server.kubectl("wait", "--for=condition=Established", f"crd/{crd.NAME}")
    server.kubectl("create", "namespace", NAMESPACE)
    with _client(server) as api, _operator(server, folder) as process:
        began = time.monotonic()
        for number in range(plan.fleets):
            _done(api.post(FLEETS_PATH, json=_fleet(number)))
        say(f"  {plan.fleets} fleets created in {time.monotonic() - began:.0f} s")
        made = _until_settled(server, plan.fleets, api) - began
        say(f"  all made after {made:.0f} s, resident {processes.memory(process.pid).rss / MB:.0f} MB")
        waits = _changes(server, api, plan)
        _until_settled(server, plan.fleets, api)
        cpu, since, asked = processes.cpu_seconds(process.pid), time.time(), _requests(api)
        time.sleep(IDLE)
        asked = _requests(api) - asked
        cpu, written = processes.cpu_seconds(process.pid) - cpu, _writes(server, since)
        resident = processes.memory(process.pid).rss
        idle = [each for each in written if "/leases/" not in each]
        return Outcome(
            figures=[
                figure("operator_reconcile_p99_ms", "ms", [1e3 * quantile(waits, 0.99)], goal=at_most(1000)),
                figure("operator_reconcile_p50_ms", "ms", [1e3 * quantile(waits, 0.5)]),
                figure("operator_rss_mb", "MB", [resident / MB], goal=at_most(150)),
                figure("operator_idle_writes_per_minute", "writes", [len(idle) * 60 / IDLE], goal=exactly(0)),
                figure("operator_lease_writes_per_minute", "writes", [(len(written) - len(idle)) * 60 / IDLE]),
                figure("operator_idle_requests_per_fleet_minute", "1/min", [asked / plan.fleets * 60 / IDLE]),
                figure("operator_idle_cpu", "cores", [cpu / IDLE]),
                figure("operator_made_seconds", "s", [made]),
                figure("operator_fleets", "fleets", [plan.fleets]),
            ],
            runs=[{"waits": waits, "idle_writes": idle[:50]}],
            commands={"operator": process.command},
        )


def _fleet(number: int) -> dict[str, Any]:
    return {
        "apiVersion": "rolloutfleet.dev/v1alpha1",
        "kind": "RolloutFleet",
        "metadata": {"name": f"fleet-{number}"},
        "spec": {"model": "simulated", "engine": {"gpus": 0}, "proxies": {"replicas": 1}},
    }


def _done(answer: httpx.Response) -> dict[str, Any]:
    if answer.is_error:
        raise StartFailed(f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text[:500]}")
    content: dict[str, Any] = answer.json()
    return content


def _client(server: ApiServer) -> httpx.Client:
    user = yaml.safe_load(server.kubeconfig.read_text())["users"][0]["user"]
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    headers = {"Authorization": f"Bearer {user['token']}"}
    return httpx.Client(base_url=server.url, headers=headers, verify=unchecked, timeout=60, trust_env=False)


@contextmanager
def _operator(server: ApiServer, folder: Path) -> Iterator[Running]:
    port = free_port()
    line = [
        *(sys.executable, "-m", "rolloutfleet_operator.cli", "run", f"--lease-namespace={NAMESPACE}"),
        *(f"--listen=127.0.0.1:{port}", f"--namespace={NAMESPACE}", *IMAGES),
    ]
    environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig)}
    with Running(line, log=folder / "operator.log", environment=environment) as process:
        yield process


def _writes(server: ApiServer, since: float) -> list[str]:
    return server.writes(AGENT, since)


def _requests(api: httpx.Client) -> float:
    """All that the API has answered so far, watches apart; the controllers' share is small when nothing changes."""
    text = api.get("/metrics").text
    lines = [line for line in text.splitlines() if line.startswith("apiserver_request_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if 'verb="WATCH"' not in line)


def _until_settled(server: ApiServer, fleets: int, api: httpx.Client) -> float:
    """When the operator's last write was that made something, once it has been quiet for a while."""
    deadline = time.monotonic() + TIMEOUT
    count, last = -1, time.monotonic()
    while time.monotonic() < deadline:
        now = sum("/leases/" not in each for each in _writes(server, 0.0))
        if now != count:
            count, last = now, time.monotonic()
        elif time.monotonic() - last > SETTLED and len(_done(api.get(SETS_PATH))["items"]) == fleets:
            return last
        time.sleep(2.0)
    raise StartFailed(f"the operator was still writing after {TIMEOUT:.0f} s")


class _Watch(Background):
    """Notes when each StatefulSet was first said to have its new number of replicas."""

    def __init__(self, api: httpx.Client, version: str) -> None:
        super().__init__()
        self.seen: dict[tuple[str, int], float] = {}
        self.arrived = threading.Event()
        self._api, self._version = api, version

    def run(self) -> None:
        asked = {"watch": "true", "resourceVersion": self._version, "timeoutSeconds": "1800"}
        with self._api.stream("GET", SETS_PATH, params=asked, timeout=None) as answer:
            for line in answer.iter_lines():
                found = json.loads(line)["object"]
                self.seen.setdefault((found["metadata"]["name"], found["spec"]["replicas"]), time.monotonic())
                self.arrived.set()
                if self._left.is_set():
                    return


def _changes(server: ApiServer, api: httpx.Client, plan: Plan) -> list[float]:
    """Seconds from each change to the StatefulSet that follows it."""
    version = _done(api.get(SETS_PATH))["metadata"]["resourceVersion"]
    asked: dict[tuple[str, int], float] = {}
    with _client(server) as watching, _Watch(watching, version) as watch:
        due = time.monotonic()
        for number in range(min(CHANGES, plan.fleets)):
            name = f"fleet-{number * 7919 % plan.fleets}"
            patch = {"spec": {"proxies": {"replicas": 2}}}
            header = {"Content-Type": "application/merge-patch+json"}
            _done(api.patch(f"{FLEETS_PATH}/{name}", json=patch, headers=header))
            asked[f"{name}-proxy", 2] = time.monotonic()
            due += 1 / CHANGES_A_SECOND
            time.sleep(max(0.0, due - time.monotonic()))
        deadline = time.monotonic() + TIMEOUT
        while not asked.keys() <= watch.seen.keys() and time.monotonic() < deadline:
            time.sleep(0.05)
        # The watch ends with the next event: the last change, taken back.
        watch._left.set()
        back = json.dumps({"metadata": {"labels": {"bench": "done"}}})
        _done(api.patch(f"{SETS_PATH}/{name}-proxy", content=back, headers=header))
        if missing := asked.keys() - watch.seen.keys():
            raise StartFailed(f"no StatefulSet followed {len(missing)} of {len(asked)} changes: {sorted(missing)[:5]}")
    return [max(0.0, watch.seen[key] - moment) for key, moment in asked.items()]
