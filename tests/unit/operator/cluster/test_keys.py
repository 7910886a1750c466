"""What passes find in a Secret that the spec names, and what is said where that is no key."""

import asyncio
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration
from tests.unit.operator.cluster.fleets import fleet_of

from rolloutfleet_operator.cluster.api import Api
from rolloutfleet_operator.cluster.http_client import HttpClient
from rolloutfleet_operator.cluster.keys import FleetKeys, FoundKey
from rolloutfleet_operator.cluster.proxy_client import ProxyClient
from rolloutfleet_operator.policy.reasons import Problem, ProblemReason

KEYED = fleet_of(gateway={"apiKeySecret": "engines"})
NO_KEY = Problem(
    ProblemReason.KEYS_MISSING,
    "gateway.apiKeySecret names the Secret engines, which is not there or has no key `api-key` that can be read "
    "(text, in base64)",
)


def engine_key(secret: dict[str, Any] | None) -> FoundKey[str]:
    """As it is found at an API server that answers so."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(secret or {"reason": "NotFound"}, status=200 if secret else 404)

    async def play() -> FoundKey[str]:
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/rl/secrets/engines", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        api, http = Api(ApiClient(Configuration(host=site.name))), HttpClient()
        try:
            return await FleetKeys(api, ProxyClient(http)).engine_key(KEYED)
        finally:
            await api.close()
            await http.close()
            await runner.cleanup()

    return asyncio.run(play())


def test_the_engines_key_is_that_of_the_secret() -> None:
    assert engine_key({"metadata": {}, "data": {"api-key": "a2V5Cg=="}}) == FoundKey("key")


@pytest.mark.parametrize(
    "secret",
    [
        {"metadata": {}, "data": {"api-key": "%%%"}},
        {"metadata": {}, "data": {"api-key": "/w=="}},
        {"metadata": {}, "data": {"key": "a2V5Cg=="}},
        {"metadata": {}},
        None,
    ],
)
def test_an_engine_key_that_cant_be_read_is_a_problem_that_names_secret_and_key(secret: dict[str, Any] | None) -> None:
    assert engine_key(secret) == FoundKey(None, (NO_KEY,))
