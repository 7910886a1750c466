"""Sessions: started, found by name or key, listed, touched. How they end is in `trajectories`.

The rows are the truth. `Sessions` keeps those lately used in memory, with their trees, within a bound in bytes; one
with a call in flight stays, whatever the bound, because the call holds it.
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hmac import compare_digest
from sys import getsizeof
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from rolloutfleet_proxy.ids import GROUP, SESSION, Owner
from rolloutfleet_proxy.memory.caches import ByteCache
from rolloutfleet_proxy.sessions import tombstones
from rolloutfleet_proxy.sessions.auth import key_hash
from rolloutfleet_proxy.sessions.calls import Calls
from rolloutfleet_proxy.sessions.tombstones import Gone
from rolloutfleet_proxy.store.reader import Reader
from rolloutfleet_proxy.store.transaction import CREATED, LIVE, SESSIONS, Transaction
from rolloutfleet_proxy.turns.messages import PLAIN_RULES, Rules
from rolloutfleet_proxy.turns.rows import Brief, load_nodes
from rolloutfleet_proxy.turns.tree import Node, Tree

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

OPEN = "open"
CLOSED = "closed"
DELETED = "deleted"

_BYTES = 1_500
"""About what a session without turns takes in memory."""


@dataclass(eq=False, slots=True, kw_only=True, weakref_slot=True)
class Session:
    """An open or ended session whose rows are still there."""

    id: int
    name: str
    key_hash: bytes
    group: str
    task_id: str | None
    metadata_json: str | None
    """As it is in the row: agents never ask for it, and as text it takes the least and is easily sized."""
    limits: dict[str, int]
    """`turns` and `tokens`, where limited."""
    agent_may: frozenset[str]
    stale_after: float | None
    state: str
    tokens: int
    created_at: float
    imported: bool = False
    """It came back from its dumps, and takes no calls."""
    tree: Tree = field(default_factory=Tree)
    briefs: dict[int, Brief] = field(default_factory=dict)
    calls: Calls = field(default_factory=Calls)

    @property
    def turns(self) -> int:
        return len(self.briefs)

    @property
    def metadata(self) -> dict[str, Any] | None:
        return None if self.metadata_json is None else _decode(self.metadata_json)

    @property
    def nbytes(self) -> int:
        """About how much memory it takes; a test compares that with what Python allocates."""
        return _BYTES + getsizeof(self.metadata_json) + self.tree.nbytes + 300 * len(self.briefs)

    def add(self, node: Node, brief: Brief, new_tokens: int) -> None:
        """Take in a turn that has been committed."""
        self.tree.add(node)
        self.briefs[node.turn] = brief
        self.tokens += new_tokens

    def turn_with_key(self, idempotency_key: str) -> int | None:
        return next((number for number, brief in self.briefs.items() if brief.idempotency_key == idempotency_key), None)

    def newest_turn_with_body(self, body: bytes) -> int | None:
        return next((number for number in reversed(self.briefs) if self.briefs[number].body == body), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSessions:
    """What `start` is asked for: `count` sessions of one group."""

    count: int
    task_id: str | None
    metadata: dict[str, Any] | None
    limits: dict[str, int]
    agent_may: Sequence[str]
    stale_after: float | None


@dataclass(frozen=True, slots=True)
class Started:
    """A session just made, with the one copy of its key that leaves the proxy."""

    name: str
    key: str
    session: Session | None = None
    """As memory holds it; None where it was made before, and has a new key now."""


_INSERT = """
INSERT INTO sessions (name, key_hash, group_name, task_id, metadata, limits, agent_may, stale_after, state, fate,
    created_at, touched) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'open', 'live', ?, ?)
