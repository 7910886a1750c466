"""Which dialects there are, and which of them a request is for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from starlette.routing import compile_path
from starlette.types import Scope

from rolloutfleet_proxy.dialects.anthropic_messages import AnthropicMessages
from rolloutfleet_proxy.dialects.base import Dialect
from rolloutfleet_proxy.dialects.openai_chat import OpenAIChat
from rolloutfleet_proxy.dialects.openai_responses import OpenAIResponses
from rolloutfleet_proxy.domain.errors import DomainError, MissingKey
from rolloutfleet_proxy.http import errors
from rolloutfleet_proxy.http.departures import Closed, closed_of
from rolloutfleet_proxy.http.headers import FORWARDED, RECEIPT, Headers
from rolloutfleet_proxy.http.last_bytes import Emptied, emptied_of

DIALECTS: Final[Sequence[Dialect[Any]]] = (OpenAIChat(), AnthropicMessages(), OpenAIResponses())
"""A new dialect is one line here."""

_FOUND = "rolloutfleet.dialect"
LONGEST_RECEIPT: Final = 64
"""Characters of a receipt's name; it is kept until the receipt comes, and any caller can send one."""


@dataclass(frozen=True, slots=True)
class DialectCall:
    """A request for a turn, or for the length of the prompt that one would have."""

    dialect: Dialect[Any]
    path: str
    """Of the dialect's, the one that it is for."""
    counts: bool
    """Whether only the prompt's length is asked for."""
    session: str | None
    """The session that the path names; None where the key alone says it."""
    headers: Mapping[str, str]
    key: str | None
    """The session key that the call carries."""
    is_retry: bool
    """Whether the caller's SDK says that it asks again."""
    emptied: Emptied
    """Waits until all that was sent to the caller has left."""
    closed: Closed
    """Looks whether the caller has closed its connection."""

    @property
    def receipt(self) -> str | None:
        """The receipt that comes for the answer, where another proxy passes it on: what has left from here may still be
        lost there."""
        name = self.headers.get(RECEIPT, "") if FORWARDED in self.headers else ""
        return name if 0 < len(name) <= LONGEST_RECEIPT else None

    def needed_key(self) -> str:
        """The key. Raises MissingKey, which says where this API has it."""
        if self.key is None:
            raise MissingKey(self.dialect.key_forms)
        return self.key


def call_paths() -> list[tuple[Dialect[Any], str]]:
    """Every path of a call for a turn, and whose it is."""
    return [(dialect, path) for dialect in DIALECTS for path in dialect.paths]


def count_paths() -> list[tuple[Dialect[Any], str]]:
    """Every path of a call for a prompt's length, and whose it is."""
    return [(dialect, path) for dialect in DIALECTS for path in dialect.count_paths]


def methods_of_dialects(path: str) -> set[str]:
    """The methods that a path has in any dialect."""
    calls = any(_pattern(each).fullmatch(path) for _, each in (*call_paths(), *count_paths()))
    return {"POST"} if calls else {"GET", "HEAD"} if is_greeting(path) else set()


def greeting_paths() -> list[str]:
    """Every path that clients look at before their first call."""
    return [path for dialect in DIALECTS for path in dialect.greeting_paths]


def is_greeting(path: str) -> bool:
    """Whether a path is one of these."""
    return any(_pattern(each).fullmatch(path) for each in greeting_paths())


def turn_call(scope: Scope) -> DialectCall | None:
    """What a request for a turn asks of which dialect; None for all others."""
    found = dialect_call(scope)
    return None if found is None or found.counts else found


def dialect_call(scope: Scope) -> DialectCall | None:
    """What a request asks of which dialect; None for routes that are none's. Looked up once a request."""
    if _FOUND not in scope:
        scope[_FOUND] = _look_up(scope)
    found: DialectCall | None = scope[_FOUND]
    return found


def answer_to(scope: Scope, error: DomainError) -> tuple[int, Headers, bytes]:
    """Status, headers in ASGI's form, and body of an error, in the form of the API that the request's path belongs to:
    a dialect's, also below the paths of its calls, else the native one."""
    for dialect, path in (*call_paths(), *count_paths()):
        if _pattern(path).fullmatch(scope["path"]) or _pattern(f"{path}/{{below:path}}").fullmatch(scope["path"]):
            return dialect.answer_to(error)
    return errors.answer_to(error)


def _look_up(scope: Scope) -> DialectCall | None:
    if scope["type"] != "http" or scope["method"] != "POST":
        return None
    for paths, counts in ((call_paths(), False), (count_paths(), True)):
        for dialect, path in paths:
            matched = _pattern(path).fullmatch(scope["path"])
            if matched is not None:
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
                return DialectCall(
                    dialect=dialect,
                    path=path,
                    counts=counts,
                    session=matched.groupdict().get("session_id"),
                    headers=headers,
                    key=dialect.key(headers),
                    is_retry=dialect.is_retry(headers),
                    emptied=emptied_of(scope),
                    closed=closed_of(scope),
                )
    return None


@cache
def _pattern(path: str) -> re.Pattern[str]:
    return compile_path(path)[0]
