"""What the real gateway loses on the way to the engines."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import ClientSession
from tests.gateways import gateway_command
from tests.processes import serving
from tests.waiting import PATIENCE, START

from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_engine.testing import running_engine
from rolloutfleet_proxy.engine.client import Engine
from rolloutfleet_proxy.engine.probing import LOST, Probing

OWN = {"logit_bias": {"5": 1.0}, "stop_regex": ["x+y"], "custom_params": {"a": 1}}
"""SGLang's own fields that agents may send."""


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with running_engine(EngineOptions()) as running:
        yield running.url


async def probed(gateway: str, engine: str) -> Probing:
    made, client = Probing(), Engine(gateway, engine_urls=[engine])
    try:
        async with asyncio.timeout(PATIENCE):
            await made.run(client)
    finally:
        await client.aclose()
    return made


async def test_through_the_real_gateway_nothing_is_lost(engine: str, tmp_path: Path) -> None:
    command = gateway_command([engine])
    log = tmp_path / "gateway.log"
    with serving(command.argv, port=command.port, log=log, ready_path="/readiness", deadline=START, gently=False):
        made = await probed(command.url, engine)
        assert (made.loses, made.requests) == ((), 1)


async def test_what_the_real_gateway_loses_of_sampling_under_another_policy_is_found_out(
    engine: str, tmp_path: Path
) -> None:
    """Whatever is lost is lost because bodies are written anew, which is what the probe looks for."""
    sampling = {"max_new_tokens": 1, "temperature": 0.5} | OWN
    command = gateway_command([engine], {"--policy": "cache_aware"})
    log = tmp_path / "gateway.log"
    with serving(command.argv, port=command.port, log=log, ready_path="/readiness", deadline=START, gently=False):
        made = await probed(command.url, engine)
        async with ClientSession() as session:
            asked = {"rid": "lossy", "input_ids": [1], "return_logprob": True, "sampling_params": sampling}
            async with session.post(f"{command.url}/generate", json=asked) as reply:
                assert reply.status == 200
            async with session.get(f"{engine}/log") as told:
                [arrived] = [each for each in (await told.json())["requests"] if each["rid"] == "lossy"]
    lost = sampling.keys() - arrived["sampling_params"].keys()
    assert lost and lost <= OWN.keys()
    assert made.loses == (LOST,)
