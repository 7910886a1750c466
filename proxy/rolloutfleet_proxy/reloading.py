"""Settings and keys that take effect while the proxy runs: their files are read again when they change, the
settings also on SIGHUP.

A file that can't be used changes nothing: what was in force stays so, and the log and /stats say what is wrong. What
only a restart can change is named there until it comes.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from rolloutfleet.settings import LIVE_SETTINGS, NOT_LIVE, ProxySettings
from rolloutfleet_proxy.cluster.peers import Peers
from rolloutfleet_proxy.engine.client import Engine
from rolloutfleet_proxy.services.access import Access
from rolloutfleet_proxy.services.pause_gate import PauseGate
from rolloutfleet_proxy.sessions.admission import Admission
from rolloutfleet_proxy.sessions.auth import BadKeyFile, gateway_key, load_admin_keys
from rolloutfleet_proxy.settings import BadSettings, SettingsInForce, SettingsSource, Told
from rolloutfleet_proxy.telemetry import logger

T = TypeVar("T")

LOOKS: Final = 1.0
"""Seconds between looks at the file."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a changed file means for a proxy that runs."""

    in_force: ProxySettings
    waiting: tuple[str, ...]
    """Settings that a restart would change, or another release has, by their dotted names."""


def take(before: ProxySettings, told: Told) -> Taken:
    """What of new settings is in force at once. The generation is new only where nothing waits for a restart."""
    after = told.settings
    changed = _differences(before.model_dump(), after.model_dump())
    later = (name for name in changed if name.partition(".")[0] not in LIVE_SETTINGS or name in NOT_LIVE)
    waiting = (*later, *told.unknown)
    live = {name: getattr(after, name) for name in LIVE_SETTINGS}
    if waiting:
        live["generation"] = before.generation
    return Taken(before.model_copy(update=live), waiting)


def _differences(before: dict[str, Any], after: dict[str, Any], within: str = "") -> Iterator[str]:
    for name, value in after.items():
        was = before.get(name)
        if isinstance(was, dict) and isinstance(value, dict):
            yield from _differences(was, value, f"{within}{name}.")
        elif was != value:
            yield f"{within}{name}"


def following(
    settings: SettingsInForce,
    source: SettingsSource | None,
    *,
    admin_key_file: Path,
    access: Access,
    engine: Engine,
    admission: Admission,
    gate: PauseGate,
    peers: Peers,
) -> dict[str, Coroutine[Any, Any, None]]:
    """What makes the settings follow their source, and keys their files, by its name."""
    load_admin = _follow_key(admin_key_file, load_admin_keys, access.use_admin_keys, what="the admin keys")
    work: dict[str, Coroutine[Any, Any, None]] = {"admin keys": load_admin}
    file = settings.current.gateway_api_key_file
    if file is not None:
        work["gateway's keys"] = _follow_key(file, gateway_key, engine.use_key, what="the gateway's keys")
    if source is not None:
        work["settings"] = _Following(settings, source, admission, gate, peers).run()
    return work


@dataclass(frozen=True, slots=True)
class _Following:
    settings: SettingsInForce
    source: SettingsSource
    admission: Admission
    gate: PauseGate
    peers: Peers

    async def run(self) -> None:
        asked = asyncio.Event()
        # Without a handler that signal would end the process, so it is there without a file too.
        with contextlib.suppress(RuntimeError, ValueError, NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, asked.set)
        async for _ in _changes(self.source.file, asked):
            await self._read()

    async def _read(self) -> None:
        settings = self.settings
        try:
            found = await asyncio.to_thread(self.source.read)
        except BadSettings as error:
            settings.error = str(error)
            logger.error("the settings can't be used, and the earlier ones stay in force: %s", error)
            return
        taken = take(settings.current, found)
        settings.error, settings.waiting = None, taken.waiting
        if taken.waiting:
            logger.warning("these settings wait for a restart, or for another release: %s", ", ".join(taken.waiting))
        if taken.in_force != settings.current:
            self._use(taken.in_force)
            logger.info("settings of generation %d are in force", taken.in_force.generation)

    def _use(self, settings: ProxySettings) -> None:
        self.settings.current = settings
        self.admission.limits = settings.sessions.limits
        self.gate.hold_for(settings.sessions.max_hold)
        self.peers.follow(settings.replicas)


async def _follow_key(file: Path, load: Callable[[Path], T], use: Callable[[T], None], *, what: str) -> None:
    """What a key file says is in force within seconds: that is how keys rotate."""
    async for _ in _changes(file, asyncio.Event()):
        try:
            use(await asyncio.to_thread(load, file))
        except BadKeyFile as error:
            logger.error("%s can't be used, and the earlier ones stay valid: %s", what, error)
        else:
            logger.info("%s were read", what)


async def _changes(file: Path | None, asked: asyncio.Event) -> AsyncIterator[None]:
    """At once, and whenever the file's content has changed or somebody asks."""
    seen = await asyncio.to_thread(_content, file)
    yield
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOKS if file is not None else None):
                await asked.wait()
        content = await asyncio.to_thread(_content, file)
        if content != seen or asked.is_set():
            seen = content
            asked.clear()
            yield


def _content(file: Path | None) -> bytes | None:
    try:
        return None if file is None else file.read_bytes()
    except OSError:
        return None
