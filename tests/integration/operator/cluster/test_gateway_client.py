"""The operator and the real gateway: it is told of engines and forgets them, by the key of its control plane."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests.gateways import LOOPBACK, QUICK, SPEC
from tests.processes import free_port, free_ports
from tests.waiting import PATIENCE, START, eventually

from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_engine.testing import running_engine
from rolloutfleet_operator import commands, smg
from rolloutfleet_operator.cluster.gateway_client import GatewayClient
from rolloutfleet_operator.cluster.http_client import HttpClient
from rolloutfleet_operator.policy.actions import AddWorker, RemoveWorker
from rolloutfleet_operator.policy.observed import ObservedWorker
from rolloutfleet_operator.policy.workers import changes_of
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.engine.client import Engine

KEY = "rfa-control"
ENGINE_KEY = "the-engines"
PASS = 1.0
"""Seconds."""
PASSES = int(START / PASS)


class Gateway:
    """One gateway as a cluster has it, which can be killed and started again at its address."""

    def __init__(self, key_file: Path, api_key: Path | None = None) -> None:
        self.port, self.metrics_port = free_ports(2)
        self.url = f"http://{LOOPBACK}:{self.port}"
        self.key_file, self.api_key = key_file, api_key
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        flags = {
            "--host": LOOPBACK,
            "--port": self.port,
            "--prometheus-host": LOOPBACK,
            "--prometheus-port": self.metrics_port,
            **smg.flags(SPEC),
            **QUICK,
        }
        argv = smg.command(sys.executable, control_key=self.key_file, api_key=self.api_key)
        self.process = subprocess.Popen([*argv, *commands.flags(flags), *smg.pushed_engines()])

    def told(self) -> str | None:
        """What it tells of its engines; None where it does not answer."""
        try:
            headers = {"authorization": f"Bearer {KEY}"}
            return httpx.get(f"{self.url}/workers", headers=headers, trust_env=False).text
        except httpx.TransportError:
            return None

    def tells_something_else_than(self, before: str | None) -> bool:
        return self.told() != before

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    key_file = tmp_path / "key"
    key_file.write_text(f"{KEY}\n")
    made = Gateway(key_file)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway before engines that ask for ENGINE_KEY."""
    key_file, api_key = tmp_path / "key", tmp_path / "api-key"
    key_file.write_text(f"{KEY}\n")
    api_key.write_text(f"{ENGINE_KEY}\n")
    made = Gateway(key_file, api_key)
    made.start()
    yield made
    made.kill()


@pytest.fixture
async def gateways() -> AsyncIterator[GatewayClient]:
    http = HttpClient()
    yield GatewayClient(http)
    await http.close()


async def brought_in_line(
    gateways: GatewayClient, gateway: Gateway, *, ready: set[str], there: set[str], engine_key: str | None = None
) -> None:
    """What passes of the operator do, until there is nothing to do and nothing under way.

    There is one when the gateway tells something else, at the latest after PASS.
    """
    for _ in range(PASSES):
        before = gateway.told()
        listed = (await gateways.lists([gateway.url], KEY)).get(gateway.url)
        if listed is not None:
            changes = list(changes_of(gateway.url, listed, ready=ready, there=there))
            assert all(each.id is not None for each in listed if each.url not in there and not each.draining)
            if not (changes or any(each.draining for each in listed)):
                return
            for change in changes:
                if isinstance(change, AddWorker):
                    await gateways.add(change, KEY, engine_key)
                else:
                    await gateways.remove(change, KEY)
        with suppress(TimeoutError):
            await eventually(partial(gateway.tells_something_else_than, before), seconds=PASS)
    raise AssertionError(f"not in line after {PASSES} passes: {gateway.told()}")


async def urls(gateways: GatewayClient, gateway: Gateway) -> set[str]:
    return {each.url for each in (await gateways.lists([gateway.url], KEY))[gateway.url] if not each.draining}


