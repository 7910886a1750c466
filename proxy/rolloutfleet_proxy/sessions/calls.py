"""The calls in flight of one session: who waits for them, who may join them, and what ends them early.

A call's work runs in a task of its own, apart from the requests that wait for it: a client that goes away does not
end it at once, because its SDK may be about to ask again.
"""

import asyncio
from array import array
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rolloutfleet_proxy.domain.errors import ClientGone, DomainError, InternalError, Stopping
from rolloutfleet_proxy.domain.events import Committed, Event, Failed, Started, size_of
from rolloutfleet_proxy.domain.turn import Turn
from rolloutfleet_proxy.http.in_flight import Held
from rolloutfleet_proxy.telemetry import logger
from rolloutfleet_proxy.telemetry.phases import Phases


class Listener:
    """Waits for any of several things at the cost of one future; a wake-up while nobody waits is not lost.

    With `patience`, a wait ends after so many seconds all the same, and whoever made it closes it.
    """

    def __init__(self, patience: float | None = None) -> None:
        self._patience = patience
        self._due = False
        self._waiting: asyncio.Future[None] | None = None
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        """One for many waits: it looks how long the last one has taken."""

    def wake(self, *_: object) -> None:
        self._due = True
        self._resolve()

    async def wait(self, *, still: bool = False) -> bool:
        """True once woken; False where nothing did so for `patience` seconds. These go on from the wait before where it
        is `still` the same that is waited for."""
        if not self._due:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            if self._patience is not None:
                if not still:
                    self._since = loop.time()
                if self._timer is None:
                    left = self._since + self._patience - loop.time()
                    self._timer = loop.call_later(max(0.0, left), self._look)
            await self._waiting
        woken, self._due = self._due, False
        return woken

    def close(self) -> None:
        """Nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        assert self._patience is not None
        loop = asyncio.get_running_loop()
        left = self._since + self._patience - loop.time()
        self._timer = loop.call_later(left, self._look) if left > 0 else None
        if left <= 0:
            self._resolve()

    def _resolve(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


@dataclass(eq=False, slots=True)
class Call:
    """One generation under way: its `events` so far, so that whoever joins starts from the first."""

    turn_name: str
    digest: bytes
    """That retries are found by."""
    idempotency_key: str | None
    streams: bool
    """Whether its events have deltas."""
    held: Held | None = None
    """Where the bytes that it makes are counted."""
    events: list[Event] = field(default_factory=list)
    waiters: int = 0
    committing: bool = False
    """True from when the turn is handed to the store: then only the store decides."""
    number: int | None = None
    """Of the turn that it has become."""
    stalled: DomainError | None = None
    """Said to whoever waits, while the store takes the turn too slowly: it goes on without them."""
    task: "asyncio.Task[Committed | Failed] | None" = None
    prompt_ids: "array[int] | None" = None
    """Once its turn is handed to the store."""
    phases: Phases = field(default_factory=Phases)
    """How far it is, and how long it took."""
    _listeners: "set[Listener]" = field(default_factory=set)
    _grace: asyncio.TimerHandle | None = None
    tools_unconstrained: bool = False
    """No grammar holds the reply to its choice of tools, since the engines take none."""
    unreachable: bool = False
    """No gateway or engine can be reached: a stream that has not begun gets nothing, so that it can fail with a
    status."""
    ended_by: DomainError | None = None
    """Why it was cut, where it was."""

    @property
    def ending(self) -> Committed | Failed | None:
        """How it ended, once it has."""
        last = self.events[-1] if self.events else None
        return last if isinstance(last, Committed | Failed) else None

    @property
    def abandoned(self) -> bool:
        return self.waiters == 0

    def emit(self, event: Event) -> None:
        """Add an event, for all who listen; `Started` wakes nobody: nothing of the answer is there yet."""
        self.events.append(event)
        if self.held is not None:
            self.held.grow(size_of(event))
        if not isinstance(event, Started):
            self._wake()

    def listen(self, patience: float | None = None) -> "Listener":
        """Somebody to be woken at each event; at once where there are some already."""
        listener = Listener(patience)
        self._listeners.add(listener)
        if self.events or self.stalled is not None:
            listener.wake()
        return listener

    def join(self) -> None:
        self.waiters += 1
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    def leave(self, *, grace: float) -> None:
        """A waiter went away. When none is left, the call ends after `grace` seconds unless somebody joins."""
        self.waiters -= 1
        if self.waiters or self.ending is not None:
            return
        if grace > 0:
            self._grace = asyncio.get_running_loop().call_later(grace, self._abandon)
        else:
            self._abandon()

    def end(self, error: DomainError) -> None:
        """Cut the generation; every waiter gets `error`, unless the turn is already with the store."""
        if self.committing or self.ending is not None or self.task is None:
            return
        self.ended_by = error
        self.task.cancel()

    def set_unreachable(self, unreachable: bool) -> None:
        self.unreachable = unreachable

    def stall(self, error: DomainError) -> None:
        """Let those go who wait."""
        self.stalled = error
        self._wake()

    def finish(self, ending: Committed | Failed) -> None:
        """It is over."""
        if self._grace is not None:
            self._grace.cancel()
        self.events.append(ending)
        self._wake()

    def _wake(self) -> None:
        for listener in self._listeners:
            listener.wake()

    def _abandon(self) -> None:
        if not self.waiters:
            self.end(ClientGone())


def forget_frames(error: BaseException) -> None:
    """Let go of the frames that an error came through. A call keeps its error and they keep the call: only the
    collector, which seldom runs, would free the request's body."""
    error.__traceback__ = error.__context__ = error.__cause__ = None


