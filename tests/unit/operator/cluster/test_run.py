"""The operator as a process: how it begins, and that it ends, whatever kopf does."""

import asyncio
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kopf
import pytest
from aiohttp import web
from kopf._core.intents.causes import Activity
from kubernetes.aio.config import kube_config
from tests.unit.operator.cluster.api_server import ApiServer, Place, Refusal, api_of, app_of
from tests.unit.operator.cluster.fleets import OPERATOR
from tests.unit.operator.cluster.operating import FleetThere, watching
from tests.unit.web_apps import serving
from tests.waiting import comes_true

from rolloutfleet.spec import KIND
from rolloutfleet_operator.cluster import handlers, run
from rolloutfleet_operator.cluster.api import Object
from rolloutfleet_operator.cluster.children.names import API_KINDS, FLEET_LABEL, MANAGED_BY
from rolloutfleet_operator.cluster.fleets import BACKOFF
from rolloutfleet_operator.cluster.http_client import HttpClient
from rolloutfleet_operator.cluster.settings import OperatorSettings


async def test_a_kopf_that_never_comes_to_its_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def stuck(*, registry: Any, **_: Any) -> None:
        for handler in registry._activities._handlers:
            if handler.activity == Activity.CLEANUP:
                await handler.fn()
                asked.append(handler.id)
        await asyncio.Event().wait()

    monkeypatch.setattr(run, "KOPF_STOPS_WITHIN", 0.1)
    monkeypatch.setattr(kopf, "operator", stuck)
    nobody: Any = None
    assert await run._watch(nobody, "here", asyncio.Event()) is False
    assert len(asked) == 1


def test_kopf_ends_before_it_kills_the_operator() -> None:
    """Its own limit is the last resort: a process that it kills lets go of no Lease and says nothing."""
    assert run.KOPF_STOPS_WITHIN < handlers.LONGEST_END


@pytest.fixture
def settings() -> OperatorSettings:
    return OPERATOR.model_copy(update={"listen": "127.0.0.1:8080"})


def kubeconfig(folder: Path, url: str) -> Path:
    """Of the cluster at that address."""
    named = {"clusters": [{"name": "c", "cluster": {"server": url}}], "users": [{"name": "u", "user": {}}]}
    contexts = [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
    whole = {"apiVersion": "v1", "kind": "Config", **named, "contexts": contexts, "current-context": "c"}
    (folder / "config").write_text(json.dumps(whole))
    return folder / "config"


async def test_an_operator_serves_its_health_and_figures_and_ends_when_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: OperatorSettings
) -> None:
    server = ApiServer()
    FleetThere(server).apply()
    monkeypatch.setattr(kopf, "operator", watching(server))
    async with serving(app_of(server)) as url:
        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig(tmp_path, url)))
        runs, http = asyncio.create_task(run.run(settings)), HttpClient()
        await comes_true(lambda: ("ConfigMap", "rl", "math-settings") in server.objects)
        health = await http.ask("GET", "http://127.0.0.1:8080/healthz", None, timeout=5)
        figures = await http.ask("GET", "http://127.0.0.1:8080/metrics", None, timeout=5)
        os.kill(os.getpid(), signal.SIGTERM)
        await runs
        await http.close()
    assert (health.status, health.content) == (200, b"ok\n")
    assert b"rolloutfleet_operator_leading 1.0" in figures.content
    assert server.objects["Lease", "ops", "rolloutfleet-operator"]["spec"]["holderIdentity"] == ""


def browsed(server: ApiServer) -> web.Application:
    """An application that answers as kopf asks: which kinds there are, and what is there; then nothing ever happens."""
    versions = {version for version, _ in API_KINDS.values()}
    groups = [(*each.split("/"), each) for each in sorted(versions - {"v1"})]
    told: dict[str, Object] = {
        "/api": {"versions": ["v1"]},
        "/apis": {
            "groups": [
                {"name": name, "versions": [{"version": version}], "preferredVersion": {"version": version}}
                for name, version, _ in groups
            ]
        },
    }
    for of in versions:
        kinds = {plural: kind for kind, (version, plural) in API_KINDS.items() if version == of}
        kinds |= {"namespaces": "Namespace"} if of == "v1" else {}
        more = {"singularName": "", "namespaced": True, "verbs": ["list", "watch"]}
        resources = [{"name": plural, "kind": kind, **more} for plural, kind in kinds.items()]
        told["/api/v1" if of == "v1" else f"/apis/{of}"] = {"resources": resources}

    @web.middleware
    async def browse(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path in told:
            return web.json_response(told[request.path])
        if "watch" in request.query:
            await asyncio.sleep(float(request.query["timeoutSeconds"]))
            return web.Response()
        found: web.StreamResponse = await handler(request)
        return found

    app = app_of(server)
    app.middlewares.append(browse)
    return app


async def test_an_operator_that_may_not_watch_a_kind_says_so_and_goes_on_until_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(method: str, place: Place, _: Any) -> None:
        if (method, place.kind) == ("list", "EndpointSlice"):
            raise Refusal(403, "Forbidden", 'cannot list resource "endpointslices"')

    server = ApiServer(refusing=[refuse])
    woken: list[Any] = []
    fleets: Any = SimpleNamespace(wake=lambda *told: woken.append(told))
    FleetThere(server).apply()
    labels = {FLEET_LABEL: "math", MANAGED_BY: "rolloutfleet-operator"}
    server.put({"kind": "EndpointSlice", "metadata": {"name": "a", "namespace": "rl", "labels": labels}})
    monkeypatch.setattr(handlers, "LONGEST_END", None)  # kopf counts it by this loop's clock
    async with serving(browsed(server)) as url:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, url)))
        runs = asyncio.create_task(run._watch(fleets, None, stopping := asyncio.Event()))
        await asyncio.sleep(600)
        assert not runs.done() and woken == [("rl", "math", KIND)]
        assert 'cannot list resource "endpointslices"' in caplog.text
        server.refusing.clear()
        await comes_true(lambda: ("rl", "math", "EndpointSlice") in woken, seconds=BACKOFF.longest)
        stopping.set()
        assert await runs


async def test_an_operator_that_is_told_to_end_waits_for_no_definition() -> None:
    def refuse(_method: str, place: Place, _body: Any) -> None:
        raise Refusal(404, "NotFound", f"no {place.kind}")

    async with api_of(ApiServer(refusing=[refuse])) as api:
        waits = asyncio.create_task(run._until_known(api, None, stopping := asyncio.Event()))
        await asyncio.sleep(60)
        assert not waits.done()
        stopping.set()
        await asyncio.wait_for(waits, 1)


async def test_an_operator_without_a_cluster_or_a_port_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: OperatorSettings
) -> None:
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    with pytest.raises(run.CantRun, match="no cluster: no service account in this pod, and the kubeconfig"):
        await run.run(settings)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig(tmp_path, "http://127.0.0.1:1")))
    async with await asyncio.start_server(lambda _reader, _writer: None, *settings.address):
        with pytest.raises(run.CantRun, match=r"can't listen on 127\.0\.0\.1:8080"):
            await run.run(settings)
