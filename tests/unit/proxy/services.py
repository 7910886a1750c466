"""The services over a real store, without the rest of a proxy."""

import asyncio
import time
from collections.abc import Callable

from rolloutfleet.settings import ProxySettings
from rolloutfleet.spec_for_proxies import LimitsSpec
from rolloutfleet_proxy.engine.pause_gate import PauseGate
from rolloutfleet_proxy.process.drain import Drains, NoHost
from rolloutfleet_proxy.services.sessions import SessionService
from rolloutfleet_proxy.services.weights import WeightService
from rolloutfleet_proxy.sessions.admission import Admission
from rolloutfleet_proxy.sessions.paths import Paths
from rolloutfleet_proxy.sessions.registry import SessionRegistry
from rolloutfleet_proxy.settings import SettingsInForce
from rolloutfleet_proxy.store.database import Database
from rolloutfleet_proxy.store.store import Store
from rolloutfleet_proxy.store.weights import Applied, load
from rolloutfleet_proxy.store.writer import Writer


def in_force(database: Database) -> SettingsInForce:
    folder = database.folder
    return SettingsInForce(
        ProxySettings(fleet="test", model="none", state_dir=folder, gateway_url="http://127.0.0.1:9")
    )


def session_service(store: Store, registry: SessionRegistry) -> SessionService:
    """With real parts, of which no test of these looks at memory or disk."""
    return SessionService(
        store=store,
        registry=registry,
        paths=Paths(store.reader, cache_bytes=1_000_000),
        admission=Admission(LimitsSpec(), store.database, sessions_open=0),
        drains=Drains(
            store=store.writer,
            under_way=lambda before: 0,
            cut=lambda: None,
            host=NoHost(),
            timeout=1.0,
            leave_time=0.0,
            max_hold=1.0,
            served=time.monotonic,
        ),
        settings=in_force(store.database),
        check_arguments=lambda arguments: None,
    )


class Told(list[Applied]):
    """What recoveries did, in the place of the sessions that follow it."""


async def open_weights(
    writer: Writer,
    *,
    max_hold: float,
    clock: Callable[[], float] | None = None,
    told: Told | None = None,
) -> WeightService:
    """As a store has them, by the clock of the loop unless another is given."""
    state, paused_for = await writer.run(load)
    gate = PauseGate(state, max_hold=max_hold, paused_for=paused_for, clock=clock or asyncio.get_running_loop().time)
    return WeightService(gate=gate, writer=writer, follow=(Told() if told is None else told).append)
