"""Turns: committed, given again, and whether their answers arrived.

The store decides first, and memory follows what it committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from rolloutfleet_proxy import failpoints
from rolloutfleet_proxy.domain.errors import DiskError
from rolloutfleet_proxy.domain.turn import Brief, NewTurn, Turn
from rolloutfleet_proxy.refusals import ended
from rolloutfleet_proxy.services.notes import write_soon
from rolloutfleet_proxy.sessions.admission import Admission
from rolloutfleet_proxy.sessions.paths import Path, Paths
from rolloutfleet_proxy.sessions.registry import Session, SessionRegistry
from rolloutfleet_proxy.store.store import Store
from rolloutfleet_proxy.store.turns import SessionOver, commit_turn, load_turn, set_delivered


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnService:
    """The turns of this proxy's sessions."""

    store: Store
    sessions: SessionRegistry
    paths: Paths
    admission: Admission

    def check_room(self) -> None:
        """Raises DiskFull where the disk has too little room left to keep another turn."""
        self.admission.check_disk()

    async def commit(self, session: Session, new: NewTurn, path: Path) -> Turn:
        """Record a turn: from here on only the store decides, whatever becomes of its caller or its session.

        Raises what `ended` says where the session ended first; DiskError.
        """
        try:
            made = await self.store.write(partial(commit_turn, turn=new))
        except SessionOver:
            raise ended(session) from None
        except DiskError:
            self.admission.note_full()
            raise
        session.add(new.node(made.number), Brief.of(new), new.new_tokens)
        self.sessions.committed(session)
        self.paths.keep(session.id, made.number, path)
        failpoints.reach(failpoints.BEFORE_ANSWER)
        return made

    async def again(self, session: Session, number: int) -> Turn:
        """A committed turn, from its row. Raises what `ended` says where it is gone with its session."""
        made = await self.store.read(lambda connection: load_turn(connection, session.id, number))
        if made is None:
            raise ended(session)
        self.note_delivery(session, number, delivered=True)
        return made

    def note_delivery(self, session: Session, number: int, *, delivered: bool) -> None:
        """A caller got the turn's answer, or it turned out that none did."""
        brief = session.briefs.get(number)
        if brief is None or brief.delivered == delivered:
            return
        brief.delivered = delivered
        write_soon(self.store.writer, partial(set_delivered, session=session.id, number=number, delivered=delivered))
