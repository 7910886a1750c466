"""The gate that each generation of this proxy passes: shut by a pause, and at the version that the engines have.

A turn holds a `Submission` while an engine works for it:

    async with gate.submission() as submission:         # waits while paused
        ...                                             # a round; cut by a pause in abort mode:
        await submission.resumed()                      # waits while paused, and is not in flight meanwhile
        ...                                             # the next round

A pause never ends by itself. Past `max_hold` seconds of it, calls that wait get 503.
"""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from rolloutfleet.broadcast import Broadcast
from rolloutfleet_proxy.domain import weights as weight_state
from rolloutfleet_proxy.domain.errors import Paused, StillGenerating
from rolloutfleet_proxy.domain.weights import HOLDING_MODES, WeightState
from rolloutfleet_proxy.engine.client import LONGEST_REST

STRAGGLER_GRACE = 3.0
"""Seconds that the parts of aborted calls have to come back in. What then is still out was behind the pause: the
paused engine holds it unbegun, so the proxy cuts it itself and sends it anew later."""


class Cut(asyncio.Event):
    """A context that ends early, and quietly, once it is set: to wait for an event would take a task."""

    def __init__(self) -> None:
        super().__init__()
        self._task: asyncio.Task[Any] | None = None
        """The one that is within."""
        self._cancelling = 0

    def set(self) -> None:
        if self._task is not None and not self.is_set():
            self._task.cancel()
        super().set()

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        if self.is_set():
            task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        task, self._task = self._task, None
        assert task is not None
        # As asyncio.timeout does it: somebody else may have cancelled the task as well.
        return self.is_set() and task.uncancel() <= self._cancelling and kind is asyncio.CancelledError


