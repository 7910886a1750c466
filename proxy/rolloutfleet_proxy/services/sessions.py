"""A session's life: started, found, shown, touched, rewarded, closed, deleted, and what memory holds of it meanwhile.

Each method that changes something is one transaction, and then memory follows what was committed.
"""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pydantic import BaseModel

from rolloutfleet.spec_for_proxies import LimitsSpec
from rolloutfleet.wire import (
    Closed,
    CloseSession,
    GiveReward,
    Rewarded,
    SessionLimits,
    StartedSession,
    StartedSessions,
    StartSessions,
)
from rolloutfleet_proxy import failpoints
from rolloutfleet_proxy.domain.errors import (
    LIMITS,
    DomainError,
    Draining,
    InvalidParameter,
    NoRoom,
    ReplaceConflict,
    SessionDeleted,
    SessionNotFound,
)
from rolloutfleet_proxy.domain.idempotency import KeyedCall, keyed_call
from rolloutfleet_proxy.domain.ledger import ACKNOWLEDGED
from rolloutfleet_proxy.domain.sampling import SessionSampling
from rolloutfleet_proxy.domain.session import CLOSED, DELETED, OPEN, REPLACED, Gone, SessionRecord, Started
from rolloutfleet_proxy.domain.turn import Turn
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.process.drain import Drains
from rolloutfleet_proxy.refusals import ended, gone, why_gone
from rolloutfleet_proxy.services.access import there
from rolloutfleet_proxy.services.notes import write_soon
from rolloutfleet_proxy.services.sampling import CheckArguments, session_sampling
from rolloutfleet_proxy.sessions.admission import Admission, Places
from rolloutfleet_proxy.sessions.paths import Paths
from rolloutfleet_proxy.sessions.registry import Session, SessionRegistry
from rolloutfleet_proxy.settings import SettingsInForce
from rolloutfleet_proxy.store import rewards, tombstones, trajectories
from rolloutfleet_proxy.store.groups import Freed
from rolloutfleet_proxy.store.idempotency import check_claim, once, recall, remember
from rolloutfleet_proxy.store.listing import Listing, list_sessions
from rolloutfleet_proxy.store.sessions import find, load_figures, replace_keys, start, touch
from rolloutfleet_proxy.store.store import Store
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.turns import load_turns, newest_closed
from rolloutfleet_proxy.store.weights import Applied
from rolloutfleet_proxy.store.writer import StoreClosed

KEPT_AT_ONCE: Final = 64
"""Sessions of a new group that are held in memory from the start: a large one must not push out those in use."""


