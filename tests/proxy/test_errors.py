"""Error answers have the OpenAI API's form and tell a client whether to try again."""

import json

import pytest

from rolloutfleet.errors import INVALID_REQUEST, UNSUPPORTED_PARAMETER
from rolloutfleet_proxy.errors import ApiError, invalid, missing, unknown, unsupported


def test_body_has_the_four_fields() -> None:
    error = ApiError(400, "some_code", 'said "so"', param="messages[0].role")
    assert json.loads(error.body()) == {
        "error": {
            "message": 'said "so"',
            "type": "invalid_request_error",
            "param": "messages[0].role",
            "code": "some_code",
        }
    }


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (409, "conflict_error"),
        (410, "gone_error"),
        (413, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (502, "server_error"),
        (504, "timeout_error"),
        (507, "server_error"),
    ],
)
def test_type_follows_from_the_status(status: int, kind: str) -> None:
    assert ApiError(status, "x", "y").type == kind


def test_headers_say_when_and_whether_to_retry() -> None:
    assert ApiError(503, "x", "y").headers() == []
    assert ApiError(503, "x", "y", retry_after=0.2).headers() == [(b"retry-after", b"1")]
    assert ApiError(409, "x", "y", should_retry=False).headers() == [(b"x-should-retry", b"false")]
    assert ApiError(429, "x", "y", retry_after=7, should_retry=True).headers() == [
        (b"retry-after", b"7"),
        (b"x-should-retry", b"true"),
    ]


def test_constructors_name_the_parameter() -> None:
    for error, code in [
        (invalid("n", "no"), INVALID_REQUEST),
        (missing("n"), INVALID_REQUEST),
        (unknown("n"), INVALID_REQUEST),
        (unsupported("n", "no"), UNSUPPORTED_PARAMETER),
    ]:
        assert (error.status, error.param, error.code) == (400, "n", code)
