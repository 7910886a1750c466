"""The head of a call that is passed on to another proxy, and how much larger it is by then.

Whoever gets it must take what the proxy that passed it on has taken: docs/memory.md bounds what clients may send.
"""

from collections.abc import Iterable
from typing import Final

Headers = list[tuple[bytes, bytes]]

FORWARDED: Final = "x-rolloutfleet-forwarded"
"""Header of a call that has been passed on, with the ordinal of the proxy that did; it is not passed on again."""
PLACED: Final = "x-rolloutfleet-placed"
"""Header of a start that has been placed: whoever gets it starts the session or refuses."""
KEPT: Final = "x-rolloutfleet-kept"
"""Header of a start that came to its key's keeper."""
PASSED: Final = frozenset(name.encode() for name in (FORWARDED, PLACED, KEPT))
"""Headers that say that a call comes from another proxy."""

MORE_BYTES: Final = 4096
"""By which a head may grow where it is passed on: a space behind each colon, another host, and what is added."""
MORE_HEADERS: Final = 8
"""Which may be added: a request id, the length of the body, and one of `PASSED` for each proxy on the way."""

_HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer"),
        *(b"transfer-encoding", b"upgrade", b"proxy-connection", b"expect", b"host", b"date", b"server"),
    )
)
"""RFC 9110, section 7.6.1, and what each server says for itself."""


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
