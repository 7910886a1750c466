"""A call's body, read within the limits of one body and of all that is in flight.

What a body takes in memory is its text, and for each JSON value some hundred bytes more. So its values are counted
before it is decoded. In most bodies they are few beside the text, and are covered by what counts for that.
"""

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from typing import Final

from msgspec import Struct
from starlette.types import Receive

from rolloutfleet_proxy.domain.errors import BodyTooLarge, TooManyValues
from rolloutfleet_proxy.http.headers import declared_length
from rolloutfleet_proxy.http.in_flight import Held

LARGE_REQUEST: Final = 2 << 20
"""Bytes, those of values included, from which on a request is read and digested away from the event loop: with 64 MiB
of text that takes 0.2 to 0.5 s, with 500,000 values as long."""
VALUE_BYTES: Final = 128
"""Bytes of a JSON value beside its text, once it is decoded and digested: mostly 90 to 150."""
ALWAYS: Final = 10_000
"""Values that a body may have however small its limit is."""
_FEW: Final = 32
"""Bytes for each value from which on the values don't count."""
_AT_ONCE: Final = 1 << 20
"""Bytes that are looked through in one go."""


class ClientLeft(Exception):
    """The connection was closed before the answer was complete."""


class Body(Struct, frozen=True):
    """A body as it came."""

    content: bytes
    is_large: bool
    """True where it is to be read away from the event loop."""


async def read_body(
    receive: Receive, headers: Mapping[str, str], held: Held, *, limit: int, large_bodies: Executor
) -> Body:
    """Raises BodyTooLarge and TooManyInFlight, and reads no further then; TooManyValues; ClientLeft."""
    content = await _content(receive, headers, held, limit=limit)
    most = max(limit // VALUE_BYTES, ALWAYS)
    if len(content) < LARGE_REQUEST:
        values = values_of(content, most)
    else:
        values = await asyncio.get_running_loop().run_in_executor(large_bodies, values_of, content, most)
    if values > most:
        raise TooManyValues(values, most)
    if values * _FEW > len(content):
        held.add(values * VALUE_BYTES)
    return Body(content, len(content) + values * VALUE_BYTES >= LARGE_REQUEST)


async def _content(receive: Receive, headers: Mapping[str, str], held: Held, *, limit: int) -> bytes:
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


def values_of(body: bytes, most: int) -> int:
    """The values of a JSON text: its commas and opening brackets. Those in strings are left out where the number with
    them would be many values for the length, or more than `most`."""
    values = sum(map(_values, _pieces(body)))
    return values if values <= min(len(body) // _FEW, most) else sum(map(_values, _without_strings(body)))


def _values(text: bytes) -> int:
    return len(text) - len(text.translate(None, b",[{"))  # `bytes.count` takes several times as long


def _pieces(body: bytes) -> Iterator[bytes]:
    return (body[start : start + _AT_ONCE] for start in range(0, len(body), _AT_ONCE))


def _without_strings(body: bytes) -> Iterator[bytes]:
    in_string, escape = 0, b""
    for piece in _pieces(body):
        plain = (escape + piece).replace(rb"\\", b"").replace(rb"\"", b"")
        escape = b"\\" if plain.endswith(b"\\") else b""
        texts = plain.split(b'"')
        yield b"".join(texts[in_string::2])
        in_string = (in_string + len(texts) - 1) % 2


async def left(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
