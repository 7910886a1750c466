"""Bodies of the control API: whose are read at all, how much of one, and how much of all together.

FastAPI reads a body before it asks who sends it. So the key is looked at here, from the headers, before anything of
the body is taken: who has none can't make a proxy hold 64 MiB.
"""

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolloutfleet.wire import JSON_MEDIA_TYPE
from rolloutfleet_proxy.api.access import require_known_key
from rolloutfleet_proxy.domain.errors import BodyTooLarge, DomainError
from rolloutfleet_proxy.http.errors import send_error, status_of
from rolloutfleet_proxy.memory.body_limit import LimitOf, declared_length, has_body
from rolloutfleet_proxy.memory.in_flight import Held
from rolloutfleet_proxy.proxy import Proxy


class BodyRefused(HTTPException):
    """Why a body is not read further: FastAPI takes any other error of its reading for one of its parsing."""

    def __init__(self, answer: DomainError) -> None:
        super().__init__(status_of(answer), answer.message)
        self.answer = answer


class RequestBodies:
    """ASGI: passes requests to `app`, whose reading of a body ends with BodyRefused where it is too much.

    A key that opens nothing here is answered 401 before that.
    """

    def __init__(
        self, app: ASGIApp, proxy: Proxy, *, limit_of: LimitOf, to_disk: Callable[[Scope], bool] = lambda scope: False
    ) -> None:
        """`to_disk` says whose body is written as it comes, and so is never in memory."""
        self._app = app
        self._proxy = proxy
        self._limit_of = limit_of
        self._to_disk = to_disk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not has_body(scope["headers"]):
            await self._app(scope, receive, send)
            return
        proxy, headers, limit = self._proxy, Headers(scope=scope), self._limit_of(scope)
        try:
            await require_known_key(proxy, headers)
            length = declared_length(headers.get("content-length", ""), limit=limit)
            held = proxy.in_flight.hold()
        except DomainError as error:
            await _answer(proxy, error, send)
            return
        in_memory = not self._to_disk(scope)
        try:
            if in_memory:
                _read_as_json(scope)
                held.expect(length)
            await self._app(scope, _counted(receive, held if in_memory else None, limit=limit), send)
        except DomainError as error:
            await _answer(proxy, error, send)
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


async def _answer(proxy: Proxy, error: DomainError, send: Send) -> None:
    proxy.metrics.refused.labels(error.code).inc()
    await send_error(error, send)
