"""A session that ends: in which order the store, memory, and its calls in flight do."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.unit.proxy.services import session_service
from tests.waiting import PATIENCE

from rolloutfleet.wire import CloseSession, GroupDeadline, StartSessions
from rolloutfleet_proxy.domain.errors import DomainError, GroupClosed, SessionClosed, SessionDeleted
from rolloutfleet_proxy.domain.events import Failed
from rolloutfleet_proxy.domain.session import DELETED, OPEN, Gone
from rolloutfleet_proxy.domain.turn import Turn
from rolloutfleet_proxy.services.sessions import SessionService
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


@dataclass
class Running:
    """A session with a call in flight."""

    service: SessionService
    session: Session
    call: Call
    noticed: bool = False

    async def ended(self) -> DomainError:
        async with asyncio.timeout(PATIENCE):
            await self.session.calls.ended()
        assert self.noticed and isinstance(self.call.ending, Failed)
        return self.call.ending.error


async def in_flight(store: Store, asked: StartSessions) -> Running:
    registry = SessionRegistry(store.reader, cache_bytes=1_000_000)
    service = session_service(store, registry)
    started = await service.start(asked, None)
    session = await registry.named(started.sessions[0].session_id)
    assert isinstance(session, Session)
    running = asyncio.Event()
    made = Running(service, session, Call(turn_name="t", digest=b"", idempotency_key=None, streams=False))

    async def work() -> Turn:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            made.noticed = True
        raise AssertionError("nobody sets it")

    session.calls.start(made.call, work)
    await running.wait()
    return made


async def test_a_delete_has_returned_before_a_call_that_it_cuts_has_noticed(store: Store) -> None:
    made = await in_flight(store, StartSessions())
    await made.service.delete(made.session)
    assert made.session.state == DELETED
    assert (made.noticed, made.call.ending) == (False, None)
    assert isinstance(await made.ended(), SessionDeleted)


async def test_a_session_that_is_replaced_ends_its_calls(store: Store) -> None:
    made = await in_flight(store, StartSessions())
    await made.service.start(StartSessions(replaces=made.session.name), None)
    assert isinstance(await made.ended(), SessionClosed)
    assert isinstance(await made.service.registry.named(made.session.name), Gone)
    assert made.service.admission.sessions_open == 1


async def test_a_groups_deadline_cuts_the_calls_of_those_that_are_still_open(store: Store) -> None:
    asked = StartSessions(group_size=2, group=GroupDeadline(quorum=1, deadline=1e-9))
    made = await in_flight(store, asked)
    service = made.service
    await service.close_late_groups()
    assert made.call.ending is None and made.session.state == OPEN, "nobody has ended yet"
    [other] = [name for (name,) in await _names(store) if name != made.session.name]
    await service.close(await service.registry.named(other), other, CloseSession())
    await service.close_late_groups()
    assert isinstance(await made.ended(), GroupClosed)
    with pytest.raises(GroupClosed):
        await service.touch(made.session)
    assert service.admission.sessions_open == 0


async def _names(store: Store) -> list[tuple[str]]:
    return await store.read(lambda connection: connection.execute("SELECT name FROM sessions").fetchall())
