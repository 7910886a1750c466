"""What a proxy's answer to a poll comes to."""

import asyncio
from typing import Any

import pytest
from aiohttp import web
from tests.unit.web_apps import serving

from rolloutfleet_operator.cluster.http_client import HttpClient
from rolloutfleet_operator.cluster.proxy_client import KeyRefused, ProxyClient
from rolloutfleet_operator.policy.observed import ProxyStats

NO_FIGURES = {"error": {"message": "no"}}
FIGURES = {
    "rss_bytes": 1,
    "sessions": {"open": 0, "ended": 1},
    "in_flight": 0,
    "boots": [],
    "dump": {"failing": False},
    "paused": False,
    "store_id": "s",
    "settings": {"generation": 1},
}


def polled(status: int, figures: dict[str, Any] = NO_FIGURES, audit: dict[str, Any] | None = None) -> ProxyStats | None:
    """What comes of a poll; `audit`: what it recounts, where it does when it is asked."""

    async def play() -> ProxyStats | None:
        async def answer(_: web.Request) -> web.Response:
            return web.json_response(figures, status=status)

        async def recount(_: web.Request) -> web.Response:
            assert audit is not None, "a recount takes long"
            return web.json_response(audit)

        app = web.Application()
        app.router.add_get("/stats", answer)
        app.router.add_get("/audit", recount)
        async with serving(app) as url:
            http = HttpClient()
            try:
                return await ProxyClient(http).stats(url, "k", audit=True)
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


def test_a_proxys_rows_are_read_of_its_figures_and_recounted_only_where_they_lack_them() -> None:
    stats = polled(200, {**FIGURES, "held": {"turns": 4, "sessions": 2}})
    assert stats is not None and (stats.held_turns, stats.held_sessions) == (4, 2)
    earlier = polled(200, FIGURES, {"turns": {"live": 3, "leased": 1}, "sessions": {"live": 2, "leased": 0}})
    assert earlier is not None and (earlier.held_turns, earlier.held_sessions) == (4, 2)
