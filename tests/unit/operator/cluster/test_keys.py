"""What passes find in a Secret that the spec names, and what is said where that is no key."""

import asyncio
from typing import Any

import pytest
from tests.unit.operator.cluster.api_server import ApiServer, api_of
from tests.unit.operator.cluster.fleets import fleet_of

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


def engine_key(fields: dict[str, Any] | None) -> FoundKey[str]:
    """As it is found where the Secret has these fields, or is not there."""
    server = ApiServer()

    async def play() -> FoundKey[str]:
        if fields is not None:
            meta = {"name": "engines", "namespace": "rl"}
            server.put({"apiVersion": "v1", "kind": "Secret", "metadata": meta, **fields})
        http = HttpClient()
        try:
            async with api_of(server) as api:
                return await FleetKeys(api, ProxyClient(http)).engine_key(KEYED)
        finally:
            await http.close()

    return asyncio.run(play())


def test_the_engines_key_is_that_of_the_secret() -> None:
    assert engine_key({"data": {"api-key": "a2V5Cg=="}}) == FoundKey("key")


@pytest.mark.parametrize(
    "fields",
    [
        {"data": {"api-key": "%%%"}},
        {"data": {"api-key": "/w=="}},
        {"data": {"key": "a2V5Cg=="}},
        {},
        None,
    ],
)
def test_an_engine_key_that_cant_be_read_is_a_problem_that_names_secret_and_key(fields: dict[str, Any] | None) -> None:
    assert engine_key(fields) == FoundKey(None, (NO_KEY,))