class Submission:
    """One turn's leave to generate; an async context manager around all its rounds.

    Entering and `resumed` raise Paused where the pause, or the wait for the peers' answers, is past `max_hold`.
    """

    __slots__ = ("_gate", "cut", "held_in_place", "mixed_cache", "run")

    def __init__(self, gate: "PauseGate") -> None:
        self._gate = gate
        self.run = gate.run
        """The training run that was current when the first round was sent."""
        self.mixed_cache = False
        """The version changed in an in_place pause while a round was out, or a round may have met a prefix cache that
        other weights computed."""
        self.held_in_place = False
        """A round was out in an in_place pause: one with two versions then stands on a mixed cache, too."""
        self.cut = Cut()
        """Set when a round is behind a pause in abort mode: give it up, and send it again once `resumed`."""

    async def __aenter__(self) -> Self:
        await self._gate._begun()
        self.run = self._gate.run
        self._gate._enter(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate._leave(self)

    async def resumed(self) -> None:
        """Return when not paused; a call that waits here is not in flight."""
        if self._gate.paused:
            self._gate._leave(self)
            await self._gate._passed()
        self.cut.clear()
        self._gate._enter(self)

    async def rest(self, seconds: float, *, unbegun: bool) -> None:
        """Sleep between retries, not in flight; call `resumed` next. An `unbegun` call has no tokens yet."""
        self._gate._leave(self)
        self._gate.unbegun += unbegun
        try:
            await asyncio.sleep(seconds)
        finally:
            self._gate.unbegun -= unbegun


class PauseGate:
    """Version, run, epoch and pause as they are in force, and the calls that were submitted."""

    def __init__(
        self,
        state: WeightState,
        *,
        max_hold: float,
        paused_for: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The pause, if there is one, has lasted `paused_for` seconds."""
        self.state = state
        self._max_hold = max_hold
        self._clock = clock
        self._paused_at = clock() - paused_for
        self._pauses = 0.0
        """Seconds of all pauses that are over."""
        self.starting = False
        """Whether calls wait because the peers have not been asked yet how things stand. `end_starting` ends that."""
        self.unbegun = 0
        """Calls that wait and have no tokens yet, and so lose nothing if they are asked for again."""
        self._calls: set[Submission] = set()
        self._held = Broadcast()
        self._settling = Broadcast()

    @property
    def version(self) -> int:
        return self.state.versions.version

    @property
    def run(self) -> int:
        return self.state.versions.run

    @property
    def epoch(self) -> int:
        return self.state.gate.epoch

    @property
    def paused(self) -> bool:
        return self.state.gate.paused

    @property
    def in_flight(self) -> int:
        """Calls that an engine works for, or holds."""
        return len(self._calls)

    @property
    def waiting(self) -> int:
        """Calls that wait for the pause to end."""
        return self._held.waiting

    @property
    def max_hold(self) -> float:
        """Seconds that a call waits at the most, for the end of a pause or for an engine that can be reached."""
        return self._max_hold

    @property
    def overdue(self) -> bool:
        """Whether the pause is past `max_hold`."""
        return self.paused and self._hold_left() <= 0

    def served(self) -> float:
        """A clock that stands still in pauses, seconds."""
        return (self._paused_at if self.paused else self._clock()) - self._pauses

    def figures(self) -> dict[str, Any]:
        """What GET /version answers of this proxy."""
        return {**self.state.shown(), "past_max_hold": self.overdue}

    def hold_for(self, max_hold: float) -> None:
        """Let calls wait so many seconds of a pause from now on, those included that wait already."""
        self._max_hold = max_hold
        self._held.wake()

    def submission(self) -> Submission:
        return Submission(self)

    async def settled(self, *, epoch: int, timeout: float) -> None:
        """Return when nothing of this proxy generates; at once in the modes that leave calls at the engines.

        In abort mode the engines must have been paused before. Raises StillGenerating past `timeout` seconds, and
        Stale where the pause of this epoch is over.
        """
        started = self._clock()
        while True:
            gate, waited = self.state.gate, self._clock() - started
            if not gate.paused or gate.epoch != epoch:
                raise weight_state.stale_epoch(epoch, gate)
            if not self._calls:
                return
            if gate.mode in HOLDING_MODES:
                # What the engines sent before is read by then, and counted to the version that made it.
                await asyncio.sleep(LONGEST_REST)
                return
            if waited >= timeout:
                raise StillGenerating(f"{len(self._calls)} calls were still in flight after {timeout:g} s.")
            until = timeout
            if gate.mode == "abort" and waited < STRAGGLER_GRACE:
                until = min(timeout, STRAGGLER_GRACE)
            elif gate.mode == "abort":
                self._cut()
            await self._settling.wait(until - waited)

    def end_starting(self) -> None:
        self.starting = False
        self._held.wake()

    def apply(self, after: WeightState) -> None:
        """Follow the store, which has this state now."""
        before, self.state = self.state, after
        if before.gate.mode == "in_place" and after.versions != before.versions:
            for call in self._calls:
                call.mixed_cache = True
        if after.gate == before.gate:
            return
        now = self._clock()
        if before.gate.paused:
            self._pauses += now - self._paused_at
        if after.gate.paused:
            self._paused_at = now
        if after.gate.mode == "in_place":
            for call in self._calls:
                call.held_in_place = True
        self._held.wake()
        self._settling.wake()

    def _enter(self, call: Submission) -> None:
        self._calls.add(call)

    def _leave(self, call: Submission) -> None:
        self._calls.discard(call)
        if not self._calls:
            self._settling.wake()

    def _cut(self) -> None:
        for call in self._calls:
            call.cut.set()

    def _hold_left(self) -> float:
        return self._paused_at + self._max_hold - self._clock()

    async def _begun(self) -> None:
        """Wait for the first round."""
        self.unbegun += 1
        try:
            await self._passed()
        finally:
            self.unbegun -= 1

    async def _passed(self) -> None:
        began = self._clock()
        while self.paused or self.starting:
            left = self._hold_left() if self.paused else began + self._max_hold - self._clock()
            if left <= 0:
                why = "been paused" if self.paused else "waited to learn the fleet's version"
                raise Paused(f"Generation has {why} for more than {self._max_hold:g} s (epoch {self.epoch}).")
            await self._held.wait(left)
