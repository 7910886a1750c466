"""The operator's Lease: when one that waits for it may act."""

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator
from typing import Any, cast

from rolloutfleet_operator.cluster.api import Api
from rolloutfleet_operator.cluster.lease import DURATION, RENEW_EVERY, Lease
from rolloutfleet_operator.cluster.settings import OperatorSettings


class Server:
    """An API server that has one Lease at most."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None

    async def get(self, *_: str) -> dict[str, Any] | None:
        return copy.deepcopy(self.lease)

    async def create(self, _kind: str, _namespace: str, lease: dict[str, Any]) -> None:
        self.lease = lease

    async def replace(self, lease: dict[str, Any]) -> None:
        self.lease = lease


@contextlib.asynccontextmanager
async def holding(server: Server, identity: str) -> AsyncIterator[float]:
    """An operator that acts until the block ends; how many seconds it waited for that."""
    clock = asyncio.get_running_loop().time
    began, lease = clock(), Lease(cast(Api, server), OperatorSettings(), identity=identity, clock=clock)
    held = asyncio.create_task(lease.hold())
    try:
        await lease.leading.wait()
        yield clock() - began
    finally:
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)


async def test_a_lease_that_was_let_go_of_is_taken_at_once() -> None:
    server = Server()
    async with holding(server, "first"):
        pass
    assert server.lease is not None and server.lease["spec"]["holderIdentity"] == ""
    async with holding(server, "second") as waited:
        assert waited < 0.1
        assert server.lease["spec"]["holderIdentity"] == "second"


async def test_a_lease_of_a_silent_holder_is_taken_when_its_time_is_over() -> None:
    server = Server()
    async with holding(server, "first"):
        left = copy.deepcopy(server.lease)
    server.lease = left
    async with holding(server, "second") as waited:
        assert DURATION < waited <= DURATION + RENEW_EVERY + 0.1


async def test_a_lease_whose_holder_renews_it_is_not_taken() -> None:
    server = Server()
    async with holding(server, "first"):
        waits = Lease(cast(Api, server), OperatorSettings(), identity="second", clock=asyncio.get_running_loop().time)
        held = asyncio.create_task(waits.hold())
        await asyncio.sleep(10 * DURATION)
        assert not waits.leading.is_set()
        held.cancel()
