"""What a proxy still has to be told, because it did not answer: acknowledgements, releases, closes.

They are said again until they are heard, beside everything else, so a proxy that is down holds up nobody. Each is safe
to say twice. What a trainer has acknowledged is trained: until the proxy knows, `acknowledged` keeps the names, so that
an export that brings them again does not hand them out.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from rolloutfleet.fleet.exceptions import FleetError, Refused, Unreachable
from rolloutfleet.fleet.retries import wait_before_retry

log = logging.getLogger("rolloutfleet.fleet")

Say = Callable[[], Awaitable[None]]

FIRST_PATIENCE: Final = 5.0
"""Seconds that somebody waits to be heard. After that it is said in the background, and the trainer goes on."""
_LATER: Final = "it is said again until it is heard"


@dataclass(frozen=True, slots=True)
class Debt:
    """Something to be said."""

    what: str
    say: Say
    trajectory_ids: frozenset[str]
    """Trajectories that it acknowledges."""


class Owed:
    """Says things until they are heard, in the background. One event loop's."""

    def __init__(self) -> None:
        self._debts: dict[Debt, asyncio.Task[None]] = {}

    @property
    def acknowledged(self) -> frozenset[str]:
        """Trajectories whose proxies don't know yet that they are trained."""
        return frozenset(name for debt in self._debts for name in debt.trajectory_ids)

    @property
    def texts(self) -> list[str]:
        """What is still to be said."""
        return [debt.what for debt in self._debts]

    def add(self, what: str, say: Say, *, trajectory_ids: frozenset[str] = frozenset(), quietly: bool = False) -> None:
        debt = Debt(what, say, trajectory_ids)
        if not quietly:
            log.warning("%s was not heard; %s", what, _LATER)
        task = asyncio.create_task(self._until_heard(debt))
        self._debts[debt] = task
        task.add_done_callback(lambda _: self._debts.pop(debt, None))

    async def say(self, what: str, say: Say, *, trajectory_ids: frozenset[str] = frozenset()) -> bool:
        """Say it once now; where nobody hears it, go on in the background. Returns whether it was heard.

        Raises Refused where it will never be.
        """
        try:
            async with asyncio.timeout(FIRST_PATIENCE):
                await say()
            return True
        except TimeoutError:
            pass
        except (Unreachable, Refused) as error:
            if wait_before_retry(error, attempt=0, chance=0.0) is None:
                raise
        self.add(what, say, trajectory_ids=trajectory_ids)
        return False

    async def settle(self, patience: float) -> list[str]:
        """Wait for what is owed; what could not be said in so many seconds is given up, and returned."""
        tasks = list(self._debts.values())
        if tasks:
            await asyncio.wait(tasks, timeout=patience)
        left = self.texts
        for task in list(self._debts.values()):
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
        return left

    async def _until_heard(self, debt: Debt) -> None:
        attempt = 0
        while True:
            try:
                await debt.say()
            except FleetError as error:
                wait = wait_before_retry(error, attempt=attempt, chance=1.0)
                if wait is None:
                    log.warning("%s was refused: %s", debt.what, error)
                    return
                await asyncio.sleep(wait)
                attempt += 1
            else:
                log.info("%s was heard", debt.what)
                return
