"""What a unit test may not do fails it, whoever catches the exception; and time passes without being waited for."""

import asyncio
import multiprocessing
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from tests.unit.guard import GUARD, Forbidden


@pytest.mark.parametrize(
    "act",
    [
        lambda: time.sleep(0.001),
        lambda: subprocess.run([sys.executable, "-c", ""], check=True),
        lambda: multiprocessing.get_context("spawn").Process(target=print).start(),
        lambda: socket.socket().bind(("127.0.0.1", 0)),
        lambda: socket.create_connection(("127.0.0.1", 9)),
    ],
    ids=["sleep", "process", "process of multiprocessing", "port", "connection"],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_forbidden_act_is_refused_and_remembered(act: Callable[[], object]) -> None:
    with pytest.raises(Forbidden):
        act()
    assert len(GUARD.found) == 1
    GUARD.found.clear()


async def test_hour_passes_at_once() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.sleep(3600)
    assert 3600 <= loop.time() - began < 3601


async def test_time_stands_still_while_a_thread_works() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(0.001):
        await asyncio.to_thread(sum, range(1_000_000))
    assert loop.time() == began


async def test_thread_that_nobody_waits_for_is_found_out() -> None:
    """Time would pass or not while it works, by chance."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.call_soon_threadsafe(told.set))
    thread.start()
    await told.wait()
    thread.join()
    assert len(GUARD.found) == 1
    GUARD.found.clear()


async def test_server_is_reached_by_its_port_and_nobody_else_is() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello\n")
        assert await reader.read() == b"hello\n"
        writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
