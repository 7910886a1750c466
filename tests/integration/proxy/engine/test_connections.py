"""HTTP to the gateway on the loop that a proxy runs on, through ports."""

import gc
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import aiohttp
import pytest
import uvloop
from tests.processes import free_port
from tests.unit.proxy.engine import connecting
from tests.unit.proxy.engine.connecting import BROKEN, LAST, OK, posted, says, serving

from rolloutfleet_proxy.engine.connections import Connections, Unreachable


def nobody() -> AbstractContextManager[str]:
    """The address of a port that nobody listens on."""
    return nullcontext(f"http://127.0.0.1:{free_port()}")


@contextmanager
def busy() -> Iterator[str]:
    """The address of a server that takes no further connection."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        with socket.create_connection(address):
            yield f"http://127.0.0.1:{address[1]}"


async def finds_no_server_unreachable(server: Callable[[], AbstractContextManager[str]]) -> None:
    """And keeps nothing of the request, whose body may be large, until a collection of garbage."""
    with server() as url:
        client = Connections(url, silence=5)
        gc.collect()
        gc.disable()
        try:
            with pytest.raises(Unreachable):
                await posted(client)
            assert [found for found in gc.get_objects() if isinstance(found, aiohttp.ClientRequest)] == []
        finally:
            gc.enable()
        await client.aclose()


async def has_the_system_watch_its_connections() -> None:
    """On Linux both are needed: what waits for an answer has nothing to send, and what sends gets no probes."""
    async with serving(says(OK[:-1])) as (_, client), client.session.post(f"{client._url}/generate") as response:
        assert response.connection is not None and response.connection.transport is not None
        found = response.connection.transport.get_extra_info("socket")
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if sys.platform == "linux":
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            assert [found.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [5, 5, 3, 20_000]


ON_UVLOOP: list[Callable[[], Coroutine[Any, Any, None]]] = [
    connecting.sends_a_request_as_meant,
    connecting.leaves_a_connection_that_the_server_closed,
    partial(connecting.gives_a_silent_response_up, b""),
    partial(connecting.gives_a_silent_response_up, OK[:-1]),
    connecting.holds_the_server_back_while_its_reader_is_slow,
    connecting.reads_together_what_follows_quickly,
    connecting.closes_a_stream_that_rests,
    partial(connecting.ends_the_connection_of_a_cancelled_call, OK[:-1]),
    *(partial(finds_no_server_unreachable, server) for server in (nobody, busy)),
    has_the_system_watch_its_connections,
    *(partial(connecting.says_what_breaks_off_and_does_not_send_it_again, each) for each in BROKEN.values()),
    *(partial(connecting.leaves_a_connection_of_no_more_use, each) for each in LAST.values()),
]


@pytest.mark.parametrize("holds", ON_UVLOOP)
def test_on_the_loop_of_the_proxy(holds: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(holds())
