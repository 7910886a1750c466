"""The folder of dumps: what lies in it, what is taken in again, and the sweep that fills it."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from rolloutfleet.dumps.files import DumpName
from rolloutfleet.dumps.form import Damaged
from rolloutfleet.wire import DumpState
from rolloutfleet_proxy.domain.errors import DumpDamaged, InvalidParameter, NotDraining, TemporaryFailure
from rolloutfleet_proxy.domain.stale import Patience
from rolloutfleet_proxy.lifecycle.folder import DumpFolder, Listed, folder_of, is_shared
from rolloutfleet_proxy.process.drain import Drains
from rolloutfleet_proxy.services.importing import Importer
from rolloutfleet_proxy.services.sweeping import Orders, Sweeper
from rolloutfleet_proxy.settings import SettingsInForce
from rolloutfleet_proxy.store.database import Database
from rolloutfleet_proxy.store.store import Store
from rolloutfleet_proxy.telemetry import logger

RETIRING: Final = 20.0
"""Seconds in which an ephemeral proxy dumps all it has when it is stopped: within a pod's grace, which is
`drain_timeout` and 30 more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpService:
    """Sessions on their way out of the store, and back."""

    folder_now: Callable[[], DumpFolder]
    importer: Importer
    sweeper: Sweeper
    drains: Drains
    store: Store
    settings: SettingsInForce

    @property
    def keeps(self) -> bool:
        """Whether there is a folder: else turns of stale sessions are discarded."""
        return folder_of(self.settings.current) is not None

    async def page(self, *, after: str, limit: int, state: DumpState | None) -> Sequence[Listed]:
        """Files behind that name. Raises TemporaryFailure where the disk fails."""
        with _readable():
            return await asyncio.to_thread(self.folder_now().listed, after=after, limit=limit, state=state, heads=True)

    async def open(self, dump: DumpName) -> BinaryIO | None:
        """A dump's file, None where it is not here. Raises DumpDamaged, TemporaryFailure."""
        with _readable():
            try:
                return await asyncio.to_thread(self.folder_now().open, dump)
            except Damaged as error:
                raise DumpDamaged(f"{dump}: {error}.", param="name") from None

    async def retire(self) -> int:
        """Dump and free all that has no call in flight and is not leased; returns how many sessions that were.

        Raises NotDraining, and InvalidParameter where there is no folder.
        """
        if not self.drains.draining:
            raise NotDraining()
        if not self.keeps:
            raise InvalidParameter("sessions.dump.path", "There is no folder to dump to: sessions.dump.path is empty.")
        return await self.sweeper.retire(self._orders())

    async def retire_at_the_end(self) -> None:
        """Dump what a store that dies with its pod holds, when the proxy was told to stop."""
        if not (self.settings.current.ephemeral and self.drains.stopped and self.keeps):
            return
        try:
            async with asyncio.timeout(RETIRING):
                reclaimed = await self.sweeper.retire(self._orders())
        except TimeoutError:
            logger.error("there was no time to dump everything: some of it is lost with the pod")
        else:
            logger.info("%d sessions were dumped before the pod goes", reclaimed)

    async def tidy(self) -> None:
        """Remove from the folder what earlier processes of this proxy left behind."""
        await self.sweeper.tidy(self._orders())

    async def sweep(self) -> None:
        """Reclaim sessions that nobody uses."""
        await self.sweeper.sweep(self._orders())

    def _orders(self) -> Orders:
        """What the settings say now."""
        settings = self.settings.current
        sessions, folder = settings.sessions, folder_of(settings)
        return Orders(
            Patience(sessions.stale_after, sessions.unclaimed_after),
            None
            if folder is None
            else DumpFolder(
                folder,
                self.store.owner,
                owed=owed_on(folder, self.store.database),
                shared=is_shared(settings),
            ),
            keep_age=sessions.dump.keep.age,
            keep_bytes=sessions.dump.keep.bytes,
        )


def owed_on(folder: Path, database: Database) -> Callable[[], int]:
    """What the disk of a folder owes to the store, where it is the store's own."""
    reserve = database.reserve
    if reserve is None or not _on_one_disk(folder, database.folder):
        return lambda: 0
    return lambda: reserve.owed


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Raises TemporaryFailure where the disk fails."""
    try:
        yield
    except OSError as error:
        raise TemporaryFailure(f"The folder of dumps can't be read: {error}.") from None


def _on_one_disk(folder: Path, other: Path) -> bool:
    """`folder` need not be there yet: then it will be on the disk of the nearest folder above it. One that can't be
    looked at is on a disk of its own, which has failed."""
    try:
        there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), other)
        return there.stat().st_dev == other.stat().st_dev
    except OSError:
        return False
