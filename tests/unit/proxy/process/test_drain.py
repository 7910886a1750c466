"""Drains on a real store: one at a time, held calls, what is cut, what ends, and what a death leaves."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import PATIENCE, comes_true

from rolloutfleet.wire import AskDrain, DrainThen
from rolloutfleet_proxy.domain.errors import DiskFull, DomainError, StoreBusy
from rolloutfleet_proxy.http.errors import headers_of, status_of
from rolloutfleet_proxy.process import drain
from rolloutfleet_proxy.process.drain import Drains, Host, NoHost
from rolloutfleet_proxy.store import boots
from rolloutfleet_proxy.store.boots import Crash
from rolloutfleet_proxy.store.database import open_database
from rolloutfleet_proxy.store.writer import ServedClock, Writer

SHORT = 0.1


class Keeper:
    """A host whose next worker is ready when the test says so."""

    def __init__(self) -> None:
        self.thens: list[DrainThen] = []
        self.ready: bool | str = False
        self.ended = asyncio.Event()

    def ends_in(self, then: DrainThen) -> None:
        self.thens.append(then)

    def successor(self) -> bool | str:
        return self.ready

    def end(self) -> None:
        self.ended.set()


class Calls:
    """So many calls in flight, which end when they are cut."""

    def __init__(self) -> None:
        self.running = 0
        self.cuts = 0

    def under_way(self, before: float) -> int:
        return self.running

    def cut(self) -> None:
        self.cuts += 1
        self.running = 0


class Life:
    """A proxy's life as far as drains go."""

    def __init__(
        self, writer: Writer, clock: ServedClock, host: Host, *, timeout: float, leave_time: float, max_hold: float
    ) -> None:
        self.writer = writer
        self.calls = Calls()
        self.drains = Drains(
            store=writer,
            under_way=self.calls.under_way,
            cut=self.calls.cut,
            host=host,
            timeout=timeout,
            leave_time=leave_time,
            max_hold=max_hold,
            served=clock.now,
        )

    async def ask(self, id: str = "d", **asked: Any) -> dict[str, Any]:
        return await self.drains.ask(AskDrain(id=id, **asked))

    async def boots(self) -> list[tuple[str, str | None]]:
        found = await self.writer.run(lambda transaction: transaction.rows("SELECT reason, drain FROM boots"))
        return [(reason, drain) for reason, drain in found]


@asynccontextmanager
async def life(
    folder: Path,
    *,
    host: Host | None = None,
    timeout: float = 3600.0,
    leave_time: float = 0.0,
    max_hold: float = 60.0,
    crash: Crash | None = None,
    monotonic: Callable[[], float] | None = None,
) -> AsyncIterator[Life]:
    database = open_database(folder)
    clock = ServedClock(database, monotonic=monotonic or asyncio.get_running_loop().time)
    writer = Writer(database, clock)
    begun = Life(writer, clock, host or NoHost(), timeout=timeout, leave_time=leave_time, max_hold=max_hold)
    await begun.drains.boot(crash)
    try:
        yield begun
    finally:
        await begun.drains.close()
        await writer.close()
        database.close()


async def refused(asking: Any) -> DomainError:
    with pytest.raises(DomainError) as caught:
        await asking
    return caught.value


async def test_a_cordon_takes_no_sessions_and_holds_no_call(tmp_path: Path) -> None:
    async with life(tmp_path) as proxy:
        shown = await proxy.ask(mode="cordon", reason="retiring")
        assert proxy.drains.draining and not proxy.drains.holding
        assert (shown["mode"], shown["then"], shown["deadline"], shown["done"]) == ("cordon", "stay", None, False)
        await proxy.drains.passed()


