"""Many calls at once, to proxies that are slow or hang; and answers that no proxy gives."""

import asyncio
import gc
import time
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rolloutfleet.fleet import AsyncFleet, FleetError, Unreachable, Whereabouts
from rolloutfleet.fleet import proxies as module
from rolloutfleet.fleet.proxies import AT_ONCE, AT_ONE_PROXY, Proxies, each
from rolloutfleet.remote_tensors.shard_client import ShardClient
from rolloutfleet.tensors import Form

HANGS = 5.0
"""Seconds until a call that nobody answers is given up."""
A_TENSOR = Form("uint8", (1,)), memoryview(b"1")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who connects and who accepts share one process here, which a busy machine may leave waiting."""
    monkeypatch.setattr(module, "CONNECT_TIMEOUT", 60.0)
    monkeypatch.setattr(module, "PROBE_TIMEOUT", 60.0)


class Stub:
    """A proxy's API as far as `Proxies` needs it, on a real socket."""

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

    async def something_else(self, _: web.Request) -> web.Response:
        return web.json_response({"imported": "rfs-a-key"})


@asynccontextmanager
async def serving(count: int) -> AsyncIterator[tuple[list[Stub], Proxies]]:
    stubs = [Stub(ordinal) for ordinal in range(count)]
    servers = []
    for stub in stubs:
        app = web.Application()
        app.router.add_get("/proxies", stub.proxies)
        app.router.add_get("/health", stub.health)
        app.router.add_post("/sessions", stub.call)
        app.router.add_post("/dumps/import", stub.something_else)
        server = TestServer(app)
        await server.start_server(shutdown_timeout=0.1)
        stub.url, stub.fleet = str(server.make_url("")).rstrip("/"), stubs
        servers.append(server)
    proxies = Proxies(Whereabouts.from_url(stubs[0].url, admin_key="key"), patience=0.0)
    try:
        yield stubs, proxies
    finally:
        await proxies.close()
        await asyncio.gather(*(server.close() for server in servers))


async def test_more_calls_than_places_wait_and_all_are_answered() -> None:
    async with serving(1) as ([stub], proxies):
        stub.seconds, stub.together = 0.5, AT_ONE_PROXY
        calls = 24 * AT_ONE_PROXY
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


def shards(url: str, call: str, *arguments: object) -> None:
    with closing(ShardClient([url], "key")) as client:
        getattr(client, call)(url, *arguments)


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda url: Whereabouts.from_url(url, admin_key="key").proxies(), "proxies is not as expected"),
        (lambda url: shards(url, "put", "sh1", *A_TENSOR), "not a remote_tensor"),
        (lambda url: shards(url, "delete", ["sh1"]), "deleted, bytes is not as expected"),
    ],
    ids=["whereabouts", "put of a shard", "delete of shards"],
)
async def test_so_is_that_of_a_server_that_is_no_proxy(ask: Callable[[str], object], why: str) -> None:
    async def something_else(_: web.Request) -> web.Response:
        return web.json_response({"api_key": "rfs-a-key"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", something_else)
    async with TestServer(app) as server:
        with pytest.raises(FleetError, match=f"something else than a proxy does: .*{why}") as raised:
            await asyncio.to_thread(ask, str(server.make_url("")).rstrip("/"))
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


@pytest.mark.deadline
async def test_calls_that_hang_hold_up_those_to_the_same_proxy_alone_and_these_once() -> None:
    async with serving(2) as ((hangs, answers), proxies):
        hangs.seconds = 600.0
        await proxies.refresh()
        asked = [
            asyncio.create_task(proxies.send("POST", "/sessions", owner=0, timeout=HANGS))
            for _ in range(5 * AT_ONE_PROXY)
        ]
        while hangs.at_once < AT_ONE_PROXY:
            await asyncio.sleep(0.01)
        began = time.monotonic()
        await proxies.send("POST", "/sessions", owner=1)
        assert time.monotonic() - began < HANGS / 2 and answers.most_at_once == 1
        with pytest.raises(Unreachable):
            await proxies.ask(0, "POST", "/sessions", timeout=HANGS)
        # Those that waited for a place meanwhile need not find out one after the other.
        await asyncio.gather(*asked)
        assert time.monotonic() - began < 4 * HANGS
    assert answers.most_at_once > 1, "who could not ask the owner has asked the other"
