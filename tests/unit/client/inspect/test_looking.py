"""A fleet is asked for nothing while nobody looks."""

import asyncio

from tests.waiting import PATIENCE

from rolloutfleet.inspect.looking import ENOUGH, Looking


async def test_who_has_asked_for_something_looks_on_for_a_minute() -> None:
    now = 0.0
    looking = Looking(lambda: now)
    waiting = asyncio.create_task(looking.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    looking.now()
    await waiting
    now = ENOUGH
    async with asyncio.timeout(PATIENCE):
        await looking.wait()
    now = ENOUGH + 1
    waiting = asyncio.create_task(looking.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
