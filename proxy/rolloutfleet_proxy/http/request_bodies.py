"""Bodies of requests: how long one may keep the proxy waiting, and of the control API's whose are read at all, how much
of one, and how much of all together.

FastAPI reads a body before it asks who sends it. So the key is looked at here, from the headers, before anything of
the body is taken: who has none can't make a proxy hold 64 MiB.

A body may be silent, or last past a stop, for so long and no longer. Only where the app waits for more of it: while a
call is held with its body unread, its client owes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolloutfleet.wire import JSON_MEDIA_TYPE
from rolloutfleet_proxy.domain.errors import BodyTooLarge, DomainError, Stopping
from rolloutfleet_proxy.http.errors import RequestTimeout, send_answer, status_of
from rolloutfleet_proxy.http.headers import Headers as RawHeaders
from rolloutfleet_proxy.http.headers import LimitOf, declared_length, has_body, presented_key
from rolloutfleet_proxy.http.in_flight import Held, InFlight
from rolloutfleet_proxy.process.drain import Drains
from rolloutfleet_proxy.process.under_way import UnderWay
from rolloutfleet_proxy.telemetry.metrics import Metrics

CheckKey = Callable[[str | None], Awaitable[None]]
"""Raises MissingKey or InvalidKey where the key that a request carries, or has not, can open nothing."""


class BodyRefused(HTTPException):
    """Why a body is not read further: FastAPI takes any other error of its reading for one of its parsing."""

    def __init__(self, answer: DomainError) -> None:
        super().__init__(status_of(answer), answer.message)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class RequestBodies:
    """ASGI: passes requests to `app`, whose reading of a body ends with BodyRefused where it is too much.

    A key that opens nothing here is answered 401 before that.
    """

    app: ASGIApp
    _: KW_ONLY
    check_key: CheckKey
    in_flight: InFlight
    metrics: Metrics
    limit_of: LimitOf
    answer_to: Callable[[Scope, DomainError], tuple[int, RawHeaders, bytes]]
    """The answer to a request that is refused here."""
    to_disk: Callable[[Scope], bool] = lambda scope: False
    """Whose body is written as it comes, and so is never in memory."""
    by_peer: Callable[[Scope], bool] = lambda scope: False
    """True for requests that other proxies make themselves: those have no key, but a voucher."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not has_body(scope["headers"]):
            await self.app(scope, receive, send)
            return
        try:
            await self._pass(scope, receive, send)
        except DomainError as error:
            self.metrics.refused.labels(error.code).inc()
            await send_answer(self.answer_to(scope, error), send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, limit = Headers(scope=scope), self.limit_of(scope)
        if not self.by_peer(scope):
            await self.check_key(presented_key(headers))
        length = declared_length(headers.get("content-length", ""), limit=limit)
        held, in_memory = self.in_flight.hold(), not self.to_disk(scope)
        try:
            if in_memory:
                _read_as_json(scope)
                held.expect(length)
            await self.app(scope, _counted(receive, held if in_memory else None, limit=limit), send)
        finally:
            held.release()


def _read_as_json(scope: Scope) -> None:
    """All these bodies are JSON, whatever they are called: `curl -d` calls them a form, and FastAPI heeds that."""
    others = [header for header in scope["headers"] if header[0] != b"content-type"]
    scope["headers"] = [*others, (b"content-type", JSON_MEDIA_TYPE.encode())]


def _counted(receive: Receive, held: Held | None, *, limit: int) -> Receive:
    read = 0

    async def counted() -> Message:
        nonlocal read
        try:
            message = await receive()
            size = len(message.get("body", b""))
            read += size
            if read > limit:
                raise BodyTooLarge(limit)
            if held is not None:
                held.add(size)
        except DomainError as error:
            raise BodyRefused(error) from None
        return message

    return counted


BODY_IDLE_TIMEOUT: Final = 30.0
"""Seconds that a body may send nothing for, and that a proxy which is to end waits for one that still sends."""


class BodyTime:
    """ASGI: passes requests to `app`, whose `receive` raises DomainError where more of a body is waited for too long.

    That is 408 for one that is silent, 503 draining for one that a planned stop no longer waits for.
    """

    def __init__(self, app: ASGIApp, *, drains: Drains, under_way: UnderWay) -> None:
        self._app = app
        self._drains = drains
        self._under_way = under_way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not has_body(scope["headers"]):
            await self._app(scope, receive, send)
            return
        began, more = asyncio.get_running_loop().time(), True

        async def timed() -> Message:
            nonlocal more
            message = await (self._waited_for(receive, began) if more else receive())
            more = message.get("more_body", False)
            return message

        await self._app(scope, timed, send)

    async def _waited_for(self, receive: Receive, began: float) -> Message:
        silent_until = asyncio.get_running_loop().time() + BODY_IDLE_TIMEOUT
        ending = self._drains.ending_since
        until = silent_until if ending is None else min(silent_until, max(began, ending) + BODY_IDLE_TIMEOUT)
        try:
            async with asyncio.timeout_at(until) as limit:
                with self._under_way.one(began=began, cut=lambda: limit.reschedule(0.0)):
                    return await receive()
        except TimeoutError:
            if limit.when() != silent_until:
                raise Stopping() from None
            raise RequestTimeout(f"Nothing of the body arrived for {BODY_IDLE_TIMEOUT:g} s.") from None
