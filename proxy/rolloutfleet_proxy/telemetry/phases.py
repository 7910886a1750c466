"""How long a turn took, step by step. Steps follow one another, so noting the moment at which each began is enough."""

from collections.abc import Callable
from itertools import pairwise
from time import perf_counter
from typing import Final

QUEUE: Final = 0
"""Earlier turns are looked up, and the prompt waits for the tokenizer's thread."""
TOKENISE_IN: Final = 1
PAUSE: Final = 2
"""The turn waits for leave to generate."""
ENGINE: Final = 3
TOKENISE_OUT: Final = 4
COMMIT: Final = 5
DONE: Final = 6

STEPS: Final = ("queue", "tokenise_in", "pause", "engine", "tokenise_out", "commit")
BEFORE_COMMIT: Final = STEPS[:COMMIT]


class Phases:
    """The moments at which a turn's steps began."""

    __slots__ = ("_clock", "_moments", "_stopped", "prompt_tokens")

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.prompt_tokens = -1
        """Once the prompt is made."""
        self._clock = clock
        self._moments: list[float] = []
        self._stopped: float | None = None

    def begin(self, step: int) -> None:
        """The step before is over, and this one begins; a step that is begun again goes on.

        May be called on another thread, which may come too late to count.
        """
        if len(self._moments) == step and self._stopped is None:
            self._moments.append(self._clock())

    def stop(self) -> None:
        """The turn is over, at whatever step."""
        self._stopped = self._clock()

    def before_commit(self) -> list[float]:
        """Seconds of each of BEFORE_COMMIT, to a tenth of a millisecond."""
        return [max(0.0, round(seconds, 4)) for seconds in self.seconds()[:COMMIT]]

    def seconds(self) -> list[float]:
        """Of each of STEPS; of the one under way until now, and -1 for what was not reached."""
        took = [later - sooner for sooner, later in pairwise(self._all_moments())]
        return took + [-1.0] * (DONE - len(took))

    def reached(self) -> list[tuple[str, float, float]]:
        """The name of each step that was reached, and when it began and ended, by the clock."""
        pairs = pairwise(self._all_moments())
        return [(name, began, ended) for name, (began, ended) in zip(STEPS, pairs, strict=False)]

    def _all_moments(self) -> list[float]:
        """Where each step began; the last one under way ends now, or where the turn stopped."""
        moments = self._moments
        if len(moments) <= DONE:
            moments = [*moments, self._clock() if self._stopped is None else self._stopped]
        return moments
