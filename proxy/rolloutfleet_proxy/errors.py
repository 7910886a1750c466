"""Every error that a client can get, in the OpenAI API's form.

    {"error": {"message": str, "type": str, "param": str | null, "code": str}}

`type` follows from the status, `code` is one of `rolloutfleet.errors`, and `param` names the field at fault
(`messages[2].content`). The `openai` SDK retries 408, 409, 429 and 5xx by itself and obeys `Retry-After`; an
answer of those that a retry can't change carries `x-should-retry: false`, which that SDK obeys first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from rolloutfleet.errors import (
    CONTEXT_LENGTH_EXCEEDED,
    EVIDENCE_REFUSED,
    INVALID_JSON,
    INVALID_REQUEST,
    UNSUPPORTED_PARAMETER,
)

MEDIA_TYPE = "application/json"

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
_encode = msgspec.json.Encoder().encode


class ApiError(Exception):
    """An answer that is not a success.

    `retry_after` is in seconds, `should_retry` None leaves the decision to the client's own rules, `details` are
    further fields of the error's body, and `close` asks for a new connection.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        should_retry: bool | None = None,
        details: Mapping[str, Any] | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.should_retry = should_retry
        self.details = details or {}
        self.close = close

    def __repr__(self) -> str:
        return f"ApiError({self.status}, {self.code!r}, {self.message!r}, param={self.param!r})"

    @property
    def type(self) -> str:
        """The OpenAI API's word for this kind of error."""
        return _TYPES.get(self.status) or ("server_error" if self.status >= 500 else "invalid_request_error")

    def body(self) -> bytes:
        """The answer's body, also the data of a stream's error event."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code, **self.details}
        return _encode({"error": error})

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers beside content type and length, in ASGI's form."""
        headers = []
        if self.retry_after is not None:
            # Whole seconds, rounded up: that is the form of RFC 9110, section 10.2.3.
            headers.append((b"retry-after", b"%d" % math.ceil(self.retry_after)))
        if self.should_retry is not None:
            headers.append((b"x-should-retry", b"true" if self.should_retry else b"false"))
        if self.close:
            headers.append((b"connection", b"close"))
        return headers


def invalid(param: str | None, message: str) -> ApiError:
    """400: a value that is of the wrong type, form or range. A message that doesn't name the field gets its path."""
    if param is not None and not re.search(rf"(?<![\w.]){re.escape(param)}(?!\w)", message):
        message = f"{param}: {message}"
    return ApiError(400, INVALID_REQUEST, message, param=param)


def no_json(error: BaseException | None) -> ApiError:
    """400: a body that can't be read as JSON. Of what the decoder says only the place is told, where it knows one."""
    at = getattr(error, "pos", None)
    where = f" from its character {at + 1} on" if type(at) is int else ""
    return ApiError(400, INVALID_JSON, f"The body can't be read as JSON{where}.")


def missing(param: str) -> ApiError:
    """400: a parameter that must be there."""
    return ApiError(400, INVALID_REQUEST, f"Missing required parameter: {param}.", param=param)


def unknown(param: str) -> ApiError:
    """400: a parameter that no document of ours names."""
    return ApiError(400, INVALID_REQUEST, f"Unknown parameter: {param}.", param=param)


def unsupported(param: str, why: str) -> ApiError:
    """400: a parameter that can't be honoured, said rather than ignored."""
    return ApiError(400, UNSUPPORTED_PARAMETER, f"Unsupported parameter: {param}: {why}", param=param)


def context_length_exceeded(message: str) -> ApiError:
    """400: prompt plus budget is more than the model's context."""
    return ApiError(400, CONTEXT_LENGTH_EXCEEDED, message, param="messages")


def evidence_refused(reason: str, message: str) -> ApiError:
    """502: the engine's reply is not what a turn can be made of; nothing was recorded."""
    return ApiError(
        502, EVIDENCE_REFUSED, f"The engine's reply was refused ({reason}): {message} Nothing was recorded."
    )
