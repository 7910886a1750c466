"""Who waits for a call hears of it at once."""

import asyncio
import contextlib
import math
from functools import partial

import pytest
from tests.waiting import PATIENCE

from rolloutfleet_proxy.domain.errors import SessionDeleted
from rolloutfleet_proxy.domain.events import Failed, Text
from rolloutfleet_proxy.domain.turn import Turn
from rolloutfleet_proxy.sessions.calls import Call, Calls, Listener


async def test_who_joins_a_silent_call_sees_what_came_before_at_once() -> None:
    said = asyncio.Event()

    async def work(call: Call) -> Turn:
        call.emit(Text("a"))
        said.set()
        await asyncio.Event().wait()
        raise AssertionError

    calls = Calls()
    call = Call(turn_name="t", digest=b"", idempotency_key=None, streams=True)
    calls.start(call, partial(work, call))
    await said.wait()
    async with asyncio.timeout(PATIENCE):
        await call.listen().wait()
    assert call.task is not None
    call.task.cancel()
    await calls.ended()


async def test_a_call_that_is_ended_before_it_begins_tells_all_who_wait() -> None:
    async def work() -> Turn:
        raise AssertionError("it never began")

    calls = Calls()
    call = Call(turn_name="t", digest=b"", idempotency_key=None, streams=False)
    calls.start(call, work)
    call.end(SessionDeleted("gone"))
    async with asyncio.timeout(PATIENCE):
        await call.listen().wait()
        await calls.ended()
    assert isinstance(call.ending, Failed) and isinstance(call.ending.error, SessionDeleted)


async def test_a_wait_ends_unwoken_when_patience_does_and_says_so_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of whole milliseconds, as that of the proxy's own loop."""
    loop = asyncio.get_running_loop()
    exactly = loop.time
    monkeypatch.setattr(loop, "time", lambda: math.floor(exactly() * 1000) / 1000)
    with contextlib.closing(Listener(patience=0.002)) as listener:
        assert not any([await listener.wait() for _ in range(300)])


async def test_a_wake_up_before_the_wait_and_one_in_it_are_both_told() -> None:
    with contextlib.closing(Listener(patience=0.5)) as listener:
        listener.wake()
        assert await listener.wait()
        asyncio.get_running_loop().call_soon(listener.wake)
        assert await listener.wait()
        assert not await listener.wait()


async def test_patience_counts_from_the_last_wait_on() -> None:
    """Whoever is woken in time, again and again, is never told that nothing came."""
    loop = asyncio.get_running_loop()
    with contextlib.closing(Listener(patience=1.0)) as listener:
        began = loop.time()
        while loop.time() - began < 1.5:
            loop.call_later(0.02, listener.wake)
            assert await listener.wait()
        last = loop.time()
        assert not await listener.wait()
        assert loop.time() - last >= 0.99


async def test_patience_goes_on_where_a_wake_up_brought_nothing() -> None:
    loop = asyncio.get_running_loop()
    with contextlib.closing(Listener(patience=0.5)) as listener:
        began, woken, waits = loop.time(), True, 0
        # Were patience to begin anew with a wake-up, one would always come before its end.
        async with asyncio.timeout(PATIENCE):
            while woken:
                loop.call_later(0.02, listener.wake)
                woken = await listener.wait(still=waits > 0)
                waits += 1
        assert loop.time() - began >= 0.49 and waits > 1


async def test_without_patience_only_a_wake_up_ends_a_wait() -> None:
    listener = Listener()
    asyncio.get_running_loop().call_later(0.05, listener.wake)
    assert await listener.wait()
