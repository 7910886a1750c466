"""Many calls at once, to proxies that are slow or hang; and answers that no proxy gives."""

import asyncio
import gc
import traceback
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from aiohttp import web
from tests.unit import web_apps

from rolloutfleet.fleet import AsyncFleet, FleetError, Unreachable, Whereabouts
from rolloutfleet.fleet.proxies import AT_ONCE, AT_ONE_PROXY, Proxies, each, owner_of
from rolloutfleet.fleet.sessions import AsyncSession

HANGS = 5.0
"""Seconds until a call that nobody answers is given up."""


class Stub:
    """A proxy's API as far as `Proxies` needs it."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.seconds = 0.0
        """How long a call takes."""
        self.at_once = 0
        self.most_at_once = 0
        self.together = 0
        """No call is answered before there were so many at once."""
        self._enough = asyncio.Event()
        self.probes = 0
        self.renewals: list[str] = []
        self.touches: list[str] = []
        self.fleet: list[Stub] = []
        self.url = ""

    async def proxies(self, _: web.Request) -> web.Response:
        known = [
            {"ordinal": each.ordinal, "url": each.url, "state": "ready", "sessions_open": 0, "room": True}
            for each in self.fleet
        ]
        return web.json_response({"proxies": known})

    async def health(self, _: web.Request) -> web.Response:
        self.probes += 1
        return web.json_response({})

    async def call(self, _: web.Request) -> web.Response:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        if self.at_once >= self.together:
            self._enough.set()
        try:
            await self._enough.wait()
            await asyncio.sleep(self.seconds)
        finally:
            self.at_once -= 1
        return web.json_response({})

    async def renew(self, request: web.Request) -> web.Response:
        self.renewals.append(request.match_info["lease"])
        await asyncio.sleep(self.seconds)
        return web.json_response({"lease_id": request.match_info["lease"], "expires_in": 30.0})

    async def touch(self, request: web.Request) -> web.Response:
        """The owner's answer, whoever is asked."""
        self.touches.append(request.match_info["session"])
        owner = owner_of(request.match_info["session"])
        assert owner is not None
        await asyncio.sleep(self.fleet[owner].seconds)
        return web.json_response({"ordinals": [self.ordinal]})

    async def something_else(self, _: web.Request) -> web.Response:
        return web.json_response({"imported": "rfs-a-key"})


@asynccontextmanager
async def serving(count: int) -> AsyncIterator[tuple[list[Stub], Proxies]]:
    stubs = [Stub(ordinal) for ordinal in range(count)]
    async with AsyncExitStack() as running:
        for stub in stubs:
            app = web.Application()
            app.router.add_get("/proxies", stub.proxies)
            app.router.add_get("/health", stub.health)
            app.router.add_post("/sessions", stub.call)
            app.router.add_post("/sessions/{session}/touch", stub.touch)
            app.router.add_post("/leases/{lease}/renew", stub.renew)
            app.router.add_post("/dumps/import", stub.something_else)
            stub.url, stub.fleet = await running.enter_async_context(web_apps.serving(app)), stubs
        proxies = Proxies(Whereabouts.from_url(stubs[0].url, admin_key="key"), patience=0.0)
        running.push_async_callback(proxies.close)
        yield stubs, proxies


async def test_more_calls_than_places_wait_and_all_are_answered() -> None:
    async with serving(1) as ([stub], proxies):
        stub.seconds, stub.together = 4.0, AT_ONE_PROXY
        calls = 3 * AT_ONE_PROXY
        sent = (proxies.send("POST", "/sessions", owner=0, timeout=10.0) for _ in range(calls))
        answers = await asyncio.gather(*sent)
    assert len(answers) == calls, "in all they took longer than any one of them may"
    assert stub.most_at_once == AT_ONE_PROXY


async def test_an_answer_that_is_something_else_is_a_failure_and_is_not_quoted() -> None:
    async with serving(1) as ([stub], _), AsyncFleet.from_url(stub.url, admin_key="key", progress=False) as fleet:
        await fleet.proxies()
        with pytest.raises(FleetError, match="imported is not as expected") as raised:
            await fleet.import_dumps(["a-dump.json"], ordinal=0)
    assert "rfs-a-key" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("steps", range(1, 4))
