"""Exports of a fleet: what one answer can't hold comes in several."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
from aiohttp import web
from tests.unit import web_apps

from rolloutfleet.errors import ALREADY_LEASED, INVALID_REQUEST, OWNER_UNAVAILABLE
from rolloutfleet.fleet import AsyncFleet, LeaseLost, Refused


class Proxy:
    """A proxy whose answers hold the trajectories of two sessions, and of one that has too much not even one."""

    def __init__(self, url: str = "") -> None:
        self.url = url
        self.asked: list[list[str]] = []
        """The sessions of each export that was answered."""
        self.too_much = ""
        self.param = "max_trajectories"
        """The field that a refusal names."""
        self.refusals: list[tuple[int, str]] = []
        """Status and code of what answers the next acknowledgements."""
        self.acknowledged: list[str] = []

    async def proxies(self, _: web.Request) -> web.Response:
        known = {"ordinal": 0, "url": self.url, "state": "ready", "sessions_open": 0, "room": True}
        return web.json_response({"proxies": [known]})

    async def export(self, request: web.Request) -> web.Response:
        names: list[str] = (await request.json())["session_ids"]
        if len(names) > 2 or self.too_much in names:
            error = {"code": INVALID_REQUEST, "message": "too much", "type": "invalid_request_error"}
            return web.json_response({"error": {**error, "param": self.param}}, status=400)
        self.asked.append(names)
        statuses = [{"session_id": name, "status": "leased"} for name in names]
        head = {"lease_id": f"l0-{len(self.asked)}", "expires_in": 600.0, "run": 1, "version": 5, "ordinals": [0]}
        return web.json_response({**head, "sessions": statuses, "failed": [], "trajectories": list(map(_of, names))})

    async def lease(self, request: web.Request) -> web.Response:
        if self.refusals:
            status, code = self.refusals.pop(0)
            return web.json_response({"error": {"code": code, "message": code, "type": "error"}}, status=status)
        self.acknowledged.append(request.match_info["lease"])
        return web.json_response({"lease_id": request.match_info["lease"], "acknowledged": [], "ordinals": [0]})


def _of(session: str) -> dict[str, Any]:
    return {
        "trajectory_id": f"{session}-trajectory-1",
        "session_id": session,
        "group_id": "g0-1",
        "turns": [],
        "rows": [],
    }


@asynccontextmanager
async def serving(proxy: Proxy) -> AsyncIterator[AsyncFleet]:
    app = web.Application()
    app.router.add_get("/proxies", proxy.proxies)
    app.router.add_post("/export", proxy.export)
    app.router.add_post("/leases/{lease}/ack", proxy.lease)
    async with (
        web_apps.serving(app) as proxy.url,
        AsyncFleet.from_url(proxy.url, admin_key="key", progress=False) as fleet,
    ):
        yield fleet


NAMES = [f"s0-{number}" for number in range(7)]


async def test_named_sessions_come_in_several_answers_where_one_cant_hold_them() -> None:
    proxy = Proxy()
    async with serving(proxy) as fleet, fleet.export(session_ids=NAMES) as export:
        found = [trajectory.session_id async for trajectory in export]
    assert sorted(found) == NAMES
    assert sorted(name for names in proxy.asked for name in names) == NAMES


@pytest.mark.parametrize("at_once", [True, False])
async def test_trajectories_acknowledged_too_late_are_acknowledged_when_they_come_again_and_not_handed_out(
    at_once: bool,
) -> None:
    """Whoever leased it meanwhile has given it back."""
    proxy = Proxy()
    async with serving(proxy) as fleet:
        async with fleet.export(session_ids=NAMES[:1], on_exit="keep") as export:
            [late] = [trajectory async for trajectory in export]
        proxy.refusals = [(409, ALREADY_LEASED)] if at_once else [(503, OWNER_UNAVAILABLE), (409, ALREADY_LEASED)]
        with pytest.raises(LeaseLost) if at_once else nullcontext():
            await fleet.acknowledge([late])
        while fleet.owed:
            await asyncio.sleep(0.1)
        async with fleet.export(session_ids=NAMES[:1]) as export:
            assert [trajectory async for trajectory in export] == []
        assert proxy.acknowledged == ["l0-2"]
        async with fleet.export(session_ids=NAMES[:1]) as export:
            assert len([trajectory async for trajectory in export]) == 1, "once is enough"


async def test_a_session_that_no_answer_can_hold_is_refused() -> None:
    proxy = Proxy()
    proxy.too_much = NAMES[3]
    async with serving(proxy) as fleet:
        with pytest.raises(Refused, match="too much"):
            async with fleet.export(session_ids=NAMES) as export:
                [trajectory async for trajectory in export]


async def test_an_export_that_is_refused_for_anything_else_is_not_asked_for_in_parts() -> None:
    proxy = Proxy()
    proxy.param = "lineages"
    async with serving(proxy) as fleet:
        with pytest.raises(Refused, match="too much"):
            async with fleet.export(session_ids=NAMES) as export:
                [trajectory async for trajectory in export]
    assert proxy.asked == []
