"""What a proxy's answer to a poll comes to."""

import asyncio

import pytest
from aiohttp import web

from rolloutfleet_operator.cluster.http_client import HttpClient
from rolloutfleet_operator.cluster.proxy_client import KeyRefused, ProxyClient
from rolloutfleet_operator.policy.observed import ProxyStats


def polled(status: int) -> ProxyStats | None:
    async def play() -> ProxyStats | None:
        async def answer(_: web.Request) -> web.Response:
            return web.json_response({"error": {"message": "no"}}, status=status)

        app = web.Application()
        app.router.add_get("/stats", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        http = HttpClient()
        try:
            return await ProxyClient(http).stats(site.name, "k", audit=False)
        finally:
            await http.close()
            await runner.cleanup()

    return asyncio.run(play())


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_not_taken_is_no_silence(status: int) -> None:
    with pytest.raises(KeyRefused):
        polled(status)


@pytest.mark.parametrize("status", [200, 404, 500, 503])
def test_what_are_no_figures_is_no_answer(status: int) -> None:
    assert polled(status) is None
