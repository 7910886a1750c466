"""Warning Events: read once for all fleets of a namespace."""

import asyncio
from typing import Any

import yaml
from kubernetes.aio.client import ApiClient, Configuration
from tests.cluster.apiserver import ApiServer

from rolloutfleet_operator.cluster.api import Api
from rolloutfleet_operator.cluster.warning_events import CACHE_TTL, WarningEvents

SAID_AT = 1_767_225_600.0


def warning(message: str, namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"math-proxy-0.{message}"},
        "involvedObject": {"kind": "Pod", "name": "math-proxy-0", "uid": f"uid-{message}", "namespace": namespace},
        "type": "Warning",
        "reason": "FailedMount",
        "message": message,
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }


def client_of(server: ApiServer) -> Api:
    configuration = Configuration(host=server.url)
    configuration.verify_ssl = False
    token = yaml.safe_load(server.kubeconfig.read_text())["users"][0]["user"]["token"]
    configuration.api_key["BearerToken"] = f"Bearer {token}"
    return Api(ApiClient(configuration))


def test_they_are_read_once_for_all_who_ask_at_about_the_same_time(apiserver: ApiServer, namespace: str) -> None:
    now = 100.0

    async def play() -> None:
        nonlocal now
        api = client_of(apiserver)
        warning_events = WarningEvents(api, lambda: now)

        async def heard(of: str) -> list[str]:
            """What ten fleets are told at once."""
            told = await asyncio.gather(*(warning_events.of(namespace) for _ in range(10)))
            return [each.of(f"uid-{of}", now=SAID_AT) for each in told]

        try:
            apiserver.apply(warning("first", namespace), namespace=namespace)
            lists = apiserver.lists("events")
            assert await heard("first") == ["FailedMount: first"] * 10
            apiserver.apply(warning("second", namespace), namespace=namespace)
            now += CACHE_TTL * 0.9
            assert await heard("second") == [""] * 10
            assert apiserver.lists("events") == lists + 1
            now += CACHE_TTL * 0.2
            assert await heard("second") == ["FailedMount: second"] * 10
            assert apiserver.lists("events") == lists + 2
        finally:
            await api.close()

    asyncio.run(play())
