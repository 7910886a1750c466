"""The page listens on the loopback alone, and asks a fleet for nothing while nobody looks."""

import asyncio
import socket

import pytest

from rolloutfleet.inspect.looking import ENOUGH, Looking
from rolloutfleet.inspect.serving import listen


def test_it_listens_on_the_loopback_alone_and_answers_without_waiting_for_acknowledgements() -> None:
    with listen(0) as listening:
        assert listening.getsockname()[0] == "127.0.0.1" and listening.proto == socket.IPPROTO_TCP
        with pytest.raises(OSError, match="in use"):
            listen(listening.getsockname()[1])


async def test_who_has_asked_for_something_looks_on_for_a_minute() -> None:
    now = 0.0
    looking = Looking(lambda: now)
    waiting = asyncio.create_task(looking.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    looking.now()
    await waiting
    now = ENOUGH
    async with asyncio.timeout(5):
        await looking.wait()
    now = ENOUGH + 1
    waiting = asyncio.create_task(looking.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
