"""Who waits for a call hears of it at once."""

import asyncio

import uvloop

from rolloutfleet_proxy.sessions.calls import Call, Calls, Listener
from rolloutfleet_proxy.turns.rows import Turn


async def test_who_joins_a_silent_call_sees_what_came_before_at_once() -> None:
    said = asyncio.Event()

    async def work(call: Call) -> Turn:
        call.emit(b"a")
        said.set()
        await asyncio.Event().wait()
        raise AssertionError

    calls = Calls()
    call = calls.start(turn_name="t", body=b"", idempotency_key=None, streams=True, work=work)
    await said.wait()
    async with asyncio.timeout(5):
        await call.listen().wait()
    assert call.task is not None
    call.task.cancel()
    await calls.ended()


def test_a_wait_ends_unwoken_when_patience_does_and_says_so_each_time() -> None:
    """Under the proxy's own loop, whose clock has whole milliseconds."""

    async def waits() -> list[bool]:
        listener = Listener()
        return [await listener.wait(0.002) for _ in range(300)]

    assert not any(uvloop.run(waits()))


async def test_a_wake_up_before_the_wait_and_one_in_it_are_both_told() -> None:
    listener = Listener()
    listener.wake()
    assert await listener.wait(60)
    asyncio.get_running_loop().call_soon(listener.wake)
    assert await listener.wait(60)
    assert not await listener.wait(0.001)
