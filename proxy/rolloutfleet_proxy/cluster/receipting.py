"""Receipts for answers that were passed on: owners are told of many at a time whether their last bytes left.

Of an answer that reached its caller nothing hurries: until its receipt comes an equal call is a new turn, as it is
afterwards. Of one that was lost the owner is told at once, so that the caller's retry gets it.
"""

import asyncio
from typing import Final

from rolloutfleet_proxy.cluster.peers import Peers
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.http.headers import VOUCHER
from rolloutfleet_proxy.telemetry import logger

PATH: Final = "/peers/receipts"
DELAY: Final = 0.5
"""Seconds for which receipts are gathered."""
MOST: Final = 256
"""Receipts in one message; with so many none waits any longer."""
_TIMEOUT: Final = 5.0


class Receipting:
    """Gives other proxies the receipts for their answers."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._received: dict[int, list[str]] = {}
        """Names of what reached its caller, by its owner's ordinal."""
        self._sending: set[asyncio.Task[None]] = set()

    async def give(self, ordinal: int, name: str, *, received: bool) -> None:
        """Say whether the last byte of an answer of that proxy left to the caller."""
        if not received:
            await self._send(ordinal, lost=[name])
            return
        names = self._received.setdefault(ordinal, [])
        names.append(name)
        if len(names) == 1:
            asyncio.get_running_loop().call_later(DELAY, self._due, ordinal, names)
        elif len(names) == MOST:
            self._due(ordinal, names)

    async def close(self) -> None:
        """Give those that are still to be given."""
        for ordinal, names in list(self._received.items()):
            self._due(ordinal, names)
        await asyncio.gather(*self._sending)

    def _due(self, ordinal: int, names: list[str]) -> None:
        """Give these, unless that has been done."""
        if self._received.get(ordinal) is names:
            del self._received[ordinal]
            task = asyncio.create_task(self._send(ordinal, received=names))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, ordinal: int, **names: list[str]) -> None:
        """Post receipts, once. An owner that gets none takes it that nobody knows."""
        headers = {VOUCHER: self._peers.voucher()}
        try:
            await self._peers.ask(ordinal, "POST", PATH, headers=headers, content=names, timeout=_TIMEOUT)
        except DomainError as error:
            logger.warning("proxy %d could not be told what became of its answers: %s", ordinal, error)
