"""Who waits for a call, under the proxy's own loop."""

import contextlib

import uvloop

from rolloutfleet_proxy.sessions.calls import Listener


def test_a_wait_ends_unwoken_by_a_clock_of_whole_milliseconds() -> None:

    async def waits() -> list[bool]:
        with contextlib.closing(Listener(patience=0.002)) as listener:
            return [await listener.wait() for _ in range(300)]

    assert not any(uvloop.run(waits()))
