"""What the headers of a request say: whose key it carries, how long its body is, and by which proxies it has come.

The head of a call that is passed on to another proxy grows. Whoever gets it must take what the proxy that passed it on
has taken: docs/memory.md bounds what clients may send.
"""

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Final

from rolloutfleet_proxy.domain.errors import BodyTooLarge

Headers = list[tuple[bytes, bytes]]

LimitOf = Callable[[MutableMapping[str, Any]], int]
"""How many bytes a request's body may have, by its ASGI scope."""

LENGTH: Final = b"content-length"
_ENCODING: Final = b"transfer-encoding"
_FRAMING: Final = frozenset((LENGTH, _ENCODING))

FORWARDED: Final = "x-rolloutfleet-forwarded"
"""Header of a call that has been passed on, with the ordinal of the proxy that did; it is not passed on again."""
RECEIPT: Final = "x-rolloutfleet-receipt"
"""Header of a call that has been passed on: the proxy that did says under this name, when it has come to the answer's
end, whether its caller got all of it."""
PLACED: Final = "x-rolloutfleet-placed"
"""Header of a start that has been placed: whoever gets it starts the session or refuses."""
KEPT: Final = "x-rolloutfleet-kept"
"""Header of a start that came to its key's keeper."""
VOUCHER: Final = "x-rolloutfleet-voucher"
"""Header of a call that has been passed on: what only those know who have an admin key. It goes no further."""
FROM_PEER: Final = "rolloutfleet.from_peer"
"""In an ASGI scope: the call has come from another proxy, or from an admin who says so."""
PASSED: Final = frozenset(name.encode() for name in (FORWARDED, PLACED, KEPT))
"""Headers that say that a call comes from another proxy."""

MORE_BYTES: Final = 4096
"""By which a head may grow where it is passed on: a space behind each colon, another host, and what is added."""
MORE_HEADERS: Final = 8
"""Which may be added: a request id, the length of the body, and one of `PASSED` for each proxy on the way."""

_OF_PEERS: Final = PASSED | {RECEIPT.encode(), VOUCHER.encode()}


def settle(scope: MutableMapping[str, Any], is_peer: Callable[[str, str | None], bool]) -> None:
    """Note whether a call has come from another proxy; of any other caller's, headers that only proxies send are taken
    for none. `is_peer` is asked with the voucher and with the key that the call carries.
    """
    headers = scope["headers"]
    if _OF_PEERS.isdisjoint(dict(headers)):
        return
    said = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    scope[FROM_PEER] = is_peer(said.get(VOUCHER, ""), presented_key(said))
    dropped = {VOUCHER.encode()} if scope[FROM_PEER] else _OF_PEERS
    scope["headers"] = [header for header in headers if header[0] not in dropped]


_HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer"),
        *(b"transfer-encoding", b"upgrade", b"proxy-connection", b"expect", b"host", b"date", b"server"),
    )
)
"""RFC 9110, section 7.6.1, and what each server says for itself."""


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key that a call carries, in `Authorization: Bearer` or in `x-api-key`."""
    authorization = headers.get("authorization", "")
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return headers.get("x-api-key") or None


def framing(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Of headers in ASGI's form those that say where a body ends."""
    return {name: value for name, value in headers if name in _FRAMING}


def has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request with these headers has a body: as RFC 9112, section 6, has it."""
    found = framing(headers)
    return _ENCODING in found or found.get(LENGTH, b"0") != b"0"


def declared_length(value: str, *, limit: int) -> int:
    """What a Content-Length says; 0 for none. Raises BodyTooLarge."""
    length = int(value) if value.isascii() and value.isdigit() else 0
    if length > limit:
        raise BodyTooLarge(limit)
    return length


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Headers without those that are one connection's own, with names in lower case."""
    lower = [(name.lower(), value) for name, value in headers]
    connection = b",".join(value for name, value in lower if name == b"connection").lower()
    dropped = _HOP_BY_HOP | {token.strip() for token in connection.split(b",")}
    return [(name, value) for name, value in lower if name not in dropped]


def passed(headers: Iterable[tuple[bytes, bytes]], mark: str, ordinal: int) -> list[tuple[str, str]]:
    """A call's headers in aiohttp's terms, behind one of `PASSED`, so that its reader knows what it reads."""
    return [(mark, str(ordinal)), *((name.decode("latin-1"), _text(value)) for name, value in end_to_end(headers))]


def _text(value: bytes) -> str:
    """What aiohttp writes as these bytes. It writes UTF-8; each byte of what is none becomes a question mark."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("ascii", "replace").replace("\N{REPLACEMENT CHARACTER}", "?")
