"""What the gateway's flags bring: engines that come late are used at once."""

from typing import Final

import httpx
from tests.gateways import LOOPBACK
from tests.integration.operator.gateways import started, until_status
from tests.processes import free_port

from rolloutfleet_engine.testing import running_engine

SOON: Final = 20.0
"""Seconds that a loaded machine may take over what takes one; the gateway's own default would be 30 and more."""


async def test_an_engine_that_comes_up_after_its_gateway_is_used_within_seconds() -> None:
    port = free_port()
    with started([f"http://{LOOPBACK}:{port}"], {}) as (command, _):
        await until_status(f"{command.url}/liveness", 200)
        async with httpx.AsyncClient(base_url=command.url) as http:
            assert (await http.get("/readiness")).status_code == 503
            with running_engine(port=port):
                await until_status(f"{command.url}/readiness", 200, within=SOON)
                asked = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 100, "ignore_eos": True}}
                assert (await http.post("/generate", json=asked)).status_code == 200
