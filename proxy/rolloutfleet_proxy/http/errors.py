"""Every error that a client can get, in the OpenAI API's form.

    {"error": {"message": str, "type": str, "param": str | null, "code": str}}

The status follows from the error's class, `type` from the status. The `openai` SDK retries 408, 409, 429 and 5xx by
itself and obeys `Retry-After`; an answer of those that a retry can't change carries `x-should-retry: false`, which that
SDK obeys first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from starlette.types import Send

from rolloutfleet import errors as codes
from rolloutfleet.wire import JSON_MEDIA_TYPE
from rolloutfleet_proxy.domain import errors
from rolloutfleet_proxy.domain.errors import DomainError, InvalidRequest, NotFound, PauseFailed, PeerError
from rolloutfleet_proxy.http.headers import Headers

ENCODINGS: Final = "gzip, deflate, zstd"
"""Encodings of bodies that are read."""
_LONGEST_ENCODING = 64


class MalformedRequest(InvalidRequest):
    """This is no HTTP, or not such as is served here."""


class NotAcceptable(InvalidRequest, param="Accept"):
    """The Accept header allows no form that there is."""


class BrokenEncoding(InvalidRequest, param="Content-Encoding"):
    """A body that is not what its encoding makes."""

    def __init__(self, encoding: str) -> None:
        super().__init__(f"The body can't be decoded as the one piece of {encoding} that Content-Encoding says it is.")


class UnsupportedEncoding(DomainError, code=codes.UNSUPPORTED_ENCODING, param="Content-Encoding"):
    """A body in an encoding that is not read, or not where it is written as it comes."""

    def __init__(self, encoding: str, *, as_it_comes: bool = False) -> None:
        instead = "without an encoding" if as_it_comes else f"in one of {ENCODINGS}, or without an encoding"
        super().__init__(f"A body in {encoding[:_LONGEST_ENCODING]!r} is not read here: send it {instead}.")
        self.as_it_comes = as_it_comes


class RouteNotFound(NotFound, code=codes.NOT_FOUND):
    """No route has this path."""


class MethodNotAllowed(DomainError, code=codes.METHOD_NOT_ALLOWED):
    """The path's routes have other methods."""

    def __init__(self, message: str | None = None, *, methods: Iterable[str] = ()) -> None:
        """`methods` are those that the path has."""
        super().__init__(message)
        self.methods = sorted(methods)


class RequestTimeout(DomainError, code=codes.REQUEST_TIMEOUT):
    """The request did not come to its end."""


class HeadTooLarge(DomainError, code=codes.HEAD_TOO_LARGE):
    """The request's line and headers are too large, or too many."""


STATUSES: Final[Mapping[type[DomainError], int]] = {
    errors.InvalidRequest: 400,
    errors.InvalidKey: 401,
    errors.ForbiddenScope: 403,
    errors.NotFound: 404,
    MethodNotAllowed: 405,
    NotAcceptable: 406,
    RequestTimeout: 408,
    errors.Conflict: 409,
    errors.Stale: 409,
    errors.RecoveryTooFar: 409,
    errors.NoLongerHere: 410,
    errors.BodyTooLarge: 413,
    errors.TooManyValues: 413,
    UnsupportedEncoding: 415,
    errors.IdempotencyKeyReused: 422,
    errors.NoRoom: 429,
    errors.EngineOverloaded: 429,
    HeadTooLarge: 431,
    errors.ClientGone: 499,
    errors.InternalError: 500,
    errors.DiskFailed: 500,
    errors.DamageFound: 500,
    errors.EngineError: 502,
    errors.LoadFailed: 502,
    errors.EvidenceRefused: 502,
    errors.Unavailable: 503,
    errors.KeptOnVolume: 503,
    errors.PauseTimeout: 504,
    errors.StillGenerating: 504,
    errors.EngineTimeout: 504,
    errors.DiskFull: 507,
}
"""The status of each error. A class that is derived from one of these gets the same."""
_CLOSING = (errors.Stopping, MalformedRequest, RequestTimeout, HeadTooLarge)
"""Errors behind which the client is to make a new connection."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    410: "gone_error",
    429: "rate_limit_error",
    504: "timeout_error",
}


def status_of(error: DomainError) -> int:
    """The status that an error is answered with."""
    if isinstance(error, PeerError):
        return error.status
    if isinstance(error, PauseFailed):
        return status_of(error.reason)
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def error_object(error: DomainError) -> dict[str, Any]:
    """What stands under `error` in a body."""
    status = status_of(error)
    kind = _TYPES.get(status) or ("server_error" if status >= 500 else "invalid_request_error")
    return {"message": error.message, "type": kind, "param": error.param, "code": error.code, **error.details}


encode = msgspec.json.Encoder(enc_hook=error_object).encode
"""JSON of an answer that may hold errors."""


def body_of(error: DomainError) -> bytes:
    """The answer's body, also the data of a stream's error event."""
    return encode({"error": error, **error.beside})


def answer_to(error: DomainError) -> tuple[int, Headers, bytes]:
    """Status, headers in ASGI's form, and body."""
    body = body_of(error)
    head = [(b"content-type", JSON_MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body)), *headers_of(error)]
    return status_of(error), head, body


async def send_answer(answer: tuple[int, Headers, bytes], send: Send) -> None:
    """Answer an ASGI request with a status, headers and a body."""
    status, headers, body = answer
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def headers_of(error: DomainError) -> Headers:
    """Headers beside content type and length, in ASGI's form."""
    headers = []
    if error.retry_after is not None:
        # Whole seconds, rounded up: that is the form of RFC 9110, section 10.2.3.
        headers.append((b"retry-after", b"%d" % math.ceil(error.retry_after)))
    if error.should_retry is not None:
        headers.append((b"x-should-retry", b"true" if error.should_retry else b"false"))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.methods).encode()))
    if isinstance(error, UnsupportedEncoding):
        headers.append((b"accept-encoding", b"identity" if error.as_it_comes else ENCODINGS.encode()))
    if isinstance(error, _CLOSING):
        headers.append((b"connection", b"close"))
    return headers