async def test_calls_that_are_cancelled_before_they_began_are_not_warned_of(steps: int) -> None:
    begun = []

    async def call(number: int) -> None:
        begun.append(number)
        await asyncio.sleep(60)

    work = asyncio.create_task(each([call(number) for number in range(2 * AT_ONCE)]))
    for _ in range(steps):
        await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert len(begun) <= AT_ONCE
    gc.collect()


async def test_who_has_no_owner_shares_the_look_at_whether_a_proxy_answers() -> None:
    async with serving(1) as ([stub], proxies):
        await proxies.refresh()
        await asyncio.gather(*(proxies.send("POST", "/sessions") for _ in range(AT_ONE_PROXY)))
    assert stub.probes == 1


async def test_calls_that_hang_hold_up_those_to_the_same_proxy_alone_and_these_once() -> None:
    now = asyncio.get_running_loop().time
    async with serving(2) as ((hangs, answers), proxies):
        hangs.seconds = 600.0
        await proxies.refresh()
        asked = [
            asyncio.create_task(proxies.send("POST", "/sessions", owner=0, timeout=HANGS))
            for _ in range(5 * AT_ONE_PROXY)
        ]
        while hangs.at_once < AT_ONE_PROXY:
            await asyncio.sleep(0.01)
        began = now()
        await proxies.send("POST", "/sessions", owner=1)
        assert now() - began < HANGS / 2 and answers.most_at_once == 1
        with pytest.raises(Unreachable):
            await proxies.ask(0, "POST", "/sessions", timeout=HANGS)
        # Those that waited for a place meanwhile need not find out one after the other.
        await asyncio.gather(*asked)
        assert now() - began < 4 * HANGS
    assert answers.most_at_once > 1, "who could not ask the owner has asked the other"


async def test_a_proxy_that_waits_for_an_owner_that_hangs_is_not_taken_for_one_that_hangs() -> None:
    async with serving(2) as ((hangs, _), proxies):
        hangs.seconds = 600.0
        await proxies.refresh()
        passed_on = [
            asyncio.create_task(proxies.send("POST", "/sessions/s0-1/touch", owner=0, timeout=HANGS))
            for _ in range(AT_ONE_PROXY)
        ]
        await asyncio.sleep(1.5 * HANGS)
        await proxies.send("POST", "/sessions/s1-1/touch", owner=1, timeout=HANGS)  # once there is a place
        assert all(isinstance(each, Unreachable) for each in await asyncio.gather(*passed_on, return_exceptions=True))
        assert proxies.outages.keys() == {0}


async def test_leases_are_renewed_in_time_beside_those_of_a_proxy_that_hangs() -> None:
    held = {f"hangs-{number}": f"l0-{number}" for number in range(2 * AT_ONCE)} | {"answers": "l1-1"}
    async with (
        serving(2) as ((hangs, answers), _),
        AsyncFleet.from_url(answers.url, admin_key="key", progress=False) as fleet,
    ):
        hangs.seconds = 600.0
        keeping = asyncio.create_task(fleet._leases.keep(held, seconds=30.0))
        await asyncio.sleep(95.0)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    assert answers.renewals.count("l1-1") == 9
    assert "l0-1" in hangs.renewals


async def test_sessions_of_a_rollout_are_touched_in_time_beside_those_of_a_proxy_that_hangs() -> None:
    async def agent(session: AsyncSession, task: str) -> None: ...

    async with (
        serving(2) as ((hangs, answers), _),
        AsyncFleet.from_url(answers.url, admin_key="key", progress=False) as fleet,
    ):
        hangs.seconds = 600.0
        rollout = fleet.rollout(agent, [], n=1, stale_after=120.0)
        for name in [*(f"s0-{number}" for number in range(2 * AT_ONCE)), "s1-1"]:
            rollout._open[name] = AsyncSession(session_id=name, api_key="", base_url="", group_id="", fleet=fleet)
        touching = asyncio.create_task(rollout._keep_open())
        await asyncio.sleep(185.0)
        touching.cancel()
        await asyncio.gather(touching, return_exceptions=True)
    assert answers.touches.count("s1-1") == 9
    assert hangs.touches.count("s0-1") > 1