async def test_a_held_call_goes_on_when_the_drain_is_undone(tmp_path: Path) -> None:
    async with life(tmp_path) as proxy:
        await proxy.ask()
        call = asyncio.create_task(proxy.drains.passed())
        await comes_true(lambda: proxy.drains.held == 1)
        shown = proxy.drains.shown()
        assert shown is not None and shown["held"] == 1
        assert await proxy.drains.undo("d") == "d"
        await asyncio.wait_for(call, PATIENCE)
        assert proxy.drains.held == 0 and not proxy.drains.draining
        assert await proxy.drains.undo() is None


async def test_a_held_call_is_let_go_when_its_session_ends(tmp_path: Path) -> None:
    async with life(tmp_path) as proxy:
        await proxy.ask()
        ended = False
        call = asyncio.create_task(proxy.drains.passed(lambda: ended))
        await comes_true(lambda: proxy.drains.held == 1)
        ended = True
        proxy.drains.look_again()
        await asyncio.wait_for(call, PATIENCE)
        assert proxy.drains.holding


async def test_a_drain_that_is_not_renewed_is_undone_and_one_that_is_goes_on(tmp_path: Path) -> None:
    async with life(tmp_path) as proxy:
        await proxy.ask(ttl=SHORT)
        first = await proxy.ask(ttl=60.0)
        call = asyncio.create_task(proxy.drains.passed())
        await asyncio.sleep(3 * SHORT)
        assert proxy.drains.held == 1, "its renewal was not heard"
        second = await proxy.ask(ttl=SHORT)
        assert (second["since"], second["id"]) == (first["since"], "d")
        await asyncio.wait_for(call, PATIENCE)
        assert not proxy.drains.draining


@pytest.mark.parametrize("error", [StoreBusy(), DiskFull("no room")])
async def test_a_drain_that_is_not_renewed_is_undone_though_the_store_takes_no_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: DomainError
) -> None:
    async def fail(_: Any) -> None:
        raise error

    async with life(tmp_path) as proxy:
        with monkeypatch.context() as patched:
            patched.setattr(proxy.writer, "run", fail)
            await proxy.ask(ttl=SHORT)
            await asyncio.wait_for(proxy.drains.passed(), PATIENCE)
        assert not proxy.drains.draining


async def test_another_id_is_a_conflict_and_changes_nothing(tmp_path: Path) -> None:
    async with life(tmp_path) as proxy:
        await proxy.ask()
        before = proxy.drains.drain
        for asking in (proxy.ask("other"), proxy.drains.undo("other")):
            error = await refused(asking)
            assert (status_of(error), error.code, error.param) == (409, "drain_conflict", "id")
        assert proxy.drains.drain == before


async def test_a_renewal_leaves_the_time_that_calls_in_flight_have(tmp_path: Path) -> None:
    keeper = Keeper()
    keeper.ready = True
    async with life(tmp_path, host=keeper) as proxy:
        proxy.calls.running = 1
        await proxy.ask(then="restart")
        await comes_true(lambda: proxy.drains.holding)
        before = proxy.drains.drain
        await asyncio.sleep(SHORT)
        await proxy.ask(then="restart")
        after = proxy.drains.drain
        assert before is not None and after is not None
        assert after.holds and after.began == before.began and after.expires > before.expires


async def test_the_same_id_may_go_from_cordon_to_quiesce_and_back(tmp_path: Path) -> None:
    async with life(tmp_path) as proxy:
        await proxy.ask(mode="cordon")
        await proxy.ask(mode="quiesce")
        call = asyncio.create_task(proxy.drains.passed())
        await comes_true(lambda: proxy.drains.held == 1)
        await proxy.ask(mode="cordon")
        await asyncio.wait_for(call, PATIENCE)


@pytest.mark.parametrize(
    "asked", [{"mode": "cordon", "then": "restart"}, {"mode": "cordon", "then": "exit"}, {"then": "restart"}]
)
async def test_what_can_not_be_done_is_refused(tmp_path: Path, asked: dict[str, Any]) -> None:
    async with life(tmp_path, host=Keeper() if "mode" in asked else NoHost()) as proxy:
        error = await refused(proxy.ask(**asked))
        assert (status_of(error), error.param) == (400, "then")
        assert not proxy.drains.draining


