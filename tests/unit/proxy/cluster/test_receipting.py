"""Receipts reach the owners of answers: many at a time where nothing hurries, at once where an answer was lost."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.unit.proxy.cluster.served import served, settings_of

from rolloutfleet_proxy.cluster.peers import Peers
from rolloutfleet_proxy.cluster.receipting import DELAY, MOST, PATH, Receipting
from rolloutfleet_proxy.http.headers import VOUCHER

PORTS = [7000, 7001]


class Owner:
    """Proxy 1, which notes what it is told, and when."""

    def __init__(self) -> None:
        self.told: list[tuple[float, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"] == PATH and (VOUCHER.encode(), b"a peer") in scope["headers"]
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        self.told.append((asyncio.get_running_loop().time(), json.loads(body)))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"null"})

    @property
    def names(self) -> list[Any]:
        return [names for _, names in self.told]


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    made = Peers(settings_of(0, PORTS, replicas=2))
    made.voucher = lambda: "a peer"
    yield made
    await made.close()


@pytest.fixture
async def owner() -> AsyncIterator[Owner]:
    async with AsyncExitStack() as stack:
        owner = Owner()
        server = await served(owner, PORTS[1])
        stack.push_async_callback(server.stop)
        yield owner


async def test_receipts_of_what_arrived_are_given_together(peers: Peers, owner: Owner) -> None:
    receipting, began = Receipting(peers), asyncio.get_running_loop().time()
    for name in "abc":
        await receipting.give(1, name, received=True)
    await asyncio.sleep(2 * DELAY)
    [(at, names)] = owner.told
    assert names == {"received": ["a", "b", "c"]} and DELAY <= at - began < 2 * DELAY
    await receipting.give(1, "d", received=True)
    await asyncio.sleep(2 * DELAY)
    assert owner.names[1:] == [{"received": ["d"]}]
    await receipting.close()


async def test_a_lost_answer_is_told_of_at_once(peers: Peers, owner: Owner) -> None:
    receipting = Receipting(peers)
    await receipting.give(1, "arrived", received=True)
    await receipting.give(1, "gone", received=False)
    assert owner.names == [{"lost": ["gone"]}]
    await receipting.close()


async def test_no_message_has_more_receipts_than_an_owner_takes(peers: Peers, owner: Owner) -> None:
    receipting, names = Receipting(peers), [str(number) for number in range(MOST + 1)]
    for name in names:
        await receipting.give(1, name, received=True)
    await asyncio.sleep(2 * DELAY)
    assert owner.names == [{"received": names[:MOST]}, {"received": names[MOST:]}]
    await receipting.close()


async def test_a_proxy_that_ends_gives_what_it_still_has(peers: Peers, owner: Owner) -> None:
    receipting = Receipting(peers)
    await receipting.give(1, "a", received=True)
    await receipting.close()
    assert owner.names == [{"received": ["a"]}]


async def test_an_owner_that_is_away_is_told_nothing_and_nobody_waits_for_it(peers: Peers) -> None:
    receipting = Receipting(peers)
    await receipting.give(1, "gone", received=False)
    await receipting.give(1, "arrived", received=True)
    await receipting.close()
