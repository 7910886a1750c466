"""Bodies of requests that come compressed, decoded within the bounds of those that do not.

What has come and what is made of it count alike. One body is decoded at a time, as a decoder may take 8 MiB beside it,
and others have their turn between two pieces.
"""

import asyncio
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolloutfleet_proxy.domain.errors import BodyTooLarge
from rolloutfleet_proxy.http.errors import BrokenEncoding, UnsupportedEncoding
from rolloutfleet_proxy.http.headers import LENGTH, Headers, LimitOf, declared_length, framing, has_body
from rolloutfleet_proxy.http.in_flight import Held, InFlight

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_ENCODING: Final = b"content-encoding"
_CHUNKED: Final = (b"transfer-encoding", b"chunked")
_GIVEN: Final = 64 << 10
"""Bytes that a decoder is given at once: it may keep what it has no use for yet, and copies that."""
PIECE: Final = 256 << 10
"""Bytes that are decoded at once, in about a millisecond."""
_LARGEST_WINDOW: Final = 23
"""In bits: RFC 9659 bounds what a receiver must keep."""

_DECODERS: Final[Mapping[str, Callable[[], Any]]] = {
    "gzip": partial(zlib.decompressobj, 16 + zlib.MAX_WBITS),
    "x-gzip": partial(zlib.decompressobj, 16 + zlib.MAX_WBITS),
    "deflate": zlib.decompressobj,
    "zstd": partial(zstd.ZstdDecompressor, options={zstd.DecompressionParameter.window_log_max: _LARGEST_WINDOW}),
}


def encoding_of(headers: Headers) -> str | None:
    """The encodings that a request's headers name, in lower case; None where its body is as it is."""
    named = [value for name, value in headers if name == _ENCODING]
    if not named:
        return None
    encoding = b", ".join(named).decode("latin-1").strip().lower()
    return None if encoding in ("", "identity") else encoding


def decoded(body: bytes, encoding: str) -> Iterator[bytes]:
    """A body in pieces of at most `PIECE` bytes. Raises BrokenEncoding, also behind some of them."""
    decoder, end = _DECODERS[encoding](), 0
    try:
        while end < len(body) and not decoder.eof:
            given, end, full = body[end : end + _GIVEN], end + _GIVEN, True
            while (given or full) and not decoder.eof:
                piece = decoder.decompress(given, PIECE)
                yield piece
                # Of the two kinds of decoders one keeps the rest of what it was given to itself.
                given, full = getattr(decoder, "unconsumed_tail", b""), len(piece) == PIECE
    except (zlib.error, zstd.ZstdError):
        raise BrokenEncoding(encoding) from None
    if not decoder.eof or decoder.unused_data or end < len(body):
        raise BrokenEncoding(encoding)


@dataclass(frozen=True, slots=True)
class EncodedBodies:
    """ASGI: passes requests to `app`, which reads a compressed body as if it had come as it is, in chunks.

    `receive` raises DomainError for a body that is too large, compressed or decoded, or can't be decoded.
    """

    app: ASGIApp
    _: KW_ONLY
    in_flight: InFlight
    limit_of: LimitOf
    to_disk: Callable[[Scope], bool] = lambda scope: False
    """Whose body is written as it comes, and so is not decoded."""
    _turn: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        encoding = encoding_of(scope["headers"]) if scope["type"] == "http" else None
        if encoding is None or not has_body(scope["headers"]):
            await self.app(scope, receive, send)
            return
        limit, declared = self.limit_of(scope), framing(scope["headers"]).get(LENGTH, b"").decode("latin-1")
        dropped = (_ENCODING, LENGTH, _CHUNKED[0])
        scope["headers"] = [*(header for header in scope["headers"] if header[0] not in dropped), _CHUNKED]
        as_it_comes, is_read = self.to_disk(scope), False

        async def read() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()
            if as_it_comes or encoding not in _DECODERS:
                raise UnsupportedEncoding(encoding, as_it_comes=as_it_comes)
            is_read, held = True, self.in_flight.hold()
            try:
                held.expect(declared_length(declared, limit=limit))
                body = await _whole(receive, held, limit=limit)
                if body is None:
                    return {"type": "http.disconnect"}
                async with self._turn:
                    return {"type": "http.request", "body": await _decode(body, encoding, held, limit=limit)}
            finally:
                held.release()

        await self.app(scope, read, send)


async def _whole(receive: Receive, held: Held, *, limit: int) -> bytes | None:
    """A body as it came; None where its client has left."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        held.add(len(message.get("body", b"")))
        body += message.get("body", b"")
        if len(body) > limit:
            raise BodyTooLarge(limit)
        more = message.get("more_body", False)
    return bytes(body)


async def _decode(body: bytes, encoding: str, held: Held, *, limit: int) -> bytes:
    whole = bytearray()
    for piece in decoded(body, encoding):
        held.add(len(piece))
        whole += piece
        if len(whole) > limit:
            raise BodyTooLarge(limit)
        await asyncio.sleep(0)
    return bytes(whole)
