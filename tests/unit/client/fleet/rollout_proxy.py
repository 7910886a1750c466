"""A proxy's API as far as rollouts need it: every session that is closed leaves a trajectory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from tests.unit import web_apps

from rolloutfleet.errors import OWNER_UNAVAILABLE
from rolloutfleet.fleet import AsyncFleet

ERROR = {"code": OWNER_UNAVAILABLE, "message": "not now", "type": "server_error"}


class Proxy:
    """The only one of its fleet, at version 0."""

    def __init__(self) -> None:
        self.url = ""
        self.refuses: tuple[str, ...] = ()
        """Beginnings of paths whose calls are 503, each with its method."""
        self.status: dict[str, Any] = {}
        """Of each session, beside what every status has."""
        self._groups = 0
        self.sessions: dict[str, str] = {}
        """The state of each."""
        self._leases: list[list[str]] = []
        """The sessions of each lease that are neither trained nor given back."""

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._refuse])
        app.router.add_get("/proxies", self._proxies)
        app.router.add_get("/version", self._version)
        app.router.add_get("/health", self._done)
        app.router.add_get("/sessions", self._list)
        app.router.add_post("/sessions", self._start)
        app.router.add_get("/sessions/{session}", self._show)
        app.router.add_delete("/sessions/{session}", self._delete)
        app.router.add_post("/sessions/{session}/close", self._close)
        app.router.add_post("/sessions/{session}/touch", self._done)
        app.router.add_post("/export", self._export)
        app.router.add_post("/leases/{lease}/{how}", self._end_lease)
        return app

    @web.middleware
    async def _refuse(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if f"{request.method} {request.path}".startswith(self.refuses):
            return web.json_response({"error": ERROR}, status=503)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _proxies(self, _: web.Request) -> web.Response:
        known = {"ordinal": 0, "url": self.url, "state": "ready", "sessions_open": 0, "room": True}
        return web.json_response({"proxies": [known]})

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"run": 1, "version": 0, "epoch": 0, "paused": False})

    async def _done(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def _start(self, request: web.Request) -> web.Response:
        self._groups += 1
        names = [f"s0-{self._groups}-{member}" for member in range((await request.json())["group_size"])]
        self.sessions.update(dict.fromkeys(names, "open"))
        sessions = [{"session_id": name, "api_key": "key", "base_url": f"{self.url}/v1"} for name in names]
        return web.json_response({"group_id": f"g0-{self._groups}", "sessions": sessions}, status=201)

    def _shown(self, name: str) -> dict[str, Any]:
        state = self.sessions[name]
        own = {"session_id": name, "group_id": "g0-1", "state": state, "created_at": 0.0, **self.status}
        return own if state == "open" else {**own, "trajectories": 1, "fate": "live"}

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response({"sessions": [self._shown(name) for name in self.sessions]})

    async def _show(self, request: web.Request) -> web.Response:
        return web.json_response(self._shown(request.match_info["session"]))

    async def _close(self, request: web.Request) -> web.Response:
        name = request.match_info["session"]
        self.sessions[name] = "closed"
        return web.json_response({"session_id": name, "trajectory_id": f"{name}-trajectory-1"})

    async def _delete(self, request: web.Request) -> web.Response:
        """Of one that is leased nothing goes."""
        name = request.match_info["session"]
        if not any(name in lease for lease in self._leases):
            self.sessions[name] = "deleted"
        return web.json_response({"session_id": name})

    async def _export(self, request: web.Request) -> web.Response:
        asked = (await request.json()).get("session_ids") or [*self.sessions]
        taken = {name for lease in self._leases for name in lease}
        names = [name for name in asked if self.sessions.get(name) == "closed" and name not in taken]
        self._leases += [names] if names else []
        trajectories = [
            {"trajectory_id": f"{name}-trajectory-1", "session_id": name, "group_id": "g0-1", "turns": [], "rows": []}
            for name in names
        ]
        head = {"lease_id": f"l0-{len(self._leases)}" if names else None, "expires_in": 600.0, "run": 1, "version": 0}
        statuses = [{"session_id": name, "status": "leased" if name in names else "gone"} for name in asked]
        return web.json_response({**head, "sessions": statuses, "failed": [], "trajectories": trajectories})

    async def _end_lease(self, request: web.Request) -> web.Response:
        lease = self._leases[int(request.match_info["lease"].partition("-")[2]) - 1]
        ended = {name.rpartition("-trajectory-")[0] for name in (await request.json())["trajectory_ids"]}
        if request.match_info["how"] == "ack":
            self.sessions.update(dict.fromkeys(ended, "acknowledged"))
        lease[:] = [name for name in lease if name not in ended]
        return web.json_response({"lease_id": request.match_info["lease"], "acknowledged": [], "released": []})


@asynccontextmanager
async def serving(proxy: Proxy, **options: Any) -> AsyncIterator[AsyncFleet]:
    async with (
        web_apps.serving(proxy.app()) as proxy.url,
        AsyncFleet.from_url(proxy.url, admin_key="key", progress=False, **options) as fleet,
    ):
        yield fleet
