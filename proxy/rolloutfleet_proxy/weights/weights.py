"""The weights as one proxy knows them, durable, and the gate that each of its generations passes.

A turn holds a `Submission` while an engine works for it:

    async with weights.submission() as submission:      # waits while paused
        ...                                             # a round; cut by a pause in abort mode:
        await submission.resumed()                      # waits while paused, and is not in flight meanwhile
        ...                                             # the next round

A pause never ends by itself. Past `max_hold` seconds of it, calls that wait get 503.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import msgspec

from rolloutfleet.wire import LAST_EPOCH, LAST_RUN, PauseMode
from rolloutfleet_proxy.domain.errors import Paused, StillGenerating
from rolloutfleet_proxy.engines.client import LONGEST_REST
from rolloutfleet_proxy.engines.generation import Cut
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.turns import lineage
from rolloutfleet_proxy.turns.lineage import Counts
from rolloutfleet_proxy.weights import recovery
from rolloutfleet_proxy.weights import state as weight_state
from rolloutfleet_proxy.weights.recovery import Applied, AtStake
from rolloutfleet_proxy.weights.state import HOLDING_MODES, Gate, Recovery, Versions, WeightState

T = TypeVar("T")

STRAGGLER_GRACE = 3.0
"""Seconds that the parts of aborted calls have to come back in. What then is still out was behind the pause: the
paused engine holds it unbegun, so the proxy cuts it itself and sends it anew later."""

FOUND_AGAIN = 15.0
"""Seconds after a pause within which a gateway may still take the engines for dead: their health checks are held by
a pause as generations are."""

_RUN = "run"
_VERSION = "version"
_EPOCH = "epoch"
_PAUSE = "pause"
_LEFT_OPEN = "recoveries_left_open"


class Store(Protocol):
    """The part of the store's writer that is used here."""

    def run(self, operation: Callable[[Transaction], T], /, *, frees: bool = False) -> Awaitable[T]: ...


