"""Settings and keys that take effect while the proxy runs: their files are read again when they change, the
settings also on SIGHUP.

A file that can't be used changes nothing: what was in force stays so, and the log and /stats say what is wrong. What
only a restart can change is named there until it comes.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from rolloutfleet.settings import LIVE_SETTINGS, NOT_LIVE, ProxySettings
from rolloutfleet_proxy.proxy import Proxy
from rolloutfleet_proxy.sessions.auth import BadKeyFile, gateway_key, load_admin_keys
from rolloutfleet_proxy.settings import BadSettings, SettingsSource, Told
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


@contextlib.asynccontextmanager
async def followed(proxy: Proxy, source: SettingsSource | None) -> AsyncIterator[None]:
    """The proxy's settings follow their source, and its keys their files, until the block ends."""
    following = _follow_key(proxy.admin_key_file, load_admin_keys, proxy.use_admin_keys, what="the admin keys")
    tasks = [asyncio.create_task(following, name="admin keys")]
    if proxy.settings.gateway_api_key_file is not None:
        following = _follow_key(
            proxy.settings.gateway_api_key_file, gateway_key, proxy.engine.use_key, what="the gateway's keys"
        )
        tasks.append(asyncio.create_task(following, name="gateway's keys"))
    if source is not None:
        tasks.append(asyncio.create_task(_Following(proxy, source).run(), name="settings"))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Following:
    def __init__(self, proxy: Proxy, source: SettingsSource) -> None:
        self._proxy = proxy
        self._source = source
        self._asked = asyncio.Event()

    async def run(self) -> None:
        # Without a handler that signal would end the process, so it is there without a file too.
        with contextlib.suppress(RuntimeError, ValueError, NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._asked.set)
        seen = await self._content()
        await self._read()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOKS if self._source.file is not None else None):
                    await self._asked.wait()
            content = await self._content()
            if content != seen or self._asked.is_set():
                seen = content
                self._asked.clear()
                await self._read()

    async def _content(self) -> bytes | None:
        return await asyncio.to_thread(_content, self._source.file)

    async def _read(self) -> None:
        proxy = self._proxy
        try:
            found = await asyncio.to_thread(self._source.read)
        except BadSettings as error:
            proxy.settings_error = str(error)
            logger.error("the settings can't be used, and the earlier ones stay in force: %s", error)
            return
        taken = take(proxy.settings, found)
        proxy.settings_error, proxy.settings_waiting = None, taken.waiting
        if taken.waiting:
            logger.warning("these settings wait for a restart, or for another release: %s", ", ".join(taken.waiting))
        if taken.in_force != proxy.settings:
            proxy.follow_settings(taken.in_force)
            logger.info("settings of generation %d are in force", taken.in_force.generation)


async def _follow_key(file: Path, load: Callable[[Path], T], use: Callable[[T], None], *, what: str) -> None:
    """What a key file says is in force within seconds: that is how keys rotate."""
    seen: bytes | None = None
    while True:
        content = await asyncio.to_thread(_content, file)
        if content != seen:
            seen = content
            try:
                use(await asyncio.to_thread(load, file))
            except BadKeyFile as error:
                logger.error("%s can't be used, and the earlier ones stay valid: %s", what, error)
            else:
                logger.info("%s were read", what)
        await asyncio.sleep(LOOKS)


def _content(file: Path | None) -> bytes | None:
    try:
        return None if file is None else file.read_bytes()
    except OSError:
        return None
