"""HTTP to the gateway on the loop that a proxy runs on, through ports."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
import uvloop
from tests.processes import free_port
from tests.unit.proxy.engine import connecting
from tests.unit.proxy.engine.connecting import BROKEN, LAST, OK, posted

from rolloutfleet_proxy.engine.connections import Connections, Unreachable


async def finds_no_server_unreachable() -> None:
    client = Connections(f"http://127.0.0.1:{free_port()}", silence=5)
    with pytest.raises(Unreachable):
        await posted(client)
    await client.aclose()


ON_UVLOOP: list[Callable[[], Coroutine[Any, Any, None]]] = [
    connecting.sends_a_request_as_meant,
    connecting.leaves_a_connection_that_the_server_closed,
    partial(connecting.gives_a_silent_response_up, b""),
    partial(connecting.gives_a_silent_response_up, OK[:-1]),
    connecting.holds_the_server_back_while_its_reader_is_slow,
    connecting.reads_together_what_follows_quickly,
    connecting.closes_a_stream_that_rests,
    partial(connecting.ends_the_connection_of_a_cancelled_call, OK[:-1]),
    finds_no_server_unreachable,
    *(partial(connecting.says_what_breaks_off_and_does_not_send_it_again, each) for each in BROKEN.values()),
    *(partial(connecting.leaves_a_connection_of_no_more_use, each) for each in LAST.values()),
]


@pytest.mark.parametrize("holds", ON_UVLOOP)
def test_on_the_loop_of_the_proxy(holds: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(holds())