"""


def start(transaction: Transaction, owner: Owner, asked: NewSessions) -> tuple[str, list[Started]]:
    """Make a group of sessions; returns the group's name and each session's name and key."""
    group = owner.name(GROUP)
    metadata = None if asked.metadata is None else _encode(asked.metadata).decode()
    limits, agent_may = _encode(asked.limits).decode(), _encode(list(asked.agent_may)).decode()
    started: list[Started] = []
    for _ in range(asked.count):
        name, key = owner.name(SESSION), owner.key()
        hashed = key_hash(key)
        inserted = transaction.execute(
            _INSERT,
            (
                *(name, hashed, group, asked.task_id, metadata, limits, agent_may, asked.stale_after),
                *(transaction.wall, transaction.served),
            ),
        )
        assert inserted.lastrowid is not None
        session = Session(
            id=inserted.lastrowid,
            name=name,
            key_hash=hashed,
            group=group,
            task_id=asked.task_id,
            metadata_json=metadata,
            limits=dict(asked.limits),
            agent_may=frozenset(asked.agent_may),
            stale_after=asked.stale_after,
            state=OPEN,
            tokens=0,
            created_at=transaction.wall,
        )
        started.append(Started(name, key, session))
    transaction.count(SESSIONS, CREATED, len(started))
    transaction.count(SESSIONS, LIVE, len(started))
    return group, started


def replace_keys(transaction: Transaction, owner: Owner, names: Sequence[str]) -> list[Started]:
    """Give sessions new keys; the old ones are void from then on. Raises LookupError, which names one that is gone."""
    started = [Started(name, owner.key()) for name in names]
    for session in started:
        changed = transaction.execute(
            "UPDATE sessions SET key_hash = ? WHERE name = ?", (key_hash(session.key), session.name)
        )
        if not changed.rowcount:
            raise LookupError(session.name)
    return started


def touch(transaction: Transaction, session: int) -> bool:
    """Note that somebody still needs the session. False where its rows are gone."""
    changed = transaction.execute("UPDATE sessions SET touched = ? WHERE id = ?", (transaction.served, session))
    return changed.rowcount > 0


def count_by_state(connection: sqlite3.Connection) -> dict[str, int]:
    """How many sessions are open, and how many ended but still have rows."""
    row = connection.execute("SELECT count(*) FILTER (WHERE state = 'open'), count(*) FROM sessions").fetchone()
    return {"open": row[0], "ended": row[1] - row[0]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Which sessions are listed, and from where on."""

    state: str | None = None
    task_id: str | None = None
    newest_first: bool = False
    after: int | None = None
    """The row that the page before ended with."""
    limit: int

    @property
    def is_chosen(self) -> bool:
        """Whether some are left out, so that to fill a page may take a look at every row."""
        return self.state is not None or self.task_id is not None


def list_sessions(connection: sqlite3.Connection, asked: Listing, *, served: float) -> list[tuple[int, dict[str, Any]]]:
    """(row id, what the list shows) of sessions in order of creation, or against it.

    `served` is the served clock now, in seconds.
    """
    behind, order = ("<", "DESC") if asked.newest_first else (">", "ASC")
    rows = connection.execute(
        "SELECT id, name, group_name, task_id, state, turns, tokens, trajectories, created_at, touched, fate"
        f" FROM sessions WHERE (:after IS NULL OR id {behind} :after) AND (:state IS NULL OR state = :state)"
        f" AND (:task_id IS NULL OR task_id = :task_id) ORDER BY id {order} LIMIT :limit",
        {"after": asked.after, "state": asked.state, "task_id": asked.task_id, "limit": asked.limit},
    )
    return [
        (
            row[0],
            {
                "session_id": row[1],
                "group_id": row[2],
                "task_id": row[3],
                "state": row[4],
                "turns": row[5],
                "tokens": row[6],
                "trajectories": row[7],
                "created_at": row[8],
                "idle_seconds": max(0.0, served - row[9]),
                "fate": row[10],
            },
        )
        for row in rows
    ]


_SELECT = (
    "SELECT id, name, key_hash, group_name, task_id, metadata, limits, agent_may, stale_after, state, tokens,"
    " created_at, imported_at IS NOT NULL FROM sessions WHERE "
)


def load(
    connection: sqlite3.Connection, *, name: str | None = None, key: bytes | None = None, rules: Rules = PLAIN_RULES
) -> Session | Gone | None:
    """A session and its tree by name or by its key's hash; its tombstone; or None. `rules` are those in force."""
    column, value = ("name", name) if name is not None else ("key_hash", key)
    row = connection.execute(f"{_SELECT} {column} = ?", (value,)).fetchone()
    if row is None:
        return tombstones.find(connection, column=column, value=value)
    session = Session(
        id=row[0],
        name=row[1],
        key_hash=row[2],
        group=row[3],
        task_id=row[4],
        metadata_json=row[5],
        limits=_decode(row[6]),
        agent_may=frozenset(_decode(row[7])),
        stale_after=row[8],
        state=row[9],
        tokens=0,
        created_at=row[11],
        imported=bool(row[12]),
    )
    for node, brief in load_nodes(connection, session.id, rules):
        session.add(node, brief, 0)
    session.tokens = row[10]
    return session


class _Read:
    """A read of the store that is under way."""

    __slots__ = ("followed",)

    def __init__(self) -> None:
        self.followed: set[str] = set()
        """Sessions of which memory has followed a commit since the read began: it may have seen older rows."""


class Sessions:
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

    def started(self, session: Session) -> None:
        """Take in a session just made: its first call most likely comes soon."""
        if session.name not in self._alive:
            self._take_in(session)
        self.used(session)

    def used(self, session: Session) -> None:
        """Note that a session was used, and its size now. One that was forgotten stays so, whoever still holds it."""
        if self._alive.get(session.name) is session:
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
