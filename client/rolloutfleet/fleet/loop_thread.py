"""An event loop in a thread of its own, for code that blocks.

While the trainer computes, leases are renewed there and the next trajectories come in. Ctrl-C reaches the thread that
waits: what it waited for is cancelled, and has a moment to clean up.
"""

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from rolloutfleet.fleet.exceptions import FleetClosed

T = TypeVar("T")

CLEAN_UP_TIMEOUT: Final = 10.0
"""Seconds that something cancelled has to clean up."""


class LoopThread:
    """Runs coroutines, from any thread but its own. One process's: a fork takes no threads along."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._serve, name="rolloutfleet", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it can run anything, here."""
        return self.mine and not self._loop.is_closed()

    @property
    def mine(self) -> bool:
        """Whether this is the process that made it."""
        return os.getpid() == self._pid

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns. Raises what it raises; FleetClosed in another process, and after `stop`."""
        if not self.running:
            work.close()
            why = "has been closed" if self.mine else "belongs to another process: make one here, from its whereabouts"
            raise FleetClosed(f"this fleet object {why}")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise FleetClosed("this fleet object has been closed") from None
        except BaseException:
            if not future.done():
                # An exception of this thread, not of the coroutine: a Ctrl-C.
                self._cancel(future)
            raise

    def stop(self) -> None:
        """End the thread. What still runs is cancelled."""
        if not self.running:
            return
        with contextlib.suppress(concurrent.futures.TimeoutError):
            asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result(CLEAN_UP_TIMEOUT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLEAN_UP_TIMEOUT)

    def _serve(self) -> None:
        """All that the loop does, its end too: whoever stops it may be in a loop of its own, as in a notebook."""
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _cancel(self, future: "concurrent.futures.Future[T]") -> None:
        ended = threading.Event()
        future.add_done_callback(lambda _: ended.set())
        future.cancel()
        ended.wait(CLEAN_UP_TIMEOUT)


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
