"""The operator's Lease: when one that waits for it may act."""

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.unit.operator.cluster.api_server import ApiServer, Place, Refusal, api_of
from tests.waiting import comes_true

from rolloutfleet_operator.cluster.api import Object
from rolloutfleet_operator.cluster.lease import DURATION, GIVE_UP_AFTER, RENEW_EVERY, Lease, LeaseLost
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
        began, lease = clock(), Lease(api, OperatorSettings(), identity=identity, wall=clock, boot=clock)
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
        clock = asyncio.get_running_loop().time
        waits = Lease(api, OperatorSettings(), identity="second", wall=clock, boot=clock)
        held = asyncio.create_task(waits.hold())
        await asyncio.sleep(10 * DURATION)
        assert not waits.leading.is_set()
        held.cancel()


class Machine:
    """An operator's machine, whose clocks can be set and stand still, and its way to the API server."""

    def __init__(self, server: ApiServer, identity: str, loop: asyncio.AbstractEventLoop) -> None:
        self._server, self._identity, self._loop = server, identity, loop
        self.wall_is_off = self.suspended_for = 0.0
        self.acted: list[float] = []
        """When it did something that only the leader may do."""

    async def run(self, *, every: float = 0.1) -> None:
        """Hold the Lease, and act whenever that is allowed; until cancelled."""
        async with api_of(self._server) as api:
            lease = Lease(
                api,
                OperatorSettings(),
                identity=self._identity,
                wall=lambda: self._loop.time() + self.wall_is_off,
                boot=lambda: self._loop.time() + self.suspended_for,
            )
            held = asyncio.create_task(lease.hold())
            try:
                while True:
                    with contextlib.suppress(LeaseLost):
                        lease.check()
                        self.acted.append(self._loop.time())
                    await asyncio.sleep(every)
            finally:
                held.cancel()
                await asyncio.gather(held, return_exceptions=True)


@contextlib.asynccontextmanager
async def two(server: ApiServer) -> AsyncIterator[tuple[Machine, Machine]]:
    """The first of which leads."""
    loop = asyncio.get_running_loop()
    machines = Machine(server, "first", loop), Machine(server, "second", loop)
    tasks = [asyncio.create_task(machines[0].run())]
    await comes_true(lambda: machines[0].acted)
    tasks.append(asyncio.create_task(machines[1].run()))
    try:
        yield machines
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_no_two_act_while_the_first_ones_requests_fail() -> None:
    server = ApiServer()
    async with two(server) as (first, second):

        def refuse(method: str, _: Place, body: Any) -> None:
            if method == "PUT" and body["spec"]["holderIdentity"] == "first":
                raise Refusal(503, "ServiceUnavailable")

        server.refusing.append(refuse)
        await asyncio.sleep(4 * DURATION)
    assert second.acted and first.acted[-1] < second.acted[0]
    assert first.acted[-1] >= GIVE_UP_AFTER - 0.2


@pytest.mark.parametrize(
    ("before", "after", "acts"),
    [
        (4.9, 0.0, "first"),
        (0.0, 4.9, "first"),
        (9.0, 0.0, "nobody"),  # signs of life that the first does not know of
        (0.0, 9.0, "nobody"),
        (25.0, 0.0, "second"),  # before the first one's request is carried out, which is refused then
    ],
)
async def test_no_two_act_while_the_first_ones_requests_are_slow_late_or_unanswered(
    before: float, after: float, acts: str
) -> None:
    def slow(method: str, _: Place, body: Any) -> tuple[float, float]:
        return (before, after) if method == "PUT" and body["spec"]["holderIdentity"] == "first" else (0.0, 0.0)

    def acting() -> str:
        now = asyncio.get_running_loop().time()
        lately = {name for name, each in machines.items() if each.acted and each.acted[-1] > now - 1}
        return lately.pop() if len(lately) == 1 else "both" if lately else "nobody"

    server = ApiServer()
    async with two(server) as (first, second):
        machines = {"first": first, "second": second}
        server.delays = slow
        await asyncio.sleep(8 * DURATION)
        assert not second.acted or first.acted[-1] < second.acted[0]
        assert acting() == acts
        server.delays = ApiServer.delays
        await asyncio.sleep(2 * DURATION)
        assert acting() in machines


@pytest.mark.parametrize("step", [-3600.0, -54.0, 54.0, 3600.0])
async def test_a_step_of_the_wall_clock_changes_no_leader(step: float) -> None:
    server = ApiServer()
    async with two(server) as (first, second):
        await asyncio.sleep(DURATION)
        first.wall_is_off = step
        await asyncio.sleep(4 * DURATION)
        second.wall_is_off = -step
        await asyncio.sleep(4 * DURATION)
        assert not second.acted and first.acted[-1] > 8 * DURATION


async def test_a_machine_that_was_suspended_does_nothing_before_it_has_looked() -> None:
    """Its timers did not run meanwhile; the first thing that it would do comes before them."""
    server = ApiServer()
    loop = asyncio.get_running_loop()
    async with api_of(server) as api:
        slept = 0.0
        clock = lambda: loop.time() + slept  # noqa: E731
        lease = Lease(api, OperatorSettings(), identity="first", wall=clock, boot=clock)
        ended: list[bool] = []
        lease.on_end.append(lambda: ended.append(True))
        held = asyncio.create_task(lease.hold())
        await lease.leading.wait()
        lease.check()
        slept = GIVE_UP_AFTER
        with pytest.raises(LeaseLost):
            lease.check()
        assert ended == [True] and not lease.leading.is_set()
        await comes_true(lease.leading.is_set)
        lease.check()
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
