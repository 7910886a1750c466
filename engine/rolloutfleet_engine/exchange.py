"""One HTTP request and its answer over ASGI: the few things that the routes need."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

import msgspec

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON_TYPE = b"application/json"

TRACES = frozenset((b"x-request-id", b"traceparent", b"tracestate"))

BODY_BYTES = 64 << 20
"""Of one body, as the proxies' `body_limit` is by default."""

T = TypeVar("T")

encode = msgspec.json.Encoder().encode


class Unreadable(Exception):
    """A body that is not what the route takes; the message says why."""


class TooLarge(Exception):
    """A body of more than `BODY_BYTES`."""


class Exchange:
    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._headers = scope["headers"]
        self._receive = receive
        self._send = send

    def header(self, name: bytes) -> str | None:
        return next((value.decode("latin-1") for key, value in self._headers if key == name), None)

    def traces(self) -> dict[str, str]:
        """The headers that name the caller's request, as they came."""
        return {name.decode(): value.decode("latin-1") for name, value in self._headers if name in TRACES}

    async def body(self) -> bytes:
        """The whole body; `ConnectionError` where the caller left before its end, `TooLarge`."""
        parts, size = [], 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError("the caller left before the end of the body")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > BODY_BYTES:
                raise TooLarge(f"the body is larger than {BODY_BYTES} bytes")
            if not message.get("more_body"):
                return b"".join(parts)

    async def read(self, kind: type[T]) -> T:
        """The body as `kind`; `Unreadable` where it is not that."""
        body = await self.body()
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Unreadable(str(error)) from error

    def watch(self, left: Callable[[], None]) -> asyncio.Task[None]:
        """Calls `left` when the caller leaves; only behind `body`."""

        async def watching() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            left()

        return asyncio.create_task(watching())

    async def answer(self, value: object, status: int = 200) -> None:
        await self.send(encode(value), status, JSON_TYPE)

    async def send(self, body: bytes, status: int = 200, kind: bytes | None = None) -> None:
        await self._start(status, kind, len(body))
        await self._send({"type": "http.response.body", "body": body})

    async def send_half(self, body: bytes) -> None:
        """Promises the whole body and sends half: the server closes the connection when the route returns."""
        await self._start(200, JSON_TYPE, len(body))
        await self._send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})

    async def start_events(self) -> None:
        await self._start(200, b"text/event-stream; charset=utf-8", None)

    async def event(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True})

    async def end_events(self) -> None:
        await self._send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})

    async def _start(self, status: int, kind: bytes | None, length: int | None) -> None:
        headers = [(b"content-type", kind)] if kind is not None else []
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


def error_response(message: str, status: int, *, kind: str | None = None) -> dict[str, Any]:
    """SGLang's form for what FastAPI or the scheduler refuses."""
    return {"object": "error", "message": message, "type": kind or str(status), "param": None, "code": status}
