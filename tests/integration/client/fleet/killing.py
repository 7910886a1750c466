"""Two proxies of which a test kills one, and starts it again."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import pytest
from tests.fleets import Fleet, ProxyProcess
from tests.integration.client.fleet.agents import talk_all
from tests.integration.client.fleet.by_turns import sessions_by_turns
from tests.integration.client.fleet.conftest import whereabouts

from rolloutfleet.fleet import AsyncFleet, AsyncSession
from rolloutfleet.fleet import Fleet as Trainer


def set_right(running: Fleet) -> None:
    """Both proxies up and known to each other, without any session: those of the test before are deleted."""
    for proxy in running.proxies:
        proxy.environment = {}
        if proxy.process is None or proxy.process.poll() is not None:
            proxy.launch()
    running.wait_until_complete()
    for proxy in running.proxies:
        proxy.boots = 1
    with Trainer(whereabouts(running), progress=False) as fleet, running.proxy.admin() as admin:
        for session in fleet.sessions():
            admin.delete(f"/sessions/{session.session_id}")


async def up_again(proxy: ProxyProcess) -> None:
    """Started again on its port and store, and ready. The kernel ties it to the thread that starts it: the main one."""
    proxy.launch()
    await asyncio.to_thread(proxy.wait_until_ready)


async def ended_sessions(fleet: AsyncFleet, number: int) -> list[AsyncSession]:
    """So many sessions with a trajectory each, half of them on either proxy."""
    sessions = await sessions_by_turns(fleet, number)
    await talk_all(sessions)
    for session in sessions:
        await session.close()
    return sessions


@contextlib.contextmanager
def start_keys(new_key: Callable[[], str]) -> Iterator[None]:
    """Idempotency-Keys of starts are made by `new_key`, those in place of a refused one too."""
    with pytest.MonkeyPatch.context() as patched:
        for module in ("async_fleet", "proxies"):
            patched.setattr(f"rolloutfleet.fleet.{module}.new_key", new_key)
        yield
