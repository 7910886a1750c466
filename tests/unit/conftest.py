"""Unit tests: within the test's own process, by a clock that the loop hands out, and without a port."""

import asyncio
import contextlib
import multiprocessing.util
import time
from collections.abc import Iterator
from typing import Any

import aiohappyeyeballs
import anyio.to_thread
import numpy.testing  # numpy before 2.1 starts a process as it loads this  # noqa: F401
import pytest
from tests.unit.guard import GUARD
from tests.unit.loop import UnitLoop, awaited, start_connection

from rolloutfleet_proxy.store.writer import Writer


@contextlib.contextmanager
def ways_out_of_the_loop() -> Iterator[None]:
    """The loop knows who works for it elsewhere, and aiohttp asks it for connections."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(asyncio, "new_event_loop", UnitLoop)
        patched.setattr(asyncio.events, "new_event_loop", UnitLoop)
        patched.setattr(Writer, "submit", awaited(Writer.submit))
        wrap = awaited(asyncio.wrap_future)
        patched.setattr(asyncio, "wrap_future", wrap)
        patched.setattr(asyncio.futures, "wrap_future", wrap)
        patched.setattr(anyio.to_thread, "run_sync", _in_thread)
        patched.setattr(aiohappyeyeballs, "start_connection", start_connection)
        patched.setattr(multiprocessing.util, "spawnv_passfds", lambda *_: GUARD.refuse("starts a process"))
        # The store's writer has got the real one: for so long it gathers what is to be committed together.
        patched.setattr(time, "sleep", lambda _: GUARD.refuse("sleeps"))
        yield


async def _in_thread(func: Any, *args: Any, **_: Any) -> Any:
    return await asyncio.to_thread(func, *args)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    with ways_out_of_the_loop():
        GUARD.test = item.nodeid
        try:
            return (yield)
        finally:
            GUARD.test = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Any:
    GUARD.found.clear()
    result = yield
    if GUARD.found:
        pytest.fail(GUARD.found[0])
    return result
