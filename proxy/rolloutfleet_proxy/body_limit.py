"""How much of a request's body is read: no more than the settings allow, whatever its headers say."""

from collections.abc import Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolloutfleet.errors import BODY_TOO_LARGE
from rolloutfleet_proxy.errors import ApiError

LimitOf = Callable[[MutableMapping[str, Any]], int]
"""How many bytes a request's body may have, by its ASGI scope."""


def too_large(limit: int) -> ApiError:
    """413."""
    return ApiError(413, BODY_TOO_LARGE, f"The body is larger than the {limit} bytes that are allowed.")


class BodyLimit:
    """ASGI: passes requests to `app`, whose reading of them raises HTTPException 413 past the limit of each."""

    def __init__(self, app: ASGIApp, limit_of: LimitOf) -> None:
        self._app = app
        self._limit_of = limit_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        read = 0
        limit = self._limit_of(scope)

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > limit:
                # FastAPI takes any other error of a body's reading for a body that can't be parsed.
                raise HTTPException(413, too_large(limit).message)
            return message

        await self._app(scope, counted, send)
