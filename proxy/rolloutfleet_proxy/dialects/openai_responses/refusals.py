"""Errors in the form that clients of the Responses API act on. Pure.

They are those of the OpenAI API with two differences, both for Codex: it gives up at once on a 429 without
`Retry-After`, and it repeats a 410 as if the next attempt could go better, so what is gone is a 400 with the same code.
"""

from __future__ import annotations

from typing import Final

from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.http import errors
from rolloutfleet_proxy.http.headers import LENGTH, Headers

_RETRY_AFTER: Final = b"1"
"""Seconds, where the error says nothing."""
_GONE, _INVALID, _TOO_MANY = 410, 400, 429


def answer_to(error: DomainError) -> tuple[int, Headers, bytes]:
    """Status, headers in ASGI's form, and body."""
    status, headers, body = errors.answer_to(error)
    if status == _TOO_MANY and error.retry_after is None:
        headers.append((b"retry-after", _RETRY_AFTER))
    if status != _GONE:
        return status, headers, body
    body = errors.encode({"error": errors.error_object(error) | {"type": "invalid_request_error"}, **error.beside})
    others = [(name, value) for name, value in headers if name != LENGTH]
    return _INVALID, [*others, (LENGTH, b"%d" % len(body))], body
