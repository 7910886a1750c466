"""Which failures of a call are worth another try, and when it is made."""

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import httpx

from rolloutfleet.http_failures import failure_in_words
from rolloutfleet.remote_tensors.answers import BrokenAnswer
from rolloutfleet.remote_tensors.failures import OwnerUnavailable, Refused
from rolloutfleet.wire import SHOULD_RETRY_HEADER

T = TypeVar("T")

FIRST_WAIT: Final = 0.1
LONGEST_WAIT: Final = 5.0
PASSING: Final = frozenset((408, 425, 429, 500, 502, 503, 504))
"""Statuses that may be better the next time, where the answer does not say otherwise."""


class Passing(Exception):
    """An answer that another try may better."""

    def __init__(self, message: str, *, retry_after: float | None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def checked(answer: httpx.Response) -> httpx.Response:
    """The answer where it is a good one; its body has been read. Raises Passing, Refused."""
    if answer.is_success:
        return answer
    message, code = _error(answer)
    text = (
        f"{answer.request.method} {answer.request.url}: {message} ({answer.status_code}{f', {code}' if code else ''})"
    )
    if answer.status_code in PASSING and answer.headers.get(SHOULD_RETRY_HEADER) != "false":
        raise Passing(text, retry_after=_seconds(answer.headers.get("retry-after")))
    raise Refused(text, status=answer.status_code, code=code)


def patiently(
    attempt: Callable[[], T],
    *,
    owner: str,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """What `attempt` returns, tried again for so many seconds where it failed in a way that may pass.

    Raises OwnerUnavailable when the time is up, and what `attempt` raises for good.
    """
    until, wait = clock() + seconds, FIRST_WAIT
    while True:
        try:
            return attempt()
        except (Passing, BrokenAnswer, httpx.TransportError) as error:
            asked = error.retry_after if isinstance(error, Passing) else None
            pause = max(wait, min(asked or 0.0, LONGEST_WAIT))
            if clock() + pause > until:
                reason = failure_in_words(error) if isinstance(error, httpx.TransportError) else str(error)
                raise OwnerUnavailable(f"{owner} gave no good answer for {seconds:.0f} s: {reason}") from error
        sleep(pause)
        wait = min(2 * wait, LONGEST_WAIT)


def _error(answer: httpx.Response) -> tuple[str, str | None]:
    try:
        error: Any = answer.json()["error"]
        return str(error["message"]), error.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        return answer.reason_phrase or "no reason given", None


def _seconds(header: str | None) -> float | None:
    try:
        return max(0.0, float(header)) if header else None
    except ValueError:
        return None
