"""A change that several tasks wait for, each until it is told to look again or its time is up."""

import asyncio


class Broadcast:
    """Wakes all who wait at that moment. They look for themselves at what has changed."""

    def __init__(self) -> None:
        self.waiting = 0
        """Tasks that wait now."""
        self._changed = asyncio.Event()

    def wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, timeout: float | None = None) -> None:
        """Return when woken, or after `timeout` seconds."""
        self.waiting += 1
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            self.waiting -= 1
