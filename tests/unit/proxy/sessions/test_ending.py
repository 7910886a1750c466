"""A session that ends: in which order the store, memory, and its calls in flight do."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.proxy.services import session_service
from tests.waiting import PATIENCE

from rolloutfleet.wire import StartSessions
from rolloutfleet_proxy.domain.errors import SessionDeleted
from rolloutfleet_proxy.domain.events import Failed
from rolloutfleet_proxy.domain.session import DELETED
from rolloutfleet_proxy.domain.turn import Turn
from rolloutfleet_proxy.sessions.calls import Call
from rolloutfleet_proxy.sessions.registry import Session, SessionRegistry
from rolloutfleet_proxy.store.database import open_database
from rolloutfleet_proxy.store.store import Store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store.over(open_database(tmp_path))
    yield store
    await store.close()
    store.database.close()


async def test_a_delete_has_returned_before_a_call_that_it_cuts_has_noticed(store: Store) -> None:
    registry = SessionRegistry(store.reader, cache_bytes=1_000_000)
    service = session_service(store, registry)
    started = await service.start(StartSessions(), None)
    session = await registry.named(started.sessions[0].session_id)
    assert isinstance(session, Session)
    running, noticed = asyncio.Event(), False

    async def work() -> Turn:
        nonlocal noticed
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            noticed = True
        raise AssertionError("nobody sets it")

    call = Call(turn_name="t", digest=b"", idempotency_key=None, streams=False)
    session.calls.start(call, work)
    await running.wait()

    await service.delete(session)
    assert session.state == DELETED
    assert (noticed, call.ending) == (False, None)

    async with asyncio.timeout(PATIENCE):
        await session.calls.ended()
    assert noticed
    assert isinstance(call.ending, Failed) and isinstance(call.ending.error, SessionDeleted)
