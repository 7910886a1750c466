"""The outcome that an exception gives a session."""

import asyncio
from typing import Any

import pytest

from rolloutfleet.fleet.ending import ending_of
from rolloutfleet.wire import REASON_LIMIT


class Answered(Exception):
    """An SDK's exception with the error that a proxy answered with."""

    def __init__(self, body: Any, code: str | None = None) -> None:
        super().__init__("Error code: 400")
        self.body, self.code = body, code


def raised_from(cause: Exception) -> Exception:
    try:
        raise ValueError("the agent failed") from cause
    except ValueError as error:
        return error


def raised_in(context: BaseException, *, suppressed: bool = False) -> BaseException:
    try:
        try:
            raise context
        except BaseException:
            raise RuntimeError("cleaning up") from (None if suppressed else context)
    except RuntimeError as error:
        return error


OPENAI = Answered({"message": "full", "code": "context_length_exceeded"}, "context_length_exceeded")
ANTHROPIC = Answered({"type": "error", "error": {"type": "invalid_request_error", "code": "turn_limit"}})


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (OPENAI, "context_length_exceeded"),
        (ANTHROPIC, "turn_limit"),
        (raised_from(OPENAI), "context_length_exceeded"),
        (raised_in(ANTHROPIC), "turn_limit"),
        (ExceptionGroup("tasks", [KeyError("x"), raised_from(ANTHROPIC)]), "turn_limit"),
    ],
)
def test_an_exception_that_a_limit_caused_is_truncated(error: BaseException, limit: str) -> None:
    said = ending_of(error)
    assert (said.outcome, said.reason) == ("truncated", limit)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyError("x"), "KeyError: 'x'"),
        (ValueError(), "ValueError"),
        (raised_in(OPENAI, suppressed=True), "RuntimeError: cleaning up"),
        (Answered({"code": ["turn_limit"]}), "Answered: Error code: 400"),
        (Answered("turn_limit"), "Answered: Error code: 400"),
        (ValueError("\ud800"), "ValueError: ?"),
        (ValueError("x" * 10_000), ("ValueError: " + "x" * 10_000)[:REASON_LIMIT]),
    ],
)
def test_any_other_exception_failed_with_its_text(error: BaseException, reason: str) -> None:
    said = ending_of(error)
    assert (said.outcome, said.reason) == ("failed", reason)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError(), SystemExit(1)])
def test_an_interruption_aborted(error: BaseException) -> None:
    assert ending_of(error).outcome == "aborted"


def test_a_circle_of_exceptions_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    assert ending_of(first).reason == "ValueError: first"


@pytest.mark.parametrize("error", [Answered({"code": "group_closed"}), raised_from(Answered({}, "group_closed"))])
def test_a_session_that_its_groups_deadline_closed_keeps_its_outcome(error: Exception) -> None:
    assert ending_of(error).outcome is None
