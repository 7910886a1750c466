"""The sessions that memory holds. What their rows say is in `store.sessions`, how they end in `store.trajectories`.

The rows are the truth. The registry keeps those lately used in memory, with their trees, within a bound in bytes; one
with a call in flight stays, whatever the bound, because the call holds it.
"""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, fields
from hmac import compare_digest
from sys import getsizeof
from typing import Any, Final, Self
from weakref import WeakValueDictionary

import msgspec

from rolloutfleet_proxy.caches import ByteCache
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.domain.lineage import Lineages
from rolloutfleet_proxy.domain.messages import PLAIN_RULES, Rules
from rolloutfleet_proxy.domain.sampling import SessionSampling
from rolloutfleet_proxy.domain.session import Gone, SessionRecord
from rolloutfleet_proxy.domain.tree import Node, Tree
from rolloutfleet_proxy.domain.turn import Brief, Delivery
from rolloutfleet_proxy.ids import key_hash
from rolloutfleet_proxy.sessions.calls import Calls
from rolloutfleet_proxy.store.sessions import find
from rolloutfleet_proxy.store.store import Connection, Reader
from rolloutfleet_proxy.store.turns import load_nodes

_decode = msgspec.json.Decoder().decode

_BYTES: Final = 1_500
"""About what a session without turns takes in memory."""
_LINEAGE_BYTES: Final = 400


@dataclass(eq=False, slots=True, kw_only=True, weakref_slot=True)
class Session(SessionRecord):
    """An open or ended session whose rows are still there, as memory holds it."""

    tree: Tree = field(default_factory=Tree)
    briefs: dict[int, Brief] = field(default_factory=dict)
    calls: Calls = field(default_factory=Calls)
    lineages: Lineages = field(default_factory=Lineages)
    not_arrived: set[int] = field(default_factory=set)
    """Turns of which no answer has arrived, and no trajectory been made."""

    @classmethod
    def of(cls, record: SessionRecord, turns: Iterable[tuple[Node, Brief]] = ()) -> Self:
        """The session of this row, with its turns in order of commit."""
        session = cls(**{column.name: getattr(record, column.name) for column in fields(SessionRecord)})
        for node, brief in turns:
            session.add(node, brief, 0)
        return session

    @property
    def turns(self) -> int:
        return len(self.briefs)

    @property
    def metadata(self) -> dict[str, Any] | None:
        return None if self.metadata_json is None else _decode(self.metadata_json)

    @property
    def sampling(self) -> SessionSampling | None:
        return None if self.sampling_json is None else SessionSampling.decode(self.sampling_json)

    @property
    def nbytes(self) -> int:
        """About how much memory it takes; a test compares that with what Python allocates."""
        texts = getsizeof(self.metadata_json) + getsizeof(self.sampling_json)
        of_turns = self.tree.nbytes + 300 * len(self.briefs)
        return _BYTES + texts + of_turns + _LINEAGE_BYTES * len(self.lineages)

    def add(self, node: Node, brief: Brief, new_tokens: int) -> None:
        """Take in a turn that has been committed."""
        lineage = self.lineages.known(node.lineage)
        self.tree.add(node if lineage is node.lineage else msgspec.structs.replace(node, lineage=lineage))
        self.briefs[node.turn] = brief
        self.tokens += new_tokens
        if brief.delivered is not Delivery.ARRIVED:
            self.not_arrived.add(node.turn)

    def delivery(self, number: int) -> Delivery:
        """Whether a turn's answer reached anybody."""
        brief = self.briefs.get(number)
        return Delivery.ARRIVED if brief is None else brief.delivered

    def note_delivery(self, number: int, delivered: Delivery) -> None:
        self.briefs[number].delivered = delivered
        if delivered is Delivery.ARRIVED:
            self.not_arrived.discard(number)

    def lost_turn(self, digest: bytes) -> int | None:
        """The newest turn that retries of this digest may be given: lost, and extended by none."""
        lost = (number for number in sorted(self.not_arrived, reverse=True) if self._is_lost(number, digest))
        return next(lost, None)

    @property
    def may_be_asked_again(self) -> bool:
        """Whether a caller of it has gone, or an answer has not arrived: a request may be a retry, without a mark."""
        return bool(self.not_arrived) or self.calls.any_abandoned

    def closed_up_to(self, number: int) -> None:
        """The turns up to this one are of closed trajectories: no request asks for them again."""
        self.not_arrived = {each for each in self.not_arrived if each > number}

    def _is_lost(self, number: int, digest: bytes) -> bool:
        brief = self.briefs[number]
        is_lost = brief.delivered is Delivery.LOST and brief.digest == digest
        return is_lost and not self.tree.children(number)

    def turn_with_key(self, idempotency_key: str) -> int | None:
        return next((number for number, brief in self.briefs.items() if brief.idempotency_key == idempotency_key), None)

    def turn_named(self, name: str) -> int | None:
        return next((number for number in reversed(self.briefs) if self.briefs[number].name == name), None)

    def turns_named(self, names: Container[str]) -> dict[int, str]:
        """The names of those of these turns that the session has, by number."""
        return {number: brief.name for number, brief in self.briefs.items() if brief.name in names}

    def newest_turn_with(self, digest: bytes) -> int | None:
        """Of those that retries of this digest are found by."""
        return next((number for number in reversed(self.briefs) if self.briefs[number].digest == digest), None)


