"""An operator on the loop of unit tests, with all its parts but kopf, whose part a watch in memory plays."""

import asyncio
import base64
import copy
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import kopf
import pytest
from kopf._core.intents.causes import Activity
from tests.unit.operator.cluster.api_server import ApiServer, api_of, now
from tests.unit.operator.cluster.fleets import OPERATOR
from tests.waiting import comes_true

from rolloutfleet.spec import API_VERSION, KIND
from rolloutfleet_operator.cluster import run
from rolloutfleet_operator.cluster.api import Object
from rolloutfleet_operator.cluster.children.all import KINDS
from rolloutfleet_operator.cluster.children.names import API_KINDS
from rolloutfleet_operator.cluster.executor import Executor
from rolloutfleet_operator.cluster.gateway_client import GatewayClient
from rolloutfleet_operator.cluster.health import Health
from rolloutfleet_operator.cluster.http_client import HttpClient
from rolloutfleet_operator.cluster.lease import Lease
from rolloutfleet_operator.cluster.logs import DefinitionGone
from rolloutfleet_operator.cluster.metrics import OperatorMetrics
from rolloutfleet_operator.cluster.other_operators import Watch
from rolloutfleet_operator.cluster.proxy_client import ProxyClient
from rolloutfleet_operator.cluster.reconciler import Shared
from rolloutfleet_operator.cluster.settings import OperatorSettings
from rolloutfleet_operator.cluster.slots import Slots
from rolloutfleet_operator.cluster.volumes import CordonedNodes
from rolloutfleet_operator.cluster.warning_events import WarningEvents
from rolloutfleet_operator.policy.reasons import Metric


@dataclass
class Operator:
    """One that runs."""

    shared: Shared
    lease: Lease
    health: Health
    task: "asyncio.Task[None]"

    @property
    def passes(self) -> float:
        """Their number so far."""
        return self.figure(f"{Metric.PASS_SECONDS}_count")

    def figure(self, name: str) -> float:
        """One of its metrics."""
        return self.shared.metrics.registry.get_sample_value(name) or 0.0

    async def until_passes(self, more: int) -> None:
        enough = self.passes + more
        await comes_true(lambda: self.passes >= enough)


@asynccontextmanager
async def operating(
    server: ApiServer,
    settings: OperatorSettings = OPERATOR,
    *,
    identity: str = "one",
    boot: Callable[[], float] = now,
) -> AsyncIterator[Operator]:
    """An operator that acts until the block ends, which cancels it. `boot` tells its Lease seconds."""
    async with api_of(server) as api:
        http, health = HttpClient(), Health(asyncio.get_running_loop().time)
        shared = Shared(
            api=api,
            executor=Executor(api, ProxyClient(http), GatewayClient(http)),
            operator=settings,
            version="0.1.0",
            slots=Slots(),
            clock=now,
            metrics=OperatorMetrics(),
            others=Watch(api, settings, now),
            warning_events=WarningEvents(api, asyncio.get_running_loop().time),
            cordoned_nodes=CordonedNodes(api, asyncio.get_running_loop().time),
        )
        lease = Lease(api, settings, identity=identity, wall=now, boot=boot)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(kopf, "operator", watching(server))
            task = asyncio.create_task(run._look_after(shared, lease, health))
            try:
                yield Operator(shared, lease, health, task)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await http.close()


def watching(server: ApiServer) -> Any:
    """Return what `kopf.operator` is replaced by: it tells the handlers of all that is there, and of each change."""

    async def watch(*, registry: kopf.OperatorRegistry, stop_flag: asyncio.Event, **_: Any) -> None:
        changes: asyncio.Queue[tuple[str, Object]] = asyncio.Queue()
        for there in server.objects.values():
            changes.put_nowait((there["kind"], there))
        server.watchers += (told := lambda kind, changed: changes.put_nowait((kind, changed)), pods := _pods(server))
        stops, gone = asyncio.create_task(stop_flag.wait()), asyncio.create_task(server.definition_gone.wait())
        try:
            while not (stops.done() or gone.done()):
                change = asyncio.create_task(changes.get())
                await asyncio.wait({change, stops, gone}, return_when=asyncio.FIRST_COMPLETED)
                if change.done():
                    await _tell(registry, *change.result())
                change.cancel()
            if gone.done():
                raise DefinitionGone(None, status=404, headers={})
        finally:
            stops.cancel()
            gone.cancel()
            server.watchers = [each for each in server.watchers if each not in (told, pods)]
            for handler in registry._activities._handlers:
                if handler.activity == Activity.CLEANUP:
                    cleanup: Any = handler.fn
                    await cleanup()

    return watch


