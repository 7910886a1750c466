"""How much of a request's body is read: no more than the settings allow, whatever its headers say."""

from collections.abc import Callable, MutableMapping
from typing import Any

from rolloutfleet.errors import BODY_TOO_LARGE
from rolloutfleet_proxy.errors import ApiError

LimitOf = Callable[[MutableMapping[str, Any]], int]
"""How many bytes a request's body may have, by its ASGI scope."""


def too_large(limit: int) -> ApiError:
    """413."""
    return ApiError(413, BODY_TOO_LARGE, f"The body is larger than the {limit} bytes that are allowed.")


def declared_length(value: str, *, limit: int) -> int:
    """What a Content-Length says; 0 for none. Raises ApiError 413."""
    length = int(value) if value.isascii() and value.isdigit() else 0
    if length > limit:
        raise too_large(limit)
    return length
