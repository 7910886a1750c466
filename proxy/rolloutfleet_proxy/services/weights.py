"""Versions, runs and pauses of this proxy: what is agreed upon is durable first, and then in force at its gate."""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from rolloutfleet.wire import PauseMode
from rolloutfleet_proxy.domain import weights as weight_state
from rolloutfleet_proxy.domain.recovery import Counts
from rolloutfleet_proxy.domain.weights import Gate, Recovery, Versions, WeightState
from rolloutfleet_proxy.engine.pause_gate import PauseGate
from rolloutfleet_proxy.store import recoveries
from rolloutfleet_proxy.store.weights import Applied, AtStake, at_stake, save
from rolloutfleet_proxy.store.writer import Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightService:
    """Changes version, run, epoch and pause, and ends the sessions that a recovery ends."""

    gate: PauseGate
    writer: Writer
    follow: Callable[[Applied], None]
    """Follows in memory what a recovery did to sessions."""
    wall: Callable[[], float] = time.time
    _changing: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    async def hold(self, *, epoch: int, mode: PauseMode) -> None:
        """Stop submitting; from the return on, no call is sent to an engine. Safe to repeat. Raises Stale."""
        await self._change(lambda state: weight_state.paused(state, epoch=epoch, mode=mode, now=self.wall()))

    async def release(self, *, epoch: int) -> None:
        """Submit again. Safe to repeat, and right for an epoch that this proxy never heard of. Raises Stale."""
        await self._change(lambda state: weight_state.released(state, epoch=epoch, now=self.wall()))

    async def advance(self, version: int, *, epoch: int | None = None, flush_cache: bool | None = None) -> None:
        """Go to a version that is no older; `flush_cache` is that of `wire.SetVersion`. Raises Stale."""
        await self._change(
            lambda state: weight_state.advanced(state, version=version, epoch=epoch, flush_cache=flush_cache)
        )

    async def recover(self, to: Recovery) -> None:
        """Begin a new run at a version that may be older. Safe to repeat. Raises Stale."""
        await self._change(lambda state: weight_state.recovered(state, to))

    async def at_stake(self, *, run: int, version: int) -> AtStake:
        """What a recovery would drop here."""
        return await self.writer.run(partial(at_stake, run=run, version=version))

    async def recovery_counts(self, run: int) -> Counts:
        """What the recovery that began this run has done here so far."""
        return await self.writer.run(partial(recoveries.counts, run=run))

    async def join_gate(self, heard: Gate) -> None:
        """Take another proxy's epoch and pause where they are newer."""
        await self._change(lambda state: weight_state.joined(state, replace(state, gate=heard)))

    async def join_versions(self, heard: Versions) -> None:
        """Take another proxy's run and version where they are newer, and catch up on recoveries."""
        await self._change(lambda state: weight_state.joined(state, replace(state, versions=heard)))

    async def adopt(self, answers: Iterable[WeightState]) -> None:
        """What a starting proxy does: take the newest of its own and of those peers that answered.

        It must listen before it asks: a pause that did not reach it is then known to the one who paused, who holds
        before telling others.
        """
        for answer in answers:
            await self.join_versions(answer.versions)
            await self.join_gate(answer.gate)
        self.gate.end_starting()

    async def _change(self, transition: Callable[[WeightState], WeightState]) -> None:
        # In a task of its own: a caller that goes away must not leave memory and disk apart.
        await asyncio.shield(asyncio.create_task(self._changed(transition)))

    async def _changed(self, transition: Callable[[WeightState], WeightState]) -> None:
        async with self._changing:
            after = transition(self.gate.state)
            if after != self.gate.state:
                # A recovery frees. So does a trainer, which takes what there is as long as it can pause and go on.
                applied = await self.writer.run(partial(save, before=self.gate.state, after=after), frees=True)
                self.gate.apply(after)
                self.follow(applied)