def _pods(server: ApiServer) -> Callable[[str, Object], None]:
    """Return a watcher that keeps as many pods of a StatefulSet as it asks for; none of them ever runs."""

    def changed(kind: str, of: Object) -> None:
        meta = of["metadata"]
        if kind != "StatefulSet" or (kind, meta["namespace"], meta["name"]) not in server.objects:
            return
        wanted = [f"{meta['name']}-{number}" for number in range(of["spec"]["replicas"])]
        there = [pod["metadata"]["name"] for pod in server.of_kind("Pod") if meta["name"] in pod["metadata"]["name"]]
        for name in {*there} - {*wanted}:
            server.remove("Pod", meta["namespace"], name)
        for name in sorted({*wanted} - {*there}):
            template, owner = of["spec"]["template"], {"kind": kind, "name": meta["name"], "uid": meta["uid"]}
            made = {**template["metadata"], "name": name, "namespace": meta["namespace"], "ownerReferences": [owner]}
            server.put({"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": template["spec"], "status": {}})

    return changed


async def _tell(registry: kopf.OperatorRegistry, kind: str, changed: Object) -> None:
    """Whoever watches that kind."""
    plural, meta = API_KINDS[kind][1], changed["metadata"]
    for handler in registry._watching._handlers:
        if handler.selector is not None and plural in (handler.selector.plural, handler.selector.any_name):
            told: Any = handler.fn
            await told(namespace=meta["namespace"], name=meta["name"], labels=meta.get("labels") or {}, meta=meta)


class FleetThere:
    """A fleet of the API server."""

    def __init__(self, server: ApiServer, name: str = "math") -> None:
        self._server, self._name = server, name

    def apply(self, **fields: Any) -> None:
        """As `kubectl apply` writes it."""
        spec = {"model": "simulated", "engine": {"gpus": 0}, **fields}
        meta = {"name": self._name, "namespace": "rl"}
        there = self._server.objects.get((KIND, "rl", self._name), {"metadata": meta})
        self._server.put({**there, "apiVersion": API_VERSION, "kind": KIND, "spec": spec})

    @property
    def status(self) -> Object:
        found: Object = self._server.objects[KIND, "rl", self._name].get("status", {})
        return found

    def condition(self, kind: str = "Ready") -> Object:
        return next((each for each in self.status.get("conditions", ()) if each["type"] == kind), {})

    def children(self) -> set[str]:
        """Of the kinds that are watched."""
        return {f"{kind}/{name}" for kind, _, name in self._server.objects if kind in KINDS}

    def child(self, kind: str, name: str) -> Object:
        return self._server.objects[kind, "rl", name]

    def edit(self, kind: str, name: str, **spec: Any) -> None:
        """As somebody does who knows nothing of fleets."""
        there = copy.deepcopy(self.child(kind, name))
        managers = [{"manager": "kubectl-edit"}]
        meta = {**there["metadata"], "managedFields": managers}
        self._server.put({**there, "metadata": meta, "spec": {**there["spec"], **spec}})

    def roll_out(self) -> None:
        """As controllers do: the StatefulSet's has seen it, and of Deployments all pods are there, new and ready."""
        proxies = copy.deepcopy(self.child("StatefulSet", "math-proxy"))
        self._server.put({**proxies, "status": {"observedGeneration": proxies["metadata"]["generation"]}})
        for name in ("math-gateway", "math-engine"):
            there = copy.deepcopy(self.child("Deployment", name))
            counts = dict.fromkeys(("replicas", "readyReplicas", "updatedReplicas"), there["spec"]["replicas"])
            self._server.put({**there, "status": {"observedGeneration": there["metadata"]["generation"], **counts}})

    def become_ready(self, pod: str, *, ready: str = "True") -> None:
        """As the kubelet says it."""
        conditions = [{"type": "Ready", "status": ready}]
        containers = [{"name": "proxy", "started": True, "state": {"running": {}}}]
        status = {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": conditions,
            "containerStatuses": containers,
        }
        self._server.put({**self.child("Pod", pod), "status": status})

    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.child("ConfigMap", "math-settings")["data"]["settings.json"])
        return found

    def keys(self) -> list[str]:
        """Admin keys, the first of which is used."""
        there = self.child("Secret", "math-keys")["data"]["admin-keys"]
        return base64.b64decode(there).decode().split()

    def problems(self) -> dict[str, str]:
        """Messages by reason."""
        return {each["reason"]: each["message"] for each in self.status.get("problems", ())}
