"""The proxy as an ASGI app: which request goes where, and what every error looks like."""

import asyncio
import math
import os
import re
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from msgspec.structs import replace
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from rolloutfleet.errors import DRAINING
from rolloutfleet.explain import path_text, what_is_wrong
from rolloutfleet.settings import ProxySettings
from rolloutfleet.wire import ANNOTATIONS_BYTES
from rolloutfleet_proxy.capture.endpoint import Endpoint
from rolloutfleet_proxy.cluster.forwarding import Forwarding
from rolloutfleet_proxy.cluster.holding import Holding
from rolloutfleet_proxy.cluster.receipting import PATH as RECEIPTS
from rolloutfleet_proxy.control import (
    annotations,
    documents,
    dumps,
    exports,
    greetings,
    models,
    ops,
    receipts,
    responses,
    sessions,
    shards,
    viewing,
    weights,
)
from rolloutfleet_proxy.control.dependencies import require_key_of_somewhere, services_of
from rolloutfleet_proxy.control.no_route import which_are_there
from rolloutfleet_proxy.dialects.registry import answer_to, dialect_call, methods_of_dialects, turn_call
from rolloutfleet_proxy.domain.errors import (
    DamageFound,
    DomainError,
    InternalError,
    InvalidRequest,
    Stopping,
    UnreadableJson,
)
from rolloutfleet_proxy.http.encodings import EncodedBodies
from rolloutfleet_proxy.http.errors import MethodNotAllowed, RouteNotFound, send_answer
from rolloutfleet_proxy.http.headers import FROM_PEER, LimitOf
from rolloutfleet_proxy.http.request_bodies import BodyRefused, BodyTime, RequestBodies
from rolloutfleet_proxy.process.drain import Drains
from rolloutfleet_proxy.process.under_way import UnderWay
from rolloutfleet_proxy.sessions.auth import BadKeyFile
from rolloutfleet_proxy.settings import SettingsSource
from rolloutfleet_proxy.store.database import StoreUnusable
from rolloutfleet_proxy.telemetry import tracing
from rolloutfleet_proxy.telemetry.calls import CallFactory, ChatCall
from rolloutfleet_proxy.telemetry.request_ids import Requests
from rolloutfleet_proxy.tokens.model_files import ModelUnreadable
from rolloutfleet_proxy.wiring import Opened, Start, open_proxy

MISTAKES = (BadKeyFile, StoreUnusable, DamageFound, ModelUnreadable)
"""Why an app may fail to open that a user can mend."""
_ANNOTATIONS = re.compile(r"/sessions/[^/]+/annotations")
_ROUTES = (
    *(sessions, documents, ops, models, responses, viewing, annotations, exports, dumps, shards, weights),
    receipts,
)
"""In the order in which FastAPI looks through them for a path."""
_NATIVE = [route for module in _ROUTES for route in module.router.routes if isinstance(route, APIRoute)]
_TEMPLATES = [route.path for route in _NATIVE]


def create_app(settings: ProxySettings, source: SettingsSource | None = None) -> "ProxyApp":
    """The whole proxy. Its parts open with the app's lifespan and close with it. It follows changes of the source.

    Any ASGI server can run it; only the worker of `rolloutfleet-proxy` can be restarted.
    """
    return ProxyApp(settings, source)


class ProxyApp:
    """What the server calls: passes on what belongs to another proxy, then the generation path, then the rest.

    `mistake` is why it did not open, where a user can mend that; `opened` is there while it is. The worker says in
    `start`, before it opens, how this life began.
    """

    def __init__(self, settings: ProxySettings, source: SettingsSource | None = None) -> None:
        self.mistake: Exception | None = None
        self.opened: Opened | None = None
        self.start = Start()
        self.settings = settings
        self._source = source
        self._spans = tracing.begin(settings, os.environ)
        self._control = _control(self._opened, settings)
        self._serve: ASGIApp = self._control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._serve(scope, receive, send)

    @asynccontextmanager
    async def _opened(self, control: FastAPI) -> AsyncIterator[None]:
        try:
            async with open_proxy(self.settings, self.start, self._source) as opened:
                self.opened, control.state.services = opened, opened.services
                new_call = ChatCall if self._spans is None else self._spans.call
                self._serve = _served(control, opened, self.settings, new_call)
                yield
                self._serve = control
        except MISTAKES as mistake:
            self.mistake = mistake
            raise
        finally:
            if self._spans is not None:
                await self._spans.aclose()


