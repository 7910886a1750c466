"""Request ids, for every request; and a line at the end of each that is not a chat call.

A caller's `x-request-id` is taken where it is short and plain, else one is made. It goes back with every answer, to
the gateway, and to the proxy that a call is passed on to.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from time import perf_counter
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolloutfleet_proxy.ids import random_hex
from rolloutfleet_proxy.telemetry.calls import milliseconds
from rolloutfleet_proxy.telemetry.events import RequestEnded, emit
from rolloutfleet_proxy.telemetry.metrics import Metrics

Headers = list[tuple[bytes, bytes]]

REQUEST_ID: Final = "x-request-id"
TRACES: Final = ("traceparent", "tracestate")
"""W3C Trace Context: not read here, but handed on."""
PASSED_TO: Final = "rolloutfleet.passed_to"
"""In the scope: the ordinal of the proxy that a request was passed on to."""
NO_ROUTE: Final = "none"
PASSED_ON: Final = "passed_on"

_NAME = REQUEST_ID.encode()
_KEYED = (b"authorization", b"x-api-key")
_ACCEPTED = re.compile(rb"[A-Za-z0-9._~:/+=@-]{1,128}")
_UNLOGGED = frozenset(("/health", "/ready", "/metrics"))


def request_id(scope: Scope) -> str:
    """The id of a request that has come through `Requests`."""
    identity: str = scope.get("rolloutfleet.request_id", "")
    return identity


def identified(headers: Iterable[tuple[bytes, bytes]]) -> tuple[Headers, bytes]:
    """Headers with one request id, and that id: the caller's, or one that is made."""
    others: Headers = []
    given: Headers = []
    for header in headers:
        (given if header[0] == _NAME else others).append(header)
    if len(given) == 1 and _is_acceptable(given[0][1], others):
        identity = given[0][1]
    else:
        identity = b"req-" + random_hex().encode()
    others.append((_NAME, identity))
    return others, identity


def _is_acceptable(identity: bytes, others: Headers) -> bool:
    """Whether it may stand in logs and headers. A key may not, even where its owner takes it for an id."""
    if _ACCEPTED.fullmatch(identity) is None or identity.startswith((b"rf-", b"rfa-")):
        return False
    return not any(identity in value for name, value in others if name in _KEYED)


class Requests:
    """ASGI: gives each request its id. `logs_itself` says whose end is logged elsewhere, as that of chat calls is."""

    def __init__(self, app: ASGIApp, metrics: Metrics, *, logs_itself: Callable[[Scope], bool]) -> None:
        self._app = app
        self._metrics = metrics
        self._logs_itself = logs_itself

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["headers"], identity = identified(scope["headers"])
        scope["rolloutfleet.request_id"] = identity.decode()
        header, status, began = (_NAME, identity), -1, perf_counter()
        logs_itself = self._logs_itself(scope)

        def named(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _name(message, header)
            return send(message)

        try:
            await self._app(scope, receive, named)
        finally:
            if not logs_itself:
                self._log_end(scope, status, perf_counter() - began)

    def _log_end(self, scope: Scope, status: int, seconds: float) -> None:
        route = route_of(scope)
        if route in _UNLOGGED:
            return
        self._metrics.requests.labels(scope["method"], route, str(status)).inc()
        emit(
            RequestEnded(
                request_id=request_id(scope),
                method=scope["method"],
                route=route,
                status=status,
                passed_to=scope.get(PASSED_TO, -1),
                total_ms=milliseconds(seconds),
            )
        )


def route_of(scope: Scope) -> str:
    """The template of a request's path, such as /sessions/{session_id}; never the path itself."""
    return getattr(scope.get("route"), "path", PASSED_ON if PASSED_TO in scope else NO_ROUTE)


def _name(message: Message, header: tuple[bytes, bytes]) -> None:
    # Of a call that was passed on the owner has named the answer already, with the same id.
    others = [each for each in message.get("headers", ()) if each[0].lower() != _NAME]
    message["headers"] = [*others, header]
