"""The proxy as an ASGI app: which request goes where, and what every error looks like."""

import asyncio
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from rolloutfleet.errors import (
    DRAINING,
)
from rolloutfleet.explain import path_text, what_is_wrong
from rolloutfleet.settings import ProxySettings
from rolloutfleet_proxy.api import drain, dumps, exports, figures, models, peers, rewards, sessions, shards, weights
from rolloutfleet_proxy.api.access import require_key_of_somewhere
from rolloutfleet_proxy.api.body_time import BodyTime
from rolloutfleet_proxy.api.no_route import which_are_there
from rolloutfleet_proxy.api.request_bodies import BodyRefused, RequestBodies
from rolloutfleet_proxy.capture import departures
from rolloutfleet_proxy.capture.chat_route import ChatRoute, is_retry, serves
from rolloutfleet_proxy.domain.errors import DomainError, InternalError, InvalidRequest, Stopping, UnreadableJson
from rolloutfleet_proxy.fleet.forwarding import Forwarding
from rolloutfleet_proxy.housekeeping import kept
from rolloutfleet_proxy.http.errors import MethodNotAllowed, RouteNotFound, response_to
from rolloutfleet_proxy.memory.body_limit import LimitOf
from rolloutfleet_proxy.proxy import Proxy, Start, open_proxy
from rolloutfleet_proxy.refusals import not_written
from rolloutfleet_proxy.sessions.auth import BadKeyFile
from rolloutfleet_proxy.settings import SettingsSource
from rolloutfleet_proxy.stats_line import stats_told
from rolloutfleet_proxy.store.database import StoreUnusable
from rolloutfleet_proxy.store.writer import StoreBroken, StoreFull
from rolloutfleet_proxy.telemetry.request_ids import Requests
from rolloutfleet_proxy.tokens.model_files import ModelUnreadable

MISTAKES = (BadKeyFile, StoreUnusable, ModelUnreadable)
"""Why an app may fail to open that a user can mend."""
_ROUTES = (figures, models, sessions, rewards, exports, dumps, shards, weights, drain, peers)
_TEMPLATES = [route.path for module in _ROUTES for route in module.router.routes if isinstance(route, APIRoute)]


def create_app(settings: ProxySettings, source: SettingsSource | None = None, start: Start | None = None) -> "ProxyApp":
    """The whole proxy. Its parts open with the app's lifespan and close with it. It follows changes of the source.

    Any ASGI server can run it; `start` comes from the worker of `rolloutfleet-proxy`, which alone can be restarted.
    """
    return ProxyApp(settings, source, start)


class ProxyApp:
    """What the server calls: passes on what belongs to another proxy, then the generation path, then the rest.

    `mistake` is why it did not open, where a user can mend that; `proxy` is there while it is open.
    """

    def __init__(
        self, settings: ProxySettings, source: SettingsSource | None = None, start: Start | None = None
    ) -> None:
        self.mistake: Exception | None = None
        self.proxy: Proxy | None = None
        self.start = start or Start()
        self.settings = settings
        self._source = source
        self._control = _control(self._opened)
        self._serve: ASGIApp = self._control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._serve(scope, receive, send)

    @asynccontextmanager
    async def _opened(self, control: FastAPI) -> AsyncIterator[None]:
        try:
            async with (
                open_proxy(self.settings, self.start) as proxy,
                kept(proxy, self._source),
                stats_told(proxy),
            ):
                body_limit = _body_limit(self.settings)
                control.state.proxy = self.proxy = proxy
                forwarding = Forwarding(
                    _Split(proxy, RequestBodies(control, proxy, limit_of=body_limit, to_disk=_goes_to_disk)),
                    proxy.peers,
                    own=proxy.owner,
                    ephemeral=self.settings.ephemeral,
                    body_limit=body_limit,
                    metrics=proxy.metrics,
                    is_chat=serves,
                    holds=proxy.adopted.holds,
                    check_key=lambda scope: require_key_of_somewhere(proxy, Headers(scope=scope)),
                    passing=partial(_passing, proxy),
                )
                timed = BodyTime(forwarding, drains=proxy.drains, under_way=proxy.under_way)
                self._serve = Requests(timed, proxy.metrics, speaks_for_itself=serves)
                measuring = asyncio.create_task(proxy.note_boot(), name="boot")
                yield
                measuring.cancel()
                self._serve = control
        except MISTAKES as mistake:
            self.mistake = mistake
            raise


