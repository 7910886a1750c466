"""The operator's Lease: when one that waits for it may act."""

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator

from tests.unit.operator.cluster.api_server import ApiServer, api_of

from rolloutfleet_operator.cluster.api import Object
from rolloutfleet_operator.cluster.lease import DURATION, RENEW_EVERY, Lease
from rolloutfleet_operator.cluster.settings import OperatorSettings


def lease_of(server: ApiServer) -> Object:
    """The Lease that is there."""
    [found] = server.of_kind("Lease")
    return found


@contextlib.asynccontextmanager
async def holding(server: ApiServer, identity: str) -> AsyncIterator[float]:
    """An operator that acts until the block ends; how many seconds it waited for that."""
    clock = asyncio.get_running_loop().time
    async with api_of(server) as api:
        began, lease = clock(), Lease(api, OperatorSettings(), identity=identity, clock=clock)
        held = asyncio.create_task(lease.hold())
        try:
            await lease.leading.wait()
            yield clock() - began
        finally:
            held.cancel()
            await asyncio.gather(held, return_exceptions=True)


async def test_a_lease_that_was_let_go_of_is_taken_at_once() -> None:
    server = ApiServer()
    async with holding(server, "first"):
        pass
    assert lease_of(server)["spec"]["holderIdentity"] == ""
    async with holding(server, "second") as waited:
        assert waited < 0.1
        assert lease_of(server)["spec"]["holderIdentity"] == "second"


async def test_a_lease_of_a_silent_holder_is_taken_when_its_time_is_over() -> None:
    server = ApiServer()
    async with holding(server, "first"):
        left = copy.deepcopy(lease_of(server))
    server.put(left)
    async with holding(server, "second") as waited:
        assert DURATION < waited <= DURATION + RENEW_EVERY + 0.1


async def test_a_lease_whose_holder_renews_it_is_not_taken() -> None:
    server = ApiServer()
    async with holding(server, "first"), api_of(server) as api:
        waits = Lease(api, OperatorSettings(), identity="second", clock=asyncio.get_running_loop().time)
        held = asyncio.create_task(waits.hold())
        await asyncio.sleep(10 * DURATION)
        assert not waits.leading.is_set()
        held.cancel()