async def test_calls_in_flight_are_cut_when_their_time_is_up_and_the_drain_stays(tmp_path: Path) -> None:
    async with life(tmp_path, timeout=SHORT) as proxy:
        proxy.calls.running = 2
        await proxy.ask()
        await comes_true(lambda: proxy.calls.cuts == 1)
        assert proxy.drains.holding and not proxy.drains.over


async def test_who_asks_again_is_let_in_before_a_restart_while_there_is_time(tmp_path: Path) -> None:
    keeper = Keeper()
    async with life(tmp_path, host=keeper, timeout=2.0) as proxy:
        assert not proxy.drains.holds(let_in=False)
        await proxy.ask()
        assert proxy.drains.holds(let_in=True), "a drain that stays lets nothing begin"
        proxy.calls.running = 1
        keeper.ready = True
        await proxy.ask(then="restart")
        await comes_true(lambda: proxy.drains.holding)
        assert proxy.drains.holds(let_in=False) and not proxy.drains.holds(let_in=True)
        await asyncio.wait_for(keeper.ended.wait(), PATIENCE)
        assert proxy.drains.holds(let_in=True), "its time is up"


async def test_a_call_that_is_held_too_long_is_told_so(tmp_path: Path) -> None:
    async with life(tmp_path, max_hold=SHORT) as proxy:
        await proxy.ask()
        error = await refused(proxy.drains.passed())
        assert (status_of(error), error.code, error.retry_after) == (503, "draining", 10.0)
        assert (b"connection", b"close") not in headers_of(error)


async def test_a_restart_holds_calls_when_its_successor_is_ready_and_there_is_no_way_back_then(tmp_path: Path) -> None:
    keeper = Keeper()
    async with life(tmp_path, host=keeper) as proxy:
        proxy.calls.running = 1
        await proxy.ask(then="restart", reason="memory")
        assert keeper.thens == ["restart"] and proxy.drains.draining
        await proxy.drains.passed()
        await asyncio.sleep(2 * SHORT)
        keeper.ready = True
        await comes_true(lambda: proxy.drains.holding)
        shown = proxy.drains.shown()
        assert shown is not None
        assert shown["deadline"] > shown["since"] + 60.0 + SHORT, "calls in flight have their time from now on"
        held = asyncio.create_task(proxy.drains.passed())
        await asyncio.sleep(SHORT)
        assert not keeper.ended.is_set(), "a call is in flight"
        proxy.calls.running = 0
        await asyncio.wait_for(keeper.ended.wait(), PATIENCE)
        for asking in (proxy.drains.undo(), proxy.ask(then="restart")):
            error = await refused(asking)
            assert (status_of(error), error.code) == (503, "draining")
        proxy.drains.refuse_all()
        error = await refused(held)
        assert (status_of(error), error.code, error.retry_after) == (503, "draining", 1.0)
        assert (b"connection", b"close") in headers_of(error)
        proxy.drains.stop("SIGTERM")
        assert proxy.drains.last_words == ("planned: memory", "d") and proxy.drains.stopped


@pytest.mark.parametrize("come", [True, False])
async def test_restart_waits_for_receipts_of_the_last_answers_for_a_moment(tmp_path: Path, come: bool) -> None:
    keeper, awaited = Keeper(), {"turn"}
    keeper.ready = True
    async with life(tmp_path, host=keeper) as proxy:
        proxy.drains.awaits_receipts = lambda: bool(awaited)
        began = asyncio.get_running_loop().time()
        await proxy.ask(then="restart")
        await asyncio.sleep(drain.LAST_RECEIPTS / 2)
        assert not keeper.ended.is_set()
        if come:
            awaited.clear()
        await asyncio.wait_for(keeper.ended.wait(), PATIENCE)
        assert (asyncio.get_running_loop().time() < began + drain.LAST_RECEIPTS) is come


