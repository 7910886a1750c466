"""Several proxies agree on epochs, pauses and versions over a network that loses, delays and repeats messages.

The proxies and their protocol are the real ones; network, engines and time are simulated, so a run of minutes takes
no time, and the same seed gives the same run.
"""

import asyncio
import random
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.proxy.services import Told
from tests.unit.proxy.stores import new_turn

from rolloutfleet.errors import ENGINE_UNREACHABLE, FORBIDDEN_SCOPE, INVALID_REQUEST, LOAD_FAILED
from rolloutfleet.wire import LAST_EPOCH, LAST_RUN, LoadFromDisk, StartSessions
from rolloutfleet_proxy.cluster.weights import FleetMember, FleetWeights
from rolloutfleet_proxy.domain.errors import (
    DomainError,
    ForbiddenScope,
    InvalidRequest,
    OwnerUnavailable,
    Stale,
    StepRefused,
)
from rolloutfleet_proxy.domain.recovery import Counts
from rolloutfleet_proxy.domain.weights import Gate, Recovery, Versions, WeightState
from rolloutfleet_proxy.engine.pause_gate import PauseGate, Submission
from rolloutfleet_proxy.http.errors import status_of
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.services.weights import WeightService
from rolloutfleet_proxy.store import schema
from rolloutfleet_proxy.store.sessions import start
from rolloutfleet_proxy.store.trajectories import close_session
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.turns import commit_turn
from rolloutfleet_proxy.store.weights import AtStake
from rolloutfleet_proxy.store.writer import Writer

T = TypeVar("T")

TIMEOUT = 5.0
"""Seconds until an answer that does not come is given up."""


class MemoryStore(Writer):
    """Commits after a while, and checks that what it is given never goes back."""

    def __init__(self, chance: random.Random) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.chance = chance
        self.orders: list[tuple[int, bool]] = []
        schema.migrate(self.connection)

    async def run(self, operation: Callable[[Transaction], T], *, frees: bool = False, waits: bool = False) -> T:
        await asyncio.sleep(self.chance.uniform(0, 0.01))
        return operation(Transaction(self.connection, served=0.0, wall=0.0))