class Calls:
    """A session's calls in flight, oldest first."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._arriving = 0

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def busy(self) -> bool:
        """Whether one is under way, or its request is being read."""
        return bool(self._calls) or self._arriving > 0

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """A call is being read until the block ends."""
        self._arriving += 1
        try:
            yield
        finally:
            self._arriving -= 1

    def with_key(self, key: str) -> Call | None:
        return next((call for call in self._joinable() if call.idempotency_key == key), None)

    def abandoned_with(self, digest: bytes) -> Call | None:
        """The newest call of this digest whose caller has gone."""
        return next((call for call in self._joinable() if call.abandoned and call.digest == digest), None)

    @property
    def any_abandoned(self) -> bool:
        return any(call.abandoned for call in self._joinable())

    def start(self, call: Call, work: Callable[[], Coroutine[Any, Any, Turn]]) -> None:
        """Begin `work`, which returns the committed turn or raises an error. `call.held` is released when it has
        ended."""
        self._calls.append(call)
        call.task = asyncio.create_task(_ending(call, work), name=f"turn {call.turn_name}")
        # Not in the task itself: one that is cancelled before it begins runs nothing.
        call.task.add_done_callback(partial(self._ended, call))

    def end_all(self, error: DomainError) -> None:
        for call in list(self._calls):
            call.end(error)

    async def ended(self) -> None:
        """Return when none is under way."""
        while self._calls:
            await asyncio.wait([call.task for call in self._calls if call.task is not None])

    def _joinable(self) -> Iterator[Call]:
        """Newest first, without those that were cut and are about to end."""
        return (call for call in reversed(self._calls) if call.ended_by is None)

    def _ended(self, call: Call, task: "asyncio.Task[Committed | Failed]") -> None:
        self._calls.remove(call)
        call.task = None
        if call.held is not None:
            call.held.release()
        call.finish(_cut(call) if task.cancelled() else task.result())


async def _ending(call: Call, work: Callable[[], Coroutine[Any, Any, Turn]]) -> Committed | Failed:
    """How a call's work ends. Nothing is raised: a task keeps its error, whose frames would keep task and call."""
    try:
        return Committed(await work(), call.prompt_ids)
    except asyncio.CancelledError:
        return _cut(call)
    except Exception as error:
        if not isinstance(error, DomainError):
            logger.error("a call failed by an internal error", exc_info=error)
            return Failed(InternalError())
        forget_frames(error)
        return Failed(error)


def _cut(call: Call) -> Failed:
    return Failed(call.ended_by or Stopping())
