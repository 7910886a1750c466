"""A call's body, read within the limits of one body and of all that is in flight."""

from collections.abc import Mapping

from starlette.types import Message, Receive

from rolloutfleet_proxy.domain.errors import BodyTooLarge
from rolloutfleet_proxy.http.headers import declared_length
from rolloutfleet_proxy.http.in_flight import Held


class ClientLeft(Exception):
    """The connection was closed before the answer was complete."""


async def read_body(receive: Receive, headers: Mapping[str, str], held: Held, *, limit: int) -> bytes:
    """Raises BodyTooLarge and TooManyInFlight, and reads no further then; ClientLeft."""
    held.expect(declared_length(headers.get("content-length", ""), limit=limit))
    message = await _next(receive, held)
    if not message.get("more_body"):
        return bytes(_within(message["body"], limit))
    body = bytearray(message["body"])
    while message.get("more_body"):
        _within(body, limit)
        message = await _next(receive, held)
        body += message.get("body", b"")
    return bytes(_within(body, limit))


async def _next(receive: Receive, held: Held) -> Message:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientLeft
    held.add(len(message.get("body", b"")))
    return message


def _within(body: bytes | bytearray, limit: int) -> bytes | bytearray:
    if len(body) > limit:
        raise BodyTooLarge(limit)
    return body


async def left(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