async def test_engines_come_and_go_and_a_gateway_that_forgot_all_is_told_again(
    gateways: GatewayClient, gateway: Gateway
) -> None:
    with running_engine(EngineOptions()) as one, running_engine(EngineOptions()) as two:
        both = {one.url, two.url}
        await brought_in_line(gateways, gateway, ready=both, there=both)
        assert await urls(gateways, gateway) == both
        await brought_in_line(gateways, gateway, ready={two.url}, there={two.url})
        assert await urls(gateways, gateway) == {two.url}
        await brought_in_line(gateways, gateway, ready=both, there=both)
        assert await urls(gateways, gateway) == both, "one comes back at the address of one that went"
        gateway.kill()
        gateway.start()
        await brought_in_line(gateways, gateway, ready=both, there=both)
        assert await urls(gateways, gateway) == both
        generate = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2}}
        async with httpx.AsyncClient() as http:
            assert (await http.post(f"{gateway.url}/generate", json=generate)).status_code == 200


async def test_engines_with_a_key_are_known_and_used_also_by_a_gateway_that_forgot_all(
    gateways: GatewayClient, keyed: Gateway
) -> None:
    generate = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2}}
    headers = {"authorization": f"Bearer {ENGINE_KEY}"}
    with running_engine(EngineOptions(api_key=ENGINE_KEY)) as engine:
        there = {engine.url}
        # A gateway that has refused a request may close its connection.
        async with httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0)) as http:
            for _ in range(2):
                await brought_in_line(gateways, keyed, ready=there, there=there, engine_key=ENGINE_KEY)
                assert (await http.post(f"{keyed.url}/generate", json=generate)).status_code == 401
                assert (await http.post(f"{keyed.url}/generate", json=generate, headers=headers)).status_code == 200
                with_engine_key = await http.get(f"{keyed.url}/workers", headers=headers)
                assert with_engine_key.status_code in (401, 403), "it is no key of the control plane"
                keyed.kill()
                keyed.start()


async def test_a_gateway_lets_calls_end_at_an_engine_that_leaves(gateways: GatewayClient, gateway: Gateway) -> None:
    options: Callable[..., EngineOptions] = EngineOptions
    with running_engine(options(token_latency=0.05)) as leaving, running_engine(options()) as staying:
        await brought_in_line(gateways, gateway, ready={leaving.url}, there={leaving.url})
        long = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}}
        async with httpx.AsyncClient(timeout=PATIENCE) as http:
            call = asyncio.create_task(http.post(f"{gateway.url}/generate", json=long))
            await eventually(lambda: httpx.get(f"{leaving.url}/counters").json()["running"])
            await brought_in_line(gateways, gateway, ready={staying.url}, there={staying.url})
            assert not call.done(), "it was let go of before the call ended"
            answer = await call
            assert answer.status_code == 200 and len(answer.json()["output_ids"]) == 400


async def test_a_proxy_asks_for_the_engines_by_the_key_of_the_control_plane(
    gateways: GatewayClient, gateway: Gateway
) -> None:
    with running_engine(EngineOptions()) as engine:
        await brought_in_line(gateways, gateway, ready={engine.url}, there={engine.url})
        keys = iter(["an old one", KEY])
        asking = Engine(gateway.url, api_key="the engines'", control_key=lambda: next(keys))
        try:
            with pytest.raises(DomainError):
                await asking.engines()
            assert await asking.engines() == (engine.url,), "a key that has changed is taken without a restart"
        finally:
            await asking.aclose()


async def test_without_the_key_nobody_is_told_of_engines_or_adds_one(gateways: GatewayClient, gateway: Gateway) -> None:
    await brought_in_line(gateways, gateway, ready=set(), there=set())
    assert await gateways.lists([gateway.url], None) == {}
    assert await gateways.lists([gateway.url], "another") == {}
    await gateways.add(AddWorker(gateway=gateway.url, url=f"http://{LOOPBACK}:{free_port()}"), "another", None)
    assert await urls(gateways, gateway) == set()


async def test_an_engine_that_drains_is_listed_as_such(gateways: GatewayClient, gateway: Gateway) -> None:
    with running_engine(EngineOptions()) as engine:
        await brought_in_line(gateways, gateway, ready={engine.url}, there={engine.url})
        (known,) = (await gateways.lists([gateway.url], KEY))[gateway.url]
        assert known.id is not None
        await gateways.remove(RemoveWorker(gateway=gateway.url, url=known.url, id=known.id), KEY)
        await eventually(lambda: "draining" in (gateway.told() or ""))
        (draining,) = (await gateways.lists([gateway.url], KEY))[gateway.url]
        assert draining == ObservedWorker(url=known.url, healthy=False, id=known.id, draining=True)
