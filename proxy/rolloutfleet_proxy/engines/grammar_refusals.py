"""Refusals of grammars, and what they say of the engines.

SGLang 0.5.23 compiles the grammars of tool calls with xgrammar alone. Started with another `--grammar-backend` it
answers them with 400, in words that say nothing of the grammar; those of xgrammar say what is wrong with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from rolloutfleet_proxy.domain.errors import InvalidRequest
from rolloutfleet_proxy.telemetry import logger

ASKED_AGAIN: Final = 60.0
"""Seconds until engines that take no grammars of tool calls are sent one again: they may have been replaced."""

_REFUSED = re.compile(r"Failed to compile \w+ grammar|Grammar-based generation|Grammar preprocessing timed out")
_TAKES_NONE = re.compile(
    r"Grammar-based generation .* is not supported.*|Failed to compile \w+ grammar:\s*(Unknown grammar error)?\s*"
)


class GrammarRefused(InvalidRequest):
    """The engine can't compile a request's grammar."""

    def __init__(self, said: str) -> None:
        super().__init__(f"The engine refused the request: {said}")
        self.takes_none = _TAKES_NONE.fullmatch(said) is not None
        """Whether it compiles no grammars of this kind at all."""


class CallGrammars:
    """Whether the engines take grammars of tool calls. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._refused_at: float | None = None

    def taken(self) -> bool:
        return self._refused_at is None or self._clock() - self._refused_at >= ASKED_AGAIN

    def refused(self, refusal: GrammarRefused) -> None:
        if not refusal.takes_none:
            return
        if self._refused_at is None:
            logger.warning("the engines take no grammars of tool calls, so tool_choice is a wish: %s", refusal.message)
        self._refused_at = self._clock()

    def answered(self) -> None:
        """A call came back that was under such a grammar."""
        if self._refused_at is not None and self.taken():  # else it may have been sent before the refusal
            self._refused_at = None
            logger.info("the engines take grammars of tool calls again")


def is_grammar_refusal(said: str) -> bool:
    """Whether an engine's 400 speaks of the request's grammar (`srt/constrained/grammar_manager.py` of SGLang)."""
    return _REFUSED.match(said) is not None