class Submission:
    """One turn's leave to generate; an async context manager around all its rounds.

    Entering and `resumed` raise Paused where the pause is past `max_hold`.
    """

    __slots__ = ("_weights", "cut", "held_in_place", "mixed_cache", "run")

    def __init__(self, weights: "Weights") -> None:
        self._weights = weights
        self.run = weights.run
        """The training run that was current when the first round was sent."""
        self.mixed_cache = False
        """The version changed in an in_place pause while a round was out."""
        self.held_in_place = False
        """A round was out in an in_place pause: one with two versions then stands on a mixed cache, too."""
        self.cut = Cut()
        """Set when a round is behind a pause in abort mode: give it up, and send it again once `resumed`."""

    async def __aenter__(self) -> Self:
        await self._weights._begun()
        self.run = self._weights.run
        self._weights._enter(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._weights._leave(self)

    async def resumed(self) -> None:
        """Return when not paused; a call that waits here is not in flight."""
        if self._weights.paused:
            self._weights._leave(self)
            await self._weights._passed()
        self.cut.clear()
        self._weights._enter(self)


class Weights:
    """Version, run, epoch and pause of this proxy, and the calls that it has submitted."""

    def __init__(
        self,
        state: WeightState,
        *,
        store: Store,
        max_hold: float,
        paused_for: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.state = state
        self.on_recovered: Callable[[Applied], object] = lambda applied: None
        """Told of sessions that a recovery ended, or freed the rows of."""
        self._store = store
        self._max_hold = max_hold
        self._clock = clock
        self._wall = wall
        self._paused_at = clock() - paused_for
        self._resumed_at = float("-inf")
        self._pauses = 0.0
        """Seconds of all pauses that are over."""
        self._changing = asyncio.Lock()
        self._starting = False
        self._unbegun = 0
        self._calls: set[Submission] = set()
        self._held: set[asyncio.Future[None]] = set()
        self._settling: set[asyncio.Future[None]] = set()

    @classmethod
    async def open(
        cls,
        store: Store,
        *,
        max_hold: float,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> Self:
        """As the store has them; a fresh store begins at version 0 of run 0, not paused."""
        state, paused_for = await store.run(_load)
        return cls(state, store=store, max_hold=max_hold, paused_for=paused_for, clock=clock, wall=wall)

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
        return len(self._held)

    @property
    def unbegun(self) -> int:
        """Of those the ones that have sent no round yet, and so lose nothing if they are asked for again."""
        return self._unbegun

    @property
    def starting(self) -> bool:
        """Whether calls wait because the peers have not been asked yet how things stand."""
        return self._starting

    @property
    def lately_resumed(self) -> bool:
        """Whether a pause ended so lately that the gateway may not have found the engines again."""
        return self._clock() - self._resumed_at < FOUND_AGAIN

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
        _wake(self._held)

    def submission(self) -> Submission:
        return Submission(self)

    async def hold(self, *, epoch: int, mode: PauseMode) -> None:
        """Stop submitting; from the return on, no call is sent to an engine. Safe to repeat. Raises Stale."""
        await self._change(lambda state: weight_state.paused(state, epoch=epoch, mode=mode, now=self._wall()))

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
            await _woken(self._settling, until - waited)

    async def release(self, *, epoch: int) -> None:
        """Submit again. Safe to repeat, and right for an epoch that this proxy never heard of. Raises Stale."""
        await self._change(lambda state: weight_state.released(state, epoch=epoch, now=self._wall()))

    async def advance(self, version: int, *, epoch: int | None = None) -> None:
        """Go to a version that is no older. Raises Stale."""
        await self._change(lambda state: weight_state.advanced(state, version=version, epoch=epoch))

    async def recover(self, to: Recovery) -> None:
        """Begin a new run at a version that may be older. Safe to repeat. Raises Stale."""
        await self._change(lambda state: weight_state.recovered(state, to))

    async def at_stake(self, *, run: int, version: int) -> AtStake:
        """What a recovery would drop here."""
        return await self._store.run(partial(recovery.at_stake, run=run, version=version))

    async def recovery_counts(self, run: int) -> Counts:
        """What the recovery that began this run has done here so far."""
        return await self._store.run(partial(lineage.counts, run=run))

    async def join_gate(self, heard: Gate) -> None:
        """Take another proxy's epoch and pause where they are newer."""
        await self._change(lambda state: weight_state.joined(state, replace(state, gate=heard)))

    async def join_versions(self, heard: Versions) -> None:
        """Take another proxy's run and version where they are newer, and catch up on recoveries."""
        await self._change(lambda state: weight_state.joined(state, replace(state, versions=heard)))

    def begin_starting(self) -> None:
        """Hold calls until the peers have been asked: `adopt` ends that."""
        self._starting = True

    async def adopt(self, answers: Iterable[WeightState]) -> None:
        """What a starting proxy does: take the newest of its own and of those peers that answered.

        It must listen before it asks: a pause that did not reach it is then known to the one who paused, who holds
        before telling others.
        """
        for answer in answers:
            await self.join_versions(answer.versions)
            await self.join_gate(answer.gate)
        self._starting = False
        _wake(self._held)

    async def _change(self, transition: Callable[[WeightState], WeightState]) -> None:
        # In a task of its own: a caller that goes away must not leave memory and disk apart.
        await asyncio.shield(asyncio.create_task(self._changed(transition)))

    async def _changed(self, transition: Callable[[WeightState], WeightState]) -> None:
        async with self._changing:
            after = transition(self.state)
            if after != self.state:
                # A recovery frees. So does a trainer, which takes what there is as long as it can pause and go on.
                applied = await self._store.run(partial(_save, before=self.state, after=after), frees=True)
                self._apply(after)
                self.on_recovered(applied)

    def _apply(self, after: WeightState) -> None:
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
        elif before.gate.paused:
            self._resumed_at = now
        if after.gate.mode == "in_place":
            for call in self._calls:
                call.held_in_place = True
        _wake(self._held)
        _wake(self._settling)

    def _enter(self, call: Submission) -> None:
        self._calls.add(call)

    def _leave(self, call: Submission) -> None:
        self._calls.discard(call)
        if not self._calls:
            _wake(self._settling)

    def _cut(self) -> None:
        for call in self._calls:
            call.cut.set()

    def _hold_left(self) -> float:
        return self._paused_at + self._max_hold - self._clock()

    async def _begun(self) -> None:
        """Wait for the first round."""
        self._unbegun += 1
        try:
            await self._passed()
        finally:
            self._unbegun -= 1

    async def _passed(self) -> None:
        while self.paused or self._starting:
            left = self._hold_left() if self.paused else self._max_hold
            if left <= 0:
                raise Paused(f"Generation has been paused for more than {self._max_hold:g} s (epoch {self.epoch}).")
            await _woken(self._held, left)


async def _woken(waiting: set[asyncio.Future[None]], timeout: float) -> None:
    """Wait for `_wake`, or for the time."""
    future = asyncio.get_running_loop().create_future()
    waiting.add(future)
    try:
        async with asyncio.timeout(timeout):
            await future
    except TimeoutError:
        pass
    finally:
        waiting.discard(future)


def _wake(waiting: set[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)


def _load(transaction: Transaction) -> tuple[WeightState, float]:
    """The state, and for how many served seconds it has been paused."""
    pause: dict[str, Any] = msgspec.json.decode(transaction.fact(_PAUSE, "{}"))
    state = WeightState.from_json(
        {
            # An earlier release took a larger run, and a larger epoch.
            "run": min(transaction.fact(_RUN, 0), LAST_RUN),
            "version": transaction.fact(_VERSION, 0),
            "recoveries": [(min(run, LAST_RUN), *how) for run, *how in lineage.load_recoveries(transaction)],
            "open": {
                str(min(int(run), LAST_RUN)): how
                for run, how in msgspec.json.decode(transaction.fact(_LEFT_OPEN, "{}")).items()
            },
            "epoch": min(transaction.fact(_EPOCH, 0), LAST_EPOCH),
            "mode": pause.get("mode"),
            "since": pause.get("since", 0.0),
        }
    )
    return state, transaction.served - pause.get("served", transaction.served)


def _save(transaction: Transaction, *, before: WeightState, after: WeightState) -> Applied:
    """Write what changed, and do what recoveries say; returns what that did to sessions."""
    form = after.as_json()
    transaction.set_fact(_RUN, form["run"])
    transaction.set_fact(_VERSION, form["version"])
    if after.gate != before.gate:
        pause = {"mode": form["mode"], "since": form["since"], "served": transaction.served}
        transaction.set_fact(_EPOCH, form["epoch"])
        transaction.set_fact(_PAUSE, msgspec.json.encode(pause).decode())
    heard = [one for one in after.versions.recoveries if one not in before.versions.recoveries]
    if heard:
        transaction.set_fact(_LEFT_OPEN, msgspec.json.encode(form["open"]).decode())
    return sum((recovery.apply(transaction, one) for one in heard), Applied())
