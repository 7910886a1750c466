"""Receipts: what other proxies say of answers that they passed on. What has left from here may be lost there.

Only they know whether an answer's last byte went to its caller. Until a receipt comes, the answer is on its way.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from rolloutfleet_proxy.services.turns import TurnService
from rolloutfleet_proxy.sessions.registry import Session

OVERDUE: Final = 60.0
"""Seconds after which a receipt comes no more: the proxy that passed the answer on has ended. Clients have as long to
take the rest of an answer (`http.protocol.WRITE_TIMEOUT`)."""


@dataclass(frozen=True, slots=True)
class _Awaited:
    session: Session
    number: int
    timer: asyncio.TimerHandle


@dataclass(frozen=True, slots=True)
class Receipts:
    """Of answers to calls that other proxies pass on."""

    turns: TurnService
    _awaited: dict[str, _Awaited] = field(default_factory=dict)

    def are_awaited(self) -> bool:
        """True while some have not come yet."""
        return bool(self._awaited)

    def expect(self, name: str, session: Session, number: int) -> None:
        """A turn's last byte is about to leave to another proxy."""
        self.drop(name)
        timer = asyncio.get_running_loop().call_later(OVERDUE, self._overdue, name)
        self._awaited[name] = _Awaited(session, number, timer)

    def came(self, name: str, *, received: bool) -> None:
        """What its receipt says. Where nothing waits for it, the call has ended some other way."""
        awaited = self._awaited.get(name)
        if awaited is None:
            return
        self.drop(name)
        if received:
            self.turns.arrived(awaited.session, awaited.number)
        else:
            self.turns.lost(awaited.session, awaited.number)

    def drop(self, name: str) -> None:
        """Nothing waits for it any more."""
        awaited = self._awaited.pop(name, None)
        if awaited is not None:
            awaited.timer.cancel()

    def _overdue(self, name: str) -> None:
        awaited = self._awaited.pop(name)
        self.turns.lost(awaited.session, awaited.number, known=False)
