"""Who waits for a call hears of it at once."""

import asyncio

from rolloutfleet_proxy.sessions.calls import Call, Calls
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
