"""A crowd of new connections is accepted in a few rounds of the loop, and none once it is over."""

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any, cast

import pytest
import uvloop
from tests.waiting import PATIENCE, comes_true

from rolloutfleet_proxy.http import accepting
from rolloutfleet_proxy.http.accepting import ACCEPT_BATCH, Accepting
from rolloutfleet_proxy.process.supervisor import listen

CROWD = 500


class Made(asyncio.Protocol):
    """Echoes, and is counted by whoever makes it."""

    def __init__(self, all_made: list["Made"]) -> None:
        all_made.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    [found] = listen("127.0.0.1", 0)
    with closing(found):
        yield found


def crowd(listening: socket.socket, size: int) -> list[socket.socket]:
    """Clients that the kernel has let in, and that nobody has accepted yet."""
    return [socket.create_connection(listening.getsockname()) for _ in range(size)]


def test_a_crowd_is_accepted_in_a_few_rounds(listening: socket.socket) -> None:
    async def work() -> int:
        made: list[Made] = []
        clients = crowd(listening, CROWD)
        server = Accepting([listening], partial(Made, made))
        rounds = 0
        async with asyncio.timeout(PATIENCE):
            while len(made) < CROWD:
                rounds += 1
                await asyncio.sleep(0)
        for client in clients:
            client.sendall(b"hello")
            # In a thread: the loop that answers runs here.
            client.settimeout(PATIENCE)
            assert await asyncio.to_thread(client.recv, 5) == b"hello"
            client.close()
        server.close()
        return rounds

    assert uvloop.run(work()) < CROWD / ACCEPT_BATCH + 10


def test_who_comes_when_it_is_over_waits_for_the_next_one(listening: socket.socket) -> None:
    async def work() -> None:
        made: list[Made] = []
        elsewhere: list[Made] = []
        Accepting([listening], partial(Made, made)).close()
        clients = crowd(listening, 5)
        [other] = listen("127.0.0.1", 0)
        with closing(other):
            beside = Accepting([other], partial(Made, elsewhere))
            clients += crowd(other, 1)
            await comes_true(lambda: elsewhere)
            beside.close()
        assert not made, "who came later was accepted elsewhere by now"
        after = Accepting([listening], partial(Made, made))
        await comes_true(lambda: len(made) == 5)
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
        made: list[Made] = []
        exhausted: Any = Exhausted(listening, times=2)
        server = Accepting([exhausted], partial(Made, made))
        [client] = crowd(listening, 1)
        await comes_true(lambda: made)
        assert exhausted.times == -2, "the two that failed, the one that came, and that there is no other"
        server.close()
        client.close()

    uvloop.run(work())
