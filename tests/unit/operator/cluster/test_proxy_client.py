"""What a proxy's answer to a poll comes to."""

import asyncio

import pytest
from aiohttp import web
from tests.unit.web_apps import serving

from rolloutfleet_operator.cluster.http_client import HttpClient
from rolloutfleet_operator.cluster.proxy_client import KeyRefused, ProxyClient
from rolloutfleet_operator.policy.observed import ProxyStats


def polled(status: int) -> ProxyStats | None:
    async def play() -> ProxyStats | None:
        async def answer(_: web.Request) -> web.Response:
            return web.json_response({"error": {"message": "no"}}, status=status)

        app = web.Application()
        app.router.add_get("/stats", answer)
        async with serving(app) as url:
            http = HttpClient()
            try:
                return await ProxyClient(http).stats(url, "k", audit=False)
            finally:
                await http.close()

    return asyncio.run(play())


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_not_taken_is_no_silence(status: int) -> None:
    with pytest.raises(KeyRefused):
        polled(status)


@pytest.mark.parametrize("status", [200, 404, 500, 503])
def test_what_are_no_figures_is_no_answer(status: int) -> None:
    assert polled(status) is None
