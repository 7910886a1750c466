"""After a crash: is what the disk has what was written to it? Looked at beside the calls, and only ever told of."""

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from rolloutfleet.boots import CRASH
from rolloutfleet.wording import counted
from rolloutfleet_proxy.store import boots, damage
from rolloutfleet_proxy.store.store import Store
from rolloutfleet_proxy.store.tally import Tally
from rolloutfleet_proxy.telemetry import logger
from rolloutfleet_proxy.telemetry.metrics import Metrics

MOST_TOLD: Final = 20
"""Problems that are told one by one."""
REST: Final = 0.01
"""Seconds in which others have the reader, after each piece."""


@dataclass(eq=False, slots=True, kw_only=True)
class Checking:
    """Looks a store through once, and keeps what it found."""

    store: Store
    metrics: Metrics
    found: list[str] = field(init=False, default_factory=list)
    state: str | None = field(init=False, default=None)
    """None: there was no crash to look for; else `running`, then `sound` or `damaged`."""

    async def compare(self, tally: Tally) -> None:
        """Say what the store lacks of what had been committed."""
        missing = await tally.compare()
        if missing:
            what = ", ".join(counted(count, kind.removesuffix("s")) for kind, count in missing.items())
            self._tell(f"lost of what had been committed: {what}; the file or its log was damaged or replaced")

    async def after_a_crash(self) -> None:
        """Look at the file's structure, then at each row."""
        booted = await self.store.read(boots.load)
        if not booted or not booted[-1]["reason"].startswith(CRASH):
            return
        self.state, began = "running", time.monotonic()
        try:
            for problem in await self._structure():
                self._tell(problem)
            for problem in await self.store.recounting.run(lambda connection: list(damage.damaged_rows(connection))):
                self._tell(problem)
            turns = await self._turns()
        except Exception:
            logger.exception("the store could not be checked to the end")
            return
        self.state = "damaged" if self.found else "sound"
        took = time.monotonic() - began
        logger.info("the store was checked after a crash: %d turns in %.1f s, %s", turns, took, self.state)

    async def _structure(self) -> list[str]:
        with contextlib.closing(self.store.database.connect(read_only=True)) as connection:
            looking = asyncio.ensure_future(asyncio.to_thread(damage.in_structure, connection, most=MOST_TOLD))
            try:
                return await asyncio.shield(looking)
            finally:
                connection.interrupt()
                await asyncio.wait([looking])

    async def _turns(self) -> int:
        after, turns = 0, 0
        while True:
            piece = await self.store.recounting.run(partial(damage.look_at_turns, after=after))
            if piece is None:
                return turns
            after, count, bad = piece
            turns += count
            for problem in bad:
                self._tell(problem)
            await asyncio.sleep(REST)

    def _tell(self, problem: str) -> None:
        self.metrics.damage_found.inc()
        if len(self.found) < MOST_TOLD:
            self.found.append(problem)
            logger.error("the store is damaged: %s", problem)
