"""Settings and keys that take effect while the proxy runs: their files are read again when they change, the
settings also on SIGHUP.

A file that can't be used changes nothing: what was in force stays so, and the log and /stats say what is wrong. What
only a restart can change is named there until it comes.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from rolloutfleet.settings import LIVE_SETTINGS, NOT_LIVE, ProxySettings
from rolloutfleet_proxy.sessions.auth import BadKeyFile
from rolloutfleet_proxy.settings import BadSettings, SettingsInForce, SettingsSource, Told
from rolloutfleet_proxy.telemetry import logger

T = TypeVar("T")

POLL_INTERVAL: Final = 1.0
"""Seconds between looks at the file."""


def take(before: ProxySettings, told: Told) -> SettingsInForce:
    """What of new settings is in force at once. The generation is new only where nothing waits for a restart."""
    after = told.settings
    changed = _differences(before.model_dump(), after.model_dump())
    later = (name for name in changed if name.partition(".")[0] not in LIVE_SETTINGS or name in NOT_LIVE)
    waiting = (*later, *told.unknown)
    live = {name: getattr(after, name) for name in LIVE_SETTINGS}
    if waiting:
        live["generation"] = before.generation
    return SettingsInForce(before.model_copy(update=live), waiting=waiting, live_generation=told.generation)


def _differences(before: dict[str, Any], after: dict[str, Any], within: str = "") -> Iterator[str]:
    for name, value in after.items():
        was = before.get(name)
        if isinstance(was, dict) and isinstance(value, dict):
            yield from _differences(was, value, f"{within}{name}.")
        elif was != value:
            yield f"{within}{name}"


async def follow_settings(
    settings: SettingsInForce, source: SettingsSource, use: Callable[[ProxySettings], None]
) -> None:
    """Have `settings` follow their source; `use` is called with what is in force by then."""
    asked = asyncio.Event()
    # Without a handler that signal would end the process, so it is there without a file too.
    with contextlib.suppress(RuntimeError, ValueError, NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, asked.set)
    async for _ in _changes(source.file, asked):
        try:
            taken = take(settings.current, await asyncio.to_thread(source.read))
        except BadSettings as error:
            settings.error = str(error)
            logger.error("the settings can't be used, and the earlier ones stay in force: %s", error)
            continue
        settings.error, settings.waiting = None, taken.waiting
        settings.live_generation = taken.live_generation
        if taken.waiting:
            logger.warning("these settings wait for a restart, or for another release: %s", ", ".join(taken.waiting))
        if taken.current != settings.current:
            settings.current = taken.current
            use(taken.current)
            logger.info("settings of generation %d are in force", taken.current.generation)


async def follow_key(file: Path, load: Callable[[Path], T], use: Callable[[T], None], *, what: str) -> None:
    """What a key file says is in force within seconds: that is how keys rotate."""
    async for _ in _changes(file, asyncio.Event()):
        try:
            use(await asyncio.to_thread(load, file))
        except BadKeyFile as error:
            logger.error("%s can't be used, and the earlier ones stay valid: %s", what, error)
        else:
            logger.info("%s were read", what)


async def _changes(file: Path | None, asked: asyncio.Event) -> AsyncIterator[None]:
    """At once, and whenever the file was written or somebody asks."""
    seen = await asyncio.to_thread(_written, file)
    yield
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_INTERVAL if file is not None else None):
                await asked.wait()
        written = await asyncio.to_thread(_written, file)
        if written != seen or asked.is_set():
            seen = written
            asked.clear()
            yield


def _written(file: Path | None) -> tuple[int, bytes] | None:
    """With when it was written: it may have been read between two writes, and be loaded after the second."""
    try:
        if file is None:
            return None
        with file.open("rb") as opened:
            return os.fstat(opened.fileno()).st_mtime_ns, opened.read()
    except OSError:
        return None