async def test_calls_are_not_cut_for_a_restart_that_can_not_come_yet(tmp_path: Path) -> None:
    keeper = Keeper()
    async with life(tmp_path, host=keeper, timeout=SHORT) as proxy:
        proxy.calls.running = 1
        await proxy.ask(then="restart")
        await asyncio.sleep(3 * SHORT)
        assert not proxy.calls.cuts
        keeper.ready = True
        await asyncio.wait_for(keeper.ended.wait(), PATIENCE)
        assert proxy.calls.cuts


async def test_a_restart_without_a_successor_is_undone(tmp_path: Path) -> None:
    keeper = Keeper()
    async with life(tmp_path, host=keeper) as proxy:
        await proxy.ask(then="restart")
        keeper.ready = "ended with exit status 2"
        await comes_true(lambda: not proxy.drains.draining)
        assert not keeper.ended.is_set()
        assert keeper.thens == ["restart", "stay"]


async def test_an_exit_waits_until_others_have_seen_it_and_a_restart_or_a_signal_does_not(tmp_path: Path) -> None:
    now, leave_time = asyncio.get_running_loop().time, 12.0

    async def seconds_until_the_end(proxy: Life, keeper: Keeper) -> float:
        began = now()
        await asyncio.wait_for(keeper.ended.wait(), 2 * leave_time)
        return now() - began

    for number, then in enumerate(("exit", "restart")):
        keeper = Keeper()
        keeper.ready = True
        async with life(tmp_path / f"{number}", host=keeper, leave_time=leave_time) as proxy:
            await proxy.ask(then=then)
            waited = await seconds_until_the_end(proxy, keeper)
            assert (waited >= leave_time) is (then == "exit")
    keeper = Keeper()
    async with life(tmp_path / "signal", host=keeper, leave_time=leave_time) as proxy:
        await proxy.ask(then="exit")
        proxy.drains.stop("SIGTERM")
        assert await seconds_until_the_end(proxy, keeper) < leave_time / 2


async def test_a_signal_ends_what_a_drain_only_holds(tmp_path: Path) -> None:
    keeper = Keeper()
    async with life(tmp_path, host=keeper) as proxy:
        await proxy.ask(mode="cordon")
        proxy.drains.stop("SIGTERM")
        await asyncio.wait_for(keeper.ended.wait(), PATIENCE)
        assert proxy.drains.last_words == ("stopped: SIGTERM", None)
        assert status_of(await refused(proxy.drains.undo())) == 503


@pytest.mark.parametrize("change", ["renewed", "undone", "expired"])
async def test_stop_is_carried_out_when_it_comes_while_a_drain_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    keeper = Keeper()
    async with life(tmp_path, host=keeper) as proxy:
        await proxy.ask(mode="cordon", ttl=SHORT)
        write = proxy.writer.run

        async def write_after_a_stop(operation: Any) -> Any:
            proxy.drains.stop("SIGTERM")
            return await write(operation)

        monkeypatch.setattr(proxy.writer, "run", write_after_a_stop)
        if change != "expired":
            asking = proxy.ask(mode="cordon") if change == "renewed" else proxy.drains.undo()
            assert status_of(await refused(asking)) == 503
        await asyncio.wait_for(keeper.ended.wait(), PATIENCE)
        assert proxy.drains.last_words == ("stopped: SIGTERM", None)


async def test_drain_that_exits_is_not_undone_when_the_proxy_was_told_to_stop(tmp_path: Path) -> None:
    async with life(tmp_path, host=Keeper()) as proxy:
        proxy.calls.running = 1
        await proxy.ask(then="exit")
        proxy.drains.stop("SIGTERM")
        assert status_of(await refused(proxy.drains.undo("d"))) == 503