def _served(control: ASGIApp, opened: Opened, settings: ProxySettings, new_call: CallFactory) -> ASGIApp:
    """A request's way: told of, timed, passed on to its owner, or decoded and served by the endpoint of calls, or by
    `control`."""
    services, body_limit = opened.services, _body_limit(settings)
    bodies = RequestBodies(
        control,
        check_key=services.access.check_known,
        in_flight=opened.in_flight,
        metrics=services.metrics,
        limit_of=body_limit,
        to_disk=_goes_to_disk,
        by_peer=_is_by_peer,
        answer_to=answer_to,
    )
    here = EncodedBodies(
        _Split(opened, replace(opened.endpoint, new_call=new_call), bodies),
        in_flight=opened.in_flight,
        limit_of=body_limit,
        to_disk=_goes_to_disk,
    )
    ownership = services.ownership
    forwarding = Forwarding(
        here,
        ownership,
        body_limit=body_limit,
        metrics=services.metrics,
        receipting=services.receipting,
        check_key=partial(require_key_of_somewhere, services.access, ownership),
        is_peer=services.access.is_peer,
        passing=partial(_passing, services.drains, opened.under_way),
        holding=Holding(
            peers=services.peers,
            max_hold=lambda: services.sessions.settings.current.sessions.max_hold,
            ending=lambda: services.drains.over,
        ),
        new_call=new_call,
    )
    timed = BodyTime(forwarding, drains=services.drains, under_way=opened.under_way)
    return Requests(timed, services.metrics, logs_itself=_is_call)


@asynccontextmanager
async def _passing(drains: Drains, under_way: UnderWay, scope: MutableMapping[str, Any]) -> AsyncIterator[None]:
    """Around a call that is passed on: a drain holds it as it holds this proxy's own, waits for its end, and cuts it.

    Raises Stopping where it is cut.
    """
    call = turn_call(scope)
    if drains.over or (call is not None and drains.holds(let_in=call.is_retry)):
        await drains.passed()
    if call is None:
        with under_way.one():
            yield
        return
    try:
        async with asyncio.timeout(None) as limit:
            with under_way.one(began=-math.inf, cut=lambda: limit.reschedule(0.0)):  # Let in, it is waited for.
                yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise Stopping() from None


@dataclass(frozen=True, slots=True)
class _Split:
    """The generation path reads its own bodies; those of all other routes go through `RequestBodies`.

    Past the point where the proxy ends, all other routes are sent to the next one.
    """

    opened: Opened
    endpoint: Endpoint
    control: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = dialect_call(scope)
        if call is not None and not call.counts:
            await self.endpoint(call, receive, send)
            return
        if self.opened.services.drains.over and scope["path"] != "/health":
            self.opened.services.metrics.refused.labels(DRAINING).inc()
            await send_answer(answer_to(scope, Stopping()), send)
            return
        if scope["path"] == viewing.EVENTS:
            await self.control(scope, receive, send)  # Nobody waits for those who look on.
            return
        with self.opened.under_way.one():
            if call is None:
                await self.control(scope, receive, send)
            else:
                scope["route"] = call  # As FastAPI has it: what the request's line in the log names.
                await self.opened.counting(call, receive, send)


def _is_call(scope: MutableMapping[str, Any]) -> bool:
    return turn_call(scope) is not None


