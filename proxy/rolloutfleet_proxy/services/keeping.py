"""Copies of trained sessions, made one after the other, while nobody waits for them (`inspect.keep`)."""

import asyncio
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from rolloutfleet.dumps.form import DumpedSession
from rolloutfleet_proxy import failpoints
from rolloutfleet_proxy.lifecycle.folder import DumpFolder
from rolloutfleet_proxy.lifecycle.kept import keep, kept_folder
from rolloutfleet_proxy.services.dumps import owed_on
from rolloutfleet_proxy.settings import SettingsInForce
from rolloutfleet_proxy.store import keeping
from rolloutfleet_proxy.store.store import Store
from rolloutfleet_proxy.telemetry import logger
from rolloutfleet_proxy.telemetry.metrics import Metrics

COPIED: Final = "copied"
FAILED: Final = "failed"
LEFT_FREE: Final = 10
"""One part in so many of the store's disk is not for copies: turns are committed there."""


class _Stopping(Exception):
    """What is not copied by now is the next process's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """Copies what waits for it, and lets go of its turns, also where no copy could be made."""

    store: Store
    settings: SettingsInForce
    metrics: Metrics
    wall: Callable[[], float] = time.time
    _stopping: threading.Event = field(init=False, default_factory=threading.Event)
    _thread: ThreadPoolExecutor = field(
        init=False, default_factory=partial(ThreadPoolExecutor, max_workers=1, thread_name_prefix="keeper")
    )

    def __post_init__(self) -> None:
        for outcome in (COPIED, FAILED):
            self.metrics.sessions_kept.labels(outcome)  # There from the start, so that the first one is seen to come.

    async def close(self) -> None:
        """Return when no file is being written any more, which is soon: between two turns it ends, and leaves none."""
        self._stopping.set()
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    async def tidy(self) -> None:
        """Remove what a crash left half written."""
        try:
            await self._in_thread(self._folder().remove_unfinished)
        except OSError as error:
            logger.warning("the folder of kept sessions could not be tidied: %s", error)

    async def work(self) -> None:
        """Copy all that waits now."""
        while (waiting := await self.store.read(keeping.load_next)) is not None:
            failpoints.reach(failpoints.BEFORE_KEEPING)
            outcome = await self._copy(*waiting)
            failpoints.reach(failpoints.AFTER_KEEPING)
            await self.store.write(partial(keeping.let_go, session=waiting.session), frees=True)
            self.metrics.sessions_kept.labels(outcome).inc()

    async def _copy(self, session: int, head: DumpedSession | None) -> str:
        if head is None:
            return FAILED
        copy = partial(
            keep,
            self._folder(),
            self._read,
            session,
            head,
            owner=self.store.owner,
            wall=self.wall(),
            most_bytes=self.settings.current.inspect.keep.max_bytes,
        )
        try:
            await self._in_thread(copy)
        except _Stopping:
            raise
        except Exception as error:
            logger.warning("no copy of session %s is kept: %s: %s", head.session_id, type(error).__name__, error)
            return FAILED
        return COPIED

    def _read(self, query: Callable[[Any], Any]) -> Any:
        if self._stopping.is_set():
            raise _Stopping
        return self.store.reader.run_blocking(query)

    def _folder(self) -> DumpFolder:
        path, database = kept_folder(self.settings.current), self.store.database
        owed = owed_on(path, database)

        def not_for_copies() -> int:
            of_store = owed()
            return of_store and of_store + shutil.disk_usage(database.folder).total // LEFT_FREE

        return DumpFolder(path, self.store.owner, owed=not_for_copies)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