class Names(BaseModel):
    """What a retry needs to know; keys are never kept."""

    group: str
    sessions: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionService:
    """The sessions of this proxy."""

    store: Store
    registry: SessionRegistry
    paths: Paths
    admission: Admission
    drains: Drains
    settings: SettingsInForce
    check_arguments: CheckArguments

    async def start(self, asked: StartSessions, idempotency_key: str | None) -> StartedSessions:
        """Start a group of sessions.

        Raises InvalidParameter for what this fleet can't have, NoRoom, Draining while it drains, IdempotencyKeyReused
        for a key used with another body, and PlacedElsewhere where this proxy gave the key's start to another. Where it
        replaces a session: SessionNotFound, ReplaceConflict, and what `ended` and `gone` say of that.
        """
        fleet = self.settings.current.sessions
        room = fleet.limits.sessions
        if room is not None and asked.group_size > room:
            raise InvalidParameter(
                "group_size", f"A proxy of this fleet has room for {room} sessions, and a group stays together."
            )
        sampling = session_sampling(asked.sampling, fleet.sampling, self.check_arguments)
        body = b"" if idempotency_key is None else asked.model_dump_json().encode()
        call = keyed_call(idempotency_key, scope="start", body=body)
        with self.admission.places(asked.group_size) as places:
            work = partial(
                self._start_once,
                asked=_limited(asked, fleet.limits),
                sampling=sampling,
                call=call,
                places=places,
                draining=self.drains.draining,
            )
            names, started, replaced = await self.store.write(work)
        if replaced is not None:
            self._follow_end(replaced.name, CLOSED, was_open=replaced.state == OPEN)
            self.forget([replaced.name])
        failpoints.reach(failpoints.AFTER_START)
        for place, session in enumerate(started):
            if session.record is None:
                self.registry.change_key(session.name, session.key)
            elif place < KEPT_AT_ONCE:
                self.registry.started(session.record)
        sessions = [
            StartedSession(session_id=session.name, api_key=session.key, base_url=self._base_url(session.name))
            for session in started
        ]
        alone = sessions[0].model_dump() if asked.group_size == 1 else {}
        return StartedSessions(group_id=names.group, sessions=sessions, ordinals=[self.store.owner.ordinal], **alone)

    async def page(self, asked: Listing) -> list[tuple[int, dict[str, Any]]]:
        """(row id, what the list shows) of sessions in the order that is asked for."""
        # To find some of all is to look at each: calls that are coming must not wait for that.
        reader = self.store.recounting if asked.is_chosen else self.store.reader
        rows = await reader.run(lambda connection: list_sessions(connection, asked, served=self.store.clock.now()))
        return [(row, self._listed(shown)) for row, shown in rows]

    async def figures(self, session: Session) -> tuple[dict[str, Any], float]:
        """What a session's row says, and for how many seconds nobody has used it."""
        figures = await self.store.read(lambda connection: load_figures(connection, session.id))
        idle = max(0.0, self.store.clock.now() - figures.pop("touched"))
        return figures, 0.0 if len(session.calls) else idle

    async def turns(self, session: Session, *, after: int, limit: int) -> list[Turn]:
        """A session's turns in order of commit, those behind number `after`."""
        return await self.store.read(lambda connection: load_turns(connection, session.id, after=after, limit=limit))

    async def touch(self, session: Session) -> None:
        """Keep a session from going stale. Raises what `why_gone` says where it is over."""
        if session.state != OPEN:
            raise ended(session)
        if not await self.store.write(lambda transaction: touch(transaction, session.id)):
            raise await why_gone(session, self.store.reader)

    async def reward(
        self, session: Session, asked: GiveReward, *, idempotency_key: str | None, caller: str
    ) -> Rewarded:
        """Reward a turn, once for each key of a caller (`admin` or `session`). Raises as `rewards.give_reward`, and
        IdempotencyKeyReused."""
        call = keyed_call(
            idempotency_key, scope=f"reward {session.name} {caller}", body=asked.model_dump_json().encode()
        )

        def give(transaction: Transaction) -> tuple[Rewarded, int]:
            rewarded = once(
                transaction, call, Rewarded, lambda transaction: rewards.give_reward(transaction, session.id, asked)
            )
            return rewarded, newest_closed(transaction, session.id)

        rewarded, closed = await self.store.write(give, frees=True)
        session.closed_up_to(closed)
        return rewarded

    async def close(self, found: Session | Gone | None, name: str, asked: CloseSession) -> Closed:
        """End a session: what is open becomes a trajectory, then its calls in flight end with 410. Again, the same.

        Raises OutcomeFrozen where the session was leased with another outcome, SessionNotFound, and what `ended` and
        `gone` say where it was deleted, or went some other way.
        """
        ordinals = [self.store.owner.ordinal]
        if isinstance(found, Gone):
            was_closed, before = await self.store.read(lambda connection: trajectories.closed_before(connection, name))
            if was_closed:
                return Closed(session_id=name, trajectory_id=before, ordinals=ordinals)
        session = there(found, name)
        if session.state == DELETED:
            raise ended(session)
        closing, freed = await self.store.free(partial(trajectories.close_session, session=session.id, asked=asked))
        self._end(session, CLOSED, freed=freed)
        return Closed(session_id=session.name, trajectory_id=closing, ordinals=ordinals)

    async def close_late_groups(self) -> None:
        """Close what is open of groups whose deadline is over, where enough of their members have ended."""
        served = self.store.clock.now()
        for group in await self.store.read(partial(trajectories.load_late_groups, served=served)):
            closed, freed = await self.store.free(partial(trajectories.close_late, group=group))
            for name in closed:
                self._follow_end(name, CLOSED, group_closed=True)
            self.forget(freed)

    async def delete(self, session: Session) -> None:
        """End a session and discard its turns; what is leased stays with its lease. Raises what `ended` says.

        1. One transaction counts its turns as discarded and deletes it. A turn that comes to be committed later finds
           it deleted.
        2. Memory follows: it is deleted there too. Its calls in flight are to be cancelled, unless their turn is with
           the store, and calls that a drain holds are woken.
        3. The caches let go of its turns, and of all that the transaction freed. This method returns.
        4. Only then do the calls' tasks run: their connections to the engine close, its work is aborted, and each
           waiter gets 410, as do the calls that were held. Whether that or the 204 comes first is not fixed.
        """
        if session.state == DELETED:
            raise ended(session)
        _, freed = await self.store.free(partial(trajectories.delete_session, session=session.id))
        self._end(session, DELETED, freed=freed)

    def note_use(self, session: Session, error: DomainError | None = None) -> None:
        """Count a call that committed nothing as use of its session all the same, and note a limit that it met."""
        work = partial(touch, session=session.id)
        if isinstance(error, LIMITS):
            work = partial(touch, session=session.id, also=", met_limit = ?", values=(error.code,))
        with contextlib.suppress(StoreClosed):
            write_soon(self.store.writer, work)

    def follow_freed(self, freed: Freed) -> None:
        """Follow the store: sessions have been reclaimed."""
        self.admission.sessions_open -= freed.were_open
        self.forget(freed.names)
        for session, newest in freed.reclaimed:
            # Memory may have let go of the session, and still hold ids of its turns.
            self.paths.forget(session, range(1, newest + 1))

    def follow_recovery(self, applied: Applied) -> None:
        """Follow the store: a recovery has ended sessions, and freed rows."""
        for name, state in applied.ended:
            self._follow_end(name, state)
        self.forget(applied.freed)

    def forget(self, names: Iterable[str]) -> None:
        """Drop what memory holds of sessions whose rows are gone."""
        for name in names:
            session = self.registry.forget(name)
            if session is not None:
                self.paths.forget(session.id, session.briefs)

    def _start_once(
        self,
        transaction: Transaction,
        *,
        asked: StartSessions,
        sampling: SessionSampling,
        call: KeyedCall | None,
        places: Places,
        draining: bool,
    ) -> tuple[Names, list[Started], SessionRecord | None]:
        """(group and names, sessions, the one that was replaced). A retry gets the same with new keys; the old ones are
        void. It needs no room, and a drain does not refuse it.
        """
        before = None if call is None else recall(transaction, call)
        if before is not None:
            names = Names.model_validate_json(before)
            return names, _again(transaction, self.store.owner, names.sessions), None
        if call is not None and asked.replaces is None:
            check_claim(transaction, call.key)
        if draining:
            raise Draining("This proxy is draining and takes no new sessions.")
        replaced = None if asked.replaces is None else _to_replace(transaction, asked)
        if not places.take(ending=replaced is not None and replaced.state == OPEN):
            raise NoRoom("This proxy has no room for more sessions now.")
        group, started = start(transaction, self.store.owner, asked, sampling=sampling, replaced=replaced)
        if replaced is not None:
            trajectories.discard_replaced(transaction, replaced.id)
        names = Names(group=group, sessions=[session.name for session in started])
        if call is not None:
            remember(transaction, call, names.model_dump_json())
        return names, started, replaced

    def _follow_end(self, name: str, state: str, *, was_open: bool = True, group_closed: bool = False) -> None:
        """Follow the store: a session that memory may not hold has ended."""
        session = self.registry.changed(name)
        if session is not None:
            session.group_closed = group_closed
            self._end(session, state, freed=())
        elif was_open:
            self.admission.sessions_open -= 1

    def _end(self, session: Session, state: str, *, freed: Iterable[str]) -> None:
        """Follow the store: the session has ended, so its calls in flight do, and rows that are gone are forgotten."""
        if session.state == OPEN:
            self.admission.sessions_open -= 1
        session.state = state
        self.registry.committed(session)
        session.calls.end_all(ended(session))
        self.drains.look_again()
        self.paths.forget(session.id, session.briefs)
        self.forget(freed)

    def _listed(self, shown: dict[str, Any]) -> dict[str, Any]:
        in_flight = self.registry.calls_in_flight(shown["session_id"])
        idle = {"idle_seconds": 0.0} if in_flight else {}
        return {**shown, **idle, "in_flight": in_flight, "ordinal": self.store.owner.ordinal}

    def _base_url(self, session: str) -> str:
        """What an OpenAI SDK takes."""
        return f"{self.settings.session_address}/sessions/{session}/v1"


