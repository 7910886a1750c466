"""Callers whose session a sweep reclaims while they are under way: each is told that it was reclaimed, and to where.

What a caller holds of the session says nothing of it: the sweep changed the rows, and then memory forgot it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.unit.proxy.services import session_service
from tests.unit.proxy.stores import new_turn

from rolloutfleet.wire import StartSessions
from rolloutfleet_proxy.domain.errors import SessionReclaimed
from rolloutfleet_proxy.domain.session import OPEN
from rolloutfleet_proxy.domain.stale import Patience, due
from rolloutfleet_proxy.lifecycle.sealing import Seals
from rolloutfleet_proxy.services.access import Access
from rolloutfleet_proxy.services.sessions import SessionService
from rolloutfleet_proxy.services.turns import TurnService
from rolloutfleet_proxy.sessions.auth import AdminKeys
from rolloutfleet_proxy.sessions.registry import Session, SessionRegistry
from rolloutfleet_proxy.store.database import open_database
from rolloutfleet_proxy.store.groups import free, load_group
from rolloutfleet_proxy.store.store import Store
from rolloutfleet_proxy.store.turns import commit_turn


@dataclass
class Scene:
    """A session with a turn, as a caller has found it."""

    store: Store
    access: Access
    service: SessionService
    turns: TurnService
    session: Session
    key: str

    async def reclaim(self, *, memory_follows: bool) -> None:
        """What a sweep does at its end."""
        group = await self.store.read(lambda connection: load_group(connection, self.session.group))
        chosen = due(group, now=1e9, patience=Patience(1.0, 1.0), busy=lambda name: False)
        assert chosen is not None
        file = f"{self.session.name}-active.json"
        freed = await self.store.write(lambda transaction: free(transaction, chosen, files=[file]), frees=True)
        if memory_follows:
            self.service.follow_freed(freed)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    store = Store.over(open_database(tmp_path))
    registry = SessionRegistry(store.reader, cache_bytes=1_000_000)
    service = session_service(store, registry)
    nothing: Any = None
    turns = TurnService(
        store=store, sessions=registry, paths=service.paths, admission=service.admission, commits=nothing
    )
    access = Access(admin=AdminKeys(["an-admin-key-for-tests-alone"]), registry=registry, seals=Seals())
    [started] = (await service.start(StartSessions(), None)).sessions
    session = await access.session(started.api_key)
    await store.write(lambda transaction: commit_turn(transaction, new_turn(session.id, name="first")))
    yield Scene(store, access, service, turns, session, started.api_key)
    await store.close()
    store.database.close()


async def test_a_call_whose_body_came_while_it_was_dumped_is_told_so(scene: Scene) -> None:
    """It found the session when it was sealed already, and looks again once its body is there."""
    with scene.access.seals.sealed([scene.session.name]):
        found = await scene.access.session(scene.key, scene.session.name)
        await scene.reclaim(memory_follows=True)
    assert found.state == OPEN
    with pytest.raises(SessionReclaimed, match=r"not used for too long.*-active\.json"):
        await scene.access.still_open(found, scene.key)


async def test_a_call_that_comes_while_it_is_dumped_waits_for_the_end_of_that(scene: Scene) -> None:
    with scene.access.seals.sealed([scene.session.name]):
        waiting = asyncio.create_task(scene.access.still_open(scene.session, scene.key))
        await scene.reclaim(memory_follows=True)
        assert not waiting.done()
    with pytest.raises(SessionReclaimed):
        await waiting


async def test_a_session_that_was_spared_is_served(scene: Scene) -> None:
    with scene.access.seals.sealed([scene.session.name]):
        waiting = asyncio.create_task(scene.access.still_open(scene.session, scene.key))
    assert await waiting is scene.session


_NO_PATH: Any = None
Act = Callable[[Scene], Awaitable[Any]]
ACTS: dict[str, Act] = {
    "commit": lambda scene: scene.turns.commit(scene.session, new_turn(scene.session.id, name="second"), _NO_PATH),
    "replay": lambda scene: scene.turns.again(scene.session, 1),
    "prompt_ids": lambda scene: scene.turns.prompt_ids(scene.session, 1),
    "touch": lambda scene: scene.service.touch(scene.session),
}


@pytest.mark.parametrize("memory_follows", [True, False], ids=["memory has followed", "memory has not followed yet"])
@pytest.mark.parametrize("act", ACTS)
async def test_what_finds_no_row_any_more_is_told_why(scene: Scene, act: str, memory_follows: bool) -> None:
    await scene.reclaim(memory_follows=memory_follows)
    with pytest.raises(SessionReclaimed, match=r"not used for too long.*-active\.json"):
        await ACTS[act](scene)
