"""Blocking twins of asynchronous methods: made of these, with their parameters, types and docstrings.

A blocking object has the asynchronous one that it stands for, and the thread whose event loop runs that one's calls.

`LoopThread` is an event loop in a thread of its own, for code that blocks. While the trainer computes, leases are
renewed there and the next trajectories come in. Ctrl-C reaches the thread that waits: what it waited for is cancelled,
and has a moment to clean up.
"""

import asyncio
import concurrent.futures
import contextlib
import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from types import GenericAlias
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, get_args

from rolloutfleet.fleet.exceptions import FleetClosed, NotEverywhere
from rolloutfleet.tasks import end_tasks

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

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
        """Whether it can run anything, here: in the process that made it."""
        return os.getpid() == self._pid and not self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the coroutine returns. Raises what it raises; FleetClosed in another process, and after `stop`;
        RuntimeError on the loop itself, which would wait for itself."""
        if not self.running:
            work.close()
            foreign = "belongs to another process: make one here, from its whereabouts"
            raise FleetClosed(f"this fleet object {'has been closed' if os.getpid() == self._pid else foreign}")
        if asyncio._get_running_loop() is self._loop:
            work.close()
            raise RuntimeError(
                "a blocking call would wait here for its own event loop: await the asynchronous method of "
                "AsyncFleet or AsyncSession, or call this one in a function that is not async, which runs in a thread"
            )
        running = _Running(work)
        try:
            self._loop.call_soon_threadsafe(running.start)
            return running.result()
        except asyncio.CancelledError:
            raise FleetClosed("this fleet object has been closed") from None
        except BaseException:
            if not running.ended.is_set():
                # An exception of this thread, not of the coroutine: a Ctrl-C.
                self._loop.call_soon_threadsafe(running.cancel)
                running.ended.wait(CLEAN_UP_TIMEOUT)
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


class RunningLoop(LoopThread):
    """The loop that runs now, for threads beside it. Another ends it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()

    def stop(self) -> None:
        pass


class _Running(Generic[T]):
    """A coroutine on its way through a loop. A Ctrl-C may come at any moment, also while the loop is being asked to
    start it: what is cancelled then is found here, whether it has a task yet or never gets one."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self.ended = threading.Event()
        """Set when it has returned, raised or cleaned up."""

    def start(self) -> None:
        """On the loop."""
        self._task = asyncio.ensure_future(self._work)
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        """On the loop, which has started it by then or never will."""
        if self._task is not None:
            self._task.cancel()
        else:
            self._work.close()
            self.ended.set()

    def result(self) -> T:
        """Waits for it. Raises what it raised."""
        self.ended.wait()
        assert self._task is not None
        return self._task.result()

    def _end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # seen, even if nobody waits for it any more
        self.ended.set()


async def _cancel_all() -> None:
    await end_tasks(task for task in asyncio.all_tasks() if task is not asyncio.current_task())


class Blocking:
    """What stands for an asynchronous context manager."""

    _loop: LoopThread
    _asynchronous: Any

    def __init_subclass__(cls) -> None:
        """Twins are named as methods of the class, so that they are shown and pickled as such."""
        for name, method in vars(cls).items():
            if hasattr(method, "__signature__"):
                method.__module__, method.__qualname__ = cls.__module__, f"{cls.__qualname__}.{name}"

    def __init__(self, fleet: Any, asynchronous: Any) -> None:
        self._loop = fleet._loop
        self._asynchronous = asynchronous

    def __enter__(self) -> Self:
        self._loop.run(self._asynchronous.__aenter__())
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._loop.run(self._asynchronous.__aexit__(kind, error, trace))


class BlockingIterator(Blocking, Iterator[T]):
    """What stands for an asynchronous context manager that is an iterator, too."""

    def __next__(self) -> T:
        try:
            found: T = self._loop.run(self._asynchronous.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None
        return found


def in_loop_thread(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Returns what the coroutine returns, which runs in a thread of its own."""

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        thread = LoopThread()
        try:
            return thread.run(function(*args, **options))
        finally:
            thread.stop()

    return call


def blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Returns what the coroutine returns."""
    return _twin(method, lambda self, coroutine: self._loop.run(coroutine), inspect.signature(method).return_annotation)


def listing(method: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> Callable[Concatenate[Any, P], list[T]]:
    """Returns all that the iterator brings; what it brought before NotEverywhere is the exception's `found`."""
    (item,) = get_args(inspect.signature(method).return_annotation)
    return _twin(method, lambda self, items: self._loop.run(_listed(items)), GenericAlias(list, item))


def wrapping(method: Callable[Concatenate[Any, P], T], wrap: Callable[[Any, T], R]) -> Callable[Concatenate[Any, P], R]:
    """Returns what `wrap` makes of the blocking object and what the method returns."""
    returns = wrap if isinstance(wrap, type) else inspect.signature(wrap).return_annotation
    return _twin(method, wrap, returns)


def _twin(method: Callable[..., Any], result: Callable[[Any, Any], Any], returns: Any) -> Callable[..., Any]:
    @wraps(method, assigned=("__name__",))
    def call(self: Any, *args: Any, **options: Any) -> Any:
        return result(self, method(self._asynchronous, *args, **options))

    call.__doc__ = (method.__doc__ or "").replace("async with", "with")
    call.__dict__["__signature__"] = inspect.signature(method).replace(return_annotation=returns)
    return call


async def _listed(items: AsyncIterator[T]) -> list[T]:
    found: list[T] = []
    try:
        async for item in items:
            found.append(item)
    except NotEverywhere as error:
        error.found = found
        raise
    return found