class SimulatedEngines:
    """Shared by the fleet. Cuts what runs when paused in abort mode."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.mode: str | None = None
        self.changed = asyncio.Event()
        self.broken = False
        self.known = ["http://engine"]
        self.loaded: list[tuple[str, int, bool]] = []
        """(path, version, whether it flushed) of each load that began."""
        self.loading = 5.0
        """Seconds that a load takes."""
        self.says_no = False

    async def engines(self) -> list[str]:
        return self.known

    async def pause(self, mode: str) -> dict[str, str]:
        await asyncio.sleep(self.chance.uniform(0, 1))
        if self.broken:
            return {"http://engine": "it did not confirm"}
        self._become(mode)
        return {}

    async def resume(self) -> dict[str, str]:
        await asyncio.sleep(self.chance.uniform(0, 1))
        self._become(None)
        return {}

    async def load(self, path: str, version: int, *, flush_cache: bool, timeout: float) -> dict[str, str]:
        self.loaded.append((path, version, flush_cache))
        await asyncio.sleep(self.loading)
        return {"http://engine": "no such file"} if self.says_no else {}

    async def generate(self, seconds: float) -> bool:
        """False where it was cut. What comes while paused is held unbegun."""
        loop = asyncio.get_running_loop()
        left = seconds
        while left > 0:
            began, changed, running = loop.time(), self.changed, self.mode is None
            try:
                async with asyncio.timeout(left if running else None):
                    await changed.wait()
            except TimeoutError:
                return True
            if running and self.mode == "abort":
                return False
            left -= loop.time() - began if running else 0.0
        return True

    def _become(self, mode: str | None) -> None:
        self.mode = mode
        self.changed.set()
        self.changed = asyncio.Event()


@dataclass
class Network:
    chance: random.Random
    loss: float = 0.0
    delay: float = 0.05
    under_way: set[asyncio.Task[Any]] = field(default_factory=set)

    async def carry(self, ask: Callable[[], Coroutine[Any, Any, T]], *, timeout: float = TIMEOUT) -> T:
        """The answer, or nobody there: lost on the way there or back, or too late. May arrive twice."""
        if self._happens():
            raise await self._given_up(timeout)
        arrival = self._arrive(ask)
        if self._happens():
            self._arrive(ask)
        try:
            async with asyncio.timeout(timeout):
                answer = await asyncio.shield(arrival)
        except TimeoutError:
            raise unreachable() from None
        if self._happens():
            raise await self._given_up(timeout)
        return answer

    async def _given_up(self, timeout: float) -> DomainError:
        await asyncio.sleep(timeout)
        return unreachable()

    def _happens(self) -> bool:
        return self.chance.random() < self.loss

    def _arrive(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> "asyncio.Task[T]":
        async def later() -> T:
            slow = 10 * TIMEOUT if self._happens() else self.delay
            await asyncio.sleep(self.chance.uniform(0, slow))
            return await ask()

        task = asyncio.create_task(later())
        self.under_way.add(task)
        task.add_done_callback(lambda _: None if task.cancelled() else task.exception())
        return task


def unreachable() -> DomainError:
    return OwnerUnavailable(0, "it does not answer")


@dataclass
class Node:
    ordinal: int
    weights: WeightService
    leads: FleetWeights


@dataclass
class Link:
    """How one node reaches another."""

    network: Network
    to: Node

    @property
    def ordinal(self) -> int:
        return self.to.ordinal

    async def state(self) -> WeightState:
        async def ask() -> WeightState:
            return self.to.weights.gate.state

        return await self.network.carry(ask)

    async def join(self, *, gate: Gate | None = None, versions: Versions | None = None) -> WeightState:
        return await self.network.carry(lambda: self.to.leads.heard(gate=gate, versions=versions))

    async def settled(self, *, epoch: int, timeout: float) -> None:
        await self.network.carry(
            lambda: self.to.weights.gate.settled(epoch=epoch, timeout=timeout), timeout=timeout + TIMEOUT
        )

    async def at_stake(self, *, run: int, version: int) -> AtStake:
        return await self.network.carry(lambda: self.to.weights.at_stake(run=run, version=version))

    async def recovery_counts(self, run: int) -> Counts:
        return await self.network.carry(lambda: self.to.weights.recovery_counts(run))


class Fleet:
    def __init__(self, seed: int, *, size: int = 3, loss: float = 0.0, delay: float = 0.05) -> None:
        self.chance = random.Random(seed)
        self.network = Network(self.chance, loss=loss, delay=delay)
        self.engines = SimulatedEngines(self.chance)
        self.clock = asyncio.get_running_loop().time
        self.stores: list[MemoryStore] = []
        self.nodes = [self._node(ordinal) for ordinal in range(size)]
        self.agents: list[asyncio.Task[None]] = []
        self.turns = 0

    def _node(self, ordinal: int) -> Node:
        self.stores.append(MemoryStore(self.chance))
        gate = PauseGate(WeightState(), max_hold=1e6, clock=self.clock)
        weights = WeightService(gate=gate, writer=self.stores[-1], follow=Told().append, wall=self.clock)
        leads = FleetWeights(weights, ordinal=ordinal, engines=self.engines, clock=self.clock)
        return Node(ordinal, weights, leads)

    def others(self, leader: int) -> list[FleetMember]:
        return [Link(self.network, node) for node in self.nodes if node.ordinal != leader]

    def work(self, *, agents: int = 1, seconds: float = 8.0) -> None:
        """Agents at every proxy, each making turn after turn."""
        for node in self.nodes:
            for _ in range(agents):
                self.agents.append(asyncio.create_task(self._agent(node.weights, seconds)))

    async def _agent(self, weights: WeightService, seconds: float) -> None:
        while True:
            async with weights.gate.submission() as submission:
                while not await self._round(submission, self.chance.uniform(0.1, seconds)):
                    await submission.resumed()
            self.turns += 1
            await asyncio.sleep(self.chance.uniform(0, 0.2))

    async def _round(self, submission: Submission, seconds: float) -> bool:
        """One request to the engines, given up where the proxy cuts it."""
        work = asyncio.ensure_future(self.engines.generate(seconds))
        cut = asyncio.ensure_future(submission.cut.wait())
        try:
            await asyncio.wait([work, cut], return_when=asyncio.FIRST_COMPLETED)
            return work.done() and work.result()
        finally:
            work.cancel()
            cut.cancel()

    async def quiet(self) -> None:
        """Until no message is under way any more."""
        while self.network.under_way:
            task = self.network.under_way.pop()
            await asyncio.wait([task])

    async def over(self) -> None:
        for agent in self.agents:
            agent.cancel()
        await asyncio.gather(*self.agents, return_exceptions=True)
        await self.quiet()

    def in_flight(self) -> int:
        return sum(node.weights.gate.in_flight for node in self.nodes)

    async def pause(
        self, leader: int = 0, *, mode: Any = "abort", timeout: float = 60.0, epoch: int | None = None
    ) -> Any:
        return await self.nodes[leader].leads.pause(self.others(leader), mode=mode, timeout=timeout, epoch=epoch)

    async def resume(self, leader: int = 0, *, epoch: int | None = None) -> Any:
        return await self.nodes[leader].leads.resume(self.others(leader), epoch=epoch)

    async def load(self, leader: int = 0, *, path: str = "step-1", version: int = 1, **more: Any) -> Any:
        asked = LoadFromDisk(path=path, version=version, **more)
        return await self.nodes[leader].leads.load(self.others(leader), asked)

    def states(self) -> set[tuple[int, int, bool]]:
        """(version, epoch, paused) of all."""
        gates = [node.weights.gate.state for node in self.nodes]
        return {(gate.versions.version, gate.gate.epoch, gate.gate.paused) for gate in gates}


@dataclass(frozen=True)
class Step:
    """What a trainer asks for, of which proxy, after how long, and whether it waits for the answer."""

    after: float
    leader: int
    kind: str
    epoch: int | None
    mode: str
    timeout: float
    waits: bool


steps = st.builds(
    Step,
    after=st.sampled_from([0.0, 0.0, 0.05, 0.4, 1.0, 3.0, 20.0]),
    leader=st.integers(0, 2),
    kind=st.sampled_from(["pause", "pause", "continue"]),
    epoch=st.none() | st.integers(1, 3),
    mode=st.sampled_from(["abort", "wait", "retract", "in_place"]),
    timeout=st.sampled_from([0.5, 5.0, 60.0]),
    waits=st.booleans(),
)


@dataclass(frozen=True)
class Answered:
    """How a step ended: where it left the fleet, and whom it named as not told."""

    order: tuple[int, bool]
    failed: frozenset[int]


async def taken(fleet: Fleet, step: Step) -> Answered | None:
    """None where the step was refused, for being old or because engines failed."""
    try:
        if step.kind == "pause":
            answer = await fleet.pause(step.leader, mode=step.mode, timeout=step.timeout, epoch=step.epoch)
        else:
            answer = await fleet.resume(step.leader, epoch=step.epoch)
    except StepRefused as refused:
        if isinstance(refused, Stale) and "failed" not in refused.beside:
            return None
        answer = refused.beside
        if isinstance(refused, Stale):
            answer = {**answer, "paused": False}
    return Answered((answer["epoch"], not answer["paused"]), frozenset(one["ordinal"] for one in answer["failed"]))


async def all_taken(fleet: Fleet, plan: list[Step]) -> list[Answered]:
    running = []
    for step in plan:
        await asyncio.sleep(step.after)
        task = asyncio.create_task(taken(fleet, step))
        running.append(task)
        if step.waits:
            await task
    return [answer for answer in await asyncio.gather(*running) if answer is not None]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.lists(steps, max_size=6), st.sampled_from([0.0, 0.1, 0.4]))
def test_a_fleet_never_ends_half_paused_without_saying_who(seed: int, plan: list[Step], loss: float) -> None:
    async def run() -> None:
        fleet = Fleet(seed, loss=loss)
        fleet.work()
        answers = await all_taken(fleet, plan)
        await fleet.over()
        orders = {node.ordinal: node.weights.gate.state.gate.order for node in fleet.nodes}
        newest = max(orders.values())
        named = {ordinal for answer in answers if answer.order == newest for ordinal in answer.failed}
        behind = {ordinal for ordinal, order in orders.items() if order != newest}
        assert behind <= named, (orders, answers)

    asyncio.run(run())


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.lists(steps, max_size=6), st.sampled_from([0.01, 1.0, 4.0]))
def test_engines_go_with_the_fleet_however_steps_overlap(seed: int, plan: list[Step], delay: float) -> None:
    async def run() -> None:
        fleet = Fleet(seed, delay=delay)
        fleet.work()
        await all_taken(fleet, plan)
        await fleet.quiet()
        gates = [node.weights.gate.state.gate for node in fleet.nodes]
        assert len({gate.order for gate in gates}) == 1
        assert (fleet.engines.mode is not None) == gates[0].paused, gates
        turns = fleet.turns
        await asyncio.sleep(60)
        assert (fleet.turns == turns) == gates[0].paused
        await fleet.over()

    asyncio.run(run())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.2]), st.sampled_from(["abort", "wait", "retract", "in_place"]))
def test_a_pause_that_succeeds_leaves_nothing_generating_where_it_covers(seed: int, loss: float, mode: str) -> None:
    async def run() -> None:
        fleet = Fleet(seed, loss=loss)
        fleet.work()
        await asyncio.sleep(5)
        try:
            answer = await fleet.pause(mode=mode)
        except DomainError as error:
            assert loss
            assert status_of(error) == 504
            assert not fleet.nodes[0].weights.gate.paused
        else:
            covered = [node.weights for node in fleet.nodes if node.ordinal in answer["ordinals"]]
            assert sorted(answer["ordinals"] + [one["ordinal"] for one in answer["failed"]]) == [0, 1, 2]
            assert all(weights.gate.paused and weights.gate.epoch == answer["epoch"] for weights in covered)
            if mode in ("abort", "wait"):
                assert all(weights.gate.in_flight == 0 for weights in covered)
            before = [weights.gate.in_flight for weights in covered]
            await asyncio.sleep(100)
            assert [weights.gate.in_flight for weights in covered] <= before
        await fleet.over()

    asyncio.run(run())


@pytest.mark.parametrize("mode", ["abort", "wait", "retract", "in_place"])
def test_an_update_goes_through_and_the_agents_go_on(mode: str) -> None:
    async def run() -> None:
        fleet = Fleet(7)
        fleet.work()
        for version in (1, 2, 3):
            await asyncio.sleep(10)
            paused = await fleet.pause(version % 3, mode=mode)
            assert (paused["epoch"], paused["ordinals"], paused["failed"]) == (version, [0, 1, 2], [])
            assert fleet.engines.mode == ("retract" if mode == "wait" else mode)
            told = await fleet.nodes[0].leads.advance(fleet.others(0), version=version, epoch=version)
            assert (told["version"], told["ordinals"]) == (version, [0, 1, 2])
            gone_on = await fleet.resume(epoch=version)
            assert not gone_on["paused"]
            turns = fleet.turns
            await asyncio.sleep(10)
            assert fleet.turns > turns
        assert all(node.weights.gate.version == 3 for node in fleet.nodes)
        await fleet.over()

    asyncio.run(run())


def test_past_the_timeout_all_is_undone() -> None:
    async def run() -> None:
        fleet = Fleet(1)
        fleet.work(seconds=500)
        await asyncio.sleep(1)
        with pytest.raises(StepRefused) as late:
            await fleet.pause(mode="wait", timeout=10)
        assert (status_of(late.value), late.value.code) == (504, "pause_timeout")
        assert late.value.beside["failed"] == []
        assert not any(node.weights.gate.paused for node in fleet.nodes)
        assert fleet.engines.mode is None
        await fleet.over()

    asyncio.run(run())


def test_engines_that_fail_leave_nothing_paused() -> None:
    async def run() -> None:
        fleet = Fleet(1)
        fleet.engines.broken = True
        with pytest.raises(StepRefused) as failed:
            await fleet.pause(mode="in_place")
        assert (status_of(failed.value), failed.value.code) == (502, "engine_error")
        assert not any(node.weights.gate.paused for node in fleet.nodes)

    asyncio.run(run())


@dataclass
class CutOff:
    """The engines, as long as a proxy reaches them."""

    all: SimulatedEngines
    reached: bool = True

    async def engines(self) -> list[str]:
        return await self.all.engines()

    async def pause(self, mode: str) -> dict[str, str]:
        return await self.all.pause(mode)

    async def resume(self) -> dict[str, str]:
        return await self.all.resume() if self.reached else {"http://engine": "it did not confirm"}

    async def load(self, path: str, version: int, *, flush_cache: bool, timeout: float) -> dict[str, str]:
        return await self.all.load(path, version, flush_cache=flush_cache, timeout=timeout)


@pytest.mark.parametrize("leader", [0, 1])
def test_a_proxy_that_paused_the_engines_and_no_longer_reaches_them_stays_paused_is_named_and_goes_on_when_told_again(
    leader: int,
) -> None:
    async def run() -> None:
        fleet = Fleet(1, size=2)
        first, engines = fleet.nodes[0], CutOff(fleet.engines)
        first.leads = FleetWeights(first.weights, ordinal=0, engines=engines, clock=fleet.clock)
        await fleet.pause(0, mode="retract")
        engines.reached = False
        answer = await fleet.resume(1)
        assert [(one["ordinal"], one["error"].code) for one in answer["failed"]] == [(0, "engine_error")]
        assert answer["ordinals"] == [1] and not answer["paused"]
        shown = await fleet.nodes[leader].leads.show(fleet.others(leader))
        assert [one["paused"] for one in shown["proxies"]] == [True, False]
        engines.reached = True
        assert (await fleet.resume(leader))["failed"] == []
        assert not any(node.weights.gate.paused for node in fleet.nodes) and fleet.engines.mode is None

    asyncio.run(run())


def test_an_older_epoch_is_refused_and_changes_nothing() -> None:
    async def run() -> None:
        fleet = Fleet(1)
        await fleet.pause(0, epoch=5)
        before = [node.weights.gate.state for node in fleet.nodes]
        for step in (fleet.pause(1, epoch=4), fleet.resume(2, epoch=4), fleet.pause(1, epoch=5, mode="wait")):
            with pytest.raises(Stale) as refused:
                await step
            assert refused.value.beside["epoch"] == 5
        with pytest.raises(Stale):
            await fleet.nodes[1].leads.advance(fleet.others(1), version=1, epoch=4)
        assert [node.weights.gate.state for node in fleet.nodes] == before
        assert fleet.engines.mode == "abort"
        again = await fleet.pause(1, epoch=5)
        assert (again["epoch"], again["paused"]) == (5, True)

    asyncio.run(run())


def test_a_version_that_one_proxy_would_refuse_changes_none() -> None:
    async def run() -> None:
        fleet = Fleet(1)
        await fleet.nodes[2].weights.advance(9)
        with pytest.raises(Stale) as refused:
            await fleet.nodes[0].leads.advance(fleet.others(0), version=8, epoch=None)
        assert refused.value.beside["version"] == 9
        assert [node.weights.gate.version for node in fleet.nodes] == [0, 0, 9]
        with pytest.raises(Stale):
            await fleet.nodes[0].leads.recover(fleet.others(0), Recovery(run=0, version=1, newer="drop"))
        told = await fleet.nodes[0].leads.recover(fleet.others(0), Recovery(run=1, version=1, newer="keep"))
        assert (told["run"], told["version"], told["failed"]) == (1, 1, [])
        assert {(node.weights.gate.run, node.weights.gate.version) for node in fleet.nodes} == {(1, 1)}

    asyncio.run(run())


def hold_newer(store: MemoryStore, *, version: int, run: int = 0) -> None:
    """A session with a closed turn of this version."""
    transaction = Transaction(store.connection, served=0.0, wall=0.0)
    asked = StartSessions()
    _, [started] = start(transaction, Owner(0, "0" * 8), asked)
    assert started.record is not None
    commit_turn(transaction, new_turn(started.record.id, name="x", version=version, run=run))
    close_session(transaction, started.record.id)


def test_a_drop_that_goes_too_far_changes_nothing_anywhere_unless_it_is_confirmed() -> None:
    async def run() -> None:
        fleet = Fleet(1)
        for node in fleet.nodes:
            await node.weights.advance(10)
        hold_newer(fleet.stores[2], version=8)
        before = [node.weights.gate.state for node in fleet.nodes]
        asked = Recovery(run=1, version=4, newer="drop", open="delete")
        with pytest.raises(StepRefused) as refused:
            await fleet.nodes[0].leads.recover(fleet.others(0), asked)
        assert (status_of(refused.value), refused.value.code) == (409, "recovery_too_far")
        assert "discard 1 trajectories: 1 ready, 0 leased, 0 still open" in refused.value.message
        assert refused.value.beside["would_drop"] == {"ready": 1, "leased": 0, "open": 0}
        assert [node.weights.gate.state for node in fleet.nodes] == before
        told = await fleet.nodes[0].leads.recover(fleet.others(0), asked, confirmed=True)
        assert told["recovered"]["dropped_trajectories"] == 1
        assert (await fleet.nodes[1].leads.recover(fleet.others(1), asked))["run"] == 1, "again, it answers the same"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("version", "newer"), [(5, "drop"), (8, "drop"), (0, "keep")], ids=["half", "nothing newer", "kept"]
)
def test_a_recovery_that_is_near_or_drops_nothing_needs_no_confirmation(version: int, newer: str) -> None:
    async def run() -> None:
        fleet = Fleet(1)
        for node in fleet.nodes:
            await node.weights.advance(10)
        hold_newer(fleet.stores[2], version=8)
        told = await fleet.nodes[0].leads.recover(fleet.others(0), Recovery(run=1, version=version, newer=newer))
        assert (told["run"], told["failed"]) == (1, [])

    asyncio.run(run())


def test_to_zero_is_too_far_also_where_only_the_engines_named_versions() -> None:
    async def run() -> None:
        fleet = Fleet(1)
        assert (await fleet.nodes[0].leads.recover(fleet.others(0), Recovery(1, 0, "drop")))["run"] == 1, "nothing goes"
        hold_newer(fleet.stores[1], version=3, run=1)
        with pytest.raises(StepRefused) as refused:
            await fleet.nodes[0].leads.recover(fleet.others(0), Recovery(2, 0, "drop"))
        assert refused.value.code == "recovery_too_far"

    asyncio.run(run())


def test_what_a_proxy_that_is_down_holds_counts_as_something_that_would_go() -> None:
    async def run() -> None:
        fleet = Fleet(1)
        await fleet.nodes[0].weights.advance(10)
        down = Link(Network(fleet.chance, loss=1.0), fleet.nodes[2])
        reached = [*(link for link in fleet.others(0) if link.ordinal != 2), down]
        with pytest.raises(StepRefused, match=r"proxies that do not answer \(2\)") as refused:
            await fleet.nodes[0].leads.recover(reached, Recovery(run=1, version=4, newer="drop"))
        assert [one["ordinal"] for one in refused.value.beside["failed"]] == [2]
        assert fleet.nodes[0].weights.gate.run == 0
        near = await fleet.nodes[0].leads.recover(reached, Recovery(run=1, version=5, newer="drop"))
        assert [one["ordinal"] for one in near["failed"]] == [2]

    asyncio.run(run())


def test_a_proxy_alone_covers_itself_and_says_so() -> None:
    async def run() -> None:
        fleet = Fleet(1)
        answer = await fleet.nodes[1].leads.pause([], mode="abort", timeout=10, epoch=None)
        assert answer["ordinals"] == [1]
        assert [node.weights.gate.paused for node in fleet.nodes] == [False, True, False]
        shown = await fleet.nodes[0].leads.show(fleet.others(0))
        assert [one["paused"] for one in shown["proxies"]] == [False, True, False]
        assert (shown["epoch"], shown["paused"]) == (1, True)

    asyncio.run(run())


def test_a_proxy_that_is_down_is_named_and_catches_up_when_it_starts() -> None:
    async def run() -> None:
        fleet = Fleet(1)
        down = fleet.nodes[2]
        reached = [link for link in fleet.others(0) if link.ordinal != 2]
        lost = Network(fleet.chance, loss=1.0)
        answer = await fleet.nodes[0].leads.pause([*reached, Link(lost, down)], mode="abort", timeout=60, epoch=None)
        assert (answer["ordinals"], [one["ordinal"] for one in answer["failed"]]) == ([0, 1], [2])
        assert not down.weights.gate.paused
        await down.weights.adopt([node.weights.gate.state for node in fleet.nodes[:2]])
        assert (down.weights.gate.paused, down.weights.gate.epoch) == (True, 1)

    asyncio.run(run())


@dataclass
class Refusing(Link):
    """A node that answers one of the steps with an error, and goes on generating."""

    step: str = "join"

    async def join(self, *, gate: Gate | None = None, versions: Versions | None = None) -> WeightState:
        if self.step == "join" and gate is not None and gate.paused:
            raise ForbiddenScope("This key is not the admin's.")
        return await super().join(gate=gate, versions=versions)

    async def settled(self, *, epoch: int, timeout: float) -> None:
        if self.step == "settled":
            raise InvalidRequest("epoch is too large.")
        await super().settled(epoch=epoch, timeout=timeout)


@pytest.mark.parametrize("mode", ["abort", "wait", "retract", "in_place"])
@pytest.mark.parametrize(("step", "code"), [("join", FORBIDDEN_SCOPE), ("settled", INVALID_REQUEST)])
def test_a_proxy_that_answers_and_does_not_pause_ends_the_pause_and_is_named(step: str, code: str, mode: Any) -> None:
    async def run() -> None:
        fleet = Fleet(1)
        links: list[FleetMember] = [
            Link(fleet.network, fleet.nodes[1]),
            Refusing(fleet.network, fleet.nodes[2], step=step),
        ]
        with pytest.raises(StepRefused) as refused:
            await fleet.nodes[0].leads.pause(links, mode=mode, timeout=60, epoch=None)
        error = refused.value
        assert (status_of(error), error.code) == (504, "pause_timeout")
        assert [(one["ordinal"], one["error"].code) for one in error.beside["failed"]] == [(2, code)]
        assert error.beside["ordinals"] == [0, 1] and not error.beside["paused"]
        assert "proxy 2" in error.message and "as far as" not in error.message
        assert not any(node.weights.gate.paused for node in fleet.nodes)
        assert fleet.engines.mode is None

    asyncio.run(run())


def test_epochs_end_where_every_proxy_says_so() -> None:
    async def run() -> None:
        fleet = Fleet(1)
        with pytest.raises(DomainError, match="the current one is 0") as leap:
            await fleet.pause(epoch=LAST_EPOCH)
        assert (status_of(leap.value), leap.value.param) == (400, "epoch")
        for node in fleet.nodes:
            await node.weights.join_gate(Gate(epoch=LAST_EPOCH - 1))
        answer = await fleet.pause(epoch=LAST_EPOCH)
        assert answer["epoch"] == LAST_EPOCH and answer["ordinals"] == [0, 1, 2]
        await fleet.resume()
        with pytest.raises(DomainError) as refused:
            await fleet.pause()
        assert (status_of(refused.value), refused.value.param) == (400, "epoch")
        assert {node.weights.gate.state.gate.order for node in fleet.nodes} == {(LAST_EPOCH, True)}

    asyncio.run(run())


def test_a_state_beyond_the_last_epoch_or_run_is_none() -> None:
    told = WeightState(versions=Versions(run=LAST_RUN), gate=Gate(epoch=LAST_EPOCH)).as_json()
    assert WeightState.from_json(told).gate.epoch == LAST_EPOCH
    for wrong in ({"epoch": LAST_EPOCH + 1}, {"version": 2**31}, {"run": LAST_RUN + 1}, {"epoch": -1}, {"epoch": True}):
        with pytest.raises(ValueError, match="whole number"):
            WeightState.from_json(told | wrong)


def test_a_call_behind_the_pause_is_cut_by_its_proxy() -> None:
    async def run() -> None:
        fleet = Fleet(1)
        weights = fleet.nodes[0].weights

        async def unbegun() -> None:
            async with weights.gate.submission() as submission:
                await submission.cut.wait()
                await submission.resumed()

        call = asyncio.create_task(unbegun())
        await asyncio.sleep(1)
        answer = await fleet.pause(timeout=20)
        assert answer["paused"]
        assert not call.done()
        await fleet.resume()
        await call

    asyncio.run(run())


def test_a_leader_whose_caller_goes_away_undoes_the_pause() -> None:
    async def run() -> None:
        fleet = Fleet(1)
        fleet.work(seconds=500)
        await asyncio.sleep(1)
        pause = asyncio.create_task(fleet.pause(mode="wait"))
        await asyncio.sleep(10)
        assert all(node.weights.gate.paused for node in fleet.nodes)
        pause.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pause
        assert not any(node.weights.gate.paused for node in fleet.nodes)
        await fleet.over()

    asyncio.run(run())


def _unused(_: Awaitable[None]) -> None: ...


@pytest.mark.parametrize("mode", ["abort", "wait", "retract", "in_place"])
def test_a_load_pauses_loads_sets_the_version_and_continues(mode: str) -> None:
    async def run() -> None:
        fleet = Fleet(1)
        fleet.work()
        load = asyncio.create_task(fleet.load(mode=mode, epoch=3))
        while not fleet.engines.loaded:
            await asyncio.sleep(0.1)
        assert fleet.states() == {(0, 3, True)} and fleet.engines.mode is not None
        answer = await load
        assert (answer["version"], answer["epoch"], answer["paused"]) == (1, 3, False)
        assert (answer["ordinals"], answer["failed"]) == ([0, 1, 2], [])
        assert fleet.states() == {(1, 3, False)} and fleet.engines.mode is None
        assert fleet.engines.loaded == [("step-1", 1, mode != "in_place")]
        flushed = {node.weights.gate.state.versions.flushed for node in fleet.nodes}
        assert flushed == {0 if mode == "in_place" else 1}
        await fleet.over()

    asyncio.run(run())


def test_an_engine_that_does_not_load_is_named_and_the_fleet_stays_paused_until_it_does() -> None:
    async def run() -> None:
        fleet = Fleet(1)
        fleet.engines.says_no = True
        with pytest.raises(StepRefused) as failed:
            await fleet.load(epoch=4)
        assert (status_of(failed.value), failed.value.code) == (502, LOAD_FAILED)
        assert (
            "http://engine: no such file" in failed.value.message and "stays paused (epoch 4)" in failed.value.message
        )
        assert failed.value.beside["engines_failed"] == {"http://engine": "no such file"}
        assert fleet.states() == {(0, 4, True)} and fleet.engines.mode == "abort"
        fleet.engines.says_no = False
        assert not (await fleet.load(1))["paused"]
        assert fleet.states() == {(1, 5, False)}

    asyncio.run(run())


def test_a_load_asked_for_again_is_the_same_one_and_done_when_it_is_done() -> None:
    async def run() -> None:
        fleet = Fleet(1)
        first, second = await asyncio.gather(fleet.load(epoch=1), fleet.load(epoch=1))
        assert first == second and len(fleet.engines.loaded) == 1
        for leader in (0, 1):
            again = await fleet.load(leader, epoch=1)
            assert (again["version"], again["epoch"], again["paused"]) == (1, 1, False)
        assert len(fleet.engines.loaded) == 1
        await fleet.load(version=2, epoch=2)
        assert fleet.states() == {(2, 2, False)} and len(fleet.engines.loaded) == 2

    asyncio.run(run())


def test_a_load_goes_on_when_its_caller_has_gone() -> None:
    async def run() -> None:
        fleet = Fleet(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await fleet.load(epoch=1)
        await asyncio.sleep(30)
        assert fleet.states() == {(1, 1, False)}

    asyncio.run(run())


def test_a_load_whose_leader_died_is_done_over_by_another_one() -> None:
    async def run() -> None:
        fleet = Fleet(1)
        first = asyncio.create_task(fleet.load(0, epoch=1))
        while not fleet.engines.loaded:
            await asyncio.sleep(0.1)
        assert fleet.nodes[0].leads._loading is not None
        fleet.nodes[0].leads._loading[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert fleet.states() == {(0, 1, True)}
        assert not (await fleet.load(1, epoch=1))["paused"]
        assert fleet.states() == {(1, 1, False)} and len(fleet.engines.loaded) == 2

    asyncio.run(run())


def test_a_load_led_by_two_proxies_at_once_ends_well_at_both() -> None:
    async def run() -> None:
        fleet = Fleet(1)
        first = asyncio.create_task(fleet.load(0, epoch=1))
        await asyncio.sleep(4)
        fleet.engines.says_no = True  # a flush fails once the other one has let the engines go on
        second = asyncio.create_task(fleet.load(1, epoch=1))
        await asyncio.sleep(0.5)
        fleet.engines.says_no = False
        answers = await asyncio.gather(first, second)
        assert {(answer["version"], answer["epoch"], answer["paused"]) for answer in answers} == {(1, 1, False)}
        assert fleet.states() == {(1, 1, False)} and fleet.engines.mode is None

    asyncio.run(run())


def test_a_load_that_cannot_be_is_refused_before_anything_is_paused() -> None:
    async def run() -> None:
        fleet = Fleet(1)
        await fleet.nodes[2].weights.advance(9)
        with pytest.raises(Stale):
            await fleet.load(version=8)
        fleet.engines.known = []
        with pytest.raises(DomainError) as refused:
            await fleet.load(version=10)
        assert refused.value.code == ENGINE_UNREACHABLE
        fleet.engines.known, fleet.engines.broken = ["http://engine"], True
        with pytest.raises(StepRefused):
            await fleet.load(version=10, mode="in_place")
        assert not any(node.weights.gate.paused for node in fleet.nodes) and not fleet.engines.loaded

    asyncio.run(run())