def _limited(asked: StartSessions, fleet: LimitsSpec) -> StartSessions:
    """With the sessions' own limits, and the fleet's where they have none."""
    ours = SessionLimits.model_construct(turns=fleet.turns, tokens=fleet.tokens)
    limits = ours.model_copy(update=asked.limits.model_dump(exclude_none=True))
    return asked.model_copy(update={"limits": limits})


def _to_replace(transaction: Transaction, asked: StartSessions) -> SessionRecord:
    """The session whose place is asked for. Raises as `SessionService.start`."""
    found = find(transaction, name=asked.replaces)
    if found is None:
        raise SessionNotFound(f"There is no session {asked.replaces!r} here.", param="replaces")
    if isinstance(found, Gone):
        if found.reason in (REPLACED, ACKNOWLEDGED):
            raise ReplaceConflict(f"Session {found.name} can't be replaced: it was {found.reason}.")
        raise gone(found)
    if found.state == DELETED or found.imported or found.group_closed:
        raise ended(found)
    if asked.task_id not in (None, found.task_id):
        raise InvalidParameter(
            "task_id", f"task_id is that of the session it replaces, {found.task_id!r}: leave it out."
        )
    if asked.train != found.train:
        raise InvalidParameter("train", f"train is that of the session it replaces: {json.dumps(found.train)}.")
    return found


def _again(transaction: Transaction, owner: Owner, names: list[str]) -> list[Started]:
    try:
        return replace_keys(transaction, owner, names)
    except LookupError as error:
        raise _over(transaction, str(error)) from None


def _over(transaction: Transaction, name: str) -> DomainError:
    """What became of a session that a start made, as its own calls are told."""
    tombstone = tombstones.find(transaction, column="name", value=name)
    if tombstone is not None:
        return gone(tombstone)
    return SessionDeleted(f"This Idempotency-Key started session {name}, which is gone by now.")
