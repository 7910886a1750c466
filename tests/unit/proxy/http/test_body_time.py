"""How long a request's body may keep the proxy waiting."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest
from starlette.types import Message, Receive, Scope, Send

from rolloutfleet_proxy.domain.errors import DomainError, Stopping
from rolloutfleet_proxy.http.errors import RequestTimeout
from rolloutfleet_proxy.http.request_bodies import BODY_IDLE_TIMEOUT, BodyTime
from rolloutfleet_proxy.process.under_way import UnderWay

SCOPE: Scope = {"type": "http", "headers": [(b"content-length", b"1000")]}


@dataclass
class Drains:
    """One that is in force since then, or none."""

    ending_since: float | None = None


@dataclass
class Body:
    """A body that is read; `ended` says when and by what."""

    drains: Drains
    under_way: UnderWay
    sent: asyncio.Queue[Message]
    ended: "asyncio.Task[tuple[float, DomainError | None]]"

    def send(self, *, more: bool = True) -> None:
        self.sent.put_nowait({"type": "http.request", "body": b" ", "more_body": more})


@asynccontextmanager
async def body() -> AsyncIterator[Body]:
    """With its first byte sent, and times from zero."""
    drains, under_way, sent = Drains(), UnderWay(), asyncio.Queue[Message]()
    clock: Callable[[], float] = asyncio.get_running_loop().time
    began = clock()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["more_body"]:
            pass

    async def read() -> tuple[float, DomainError | None]:
        timed = BodyTime(app, drains=cast(Any, drains), under_way=under_way)
        try:
            await timed(SCOPE, sent.get, cast(Any, None))
        except DomainError as error:
            return clock() - began, error
        return clock() - began, None

    reading = asyncio.create_task(read())
    made = Body(drains, under_way, sent, reading)
    made.send()
    yield made
    await reading


async def test_silent_body_is_timed_out() -> None:
    async with body() as slow:
        seconds, error = await slow.ended
    assert isinstance(error, RequestTimeout) and seconds == pytest.approx(BODY_IDLE_TIMEOUT, abs=0.1)


async def test_dribbling_body_is_waited_for() -> None:
    async with body() as slow:
        for _ in range(10):
            await asyncio.sleep(BODY_IDLE_TIMEOUT - 1)
            slow.send()
        slow.send(more=False)
        seconds, error = await slow.ended
    assert error is None and seconds == pytest.approx(10 * (BODY_IDLE_TIMEOUT - 1), abs=0.1)


async def test_stop_waits_for_a_dribbling_body_no_longer_than_for_a_silent_one() -> None:
    async with body() as slow:
        await asyncio.sleep(BODY_IDLE_TIMEOUT - 1)
        slow.drains.ending_since = asyncio.get_running_loop().time()
        while not slow.ended.done():
            slow.send()
            await asyncio.sleep(1)
        seconds, error = await slow.ended
    assert isinstance(error, Stopping) and seconds == pytest.approx(2 * BODY_IDLE_TIMEOUT - 1, abs=1.1)


async def test_cut_ends_the_wait_for_a_body() -> None:
    async with body() as slow:
        await asyncio.sleep(5)
        slow.under_way.cut()
        seconds, error = await slow.ended
    assert isinstance(error, Stopping) and seconds == pytest.approx(5, abs=0.1)


async def test_drain_waits_for_a_body_that_began_before_it() -> None:
    async with body() as slow:
        clock: Callable[[], float] = asyncio.get_running_loop().time
        before = clock()
        await asyncio.sleep(1)
        slow.send()
        await asyncio.sleep(1)
        assert (slow.under_way.before(before - 1), slow.under_way.before(clock() - 1)) == (0, 1)
        slow.send(more=False)
        await slow.ended
        assert slow.under_way.before(clock()) == 0
