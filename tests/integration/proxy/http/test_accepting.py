"""A crowd of new connections is accepted in a few rounds of the loop, and none once it is over."""

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from typing import Any, cast

import pytest
import uvloop
from tests.waiting import PATIENCE

from rolloutfleet_proxy.http import accepting
from rolloutfleet_proxy.http.accepting import ACCEPT_BATCH, Accepting
from rolloutfleet_proxy.process.supervisor import listen

CROWD = 500
ROUND = 0.02
"""Seconds that something else holds each round of the loop."""


class Echo(asyncio.Protocol):
    made = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        type(self).made += 1

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    [found] = listen("127.0.0.1", 0)
    with closing(found):
        yield found


class Rounds:
    """Counts rounds of the loop, each of them held for a while."""

    count = 0

    async def run(self) -> None:
        while True:
            self.count += 1
            time.sleep(ROUND)
            await asyncio.sleep(0)


@asynccontextmanager
async def long_rounds() -> AsyncIterator[Rounds]:
    rounds = Rounds()
    task = asyncio.create_task(rounds.run())
    try:
        yield rounds
    finally:
        task.cancel()


def crowd(listening: socket.socket, size: int) -> list[socket.socket]:
    """Clients that the kernel has let in, and that nobody has accepted yet."""
    return [socket.create_connection(listening.getsockname()) for _ in range(size)]


def test_a_crowd_is_accepted_in_a_few_rounds(listening: socket.socket) -> None:
    async def work() -> int:
        Echo.made = 0
        clients = crowd(listening, CROWD)
        server = Accepting([listening], Echo)
        async with long_rounds() as rounds:
            async with asyncio.timeout(PATIENCE):
                while Echo.made < CROWD:
                    await asyncio.sleep(0)
        for client in clients:
            client.sendall(b"hello")
            # In a thread: the loop that answers runs here.
            client.settimeout(60)
            assert await asyncio.to_thread(client.recv, 5) == b"hello"
            client.close()
        server.close()
        return rounds.count

    assert uvloop.run(work()) < CROWD / ACCEPT_BATCH + 10


def test_who_comes_when_it_is_over_waits_for_the_next_one(listening: socket.socket) -> None:
    async def work() -> None:
        Echo.made = 0
        Accepting([listening], Echo).close()
        clients = crowd(listening, 5)
        await asyncio.sleep(0.1)
        assert Echo.made == 0
        after = Accepting([listening], Echo)
        async with asyncio.timeout(PATIENCE):
            while Echo.made < 5:
                await asyncio.sleep(0.01)
        after.close()
        for client in clients:
            client.close()

    uvloop.run(work())


class Exhausted:
    """A listening socket of a process that may open no more files, for the first few times."""

    def __init__(self, real: socket.socket, times: int) -> None:
        self.real = real
        self.times = times

    def accept(self) -> Any:
        self.times -= 1
        if self.times >= 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return self.real.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def test_where_no_more_can_be_held_it_rests_and_goes_on(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "PAUSE", 0.05)

    async def work() -> None:
        Echo.made = 0
        exhausted: Any = Exhausted(listening, times=2)
        server = Accepting([exhausted], Echo)
        [client] = crowd(listening, 1)
        async with asyncio.timeout(PATIENCE):
            while not Echo.made:
                await asyncio.sleep(0.01)
        assert exhausted.times == -2, "the two that failed, the one that came, and that there is no other"
        server.close()
        client.close()

    uvloop.run(work())
