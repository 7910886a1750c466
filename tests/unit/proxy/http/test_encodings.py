"""Compressed bodies: decoded within bounds, whatever their bytes are, and refused otherwise."""

import gzip
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutfleet_proxy.domain.errors import BodyTooLarge, DomainError, TooManyInFlight
from rolloutfleet_proxy.http.encodings import PIECE, EncodedBodies, decoded, encoding_of
from rolloutfleet_proxy.http.errors import BrokenEncoding, UnsupportedEncoding, answer_to
from rolloutfleet_proxy.http.in_flight import CALL_BYTES, InFlight

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LIMIT = 1 << 20
BUDGET = 4 << 20
ENCODE: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress}
encodings = pytest.mark.parametrize("encoding", ENCODE)
Headers = list[tuple[bytes, bytes]]


class Sent:
    """A request whose body comes in pieces, and the app that reads it."""

    def __init__(self, body: bytes, *, headers: Headers, piece: int = 50_000) -> None:
        self.body = body
        self.scope: dict[str, Any] = {"type": "http", "headers": [(b"content-length", b"%d" % len(body)), *headers]}
        self.in_flight = InFlight(BUDGET)
        self.taken = 0
        self.got = b""
        self._piece = piece

    async def read(self, *, limit: int = LIMIT, to_disk: bool = False) -> bytes:
        bodies = EncodedBodies(
            self._app, in_flight=self.in_flight, limit_of=lambda scope: limit, to_disk=lambda scope: to_disk
        )
        try:
            await bodies(self.scope, self._receive, self._send)
        finally:
            assert self.in_flight.nbytes == 0
        return self.got

    async def _receive(self) -> dict[str, Any]:
        piece = self.body[self.taken : self.taken + self._piece]
        self.taken += len(piece)
        return {"type": "http.request", "body": piece, "more_body": self.taken < len(self.body)}

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            self.got += message["body"]
            more = message.get("more_body", False)

    async def _send(self, message: Any) -> None:
        raise AssertionError(message)


def named(encoding: str) -> Headers:
    return [(b"content-encoding", encoding.encode())]


def whole(body: bytes, encoding: str) -> bytes:
    pieces = list(decoded(body, encoding))
    assert all(len(piece) <= PIECE for piece in pieces)
    return b"".join(pieces)


@encodings
@settings(max_examples=50)
@given(parts=st.lists(st.tuples(st.binary(max_size=200), st.integers(0, 5000)), max_size=5))
def test_body_is_what_it_was_before_it_was_encoded(encoding: str, parts: list[tuple[bytes, int]]) -> None:
    body = b"".join(part * times for part, times in parts)
    assert whole(ENCODE[encoding](body), encoding) == body


@encodings
@given(body=st.binary(max_size=2000), data=st.data())
def test_broken_body_is_refused_or_read_but_never_an_error_of_ours(encoding: str, body: bytes, data: Any) -> None:
    broken = bytearray(ENCODE[encoding](body))
    for place in data.draw(st.lists(st.integers(0, len(broken) - 1), max_size=3)):
        broken[place] ^= data.draw(st.integers(1, 255))
    for each in (bytes(broken), body):
        with suppress(BrokenEncoding):
            whole(each, encoding)


@encodings
@pytest.mark.parametrize("size", [0, 1, 100, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_body_that_is_cut_or_followed_by_more_is_refused(encoding: str, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    encoded = ENCODE[encoding](body)
    assert whole(encoded, encoding) == body
    for other in (
        b"",
        encoded[:-1],
        encoded[: len(encoded) // 2],
        encoded + b"x",
        encoded * 2,
        encoded + bytes(200_000),
    ):
        with pytest.raises(BrokenEncoding):
            whole(other, encoding)


def test_window_beyond_what_a_receiver_must_keep_is_refused() -> None:
    large: dict[int, int] = {zstd.CompressionParameter.window_log: 24, zstd.CompressionParameter.compression_level: 1}
    with pytest.raises(BrokenEncoding):
        whole(zstd.compress(bytes(20 << 20), options=large), "zstd")


@encodings
async def test_app_reads_an_encoded_body_as_if_it_had_come_in_chunks(encoding: str) -> None:
    body = b"hello " * 100_000
    sent = Sent(ENCODE[encoding](body), headers=[*named(encoding), (b"x-own", b"1")], piece=100)
    assert await sent.read() == body
    assert sent.scope["headers"] == [(b"x-own", b"1"), (b"transfer-encoding", b"chunked")]
    # Both count, but no more of what is decoded than the limit, and a piece.
    assert len(body) + len(sent.body) < sent.in_flight.most <= len(body) + len(sent.body) + CALL_BYTES


@encodings
async def test_bomb_is_refused_before_it_fills_memory(encoding: str) -> None:
    bomb = ENCODE[encoding](bytes(200 << 20))
    assert len(bomb) < LIMIT
    sent = Sent(bomb, headers=named(encoding))
    with pytest.raises(BodyTooLarge):
        await sent.read()
    assert sent.in_flight.most <= len(bomb) + LIMIT + PIECE + CALL_BYTES
    with pytest.raises(TooManyInFlight):
        await Sent(bomb, headers=named(encoding)).read(limit=2 * BUDGET)


async def test_encoded_body_over_the_limit_is_refused_unread_or_when_it_comes_to_it() -> None:
    declared = Sent(bytes(LIMIT + 1), headers=named("gzip"))
    with pytest.raises(BodyTooLarge):
        await declared.read()
    assert declared.taken == 0
    undeclared = Sent(bytes(2 * LIMIT), headers=named("gzip"))
    undeclared.scope["headers"] = [*named("gzip"), (b"transfer-encoding", b"chunked")]
    with pytest.raises(BodyTooLarge):
        await undeclared.read()
    assert undeclared.taken < LIMIT + 100_000


@pytest.mark.parametrize("name", ["br", "gzip, zstd", "gzip,gzip", "compress", "x" * 1000, "\xff"])
async def test_other_encodings_are_refused_by_name(name: str) -> None:
    sent = Sent(b"anything", headers=[(b"content-encoding", name.encode("latin-1"))])
    with pytest.raises(UnsupportedEncoding) as refused:
        await sent.read()
    assert sent.taken == 0
    assert repr(name[:64]) in refused.value.message and len(refused.value.message) < 200
    status, headers, _ = answer_to(refused.value)
    assert status == 415 and (b"accept-encoding", b"gzip, deflate, zstd") in headers


async def test_several_headers_are_several_encodings() -> None:
    sent = Sent(gzip.compress(b"a"), headers=[*named("gzip"), *named("gzip")])
    with pytest.raises(UnsupportedEncoding, match="gzip, gzip"):
        await sent.read()


async def test_body_that_goes_to_disk_is_not_decoded() -> None:
    sent = Sent(gzip.compress(b"a"), headers=named("gzip"))
    with pytest.raises(DomainError, match="without an encoding") as refused:
        await sent.read(to_disk=True)
    assert (b"accept-encoding", b"identity") in answer_to(refused.value)[1]


@pytest.mark.parametrize("headers", [[], named("identity"), named(" ")], ids=str)
async def test_plain_body_is_passed_on_as_it_comes(headers: Headers) -> None:
    sent = Sent(b"hello", headers=headers)
    before = list(sent.scope["headers"])
    assert await sent.read() == b"hello"
    assert sent.scope["headers"] == before and sent.in_flight.most == 0


def test_name_of_an_encoding_is_read_in_any_case() -> None:
    assert encoding_of([(b"content-encoding", b" GZip ")]) == "gzip"