def _is_by_peer(scope: MutableMapping[str, Any]) -> bool:
    """Any other call of a proxy is one that it passes on."""
    return bool(scope["path"] == RECEIPTS and scope.get(FROM_PEER, False))


def _goes_to_disk(scope: MutableMapping[str, Any]) -> bool:
    """A shard's tensor is written as it comes."""
    return bool(scope["method"] == "PUT" and scope["path"].startswith("/shards/"))


def _body_limit(settings: ProxySettings) -> LimitOf:
    """What goes straight to disk may be larger than what is held in memory."""

    def limit(scope: MutableMapping[str, Any]) -> int:
        if _goes_to_disk(scope):
            return settings.shard_limit
        return ANNOTATIONS_BYTES if _ANNOTATIONS.fullmatch(scope["path"]) else settings.body_limit

    return limit


def _control(lifespan: Callable[[FastAPI], object], settings: ProxySettings) -> FastAPI:
    app = FastAPI(
        title="RolloutFleet proxy",
        lifespan=lifespan,  # type: ignore[arg-type]
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        # FastAPI's own would tell a collector the messages of exceptions, which may quote what somebody said.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    for module in _ROUTES:
        app.include_router(module.router, responses=documents.EVERY_ERROR)
    app.include_router(greetings.greetings(), responses=documents.EVERY_ERROR)
    if settings.api_docs:
        app.include_router(documents.page)
    app.add_exception_handler(DomainError, _answer)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, _answer_invalid)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _answer_http_error)  # type: ignore[arg-type]
    app.add_exception_handler(Exception, _answer_unexpected)
    return app


async def _answer(request: Request, error: DomainError) -> Response:
    services_of(request).metrics.refused.labels(error.code).inc()
    status, headers, body = answer_to(request.scope, error)
    response = Response(status_code=status)
    response.raw_headers, response.body = headers, body
    return response


async def _answer_unexpected(request: Request, error: Exception) -> Response:
    """What nothing else caught is ours: the server logs it with its traceback, the client is told without it."""
    return await _answer(request, InternalError())


async def _answer_invalid(request: Request, error: RequestValidationError) -> Response:
    """400 for the first thing that is wrong, named by its path in the body, query or path."""
    problem = error.errors()[0]
    if problem["type"] == "json_invalid":
        return await _answer(request, UnreadableJson(error.__cause__))
    name = _path(problem["loc"][1:]) or None
    of = f"{name}: " if name else "The body "
    if problem["type"] == "value_error":
        of = ""  # Written for these very requests, it names its fields itself.
    return await _answer(request, InvalidRequest(f"{of}{what_is_wrong(problem)}.", param=name))


def _path(location: Sequence[int | str]) -> str:
    """`metadata.a[1]`: behind each step into free JSON the library puts the kind of value that it found there."""
    if location[:1] == ("metadata",):
        location = [location[0], *location[1::2]]
    return path_text(location) if location else ""


async def _answer_http_error(request: Request, error: HTTPException) -> Response:
    if isinstance(error, BodyRefused):
        return await _answer(request, error.answer)
    if error.status_code == 400:  # FastAPI's answer to a body that is no text, or nested too deep
        return await _answer(request, UnreadableJson(error.__cause__))
    path = request.scope["path"]
    methods = _methods_of(path)
    there = which_are_there(path, _TEMPLATES)
    if request.method in methods or not methods:
        return await _answer(request, RouteNotFound(f"{request.method} {path}: Not Found. {there}"))
    message = f"{request.method} {path}: Method Not Allowed. {there}"
    return await _answer(request, MethodNotAllowed(message, methods=methods))


def _methods_of(path: str) -> set[str]:
    """The methods that a path has, in whichever of its routes."""
    native = {method for route in _NATIVE if route.path_regex.match(path) for method in route.methods or ()}
    return native | methods_of_dialects(path)
