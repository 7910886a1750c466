"""How much of a request's body is read: no more than the settings allow, whatever its headers say."""

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, Final

from rolloutfleet_proxy.domain.errors import BodyTooLarge

LENGTH: Final = b"content-length"
_ENCODING: Final = b"transfer-encoding"
_FRAMING: Final = frozenset((LENGTH, _ENCODING))

LimitOf = Callable[[MutableMapping[str, Any]], int]
"""How many bytes a request's body may have, by its ASGI scope."""


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
