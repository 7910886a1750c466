"""The outbox: what a proxy still has to be told, because it did not answer: acknowledgements, releases, closes.

Messages are sent again until they are delivered, beside everything else, so a proxy that is down holds up nobody. Each
is safe to send twice. What a trainer has acknowledged is trained: until the proxy knows, `acknowledged` keeps the
names, so that an export that brings them again does not hand them out.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from rolloutfleet.fleet.exceptions import FleetError, Refused, Unreachable
from rolloutfleet.fleet.retries import wait_before_retry
from rolloutfleet.tasks import end_tasks

log = logging.getLogger("rolloutfleet.fleet")

Deliver = Callable[[], Awaitable[object]]

FIRST_TIMEOUT: Final = 5.0
"""Seconds that a caller waits for the delivery. After that it goes on in the background, and the trainer goes on."""


@dataclass(frozen=True, slots=True)
class Message:
    """Something that a proxy is to be told."""

    what: str
    deliver: Deliver
    trajectory_ids: frozenset[str]
    """Trajectories that it acknowledges."""


class Outbox:
    """Sends messages until they are delivered, in the background. One event loop's."""

    def __init__(self) -> None:
        self._messages: dict[Message, asyncio.Task[None]] = {}

    @property
    def acknowledged(self) -> frozenset[str]:
        """Trajectories whose proxies don't know yet that they are trained."""
        return frozenset(name for message in self._messages for name in message.trajectory_ids)

    @property
    def texts(self) -> list[str]:
        """What is still to be delivered."""
        return [message.what for message in self._messages]

    def add(
        self, what: str, deliver: Deliver, *, trajectory_ids: frozenset[str] = frozenset(), quietly: bool = False
    ) -> None:
        message = Message(what, deliver, trajectory_ids)
        if not quietly:
            log.warning("%s did not arrive; it is repeated until it arrives", what)
        task = asyncio.create_task(self._until_delivered(message))
        self._messages[message] = task
        task.add_done_callback(lambda _: self._messages.pop(message, None))

    async def deliver(self, what: str, deliver: Deliver, *, trajectory_ids: frozenset[str] = frozenset()) -> None:
        """Send it once now; where nobody answers, go on in the background.

        Raises Refused where it will never be delivered.
        """
        try:
            async with asyncio.timeout(FIRST_TIMEOUT):
                await deliver()
            return
        except TimeoutError:
            pass
        except (Unreachable, Refused) as error:
            if wait_before_retry(error, attempt=0, chance=0.0) is None:
                raise
        self.add(what, deliver, trajectory_ids=trajectory_ids)

    async def flush(self, patience: float) -> list[str]:
        """Wait for all deliveries; what could not be delivered in so many seconds is given up, and returned."""
        tasks = list(self._messages.values())
        if tasks:
            await asyncio.wait(tasks, timeout=patience)
        left = self.texts
        await end_tasks(self._messages.values())
        return left

    async def _until_delivered(self, message: Message) -> None:
        attempt = 0
        while True:
            try:
                await message.deliver()
            except FleetError as error:
                wait = wait_before_retry(error, attempt=attempt, chance=1.0)
                if wait is None:
                    log.warning("%s was refused: %s", message.what, error)
                    return
                await asyncio.sleep(wait)
                attempt += 1
            else:
                log.info("%s was heard", message.what)
                return
