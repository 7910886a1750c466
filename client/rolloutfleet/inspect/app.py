"""The page's routes: pages, documents, events, static files. None of them passes anything through to a fleet."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from rolloutfleet.inspect import pages
from rolloutfleet.inspect.access import Access, Guarded
from rolloutfleet.inspect.names import is_name
from rolloutfleet.inspect.sources import Json, NotNow, NotThere, Source
from rolloutfleet.inspect.tabs import Tabs
from rolloutfleet.wire import EVENTS_MEDIA_TYPE

SILENCE: Final = 15.0
"""Seconds after which a tab is sent a comment."""
_CHUNK: Final = re.compile("[0-9]{1,7}")
"""Its number; no turn has more."""
_GONE: Final = "Nothing here has this name. A session is gone once it was deleted, or all of it was acknowledged."


class Site:
    """Answers of one source."""

    def __init__(self, source: Source, tabs: Tabs) -> None:
        self._source, self._tabs, self._tails = source, tabs, pages.Tails()
        self._list: tuple[list[Json], bool, bytes] | None = None
        """The last list of sessions as JSON; there may be 10,000 of them."""
        self._lines: dict[str, tuple[Json, bytes]] = {}
        """Its lines, by key."""

    # Pages

    async def fleet(self, _: Request) -> Response:
        return await self._page(pages.fleet_page(self._source))

    async def sessions(self, _: Request) -> Response:
        return await self._page(pages.sessions_page(self._source))

    async def group(self, request: Request) -> Response:
        return await self._page(pages.group_page(self._source, _name(request, "group"), self._tails), root="../")

    async def session(self, request: Request) -> Response:
        return await self._page(pages.session_page(self._source, _name(request, "key")), root="../")

    async def _page(self, made: Awaitable[bytes], *, root: str = "") -> Response:
        try:
            return HTMLResponse(await made)
        except NotThere:
            return HTMLResponse(pages.error_page(_GONE, root=root), 404)
        except NotNow as error:
            return HTMLResponse(pages.error_page(str(error), root=root), 503)

    # Documents

    async def fleet_data(self, _: Request) -> Response:
        return await _data(self._source.overview())

    async def sessions_data(self, _: Request) -> Response:
        lines, complete = await self._source.sessions()
        if self._list is None or self._list[0] is not lines or self._list[1] != complete:
            self._list = lines, complete, self._listed(lines, complete=complete)
        return _json(self._list[2])

    def _listed(self, lines: list[Json], *, complete: bool) -> bytes:
        """Only lines that are others than before are encoded."""
        before = self._lines
        same = ((line, before.get(line["key"])) for line in lines)
        self._lines = {line["key"]: old if old and old[0] is line else (line, encoded(line)) for line, old in same}
        content = b",".join(text for _, text in self._lines.values())
        return b'{"sessions":[%s],"complete":%s}' % (content, b"true" if complete else b"false")

    async def tree(self, request: Request) -> Response:
        return await _data(self._source.tree(_name(request, "key")))

    async def turn(self, request: Request) -> Response:
        return await _data(self._source.turn(_name(request, "key"), _name(request, "turn")))

    async def strip(self, request: Request) -> Response:
        return await _data(self._source.strip(_name(request, "key"), _name(request, "turn")))

    async def chunk(self, request: Request) -> Response:
        said = str(request.path_params["number"])
        if not _CHUNK.fullmatch(said):
            return _json(encoded(_error(_GONE)), 404)
        return await _data(self._source.chunk(_name(request, "key"), _name(request, "turn"), int(said)))

    # Events

    async def events(self, request: Request) -> Response:
        """204 ends a browser's asking again: files don't change."""
        if not self._source.live:
            return Response(status_code=204)
        if self._tabs.full:
            return _json(encoded(_error("too many tabs are open")), 503)
        told = self._told() if request.method == "GET" else _nothing()
        return StreamingResponse(told, media_type=EVENTS_MEDIA_TYPE)

    async def _told(self) -> AsyncIterator[bytes]:
        with self._tabs.opened() as tab:
            yield b": following\n\n"
            while not tab.closed:
                self._source.seen()
                yield await tab.take(SILENCE) or b": nothing new\n\n"


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield


def encoded(document: Json) -> bytes:
    """In ASCII, so that whatever stands in it can be sent. What a file has in the place of numbers becomes null."""
    try:
        return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        finite = json.loads(json.dumps(document), parse_constant=lambda _: None)
        return json.dumps(finite, separators=(",", ":")).encode()


def _name(request: Request, which: str) -> str:
    """A name of a path; empty, which is nothing's name, for what can be none."""
    name = str(request.path_params[which])
    return name if is_name(name) else ""


async def _data(made: Awaitable[Json]) -> Response:
    try:
        return _json(encoded(await made))
    except NotThere:
        return _json(encoded(_error(_GONE)), 404)
    except NotNow as error:
        return _json(encoded(_error(str(error))), 503, {"retry-after": "2"})


def _error(text: str) -> Json:
    return {"error": {"message": text}}


def _json(content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(content, status, headers, media_type="application/json")


async def _to_index(_: Request) -> Response:
    return RedirectResponse("index.html", status_code=303)


def application(source: Source, tabs: Tabs, access: Access) -> ASGIApp:
    """All of it, behind its access."""
    site = Site(source, tabs)
    turn = "/data/sessions/{key}/turns/{turn}"
    routes: list[tuple[str, Callable[[Request], Awaitable[Response]]]] = [
        ("/", _to_index),
        ("/index.html", site.fleet),
        ("/sessions.html", site.sessions),
        ("/groups/{group}.html", site.group),
        ("/sessions/{key}.html", site.session),
        ("/data/fleet.json", site.fleet_data),
        ("/data/sessions.json", site.sessions_data),
        ("/data/sessions/{key}/tree.json", site.tree),
        (f"{turn}.json", site.turn),
        (f"{turn}/strip.json", site.strip),
        (f"{turn}/tokens/{{number}}.json", site.chunk),
        ("/events", site.events),
    ]
    static = Mount("/static", StaticFiles(directory=pages.static_folder()))
    app = Starlette(routes=[*(Route(path, answer) for path, answer in routes), static])
    return Guarded(app, access)
