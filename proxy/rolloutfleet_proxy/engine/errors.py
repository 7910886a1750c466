"""Errors of engines and the gateway: what they say, and what a client is told of them.

SGLang 0.5.23 compiles structural tags with xgrammar alone. Started with another `--grammar-backend` it answers them
with 400, in words that say nothing of the grammar; those of xgrammar say what is wrong with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from rolloutfleet_proxy.domain.errors import (
    ContextExceeded,
    DomainError,
    EngineError,
    EngineOverloaded,
    EngineTimeout,
    EngineUnreachable,
    InvalidRequest,
)
from rolloutfleet_proxy.engine.evidence import Evidence
from rolloutfleet_proxy.telemetry import logger

UNREACHED: Final = "call_upstream_connection_failed"
"""Code of smg 1.13's 500 where an engine can't be reached: nothing was sent."""
LOST: Final = ("call_upstream_request_error", "read_response_body_failed", "call_upstream_timeout")
"""Codes of its 500, and of its 504 after 30 to 45 s where the engine's node is gone, where the connection to an engine
ended before the reply did."""
NO_ENGINE = "model_not_found"
"""What smg calls a 404 while it has no engine at all: it looks for one by a model that no request names."""


ASKED_AGAIN: Final = 60.0
"""Seconds until engines that take no structural tags are sent one again: they may have been replaced."""

_REFUSED = re.compile(r"Failed to compile \w+ grammar|Grammar-based generation|Grammar preprocessing timed out")
_REQUESTED = re.compile(r"context length of (?P<context>\d+) tokens.*: (?P<prompt>\d+) tokens from the input")
_PROMPT = re.compile(r"\((?P<prompt>\d+) tokens\).* length \((?P<context>\d+) tokens\)")
_TAKES_NONE = re.compile(
    r"Grammar-based generation .* is not supported.*|Failed to compile \w+ grammar:\s*(Unknown grammar error)?\s*"
)


class ConnectionLost(EngineError):
    """The connection to the gateway ended before the reply did. `part` is what had come of a stream."""

    def __init__(self, message: str, part: Evidence | None = None) -> None:
        super().__init__(message)
        self.part = part


class GrammarRefused(InvalidRequest):
    """The engine can't compile a request's grammar."""

    def __init__(self, said: str) -> None:
        super().__init__(f"The engine refused the request: {said}")
        self.takes_none = _TAKES_NONE.fullmatch(said) is not None
        """Whether it compiles no grammars of this kind at all."""


class StructuralTags:
    """The engines' support of structural tags: grammars of tool calls, and of thoughts before a request's own grammar.
    `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._refused_at: float | None = None

    def taken(self) -> bool:
        return self._refused_at is None or self._clock() - self._refused_at >= ASKED_AGAIN

    def refused(self, refusal: GrammarRefused) -> None:
        if not refusal.takes_none:
            return
        if self._refused_at is None:
            logger.warning(
                "the engines accept no structural tags, so tool_choice is not enforced, and grammars of requests hold "
                "from the first token on, without a thought: %s",
                refusal.message,
            )
        self._refused_at = self._clock()

    def answered(self) -> None:
        """A call came back that was under such a grammar."""
        if self._refused_at is not None and self.taken():  # else it may have been sent before the refusal
            self._refused_at = None
            logger.info("the engines accept structural tags again")


def engine_failure(status: int, message: str, *, retry_after: float | None = None) -> DomainError:
    """What a client is told of an engine's or gateway's own error."""
    said = message[:500]
    if status in (400, 422):
        if is_context_length(message):
            return context_exceeded(said)
        if is_grammar_refusal(message):
            return GrammarRefused(said)
        return InvalidRequest(f"The engine refused the request: {said}")
    if status == 429:
        return EngineOverloaded(f"The engine is overloaded: {said}", retry_after=retry_after)
    if status == 503:
        return EngineUnreachable(f"No engine is ready: {said}", retry_after=retry_after)
    if status in (408, 504):
        return EngineTimeout(f"The engine took too long: {said}")
    return EngineError(f"The engine failed with status {status}: {said}")


def is_context_length(message: str) -> bool:
    """Whether an error speaks of the model's context (`tokenizer_manager.py` and `managers/utils.py` of SGLang)."""
    return "context length" in message or "maximum allowed length" in message


def context_exceeded(said: str) -> ContextExceeded:
    """With the engine's own numbers, where it gives them; it may count tokens to the prompt that it keeps to itself."""
    named = _REQUESTED.search(said) or _PROMPT.search(said)
    if named is None:
        return ContextExceeded(said)
    return ContextExceeded(said, prompt_tokens=int(named["prompt"]), context_length=int(named["context"]))


def is_grammar_refusal(said: str) -> bool:
    """Whether an engine's 400 speaks of the request's grammar (`srt/constrained/grammar_manager.py` of SGLang)."""
    return _REFUSED.match(said) is not None


def error_said(body: bytes) -> tuple[Any, str]:
    """Code and text of an error body: SGLang's and the gateway's forms are several, some no JSON at all."""
    try:
        content = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return None, body.decode("utf-8", "replace").strip()[:500]
    code = None
    if isinstance(content, dict):
        content = content.get("error") or content.get("message") or content.get("detail") or content
    if isinstance(content, dict):
        code, content = content.get("code"), content.get("message") or content
    return code, content if isinstance(content, str) else msgspec.json.encode(content).decode()[:500]