@asynccontextmanager
async def _passing(proxy: Proxy, scope: MutableMapping[str, Any]) -> AsyncIterator[None]:
    """Around a call that is passed on: a drain holds it as it holds this proxy's own, waits for its end, and cuts it.

    Raises Stopping where it is cut.
    """
    chat = serves(scope)
    retry = chat and is_retry(scope)
    if retry:
        await departures.noted()
    if proxy.drains.over or (chat and proxy.drains.holds(retry=retry)):
        await proxy.drains.passed()
    if not chat:
        with proxy.under_way.one():
            yield
        return
    try:
        async with asyncio.timeout(None) as limit:
            with proxy.under_way.one(cut=lambda: limit.reschedule(0.0)):
                yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise Stopping() from None


class _Split:
    """The generation path reads its own bodies; those of all other routes go through `RequestBodies`.

    Past the point where the proxy ends, all other routes are sent to the next one.
    """

    def __init__(self, proxy: Proxy, control: ASGIApp) -> None:
        self._proxy = proxy
        self._chat = ChatRoute(proxy)
        self._control = control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if serves(scope):
            await self._chat(scope, receive, send)
            return
        if self._proxy.drains.over and scope["path"] != "/health":
            self._proxy.metrics.refused.labels(DRAINING).inc()
            await response_to(Stopping())(scope, receive, send)
            return
        with self._proxy.under_way.one():
            await self._control(scope, receive, send)


def _goes_to_disk(scope: MutableMapping[str, Any]) -> bool:
    """A shard's tensor is written as it comes."""
    return bool(scope["method"] == "PUT" and scope["path"].startswith("/shards/"))


def _body_limit(settings: ProxySettings) -> LimitOf:
    """What goes straight to disk may be larger than what is held in memory."""
    return lambda scope: settings.shard_limit if _goes_to_disk(scope) else settings.body_limit


def _control(lifespan: Callable[[FastAPI], object]) -> FastAPI:
    app = FastAPI(
        title="RolloutFleet proxy",
        lifespan=lifespan,  # type: ignore[arg-type]
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    for module in _ROUTES:
        app.include_router(module.router)
    app.add_exception_handler(DomainError, _answer_api_error)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, _answer_invalid)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _answer_http_error)  # type: ignore[arg-type]
    app.add_exception_handler(StoreFull, _answer_store_error)
    app.add_exception_handler(StoreBroken, _answer_store_error)
    app.add_exception_handler(Exception, _answer_mistake)
    return app


async def _answer_mistake(request: Request, error: Exception) -> Response:
    """What nothing else caught is ours: the server logs it with its traceback, the client is told without it."""
    return _answer(request, InternalError())


def _answer(request: Request, error: DomainError) -> Response:
    proxy: Proxy = request.app.state.proxy
    proxy.metrics.refused.labels(error.code).inc()
    return response_to(error)


async def _answer_api_error(request: Request, error: DomainError) -> Response:
    return _answer(request, error)


async def _answer_invalid(request: Request, error: RequestValidationError) -> Response:
    """400 for the first thing that is wrong, named by its path in the body, query or path."""
    problem = error.errors()[0]
    if problem["type"] == "json_invalid":
        return _answer(request, UnreadableJson(error.__cause__))
    name = _path(problem["loc"][1:]) or None
    of = f"{name}: " if name else "The body "
    if problem["type"] == "value_error":
        of = ""  # Written for these very requests, it names its fields itself.
    return _answer(request, InvalidRequest(f"{of}{what_is_wrong(problem)}.", param=name))


def _path(location: Sequence[int | str]) -> str:
    """`metadata.a[1]`: behind each step into free JSON the library puts the kind of value that it found there."""
    if location[:1] == ("metadata",):
        location = [location[0], *location[1::2]]
    return path_text(location) if location else ""


async def _answer_http_error(request: Request, error: HTTPException) -> Response:
    if isinstance(error, BodyRefused):
        return _answer(request, error.answer)
    if error.status_code == 400:  # FastAPI's answer to a body that is no text, or nested too deep
        return _answer(request, UnreadableJson(error.__cause__))
    kind = RouteNotFound if error.status_code == 404 else MethodNotAllowed
    message = f"{request.method} {request.url.path}: {error.detail.rstrip('.')}."
    return _answer(request, kind(f"{message} {which_are_there(request.url.path, _TEMPLATES)}"))


async def _answer_store_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StoreFull | StoreBroken)
    return _answer(request, not_written(error))
