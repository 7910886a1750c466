"""The outcome of a session whose `with` block was left by an exception. Pure."""

from typing import Any, Final

from rolloutfleet.errors import CONTEXT_LENGTH_EXCEEDED, GROUP_CLOSED, TOKEN_LIMIT, TURN_LIMIT
from rolloutfleet.wire import REASON_LIMIT, CloseSession

LIMITS: Final = (CONTEXT_LENGTH_EXCEEDED, TURN_LIMIT, TOKEN_LIMIT)
"""Codes of a proxy's errors that a session's context or limits cause."""
_MOST_LINKED: Final = 100


def ending_of(error: BaseException) -> CloseSession:
    """`truncated` where the exception, or one that it came of, is a limit's; `aborted` for what is no error of the
    program (KeyboardInterrupt, CancelledError, SystemExit); else `failed`. The reason is the limit's code, or the
    exception's type and text. A session that its group's deadline has closed keeps the outcome that it has."""
    for each in linked(error):
        code = _code(each)
        if code == GROUP_CLOSED:
            return CloseSession()
        if code in LIMITS:
            return CloseSession(outcome="truncated", reason=code)
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    reason = said[:REASON_LIMIT].encode("utf-8", "replace").decode()
    return CloseSession(outcome="failed" if isinstance(error, Exception) else "aborted", reason=reason)


def linked(error: BaseException) -> list[BaseException]:
    """The exception and those that it came of: causes, contexts, members of groups; nearest first."""
    found: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo and len(found) < _MOST_LINKED:
        each = todo.pop(0)
        if each is None or any(each is known for known in found):
            continue
        found.append(each)
        todo += [each.__cause__, None if each.__suppress_context__ else each.__context__]
        if isinstance(each, BaseExceptionGroup):
            todo += each.exceptions
    return found


def _code(error: BaseException) -> str | None:
    """The code that the SDKs' exceptions carry: OpenAI's as `code`, all of them in their `body`."""
    code: Any = getattr(error, "code", None)
    body: Any = getattr(error, "body", None)
    if isinstance(body, dict):
        described = body.get("error", body)
        code = described.get("code", code) if isinstance(described, dict) else code
    return code if isinstance(code, str) else None
