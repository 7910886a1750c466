"""A fleet object belongs to its process, and an asynchronous one to its event loop; elsewhere it says what to do."""

import asyncio
import pickle
from typing import Any

import pytest

from rolloutfleet.fleet import AsyncFleet, Fleet, Unreachable, Whereabouts
from rolloutfleet.fleet.exceptions import FleetClosed
from rolloutfleet.fleet.sessions import AsyncSession
from rolloutfleet.fleet.sync_fleet import blocking_sessions

NOWHERE = Whereabouts.from_url("http://127.0.0.1:1", admin_key="key")
HANDLE: dict[str, Any] = {"session_id": "s0-a", "api_key": "b", "base_url": "c", "group_id": "g0-a"}


def test_a_second_event_loop_is_told_to_make_its_own() -> None:
    fleet = AsyncFleet(NOWHERE, patience=0.001)

    async def ask() -> None:
        await fleet.proxies()

    with pytest.raises(Unreachable):
        asyncio.run(ask())
    with pytest.raises(FleetClosed, match=r"another event loop: make one in each, .*AsyncFleet\(fleet\.whereabouts\)"):
        asyncio.run(ask())


async def test_a_blocking_session_on_its_own_event_loop_names_what_to_await() -> None:
    async with AsyncFleet(NOWHERE) as fleet:
        session = blocking_sessions(fleet)(AsyncSession(**HANDLE, fleet=fleet))
        with pytest.raises(RuntimeError, match=r": await the asynchronous method"):
            session.reward(1.0)


def pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


async def test_a_fleet_and_its_sessions_can_not_be_pickled_and_say_what_can() -> None:
    fleet = AsyncFleet(NOWHERE)
    with pytest.raises(TypeError, match=r"^AsyncFleet can't be pickled.*`whereabouts`.*AsyncFleet\(whereabouts\)$"):
        pickled(fleet)
    session = AsyncSession(**HANDLE, fleet=fleet)
    with pytest.raises(TypeError, match=r"^AsyncSession can't be pickled.*session_id, api_key and base_url"):
        pickled(session)
    assert pickled(fleet.whereabouts) == NOWHERE
    await fleet.close()


def test_a_blocking_fleet_can_not_be_pickled_and_says_what_can() -> None:
    with Fleet(NOWHERE) as fleet, pytest.raises(TypeError, match=r"^Fleet can't be pickled.*Fleet\(whereabouts\)$"):
        pickled(fleet)
