"""Errors in the form of the Anthropic API, with the words that its clients act on. Pure.

    {"type": "error", "error": {"type": str, "message": str, "code": str, "param": str | null}}

`code` and `param` are ours. Statuses are those of all APIs, but for an overloaded engine, which is 529 here.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rolloutfleet.wire import JSON_MEDIA_TYPE
from rolloutfleet_proxy.domain.errors import ContextExceeded, DomainError, EngineOverloaded
from rolloutfleet_proxy.http.errors import headers_of, status_of
from rolloutfleet_proxy.http.headers import Headers

OVERLOADED: Final = 529

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    410: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
_encode = msgspec.json.Encoder().encode


def answer_to(error: DomainError) -> tuple[int, Headers, bytes]:
    """Status, headers in ASGI's form, and body."""
    body = _body(error)
    head = [(b"content-type", JSON_MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body)), *headers_of(error)]
    return _status(error), head, body


def error_event(error: DomainError) -> bytes:
    """A stream's last event where it fails."""
    return b"event: error\ndata: " + _body(error) + b"\n\n"


def _body(error: DomainError) -> bytes:
    status = _status(error)
    kind = _TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    described: dict[str, Any] = {"type": kind, "message": _message(error), "code": error.code, "param": error.param}
    return _encode({"type": "error", "error": {**described, **error.details}})


def _status(error: DomainError) -> int:
    return OVERLOADED if isinstance(error, EngineOverloaded) else status_of(error)


def _message(error: DomainError) -> str:
    """Clients look for these very words of a prompt that fills the context, to compact it."""
    if not isinstance(error, ContextExceeded):
        return error.message
    if error.prompt_tokens is None or error.context_length is None:
        return f"prompt is too long: {error.message}"
    # A prompt must leave room for a token.
    return f"prompt is too long: {error.prompt_tokens} tokens > {error.context_length - 1} maximum"
