"""Who has closed its connection is known without a round of the event loop: over TCP, and on the loop of a proxy."""

import asyncio
import socket

import pytest
import uvloop
from tests.unit.proxy.http.leaving import LARGE, Answering, Leave, close, close_one_way, leaves, reset


@pytest.mark.parametrize("size", [1, LARGE], ids=["all is taken", "much waits"])
@pytest.mark.parametrize("leave", [close, close_one_way, reset])
def test_a_client_that_has_closed_is_known_to_have_before_the_loop_reads_of_it(leave: Leave, size: int) -> None:
    async def work() -> None:
        answering, loop = Answering(size), asyncio.get_running_loop()
        async with await loop.create_server(answering.protocol, "127.0.0.1", 0) as server:
            client = socket.socket()
            client.setblocking(False)
            await loop.sock_connect(client, server.sockets[0].getsockname())
            await leaves(answering, client, leave)

    uvloop.run(work())
