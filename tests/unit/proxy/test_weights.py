"""One proxy's version, run, epoch and pause."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.proxy.services import Told, open_weights
from tests.unit.proxy.stores import InlineStore

from rolloutfleet.wire import LAST_EPOCH, LAST_RUN, PauseMode
from rolloutfleet_proxy.domain.errors import DomainError, InvalidParameter, Stale
from rolloutfleet_proxy.domain.weights import (
    KEPT_EPOCHS,
    Gate,
    Recovery,
    Versions,
    WeightState,
    advanced,
    joined,
    paused,
    recovered,
    released,
)
from rolloutfleet_proxy.engine.client import LONGEST_REST
from rolloutfleet_proxy.engine.pause_gate import PauseGate
from rolloutfleet_proxy.http.errors import body_of, status_of
from rolloutfleet_proxy.services.weights import WeightService
from rolloutfleet_proxy.store.database import open_database
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.writer import ServedClock, Writer

T = TypeVar("T")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def fresh(*, max_hold: float = 300.0, clock: Callable[[], float] | None = None) -> WeightService:
    return await open_weights(InlineStore(), max_hold=max_hold, clock=clock)


async def begun(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """A task that has run up to where it waits."""
    task = asyncio.create_task(work)
    for _ in range(10):
        await asyncio.sleep(0)
    return task


async def generating(weights: WeightService, ends: asyncio.Event) -> bool:
    async with weights.gate.submission() as submission:
        await ends.wait()
    return submission.mixed_cache


async def cut_and_resumed(weights: WeightService) -> None:
    async with weights.gate.submission() as submission:
        await submission.cut.wait()
        await submission.resumed()


states = st.builds(
    WeightState,
    versions=st.builds(
        lambda run, version, behind: Versions(run=run, version=version, flushed=max(0, version - behind)),
        *(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),
    ),
    gate=st.one_of(
        st.builds(Gate, epoch=st.integers(0, 3)),
        st.builds(Gate, epoch=st.integers(0, 3), mode=st.just("abort")),
    ),
)


@given(states, states, states)
def test_what_proxies_know_joins_the_same_in_any_order_and_number(
    one: WeightState, two: WeightState, three: WeightState
) -> None:
    assert joined(one, two) == joined(two, one)
    assert joined(joined(one, two), three) == joined(one, joined(two, three))
    assert joined(joined(one, two), two) == joined(one, two)


@given(states, st.integers(0, 4), st.sampled_from(["pause", "release", "advance", "recover"]))
def test_no_step_goes_back(state: WeightState, number: int, step: str) -> None:
    steps: dict[str, Callable[[], WeightState]] = {
        "pause": lambda: paused(state, epoch=number, mode="abort", now=1.0),
        "release": lambda: released(state, epoch=number, now=1.0),
        "advance": lambda: advanced(state, version=number, epoch=None),
        "recover": lambda: recovered(state, Recovery(run=number, version=0, newer="drop")),
    }
    try:
        after = steps[step]()
    except Stale:
        return
    assert joined(state, after) == after
    assert steps[step]() == after


@given(states)
def test_the_state_passes_between_proxies_as_json(state: WeightState) -> None:
    assert WeightState.from_json(state.as_json()) == state


def test_what_a_recovery_does_with_open_sessions_passes_too_and_is_kept_where_another_release_leaves_it_out() -> None:
    told = recovered(WeightState(), Recovery(run=1, version=3, newer="drop", open="close"))
    heard = WeightState.from_json(told.as_json())
    assert [one.open for one in heard.versions.recoveries] == ["close"]
    form = told.as_json()
    del form["open"]
    earlier = WeightState.from_json(form)
    assert [one.open for one in earlier.versions.recoveries] == ["keep"]
    assert [one.open for one in joined(told, earlier).versions.recoveries] == ["close"]


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": True},
        {"epoch": -1},
        {"version": "3"},
        {"mode": "soft"},
        {"recoveries": [[1]]},
        {"recoveries": [[1, 0, "drop"]], "open": {"1": "burn"}},
    ],
)
def test_what_is_no_state_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        WeightState.from_json(WeightState().as_json() | change)


def test_the_same_pause_again_is_the_same_and_an_older_one_is_refused_with_the_current_epoch() -> None:
    first = paused(WeightState(), epoch=4, mode="abort", now=1.0)
    assert paused(first, epoch=4, mode="abort", now=2.0) is first
    over = released(first, epoch=4, now=3.0)
    for state, epoch, mode in [(first, 3, "abort"), (first, 4, "wait"), (over, 4, "abort")]:
        with pytest.raises(Stale) as refused:
            paused(state, epoch=epoch, mode=mode, now=5.0)  # type: ignore[arg-type]
        assert status_of(refused.value) == 409
        assert b'"epoch":4' in body_of(refused.value)


@pytest.mark.parametrize(
    ("mode", "said", "flushed"),
    [
        ("abort", None, 7),
        (None, None, 7),
        ("in_place", None, 3),
        ("in_place", True, 7),
        ("abort", False, 3),
    ],
)
def test_an_update_flushes_the_caches_unless_it_is_in_place_or_says_otherwise(
    mode: Any, said: bool | None, flushed: int
) -> None:
    state = WeightState(versions=Versions(version=3, flushed=3))
    if mode is not None:
        state = paused(state, epoch=1, mode=mode, now=1.0)
    after = advanced(state, version=7, epoch=None, flush_cache=said)
    assert (after.versions.flushed, after.versions.may_meet_older_cache) == (flushed, flushed < 7)
    assert advanced(after, version=7, epoch=None) == after, "again, without a word of it"
    assert not advanced(after, version=7, epoch=None, flush_cache=True).versions.may_meet_older_cache
    assert not recovered(after, Recovery(run=1, version=5, newer="drop")).versions.may_meet_older_cache


def test_a_release_that_knows_of_no_flush_has_flushed_with_every_update() -> None:
    form = WeightState(versions=Versions(version=7, flushed=3)).as_json()
    del form["flushed"]
    assert WeightState.from_json(form).versions.flushed == 7


@pytest.mark.parametrize("step", ["pause", "continue"])
def test_no_call_leaps_to_the_last_epochs_and_each_can_follow_the_one_before(step: str) -> None:
    def taken(state: WeightState, epoch: int) -> WeightState:
        if step == "pause":
            return paused(state, epoch=epoch, mode="abort", now=1.0)
        return released(state, epoch=epoch, now=1.0)

    kept = LAST_EPOCH - KEPT_EPOCHS
    assert taken(WeightState(), kept).gate.epoch == kept
    for epoch in (kept + 1, LAST_EPOCH):
        with pytest.raises(InvalidParameter, match="the current one is 7"):
            taken(WeightState(gate=Gate(epoch=7)), epoch)
        assert taken(WeightState(gate=Gate(epoch=epoch - 1)), epoch).gate.epoch == epoch


def test_a_late_continue_of_an_older_pause_is_refused() -> None:
    state = paused(WeightState(), epoch=2, mode="abort", now=1.0)
    with pytest.raises(Stale):
        released(state, epoch=1, now=2.0)


def test_a_version_may_stay_but_not_go_back_except_in_a_new_run() -> None:
    state = advanced(WeightState(), version=7, epoch=None)
    assert advanced(state, version=7, epoch=None) == state
    with pytest.raises(Stale) as refused:
        advanced(state, version=6, epoch=None)
    assert refused.value.code == "version_backwards"
    assert b'"version":7' in body_of(refused.value)
    again = recovered(state, Recovery(run=1, version=3, newer="drop"))
    assert (again.versions.run, again.versions.version) == (1, 3)
    with pytest.raises(Stale):
        recovered(again, Recovery(run=1, version=2, newer="drop"))
    ahead = advanced(again, version=5, epoch=None)
    assert recovered(ahead, Recovery(run=1, version=3, newer="drop")) == ahead, "a repeated recovery changes nothing"


async def test_calls_wait_while_paused_and_go_on_together() -> None:
    weights = await fresh()
    await weights.hold(epoch=1, mode="abort")
    ends = asyncio.Event()
    calls = [await begun(generating(weights, ends)) for _ in range(3)]
    assert (weights.gate.in_flight, weights.gate.waiting) == (0, 3)
    await weights.release(epoch=1)
    ends.set()
    await asyncio.gather(*calls)
    assert (weights.gate.in_flight, weights.gate.waiting) == (0, 0)


async def test_an_aborted_call_that_waits_is_not_in_flight() -> None:
    weights = await fresh()
    call = await begun(cut_and_resumed(weights))
    await weights.hold(epoch=1, mode="abort")
    settled = await begun(weights.gate.settled(epoch=1, timeout=60))
    assert not settled.done()
    weights.gate._cut()
    await settled
    assert not call.done()
    await weights.release(epoch=1)
    await call


@pytest.mark.parametrize("mode", ["abort", "wait"])
async def test_a_pause_that_does_not_settle_in_time_says_so(mode: Any) -> None:
    weights = await fresh()
    call = await begun(generating(weights, asyncio.Event()))
    await weights.hold(epoch=1, mode=mode)
    with pytest.raises(DomainError) as late:
        await weights.gate.settled(epoch=1, timeout=0.02)
    assert status_of(late.value) == 504
    call.cancel()


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_calls_stay_at_the_engines_in_the_holding_modes(mode: Any) -> None:
    weights = await fresh()
    ends = asyncio.Event()
    call = await begun(generating(weights, ends))
    await weights.hold(epoch=1, mode=mode)
    began = asyncio.get_running_loop().time()
    await weights.gate.settled(epoch=1, timeout=0)
    assert asyncio.get_running_loop().time() - began > 0.9 * LONGEST_REST, "streams rest for as long between readings"
    assert weights.gate.in_flight == 1
    ends.set()
    await call


@pytest.mark.parametrize(("mode", "mixed"), [("in_place", True), ("retract", False), ("abort", False)])
async def test_a_version_that_changes_in_place_mixes_the_cache_of_what_is_in_flight(mode: Any, mixed: bool) -> None:
    weights = await fresh()
    ends = asyncio.Event()
    before = await begun(generating(weights, ends))
    await weights.hold(epoch=1, mode=mode)
    await weights.advance(0)
    await weights.advance(1)
    held = await begun(generating(weights, ends))
    await weights.release(epoch=1)
    await weights.advance(2)
    ends.set()
    assert await before is mixed
    assert await held is False


async def test_past_max_hold_calls_get_503_and_the_pause_goes_on() -> None:
    clock = Clock()
    weights = await fresh(max_hold=10.0, clock=clock)
    await weights.hold(epoch=1, mode="abort")
    assert not weights.gate.overdue
    clock.now += 10.0
    with pytest.raises(DomainError) as refused:
        await generating(weights, asyncio.Event())
    assert (status_of(refused.value), refused.value.code) == (503, "paused")
    assert refused.value.retry_after is not None
    assert weights.gate.overdue
    assert weights.gate.figures()["paused"] and weights.gate.figures()["past_max_hold"]


async def test_the_served_clock_stands_still_in_pauses() -> None:
    clock = Clock()
    weights = await fresh(clock=clock)
    began = weights.gate.served()
    clock.now += 3.0
    assert weights.gate.served() - began == 3.0
    await weights.hold(epoch=1, mode="retract")
    clock.now += 100.0
    await weights.hold(epoch=2, mode="in_place")
    clock.now += 100.0
    assert weights.gate.served() - began == 3.0
    await weights.release(epoch=2)
    clock.now += 4.0
    assert weights.gate.served() - began == 7.0


async def test_a_call_held_for_max_hold_gets_503_by_itself() -> None:
    weights = await fresh(max_hold=0.02)
    await weights.hold(epoch=1, mode="abort")
    with pytest.raises(DomainError, match="paused for more than"):
        await asyncio.wait_for(generating(weights, asyncio.Event()), 5)


async def test_a_call_held_for_max_hold_by_a_starting_proxy_gets_503() -> None:
    weights = await fresh(max_hold=0.02)
    weights.gate.starting = True
    with pytest.raises(DomainError, match="waited to learn") as refused:
        await asyncio.wait_for(generating(weights, asyncio.Event()), 5)
    assert (status_of(refused.value), refused.value.code) == (503, "paused")


async def test_a_run_and_an_epoch_beyond_the_last_that_an_earlier_release_kept_are_the_last() -> None:
    store = InlineStore()

    def keep(transaction: Transaction) -> None:
        transaction.set_fact("run", LAST_RUN + 1)
        transaction.set_fact("epoch", LAST_EPOCH + 1)
        transaction.set_fact("recoveries", f'[[{LAST_RUN + 1}, 3, "keep"]]')
        transaction.set_fact("recoveries_left_open", f'{{"{LAST_RUN + 1}": "delete"}}')

    await store.run(keep)
    weights = await open_weights(store, max_hold=1.0)
    assert (weights.gate.run, weights.gate.epoch) == (LAST_RUN, LAST_EPOCH)
    (recovery,) = weights.gate.state.versions.recoveries
    assert recovery == Recovery(LAST_RUN, 3, "keep") and recovery.open == "delete"
    assert WeightState.from_json(weights.gate.state.as_json()) == weights.gate.state


async def test_all_of_it_is_there_after_a_restart(tmp_path: Path) -> None:
    clock = Clock()

    async def opened() -> tuple[WeightService, Callable[[], Awaitable[None]]]:
        database = open_database(tmp_path)
        writer = Writer(database, ServedClock(database, monotonic=clock))

        async def close() -> None:
            await writer.close()
            database.close()

        return await open_weights(writer, max_hold=10.0, clock=clock), close

    weights, close = await opened()
    await weights.advance(5)
    await weights.recover(Recovery(run=2, version=3, newer="keep"))
    await weights.hold(epoch=9, mode="in_place")
    state = weights.gate.state
    clock.now += 4.0
    await close()

    clock.now += 3600.0
    weights, close = await opened()
    assert weights.gate.state == state
    assert not weights.gate.overdue, "time with the proxy down is not counted"
    clock.now += 7.0
    assert weights.gate.overdue
    await close()


@given(st.lists(states, max_size=4), states)
def test_a_starting_proxy_takes_the_newest(answers: list[WeightState], own: WeightState) -> None:
    async def adopted() -> WeightState:
        weights = WeightService(gate=PauseGate(own, max_hold=1.0), writer=InlineStore(), follow=Told().append)
        await weights.adopt(answers)
        return weights.gate.state

    newest = asyncio.run(adopted())
    known = [own, *answers]
    assert newest.gate.order == max(state.gate.order for state in known)
    assert (newest.versions.run, newest.versions.version) == max(
        (state.versions.run, state.versions.version) for state in known
    )


async def test_a_caller_that_goes_away_leaves_memory_and_disk_the_same() -> None:
    gate = asyncio.Event()

    class SlowStore(InlineStore):
        async def run(self, operation: Callable[[Transaction], T], *, frees: bool = False, waits: bool = False) -> T:
            await gate.wait()
            return await super().run(operation, frees=frees)

    weights = WeightService(gate=PauseGate(WeightState(), max_hold=1.0), writer=SlowStore(), follow=Told().append)
    advance = await begun(weights.advance(3))
    advance.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await advance
    await weights.advance(3)
    assert weights.gate.version == 3


def test_every_mode_is_known() -> None:
    assert set(get_args(PauseMode)) == {"abort", "wait", "retract", "in_place"}
