"""The event loop of unit tests: time passes only when nothing else can happen, and connections are socket pairs.

A timer is due as soon as the loop has nothing to do, no bytes to read, and no thread that works for it. So a test that
waits for a minute takes no time, the same test runs the same way on every machine, and one that waits for what can't
come fails at once.
"""

import asyncio
import itertools
import selectors
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context
from functools import wraps
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

from tests.unit.guard import GUARD

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TICK: Final = 1e-6
"""Seconds that pass at the least with a timer: without them one due in no time would never be past."""
BUSY: Final = 1_000
"""Rounds of the loop from which on time passes all the same: somebody waits for the last bit of a float."""
FIRST_PORT: Final = 20_000

ProtocolFactory = Callable[[], Any]


class _Selector(selectors.DefaultSelector):
    """Lets time pass instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.rounds = 0
        """Without anything to wait for, or to read."""
        self.threads_work: Callable[[], bool] = lambda: False

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            self.rounds = 0 if ready else self.rounds + 1
            if self.rounds > BUSY and not self.threads_work():
                self.now += TICK
            return ready
        self.rounds = 0
        if timeout is None or self.threads_work():
            return super().select(None)
        self.now += max(timeout, TICK)
        return []


class _Listening:
    """What `create_server` returns."""

    def __init__(self, loop: "UnitLoop", host: str, port: int) -> None:
        self._loop, self._address = loop, (host, port)
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def is_serving(self) -> bool:
        return self._address in self._loop.listening

    def close(self) -> None:
        self._loop.listening.pop(self._address, None)

    async def start_serving(self) -> None:
        pass

    async def wait_closed(self) -> None:
        pass

    async def __aenter__(self) -> "_Listening":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class UnitLoop(asyncio.SelectorEventLoop):
    """See the module. An address is known to this loop alone: server and client of a test share it."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)
        self._thread = threading.get_ident()
        self._clock.threads_work = self._threads_work
        self._awaited: set[asyncio.Future[Any]] = set()
        self._abandoned = False
        """A thread may still work for somebody who no longer waits for it."""
        self.accepting: set[asyncio.Task[Any]] = set()
        self._ports = itertools.count(FIRST_PORT)
        self.listening: dict[tuple[str, int], ProtocolFactory] = {}

    def time(self) -> float:
        return self._clock.now

    # Threads

    def awaits(self, future: "asyncio.Future[Any]") -> "asyncio.Future[Any]":
        """No time passes until a thread has ended this future."""
        self._awaited.add(future)
        future.add_done_callback(self._let_go)
        return future

    def _let_go(self, future: "asyncio.Future[Any]") -> None:
        self._awaited.discard(future)
        self._abandoned |= future.cancelled()

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> "asyncio.Future[T]":
        return self.awaits(super().run_in_executor(executor, func, *args))

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() == self._thread:
            return super().call_soon_threadsafe(callback, *args, context=context)
        return super().call_soon_threadsafe(self._call_for_thread, callback, *args, context=context)

    def _call_for_thread(self, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        if not (self._awaited or self._abandoned):
            GUARD.note(f"has its loop call {callback} for a thread that it does not wait for")
        callback(*args)

    async def shutdown_default_executor(self) -> None:
        self._abandoned = True
        await super().shutdown_default_executor()

    def _threads_work(self) -> bool:
        return bool(self._awaited)

    # Connections

    async def create_server(
        self, protocol_factory: ProtocolFactory, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        address = (str(host or "127.0.0.1"), port or next(self._ports))
        if address in self.listening:
            raise OSError(f"{address} is in use")
        self.listening[address] = protocol_factory
        return _Listening(self, *address)

    def connect(self, host: str, port: int) -> socket.socket:
        """The client's end of a connection to a server of this loop. Raises ConnectionRefusedError."""
        factory = self.listening.get(("127.0.0.1" if host == "localhost" else host, port))
        if factory is None:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        client, server = socket.socketpair()
        client.setblocking(False)
        server.setblocking(False)
        accepting = self.create_task(self.connect_accepted_socket(factory, server))
        self.accepting.add(accepting)
        accepting.add_done_callback(self.accepting.discard)
        return client

    async def create_connection(
        self, protocol_factory: ProtocolFactory, host: Any = None, port: Any = None, *, sock: Any = None, **_: Any
    ) -> Any:
        return await super().create_connection(protocol_factory, sock=sock or self.connect(host, port))


def awaited(ends_elsewhere: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose future a thread ends, such that the loop waits for that thread."""

    @wraps(ends_elsewhere)
    def call(*args: Any, **options: Any) -> Any:
        future = ends_elsewhere(*args, **options)
        loop = future.get_loop()
        return loop.awaits(future) if isinstance(loop, UnitLoop) else future

    return call


async def start_connection(addr_infos: Any, **_: Any) -> socket.socket:
    """In the place of aiohttp's own way to connect."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, UnitLoop)
    host, port = addr_infos[0][4][:2]
    return loop.connect(host, port)
