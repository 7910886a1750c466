"""Errors in the Anthropic API's form: statuses, types, and the words that clients act on."""

from __future__ import annotations

import json

import pytest
from anthropic.types.shared import ErrorResponse

from rolloutfleet_proxy.dialects.anthropic_messages import AnthropicMessages
from rolloutfleet_proxy.domain import errors
from rolloutfleet_proxy.domain.errors import ContextExceeded, DomainError, InvalidParameter

DIALECT = AnthropicMessages()


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidParameter("max_tokens", "It is a number."), 400, "invalid_request_error"),
        (errors.TurnLimitReached("Rollout stopped."), 400, "invalid_request_error"),
        (errors.InvalidKey(), 401, "authentication_error"),
        (errors.ForbiddenScope("Not yours."), 403, "permission_error"),
        (errors.ModelNotFound("No such model."), 404, "not_found_error"),
        (errors.SessionClosed("It is closed."), 410, "not_found_error"),
        (errors.StoreLost("It is lost."), 410, "not_found_error"),
        (errors.BodyTooLarge(10), 413, "invalid_request_error"),
        (errors.IdempotencyKeyReused("Another body."), 422, "invalid_request_error"),
        (errors.TooManyInFlight("Too many."), 429, "rate_limit_error"),
        (errors.InternalError(), 500, "api_error"),
        (errors.DiskFailed("no"), 500, "api_error"),
        (errors.EngineError("It failed."), 502, "api_error"),
        (errors.EvidenceRefused("nan", "NaN."), 502, "api_error"),
        (errors.Stopping(), 503, "overloaded_error"),
        (errors.Paused("Paused."), 503, "overloaded_error"),
        (errors.EngineUnreachable("Nobody there."), 503, "overloaded_error"),
        (errors.EngineTimeout("Too long."), 504, "timeout_error"),
        (errors.DiskFull("no room"), 507, "api_error"),
        (errors.EngineOverloaded("Full."), 529, "overloaded_error"),
    ],
)
def test_status_and_type_of_an_error(error: DomainError, status: int, kind: str) -> None:
    answered, headers, body = DIALECT.answer_to(error)
    assert answered == status
    assert ErrorResponse.model_validate_json(body, strict=True).error.type == kind
    said = json.loads(body)["error"]
    assert (said["message"], said["code"], said["param"]) == (error.message, error.code, error.param)
    assert dict(headers)[b"content-length"] == b"%d" % len(body)
    assert DIALECT.error_event(error) == b"event: error\ndata: " + body + b"\n\n"


def test_what_a_retry_can_not_change_says_so_and_what_it_may_says_when() -> None:
    assert dict(DIALECT.answer_to(errors.DiskFull("no room"))[1])[b"x-should-retry"] == b"false"
    assert dict(DIALECT.answer_to(errors.EngineOverloaded("Full."))[1])[b"retry-after"] == b"1"


def test_a_prompt_that_fills_the_context_is_told_in_the_words_that_clients_look_for() -> None:
    def said(error: ContextExceeded) -> str:
        message: str = json.loads(DIALECT.answer_to(error)[2])["error"]["message"]
        return message

    assert said(ContextExceeded("…", prompt_tokens=8192, context_length=8192)) == (
        "prompt is too long: 8192 tokens > 8191 maximum"
    )
    of_an_engine = ContextExceeded("longer than the context length of 8 tokens")
    assert said(of_an_engine) == (
        "prompt is too long: The request exceeds the context window (context_length_exceeded): "
        "longer than the context length of 8 tokens"
    )


def test_where_a_reclaimed_sessions_dumps_are_is_told() -> None:
    error = errors.SessionReclaimed("It was dumped.", details={"dumps": ["a"]})
    assert json.loads(DIALECT.answer_to(error)[2])["error"]["dumps"] == ["a"]
