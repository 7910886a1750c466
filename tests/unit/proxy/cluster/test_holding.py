"""Agents' calls for a proxy that does not answer wait for it, their bodies unread."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.proxy.cluster.served import served, settings_of

from rolloutfleet_proxy.cluster.forwarding import Forwarding
from rolloutfleet_proxy.cluster.holding import Holding
from rolloutfleet_proxy.cluster.ownership import Ownership
from rolloutfleet_proxy.cluster.peers import POLL_INTERVAL, Peers
from rolloutfleet_proxy.cluster.receipting import Receipting
from rolloutfleet_proxy.domain.errors import OwnerUnreachable
from rolloutfleet_proxy.http.departures import CLOSED
from rolloutfleet_proxy.http.headers import FORWARDED
from rolloutfleet_proxy.ids import SESSION, Owner
from rolloutfleet_proxy.lifecycle.adopted import Adopted
from rolloutfleet_proxy.telemetry.metrics import Metrics

OWNER = Owner(1, "0" * 12)
PORTS = [7000, 7001]
MAX_HOLD = 300.0
CALL = "v1/chat/completions"


class App:
    """The owner's: is ready, and answers calls with their bodies."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/ready":
            answer = json.dumps({"ordinal": 1, "ready": True, "sessions_open": 0, "room": True}).encode()
        elif scope["path"].startswith("/sessions/"):
            answer, more = b"", True
            while more:
                message = await receive()
                answer += message["body"]
                more = message["more_body"]
            self.bodies.append(answer)
        else:
            answer = b"{}"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": answer})


@dataclass
class Caller:
    """One call as the server hands it to the app."""

    path: str = CALL
    body: bytes = b'{"messages": []}'
    more_headers: tuple[tuple[bytes, bytes], ...] = ()
    read: bool = False
    left: bool = False
    status: int = -1
    answer: bytes = b""
    _never: asyncio.Event = field(default_factory=asyncio.Event)

    def scope(self) -> Any:
        path = f"/sessions/{OWNER.name(SESSION)}/{self.path}"
        length = str(len(self.body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length), (b"authorization", b"Bearer x")]
        headers += self.more_headers
        return {
            "type": "http",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
            CLOSED: lambda: self.left,
        }

    async def receive(self) -> Any:
        if self.read:
            await self._never.wait()
        self.read = True
        return {"type": "http.request", "body": self.body, "more_body": False}

    async def send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.answer += message.get("body", b"")

    @property
    def code(self) -> str:
        code: str = json.loads(self.answer)["error"]["code"]
        return code


@dataclass
class Proxy:
    """Proxy 0, whose calls go to proxy 1."""

    app: Forwarding
    peers: Peers
    owner: App
    stack: AsyncExitStack
    ending: bool = False

    def call(self, caller: Caller) -> "asyncio.Task[None]":
        return asyncio.create_task(self.app(caller.scope(), caller.receive, caller.send))

    async def begin(self) -> None:
        """Start the owner's server."""
        server = await served(self.owner, PORTS[1])
        self.stack.push_async_callback(server.stop)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(2 * MAX_HOLD):
            while not holds():
                await asyncio.sleep(POLL_INTERVAL / 10)


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with running() as running_one:
        yield running_one


@asynccontextmanager
async def running() -> AsyncIterator[Proxy]:
    async def adopt(known: Any) -> None:
        pass

    async with AsyncExitStack() as stack:
        peers = Peers(settings_of(0, PORTS, replicas=2), ever=3)
        stack.push_async_callback(peers.close)
        weights = cast(Any, SimpleNamespace(gate=SimpleNamespace(starting=False), adopt=adopt))
        looking = asyncio.create_task(peers.begin(weights, own=lambda: peers._unseen(0)))
        stack.callback(looking.cancel)
        adopted = cast(Adopted, SimpleNamespace(holds=_holds_nothing))
        made = Proxy(cast(Forwarding, None), peers, App(), stack)
        made.app = Forwarding(
            App(),
            Ownership(own=Owner(0, "1" * 12), peers=peers, adopted=adopted, ephemeral=False),
            body_limit=lambda scope: 1000,
            metrics=Metrics(),
            receipting=Receipting(peers),
            holding=Holding(peers=peers, max_hold=lambda: MAX_HOLD, ending=lambda: made.ending),
        )
        yield made


