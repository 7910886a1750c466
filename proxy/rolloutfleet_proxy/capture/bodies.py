"""A call's body, read within the limits of one body and of all that is in flight."""

from collections.abc import Mapping

from starlette.types import Receive

from rolloutfleet_proxy.domain.errors import BodyTooLarge
from rolloutfleet_proxy.http.headers import declared_length
from rolloutfleet_proxy.http.in_flight import Held


class ClientLeft(Exception):
    """The connection was closed before the answer was complete."""


async def read_body(receive: Receive, headers: Mapping[str, str], held: Held, *, limit: int) -> bytes:
    """Raises BodyTooLarge and TooManyInFlight, and reads no further then; ClientLeft."""
    held.expect(declared_length(headers.get("content-length", ""), limit=limit))
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        piece = message.get("body", b"")
        held.add(len(piece))
        body += piece
        if len(body) > limit:
            raise BodyTooLarge(limit)
        more = message.get("more_body", False)
    return bytes(body)


async def left(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