def load(
    connection: Connection, *, name: str | None = None, key: bytes | None = None, rules: Rules = PLAIN_RULES
) -> Session | Gone | None:
    """A session and its tree by name or by its key's hash; its tombstone; or None. `rules` are those in force."""
    found = find(connection, name=name, key=key)
    return Session.of(found, load_nodes(connection, found.id, rules)) if isinstance(found, SessionRecord) else found


@dataclass(eq=False, slots=True)
class _Read:
    """A read of the store that is under way."""

    followed: set[str] = field(default_factory=set)
    """Sessions of which memory has followed a commit since the read began: it may have seen older rows."""


class SessionRegistry:
    """Finds sessions: in memory where lately used, else in the store.

    Memory follows each commit that it is told of (`committed`, `changed`, `change_key`, `forget`). A read that such a
    commit overtook may bring back what was before it: a revoked key, a freed session as an open one, a tree that lacks
    a turn. What a read may become is decided in `_settled` alone.
    """

    def __init__(self, reader: Reader, *, cache_bytes: int, rules: Rules = PLAIN_RULES) -> None:
        self._reader = reader
        self._rules = rules
        self._lately: ByteCache[str, Session] = ByteCache(cache_bytes)
        # All that anyone still holds, cached or not: two loads of one session must never give two trees.
        self._alive: WeakValueDictionary[str, Session] = WeakValueDictionary()
        self._by_key: WeakValueDictionary[bytes, Session] = WeakValueDictionary()
        self._reads: set[_Read] = set()

    @property
    def cached_bytes(self) -> int:
        return self._lately.nbytes

    async def with_key(self, key: str) -> Session | Gone | None:
        """The session that a key opens. The comparison of hashes takes constant time."""
        hashed = key_hash(key)
        session = self._by_key.get(hashed)
        if session is None or not compare_digest(session.key_hash, hashed):
            found = await self._find(key=hashed)
            if not isinstance(found, Session) or not compare_digest(found.key_hash, hashed):
                # Memory may know of a newer key than the one that the read found the session by.
                return None if isinstance(found, Session) else found
            session = found
        self.used(session)
        return session

    async def named(self, name: str) -> Session | Gone | None:
        found = self._alive.get(name) or await self._find(name=name)
        if isinstance(found, Session):
            self.used(found)
        return found

    def started(self, record: SessionRecord) -> Session:
        """Take in a session just made: its first call most likely comes soon."""
        session = self._alive.get(record.name)
        if session is None:
            session = Session.of(record)
            self._take_in(session)
        self.used(session)
        return session

    def used(self, session: Session) -> None:
        """Note that a session was used, and its size now. One that was forgotten stays so, whoever still holds it."""
        if self.holds(session):
            self._lately.put(session.name, session, session.nbytes)

    def committed(self, session: Session) -> None:
        """Follow the store, where a turn of the session was committed, or its end; memory's own copy shows it."""
        self._follow(session.name)
        self.used(session)

    def change_key(self, name: str, key: str) -> None:
        """Follow the store, where a session has another key now."""
        session = self.changed(name)
        if session is not None:
            self._by_key.pop(session.key_hash, None)
            session.key_hash = key_hash(key)
            self._by_key[session.key_hash] = session

    def forget(self, name: str) -> Session | None:
        """Drop what memory holds of a session whose rows are gone, or others than before; returns that."""
        self._follow(name)
        session = self._alive.pop(name, None)
        self._lately.pop(name)
        if session is not None:
            self._by_key.pop(session.key_hash, None)
        return session

    def changed(self, name: str) -> Session | None:
        """Follow the store, where somebody who knows no more than its name changed a session.

        Returns what memory holds of it, which the caller brings in line.
        """
        self._follow(name)
        return self._alive.get(name)

    def holds(self, session: Session) -> bool:
        """Whether memory's copy of a session is still this one: whoever held it since before may be told otherwise."""
        return self._alive.get(session.name) is session

    def calls_in_flight(self, name: str) -> int:
        """Of a session; one that memory does not hold has none."""
        session = self._alive.get(name)
        return 0 if session is None else len(session.calls)

    def is_busy(self, name: str) -> bool:
        """Whether a session has calls, those included that are still being read."""
        session = self._alive.get(name)
        return session is not None and session.calls.busy

    def in_memory(self, matches: Callable[[Session], bool]) -> list[Session]:
        return [session for session in self._alive.values() if matches(session)]

    def end_calls(self, error: DomainError) -> list[Session]:
        """Cut all calls in flight, whose waiters get `error`; returns the sessions that had any."""
        busy = self.in_memory(lambda session: len(session.calls) > 0)
        for session in busy:
            session.calls.end_all(error)
        return busy

    def _follow(self, name: str) -> None:
        for read in self._reads:
            read.followed.add(name)

    async def _find(self, *, name: str | None = None, key: bytes | None = None) -> Session | Gone | None:
        while True:
            read = _Read()
            self._reads.add(read)
            try:
                found = await self._reader.run(
                    lambda connection: load(connection, name=name, key=key, rules=self._rules)
                )
            finally:
                self._reads.discard(read)
            if not isinstance(found, Session):
                return found
            session = self._settled(found, read)
            if session is not None:
                return session

    def _settled(self, found: Session, read: _Read) -> Session | None:
        """What a session that was read becomes: nothing where memory holds it, as that is newer; nor where a commit
        overtook the read, which has then to be made again (None); else what memory holds from now on."""
        alive = self._alive.get(found.name)
        if alive is not None:
            return alive
        if found.name in read.followed:
            return None
        self._take_in(found)
        return found

    def _take_in(self, session: Session) -> None:
        self._alive[session.name] = session
        self._by_key[session.key_hash] = session
