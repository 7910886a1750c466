"""Turns: committed, given again, and whether their answers arrived.

The store decides first, and memory follows what it committed.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import partial

from rolloutfleet_proxy import failpoints
from rolloutfleet_proxy.domain.errors import DiskError, ResponseNotFound
from rolloutfleet_proxy.domain.matching import OwnMessages
from rolloutfleet_proxy.domain.turn import Brief, Delivery, NewTurn, Turn
from rolloutfleet_proxy.refusals import why_gone
from rolloutfleet_proxy.services.commits import Commits
from rolloutfleet_proxy.sessions.admission import Admission
from rolloutfleet_proxy.sessions.paths import Path, Paths
from rolloutfleet_proxy.sessions.registry import Session, SessionRegistry
from rolloutfleet_proxy.store.store import Connection, Store
from rolloutfleet_proxy.store.turns import SessionOver, commit_turn, hide, load_beginning, load_turn


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnService:
    """The turns of this proxy's sessions."""

    store: Store
    sessions: SessionRegistry
    paths: Paths
    admission: Admission
    commits: Commits

    def check_room(self) -> None:
        """Raises DiskFull where the disk has too little room left to keep another turn."""
        self.admission.check_disk()

    async def commit(self, session: Session, new: NewTurn, path: Path) -> Turn:
        """Record a turn: from here on only the store decides, whatever becomes of its caller or its session, and
        however long another program has it locked.

        Raises what `why_gone` says where the session ended first; DiskError.
        """
        try:
            made = await self.store.write(partial(commit_turn, turn=new), waits=True)
        except SessionOver:
            raise await why_gone(session, self.store.reader) from None
        except DiskError:
            self.admission.note_full()
            raise
        session.add(new.node(made.number), Brief.of(new), new.new_tokens)
        if made.parent is not None:
            self.arrived(session, made.parent)
        self.sessions.committed(session)
        self.paths.keep(session.id, made.number, path)
        parent = None if made.parent is None else session.briefs.get(made.parent)
        self.commits.add(session.name, made.name, None if parent is None else parent.name)
        failpoints.reach(failpoints.BEFORE_ANSWER)
        return made

    async def again(self, session: Session, number: int) -> Turn:
        """A committed turn, from its row. Raises what `why_gone` says where it is gone with its session."""
        made = await self.store.read(lambda connection: load_turn(connection, session.id, number))
        if made is None:
            raise await why_gone(session, self.store.reader)
        return made

    async def prompt_ids(self, session: Session, number: int) -> array[int]:
        """Of a committed turn's whole prompt. Raises what `why_gone` says where it is gone with its session."""
        try:
            return (await self.paths.get(session.id, number)).prompt_ids
        except LookupError:
            raise await why_gone(session, self.store.reader) from None

    async def shown(self, session: Session, name: str) -> tuple[Turn, OwnMessages]:
        """A turn by its name, and the turn that its conversation begins with. Raises ResponseNotFound, also where it is
        hidden."""
        number = session.turn_named(name)
        found = None if number is None else await self.store.read(partial(_load_shown, session.id, number))
        if found is None or found[0].extras.hidden:
            raise _not_found()
        return found

    async def hide(self, session: Session, name: str) -> None:
        """Show a turn no more, and let no call go on from it by name; else nothing changes. Raises ResponseNotFound."""
        number = session.turn_named(name)
        if number is None or not await self.store.write(partial(hide, session=session.id, number=number)):
            raise _not_found()

    def give(self, session: Session, number: int) -> None:
        """A caller is being given a turn again: where it was lost, nobody else is, meanwhile."""
        if session.delivery(number) is Delivery.LOST:
            self._note(session, number, Delivery.UNDER_WAY)

    def arrived(self, session: Session, number: int) -> None:
        """A turn's last byte has left to a caller."""
        if session.delivery(number) is not Delivery.ARRIVED:
            self._note(session, number, Delivery.ARRIVED)

    def lost(self, session: Session, number: int, *, known: bool = True) -> None:
        """Nobody is being given a turn any more. Nobody got it, unless somebody is known to have, or it isn't `known`:
        its row goes on to say that it is under way."""
        if session.delivery(number) is not Delivery.UNDER_WAY:
            return
        if known:
            self._note(session, number, Delivery.LOST)
        else:
            session.note_delivery(number, Delivery.LOST)

    def _note(self, session: Session, number: int, delivered: Delivery) -> None:
        session.note_delivery(number, delivered)
        self.store.writer.deliveries.note(session.id, number, delivered, holder=session)


def _load_shown(session: int, number: int, connection: Connection) -> tuple[Turn, OwnMessages] | None:
    turn = load_turn(connection, session, number)
    try:
        return None if turn is None else (turn, load_beginning(connection, session, number))
    except LookupError:
        return None


def _not_found() -> ResponseNotFound:
    return ResponseNotFound("response_id: this session has no such response, or shows it no more.")