async def test_a_signal_ends_a_drain_that_was_quiet_and_the_next_boot_says_which(tmp_path: Path) -> None:
    keeper = Keeper()
    async with life(tmp_path, host=keeper) as proxy:
        await proxy.ask("evict-1", mode="quiesce", reason="memory")
        proxy.drains.stop("SIGTERM")
        await asyncio.wait_for(keeper.ended.wait(), PATIENCE)
        reason, drain = proxy.drains.last_words
        await proxy.writer.run(lambda transaction: boots.end(transaction, reason=reason, drain=drain, rss=7))
    async with life(tmp_path, host=Keeper()) as proxy:
        assert (await proxy.boots())[-1] == ("stopped: SIGTERM", "evict-1")
        assert not proxy.drains.draining, "it is over with the life that it was for"
        await proxy.ask("cordon-1", mode="cordon")
        proxy.drains.stop("SIGTERM")
        reason, drain = proxy.drains.last_words
        await proxy.writer.run(lambda transaction: boots.end(transaction, reason=reason, drain=drain, rss=7))
    async with life(tmp_path) as proxy:
        assert (await proxy.boots())[-1] == ("stopped: SIGTERM", None)
        shown = proxy.drains.shown()
        assert shown is not None and shown["id"] == "cordon-1", "a cordon is for longer than one life"


async def test_a_drain_that_stays_outlives_a_crash_for_the_time_it_has_left(tmp_path: Path) -> None:
    async with life(tmp_path) as proxy:
        await proxy.ask(mode="quiesce", ttl=60.0)
    async with life(tmp_path) as proxy:
        shown = proxy.drains.shown()
        assert shown is not None and shown["id"] == "d" and proxy.drains.holding
        assert await proxy.drains.undo() == "d"
    async with life(tmp_path) as proxy:
        assert proxy.drains.shown() is None
        await proxy.ask(ttl=1.0)
        monotonic = iter([0.0, *([2.0] * 1000)])
    async with life(tmp_path, monotonic=lambda: next(monotonic)) as proxy:
        assert proxy.drains.shown() is None, "its time was up"


async def test_a_proxy_starts_on_a_disk_that_has_no_room_to_note_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise DiskFull("no room")

    with monkeypatch.context() as full:
        full.setattr(drain, "_boot", refuse)
        async with life(tmp_path) as proxy:
            assert proxy.drains.shown() is None and await proxy.boots() == []
    async with life(tmp_path) as proxy:
        assert len(await proxy.boots()) == 1


async def test_a_drain_that_ends_a_life_is_over_with_it_and_is_not_run_twice(tmp_path: Path) -> None:
    async with life(tmp_path, host=Keeper()) as proxy:
        await proxy.ask(then="restart")
    crash = Crash(how="was killed by SIGKILL")
    keeper = Keeper()
    async with life(tmp_path, host=keeper, crash=crash) as proxy:
        assert await proxy.boots() == [("first", None), ("crash: was killed by SIGKILL", "d")]
        assert not proxy.drains.draining
        assert (await proxy.ask(then="restart"))["done"] is True
        assert not proxy.drains.draining and keeper.thens == []
    async with life(tmp_path) as proxy:
        assert (await proxy.boots())[-1] == ("crash: its end was not recorded", None), "it ended one life, not two"
    async with life(tmp_path, host=Keeper()) as proxy:
        assert (await proxy.ask("e", then="restart"))["done"] is False


async def test_last_words_are_told_at_the_next_boot(tmp_path: Path) -> None:
    async with life(tmp_path, host=Keeper()) as proxy:
        await proxy.ask(then="exit", reason="rollout")
        reason, drain = proxy.drains.last_words
        await proxy.writer.run(lambda transaction: boots.end(transaction, reason=reason, drain=drain, rss=7))
    async with life(tmp_path) as proxy:
        assert (await proxy.boots())[-1] == ("planned: rollout", "d")
