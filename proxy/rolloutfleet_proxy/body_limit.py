"""How much of a request's body is read: no more than the settings allow, whatever its headers say."""

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolloutfleet.errors import BODY_TOO_LARGE
from rolloutfleet_proxy.errors import ApiError


def too_large(limit: int) -> ApiError:
    """413."""
    return ApiError(413, BODY_TOO_LARGE, f"The body is larger than the {limit} bytes that are allowed.")


class BodyLimit:
    """ASGI: passes requests to `app`, whose reading of them raises HTTPException 413 past `limit` bytes."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._limit:
                # FastAPI takes any other error of a body's reading for a body that can't be parsed.
                raise HTTPException(413, too_large(self._limit).message)
            return message

        await self._app(scope, counted, send)
