"""A bare Kubernetes API: etcd, kube-apiserver and kube-controller-manager as processes, no nodes.

StatefulSets and Deployments make pods there and garbage is collected; no pod ever runs. The programs are those that
`toolchain/kubernetes` compiles; `ROLLOUTFLEET_KUBERNETES` may name another folder that has them.
"""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import yaml
from tests import logs
from tests.processes import free_ports
from tests.waiting import API_SERVER_START, PATIENCE, until
from toolchain.kubernetes.binaries import BARE_API, MODULE_OF

FOLDER: Final = "ROLLOUTFLEET_KUBERNETES"
_DISCOVERY: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
"""https://kubernetes.io/docs/concepts/overview/kubernetes-api/#aggregated-discovery"""
_TOKEN: Final = "tests-are-masters"
_CONTROLLERS: Final = ",".join(
    (
        "statefulset-controller",
        "deployment-controller",
        "replicaset-controller",
        "garbage-collector-controller",
        "namespace-controller",
        "disruption-controller",
        "serviceaccount-controller",
    )
)


class NoPrograms(Exception):
    """The programs are not on this machine; the message says how to have them."""


def programs() -> dict[str, Path]:
    """Where each of them is. Raises NoPrograms."""
    named = os.environ.get(FOLDER)
    found = {name: Path(named or MODULE_OF[name].built) / name for name in BARE_API}
    for name, path in found.items():
        if not os.access(path, os.X_OK):
            raise NoPrograms(
                f"no {name} on this machine: `make cluster` compiles it once, or {FOLDER} names a folder with "
                f"{', '.join(BARE_API)}"
            )
    return found


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of resource, as the server's discovery has it."""

    kind: str
    place: str
    plural: str
    namespaced: bool

    def path(self, namespace: str | None) -> str:
        within = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{self.place}{within}/{self.plural}"


def _kinds(root: str, group: Mapping[str, Any]) -> Iterator[tuple[str, _Kind]]:
    """Each kind of a group's preferred version, by all its names."""
    version = group["versions"][0]
    named = group["metadata"].get("name", "")
    place = "/".join(filter(None, (root, named, version["version"])))
    for each in version["resources"]:
        plural = each["resource"]
        kind = _Kind(each["responseKind"]["kind"], place, plural, each["scope"] == "Namespaced")
        names = (plural, f"{plural}.{named}", each["singularResource"], *each.get("shortNames", ()))
        yield from ((name, kind) for name in names)