async def _holds_nothing(session: str) -> bool:
    return False


async def test_a_call_waits_with_its_body_unread_until_its_owner_answers(proxy: Proxy) -> None:
    caller = Caller()
    call = proxy.call(caller)
    await proxy.until(lambda: proxy.peers.waiting == 1)
    await asyncio.sleep(MAX_HOLD / 2)
    assert (caller.read, caller.status, proxy.peers.waiting) == (False, -1, 1)
    await proxy.begin()
    await call
    assert (caller.status, caller.answer, proxy.owner.bodies) == (200, caller.body, [caller.body])
    assert proxy.peers.waiting == 0


async def test_a_call_is_refused_when_its_owner_has_been_away_for_too_long(proxy: Proxy) -> None:
    began = asyncio.get_running_loop().time()
    caller = Caller()
    await proxy.call(caller)
    assert (caller.status, caller.code, caller.read) == (503, "owner_unreachable", False)
    assert MAX_HOLD <= asyncio.get_running_loop().time() - began < MAX_HOLD + 2


async def test_a_call_for_a_lost_proxy_is_refused_at_once_and_those_that_wait_soon(proxy: Proxy) -> None:
    waits, began = Caller(), asyncio.get_running_loop().time()
    call = proxy.call(waits)
    await proxy.until(lambda: proxy.peers.waiting == 1)
    proxy.peers.follow(2, lost=[1])
    await call
    late = Caller()
    await proxy.call(late)
    assert [(each.status, each.code) for each in (waits, late)] == [(503, "owner_unreachable")] * 2
    assert asyncio.get_running_loop().time() - began < 5


async def test_a_call_for_a_proxy_scaled_away_meanwhile_is_told_so(proxy: Proxy) -> None:
    caller = Caller()
    call = proxy.call(caller)
    await proxy.until(lambda: proxy.peers.waiting == 1)
    proxy.peers.follow(1)
    await call
    assert (caller.status, caller.code) == (503, "kept_on_volume")


async def test_a_caller_that_leaves_while_it_waits_is_not_passed_on(proxy: Proxy) -> None:
    caller = Caller()
    call = proxy.call(caller)
    await proxy.until(lambda: proxy.peers.waiting == 1)
    caller.left = True
    await call
    await proxy.begin()
    await proxy.until(lambda: not proxy.peers.is_silent(1))
    assert proxy.owner.bodies == [] and caller.status == -1


async def test_a_proxy_that_ends_sends_those_that_wait_to_the_next(proxy: Proxy) -> None:
    caller = Caller()
    call = proxy.call(caller)
    await proxy.until(lambda: proxy.peers.waiting == 1)
    proxy.ending = True
    proxy.peers.look_again()
    await call
    assert (caller.status, caller.code) == (503, "draining")


async def test_calls_of_trainers_are_refused_at_once(proxy: Proxy) -> None:
    began, caller = asyncio.get_running_loop().time(), Caller(path="close")
    await proxy.call(caller)
    assert (caller.status, caller.code) == (503, "owner_unreachable")
    assert asyncio.get_running_loop().time() - began < 2


async def test_a_call_of_a_proxy_that_took_this_one_for_the_owner_is_refused_at_once(proxy: Proxy) -> None:
    await proxy.begin()
    await proxy.until(lambda: not proxy.peers.is_silent(1))
    caller = Caller(more_headers=((FORWARDED.encode(), b"2"),))
    await asyncio.wait_for(proxy.call(caller), 1)
    assert (caller.status, caller.code, proxy.owner.bodies) == (503, "owner_unreachable", [])


@pytest.mark.parametrize(("body", "calls"), [(1, 1365), (100_000, 449), (2**26, 372), (0, 372)])
async def test_no_more_calls_wait_than_have_room(proxy: Proxy, body: int, calls: int) -> None:
    until = asyncio.get_running_loop().time() + MAX_HOLD
    holding = proxy.app.holding
    assert holding is not None

    def wait() -> "asyncio.Task[bool]":
        return asyncio.create_task(holding.wait(OwnerUnreachable(1), body=body, until=until, left=lambda: False))

    waiting = [wait() for _ in range(calls)]
    await proxy.until(lambda: proxy.peers.waiting == calls)
    with pytest.raises(OwnerUnreachable):
        await wait()
    await proxy.begin()
    assert await asyncio.gather(*waiting) == [True] * calls
    await wait()
