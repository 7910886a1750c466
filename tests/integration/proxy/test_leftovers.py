"""Promise 7: calls that were answered, refused, cut or never fetched, and sessions that ended, leave nothing in memory.

The proxy runs in this process, with the real gateway and a simulated engine beside it, so that its objects can be
counted. The collector of cycles is off meanwhile: a proxy under load runs it rarely, so what only that can free is
held for long.
"""

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import CoroutineType
from typing import Any

import httpx
import pytest
from tests.fleets import Fleet
from tests.integration.proxy.in_process import proxy_in_process
from tests.waiting import eventually

from rolloutfleet_proxy.capture.job import TurnJob
from rolloutfleet_proxy.capture.streaming import TurnStream
from rolloutfleet_proxy.control.dependencies import Services
from rolloutfleet_proxy.dialects.openai_chat.request import ChatRequest
from rolloutfleet_proxy.domain.tree import Node
from rolloutfleet_proxy.domain.turn import NewTurn, Turn
from rolloutfleet_proxy.engine.evidence import Evidence
from rolloutfleet_proxy.engine.pause_gate import Submission
from rolloutfleet_proxy.sessions.calls import Call
from rolloutfleet_proxy.sessions.registry import Session

OF_A_CALL = (Call, TurnJob, ChatRequest, TurnStream, NewTurn, Turn, Submission, Evidence, Session, Node)
OURS = "rolloutfleet_proxy"
SESSIONS = 6
HELLO = {"messages": [{"role": "user", "content": "Tell me something. " * 50}], "max_tokens": 60}


@pytest.fixture
async def proxy(fleet: Fleet, tmp_path: Path) -> AsyncIterator[tuple[Services, httpx.AsyncClient]]:
    """A proxy of this process, and its admin's client."""
    async with proxy_in_process(fleet, tmp_path, sessions={"retry_grace": 0}) as (app, admin):
        assert app.opened is not None
        yield app.opened.services, admin


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def alive() -> Counter[str]:
    return Counter(type(found).__name__ for found in gc.get_objects() if isinstance(found, OF_A_CALL))


def ours_in_cycles() -> Counter[str]:
    """Objects and coroutines of the proxy that nobody refers to, but that the collector alone would free."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        found = Counter(
            type(each).__qualname__ if type(each).__module__.startswith(OURS) else each.__qualname__
            for each in gc.garbage
            if type(each).__module__.startswith(OURS)
            or (isinstance(each, CoroutineType) and OURS in each.cr_code.co_filename)
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    return found


class Agent:
    """A session, and the calls that it makes."""

    def __init__(self, admin: httpx.AsyncClient, started: dict[str, Any]) -> None:
        self.name = started["session_id"]
        self._admin = admin
        self._headers = {"authorization": f"Bearer {started['api_key']}"}

    @classmethod
    async def start(cls, admin: httpx.AsyncClient) -> "Agent":
        reply = await admin.post("/sessions", json={"metadata": {"what": "leftovers"}})
        return cls(admin, reply.raise_for_status().json())

    async def ask(self, **asked: Any) -> httpx.Response:
        path = f"/sessions/{self.name}/v1/chat/completions"
        return await self._admin.post(path, json={**HELLO, **asked}, headers=self._headers)

    async def end(self, way: str) -> int:
        if way == "delete":
            return (await self._admin.delete(f"/sessions/{self.name}")).status_code
        return (await self._admin.post(f"/sessions/{self.name}/close")).status_code


async def test_ended_calls_and_sessions_leave_nothing(fleet: Fleet, proxy: tuple[Services, httpx.AsyncClient]) -> None:
    opened, admin = proxy
    with no_collector():
        before = alive()
        for way in ("delete", "close"):
            await answered(admin, way)
            await refused(fleet, admin, way)
            await cut(fleet, opened, admin, way)
            await left(fleet, opened, admin, way)
            await held(opened, admin, way)
        exported = (await admin.post("/export", json={"max_trajectories": 1000})).raise_for_status().json()
        (await admin.post(f"/leases/{exported['lease_id']}/ack")).raise_for_status()
        assert opened.metrics.in_flight == 0 and opened.weights.gate.in_flight == 0 and opened.weights.gate.waiting == 0
        # What tells the engine that a call is over may still be on its way.
        with contextlib.suppress(TimeoutError):
            await eventually(lambda: alive() <= before)
        after = alive()
        after.subtract(before)
        assert {name: n for name, n in after.items() if n > 0} == {}
        assert ours_in_cycles() == {}
    assert opened.figures.cache_sizes()["sessions"] == 0 and opened.figures.cache_sizes()["ids"] == 0
    audit = (await admin.get("/audit")).json()
    assert audit["balanced"] and audit["keys"] == 0 and audit["sessions"]["live"] == 0


async def answered(admin: httpx.AsyncClient, way: str) -> None:
    for number in range(SESSIONS):
        agent = await Agent.start(admin)
        for stream in (False, True):
            assert (await agent.ask(stream=stream, temperature=number / 10)).status_code == 200
        assert (await agent.end(way)) in (200, 204)


async def refused(fleet: Fleet, admin: httpx.AsyncClient, way: str) -> None:
    """By the engine, by the evidence, by what the request asks for."""
    agent = await Agent.start(admin)
    for kind in ("error_500", "nan", "garbage_json", "context_length"):
        for stream in (False, True):
            fleet.engine.fault(kind)
            reply = await agent.ask(stream=stream)
            assert reply.status_code >= 400 or b'"error"' in reply.content
            fleet.engine.clear_faults()
    assert (await agent.ask(n=2)).status_code == 400
    assert (await agent.end(way)) in (200, 204)


async def cut(fleet: Fleet, opened: Services, admin: httpx.AsyncClient, way: str) -> None:
    """Calls in flight, streamed and not, end with their session."""
    for _ in range(SESSIONS):
        agent = await Agent.start(admin)
        fleet.engine.fault("never", count=2, after_tokens=3)
        calls = [asyncio.create_task(agent.ask(stream=stream)) for stream in (False, True)]
        await eventually(lambda: opened.weights.gate.in_flight == 2)
        assert (await agent.end(way)) in (200, 204)
        replies = await asyncio.gather(*calls)
        assert all(b"session_" in reply.content for reply in replies)
    fleet.engine.clear_faults()


async def left(fleet: Fleet, opened: Services, admin: httpx.AsyncClient, way: str) -> None:
    """Callers that went away, of calls that are not answered yet."""
    for _ in range(SESSIONS):
        agent = await Agent.start(admin)
        fleet.engine.fault("never", count=2, after_tokens=3)
        calls = [asyncio.create_task(agent.ask(stream=stream)) for stream in (False, True)]
        await eventually(lambda: opened.weights.gate.in_flight == 2)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        await eventually(lambda: opened.weights.gate.in_flight == 0)
        assert (await agent.end(way)) in (200, 204)
    fleet.engine.clear_faults()


async def held(opened: Services, admin: httpx.AsyncClient, way: str) -> None:
    """Calls queued behind a pause."""
    (await admin.post("/pause", json={"mode": "abort"})).raise_for_status()
    for _ in range(SESSIONS):
        agent = await Agent.start(admin)
        calls = [asyncio.create_task(agent.ask(stream=stream)) for stream in (False, True)]
        await eventually(lambda: opened.weights.gate.waiting == 2)
        assert (await agent.end(way)) in (200, 204)
        assert {reply.status_code for reply in await asyncio.gather(*calls)} == {410}
    (await admin.post("/continue")).raise_for_status()