class ApiServer:
    """A running API server. `kubeconfig` has every right."""

    def __init__(self, folder: Path, port: int, kubectl: Path) -> None:
        self.folder = folder
        self.url = f"https://127.0.0.1:{port}"
        self.kubeconfig = folder / "kubeconfig"
        self.audit = folder / "audit.log"
        self._kubectl = kubectl
        self._http = httpx.Client(
            base_url=self.url, headers={"authorization": f"Bearer {_TOKEN}"}, verify=False, timeout=PATIENCE
        )
        self._kinds: dict[str, _Kind] = {}

    def close(self) -> None:
        self._http.close()

    def is_ready(self) -> bool:
        try:
            return self._http.get("/readyz").text == "ok"
        except httpx.TransportError:
            return False

    def kubectl(self, *words: str, said: str | None = None, fails: bool = False, timeout: float = PATIENCE) -> str:
        """What kubectl prints; with `fails`, what it says of its failure."""
        done = subprocess.run(
            [str(self._kubectl), "--kubeconfig", str(self.kubeconfig), *words],
            input=said,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert (done.returncode != 0) == fails, f"kubectl {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stderr if fails else done.stdout

    def apply(self, *manifests: Mapping[str, Any], namespace: str | None = None) -> str:
        text = "---\n".join(yaml.safe_dump(dict(manifest)) for manifest in manifests)
        where = ("-n", namespace) if namespace else ()
        return self.kubectl(*where, "apply", "-f", "-", said=text)

    def get(self, kinds: str, name: str = "", *, namespace: str | None = None, **selectors: str) -> Any:
        """One object of that name, or the items of `kinds` (a,b), chosen by labelSelector and fieldSelector."""
        found = [self._got(self._kind(kind), name, namespace, selectors) for kind in kinds.split(",")]
        return found[0][0] if name else [item for items in found for item in items]

    def _got(self, kind: "_Kind", name: str, namespace: str | None, selectors: Mapping[str, str]) -> list[Any]:
        path = kind.path(namespace) + f"/{name}" * bool(name)
        reply = self._http.get(path, params=selectors)
        assert reply.status_code == 200, reply.text
        found = reply.json()
        return [found] if name else [{"kind": kind.kind} | item for item in found["items"]]

    def _kind(self, word: str) -> "_Kind":
        """The kind of resource that has this name, which may be its plural, its singular or a short one."""
        if word not in self._kinds:
            for root in ("/api", "/apis"):
                groups = self._http.get(root, headers={"accept": _DISCOVERY}).raise_for_status().json()["items"]
                for name, kind in (named for group in groups for named in _kinds(root, group)):
                    self._kinds.setdefault(name, kind)
        return self._kinds[word]

    def define(self, definition: Mapping[str, Any]) -> None:
        """A kind of resource; it can be used on return."""
        self.apply(definition)
        self.until_established(definition["metadata"]["name"])

    def until_established(self, definition: str) -> None:
        """`kubectl wait` gives up on a definition that has no conditions yet."""
        until(lambda: self._is_established(definition))

    def _is_established(self, definition: str) -> bool:
        conditions = self.get("crd", definition).get("status", {}).get("conditions") or ()
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

    def writes(self, agent: str, since: float) -> list[str]:
        """`verb path` of each write by a client of that name, from the audit log."""
        found = []
        for line in self.audit.read_text().splitlines():
            event = json.loads(line)
            moment = time.mktime(time.strptime(event["stageTimestamp"][:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone
            if agent in event.get("userAgent", "") and moment >= since:
                found.append(f"{event['verb']} {event['requestURI'].partition('?')[0]}")
        return found

    @contextmanager
    def silent(self) -> Iterator[None]:
        """It takes connections and answers nothing, until the block ends."""
        flag = f"--secure-port={self.url.rpartition(':')[2]}"
        [process] = [each for each in psutil.Process().children() if flag in each.cmdline()]
        process.suspend()
        try:
            yield
        finally:
            process.resume()

    def lists(self, resource: str) -> int:
        """How often objects of a kind were listed so far, by anybody."""
        found = re.findall(
            rf'^apiserver_request_total\{{(?=[^}}]*resource="{resource}")[^}}]*verb="LIST"[^}}]*\}} (\d+)',
            self._http.get("/metrics").text,
            re.MULTILINE,
        )
        return sum(map(int, found))


@contextmanager
def running(folder: Path) -> Iterator[ApiServer]:
    """An API server until the block ends. Raises NoPrograms."""
    tools = programs()
    folder.mkdir(parents=True, exist_ok=True)
    etcd, peer, port = free_ports(3)
    with ExitStack() as stack:
        start = _Starter(folder, tools, stack)
        start(
            "etcd",
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{etcd}",
            f"--advertise-client-urls=http://127.0.0.1:{etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync=true",
            "--log-level=error",
        )
        server = ApiServer(folder, port, tools["kubectl"])
        key = _files(server)
        start("kube-apiserver", *_flags(server, etcd, port, key))
        stack.callback(server.close)
        until(server.is_ready, seconds=API_SERVER_START)
        start(
            "kube-controller-manager",
            f"--kubeconfig={server.kubeconfig}",
            f"--controllers={_CONTROLLERS}",
            f"--service-account-private-key-file={key}",
            "--use-service-account-credentials=false",
            "--leader-elect=false",
            "--secure-port=0",
            "--concurrent-gc-syncs=2",
        )
        yield server
    shutil.rmtree(folder / "etcd", ignore_errors=True)


class _Starter:
    def __init__(self, folder: Path, tools: dict[str, Path], stack: ExitStack) -> None:
        self._folder, self._tools, self._stack = folder, tools, stack

    def __call__(self, program: str, *flags: str) -> None:
        log = self._stack.enter_context((self._folder / f"{program}.log").open("wb"))
        process = subprocess.Popen(
            [str(self._tools[program]), *flags], stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self._folder
        )
        logs.started(Path(log.name))
        self._stack.callback(_end, process, Path(log.name))


def _end(process: subprocess.Popen[bytes], log: Path) -> None:
    process.kill()
    process.wait()
    logs.ended(log)


def _files(server: ApiServer) -> Path:
    key = server.folder / "accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    (server.folder / "tokens.csv").write_text(f"{_TOKEN},tests,tests,system:masters\n")
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "None", "verbs": ["get", "list", "watch"]}, {"level": "Metadata"}],
    }
    (server.folder / "audit.yaml").write_text(yaml.safe_dump(policy))
    cluster = {"server": server.url, "insecure-skip-tls-verify": True}
    server.kubeconfig.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "bare", "cluster": cluster}],
                "users": [{"name": "tests", "user": {"token": _TOKEN}}],
                "contexts": [{"name": "bare", "context": {"cluster": "bare", "user": "tests"}}],
                "current-context": "bare",
            }
        )
    )
    return key


def _flags(server: ApiServer, etcd: int, port: int, key: Path) -> tuple[str, ...]:
    return (
        f"--etcd-servers=http://127.0.0.1:{etcd}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={server.folder / 'certs'}",
        "--service-cluster-ip-range=198.18.0.0/16",
        f"--service-account-issuer={server.url}",
        f"--service-account-signing-key-file={key}",
        f"--service-account-key-file={key}",
        f"--token-auth-file={server.folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        f"--audit-policy-file={server.folder / 'audit.yaml'}",
        f"--audit-log-path={server.audit}",
        "--endpoint-reconciler-type=none",
    )
