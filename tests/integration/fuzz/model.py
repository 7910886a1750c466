"""What a fleet must hold by what its 2xx answers said. Nothing here comes from the fleet's own sums.

The words are those of docs/export.md: a session's turns are open or of a trajectory, a trajectory is ready, leased,
acknowledged, discarded or dumped, and what becomes of a session follows from those.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

TERMS = ("live", "leased", "acknowledged", "dumped")
Term = tuple[str, str]
"""(term of the audit, reason if it is `discarded`)."""
Json = Any


class Untold(Exception):
    """An answer that can't be, by the answers before it."""


@dataclass(eq=False, slots=True)
class Trajectory:
    name: str
    turns: int
    state: str = "ready"
    reason: str = ""
    lease: str | None = None
    doomed: bool = False
    """A recovery drops it once nobody holds it."""

    @property
    def term(self) -> Term:
        return ("live" if self.state == "ready" else self.state), self.reason

    def discard(self, reason: str) -> None:
        self.state, self.reason, self.lease = "discarded", reason, None


@dataclass(eq=False, slots=True)
class Session:
    name: str
    key: str
    proxy: int
    group: str
    lane: int
    may: tuple[str, ...] = ()
    odd: bool = False
    """Started with values that may limit it, or its key may be void: nothing is sure to be answered in it."""
    state: str = "open"
    open_turns: int = 0
    ids: set[str] = field(default_factory=set)
    """Every turn that was answered."""
    newest: str | None = None
    messages: list[Json] = field(default_factory=list)
    """The conversation so far, as its agent has it."""
    responses: list[str] = field(default_factory=list)
    """Those of the Responses API that are shown, as long as their turns are of no trajectory."""
    trajectories: dict[str, Trajectory] = field(default_factory=dict)
    gone: Counter[Term] = field(default_factory=Counter)
    """Turns that were of no trajectory when they went."""
    shards: set[str] = field(default_factory=set)
    closed: int = 0
    """Trajectories that were ever closed."""
    kept_fate: Term | None = None

    def ready(self) -> list[Trajectory]:
        return [each for each in self.trajectories.values() if each.state == "ready"]

    def close_turns(self) -> Trajectory | None:
        if not self.open_turns:
            return None
        self.closed += 1
        made = Trajectory(f"{self.name}-trajectory-{self.closed}", self.open_turns)
        self.open_turns = 0
        self.responses.clear()
        self.trajectories[made.name] = made
        return made

    def drop_turns(self, term: str, reason: str) -> None:
        self.gone[term, reason] += self.open_turns
        self.open_turns = 0
        self.responses.clear()

    def turns(self) -> Counter[Term]:
        found = Counter(self.gone)
        found["live", ""] += self.open_turns
        for each in self.trajectories.values():
            found[each.term] += each.turns
        return found

    def fate(self) -> Term:
        """Why a session was first discarded stays, whatever comes."""
        found = self._fate()
        if found[0] == "discarded":
            self.kept_fate = self.kept_fate or found
            return self.kept_fate
        return found

    def _fate(self) -> Term:
        states = {each.state for each in self.trajectories.values()}
        if "leased" in states:
            return "leased", ""
        if self.state == "open" or "ready" in states:
            return "live", ""
        if "dumped" in states or ("dumped", "") in self.gone:
            return "dumped", ""
        if "acknowledged" in states:
            return "acknowledged", ""
        if self.state == "deleted":
            return "discarded", "deleted"
        reasons = [each.reason for each in self.trajectories.values() if each.reason]
        return "discarded", reasons[-1] if reasons else "empty"


@dataclass(eq=False, slots=True)
class Lease:
    name: str
    proxy: int
    lane: int
    members: list[str]
    acknowledged: set[str] = field(default_factory=set)
    released: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Dump:
    """A file that a reclaimed session left."""

    name: str
    session: str
    group: str
    proxy: int
    turns: int
    shards: Mapping[str, int]


class Model:
    """Every session, trajectory, lease, shard and dump that an answer told of."""

    def __init__(self, proxies: int) -> None:
        self.sessions: dict[str, Session] = {}
        self.groups: dict[str, list[Session]] = {}
        self.leases: dict[str, Lease] = {}
        self.shards: list[dict[str, int]] = [{} for _ in range(proxies)]
        """Of each proxy: id -> bytes."""
        self.dumps: dict[str, Dump] = {}
        """Those that can be imported."""
        self.imported: list[str] = []
        """Names of dumps that were."""
        self.gone: list[str] = []
        """Names of sessions whose rows are gone."""
        self._came: list[Counter[tuple[str, str]]] = [Counter() for _ in range(proxies)]
        self._went: list[Counter[tuple[str, Term]]] = [Counter() for _ in range(proxies)]

    # Sessions and turns

    def started(self, told: Json, *, lane: int, odd: bool, may: Iterable[str]) -> list[Session]:
        """A start answered: new sessions, or those of an earlier answer with new keys."""
        found = []
        for each in told["sessions"]:
            name = each["session_id"]
            if name not in self.sessions:
                proxy, group = int(name[1:].partition("-")[0]), told["group_id"]
                session = Session(name, each["api_key"], proxy, group, lane, tuple(may), odd)
                self._add(session)
                self._came[proxy]["sessions", "created"] += 1
            self.sessions[name].key = each["api_key"]
            found.append(self.sessions[name])
        return found

    def _add(self, session: Session) -> None:
        self.sessions[session.name] = session
        self.groups.setdefault(session.group, []).append(session)

    def answered(self, session: Session, turn_id: str) -> None:
        """A turn was; the same one may be told again."""
        if turn_id not in session.ids:
            session.ids.add(turn_id)
            session.open_turns += 1
            self._came[session.proxy]["turns", "created"] += 1
        session.newest = turn_id

    def rewarded(self, session: Session, *, closes: bool) -> None:
        if closes:
            session.close_turns()

    def closed(self, session: Session) -> None:
        if session.state == "open":
            session.close_turns()
            session.state = "closed"
            self._settle(session.group)

    def deleted(self, session: Session) -> None:
        session.drop_turns("discarded", "deleted")
        for each in session.ready():
            each.discard("deleted")
        session.state = "deleted"
        self._settle(session.group)

    # Exports

    def exported(self, told: Json, *, proxy: int, lane: int) -> Lease | None:
        """An export answered; with a key that was used before, it may tell of a lease that is known. Raises Untold."""
        name = told["lease_id"]
        if name is None:
            return None
        members = [each["trajectory_id"] for each in told["trajectories"]]
        lease = self.leases.setdefault(name, Lease(name, proxy, lane, members))
        lease.released -= set(members)
        for member in members:
            _, trajectory = self.trajectory(member)
            if trajectory.state != "ready" and (trajectory.state, trajectory.lease) != ("leased", name):
                raise Untold(f"{member} was leased while it was {trajectory.state}")
            trajectory.state, trajectory.lease = "leased", name
        return lease

    def trajectory(self, name: str) -> tuple[Session, Trajectory]:
        """Raises Untold."""
        session = self.sessions.get(name.rpartition("-trajectory-")[0])
        if session is None or name not in session.trajectories:
            raise Untold(f"nobody was told of a trajectory {name}")
        return session, session.trajectories[name]

    def acknowledged(self, lease: Lease, names: Iterable[str]) -> None:
        for name in names:
            if name in lease.acknowledged:
                continue
            session, trajectory = self.trajectory(name)
            lease.acknowledged.add(name)
            trajectory.state, trajectory.lease = "acknowledged", None
            self._settle(session.group)
        self._forget(lease)

    def released(self, lease: Lease, names: Iterable[str]) -> None:
        for name in names:
            if name in lease.acknowledged:
                continue
            session, trajectory = self.trajectory(name)
            if (trajectory.state, trajectory.lease) != ("leased", lease.name):
                continue
            lease.released.add(name)
            trajectory.state, trajectory.lease = "ready", None
            if session.state == "deleted":
                trajectory.discard("deleted")
            elif trajectory.doomed:
                trajectory.discard("recovered")
            self._settle(session.group)
        self._forget(lease)

    def _forget(self, lease: Lease) -> None:
        """Drop a lease that holds nothing any more."""
        for name in lease.members:
            session = self.sessions.get(name.rpartition("-trajectory-")[0])
            found = None if session is None else session.trajectories.get(name)
            if found is not None and found.lease == lease.name:
                return
        self.leases.pop(lease.name, None)

    # Shards

    def kept(self, proxy: int, shard_id: str, nbytes: int, session: Session | None = None) -> None:
        self.shards[proxy][shard_id] = nbytes
        if session is not None:
            session.shards.add(shard_id)

    def cleared(self, proxies: Iterable[int], ids: Iterable[str], told: Json) -> None:
        """Raises Untold where the answer counts others."""
        ids = set(ids)
        freed = [self.shards[proxy].pop(name) for proxy in proxies for name in ids if name in self.shards[proxy]]
        if (told["deleted"], told["bytes"]) != (len(freed), sum(freed)):
            raise Untold(f"{told['deleted']} shards of {told['bytes']} bytes cleared: there were {len(freed)}")

    # What befalls a whole proxy or fleet

    def retired(self, proxy: int) -> int:
        """A draining proxy dumped all that is not leased; returns how many sessions that were."""
        count = 0
        for group in list(self.groups):
            members = self.groups[group]
            if members[0].proxy != proxy or any(each.fate()[0] == "leased" for each in members):
                continue
            for session in members:
                count += session.state == "open" or bool(session.ready())
                self._dump(session)
            self._settle(group)
        return count

    def _dump(self, session: Session) -> None:
        parts = {f"trajectory-{each.name.rpartition('-')[2]}": each.turns for each in session.ready()}
        if session.open_turns:
            parts["active"] = session.open_turns
        shards = {name: self.shards[session.proxy][name] for name in session.shards & self.shards[session.proxy].keys()}
        for part, turns in parts.items():
            name = f"{session.name}-{part}.json"
            self.dumps[name] = Dump(name, session.name, session.group, session.proxy, turns, shards)
        for each in session.ready():
            each.state = "dumped"
        if session.open_turns:
            session.drop_turns("dumped", "")
        if session.state == "open":
            session.state = "closed"

    def brought_in(self, told: Json) -> None:
        """An import answered. Raises Untold where it brought other turns than were dumped."""
        for each in told["imported"]:
            dump = self.dumps.pop(each["name"], None)
            if dump is None or dump.turns != each["turns"]:
                raise Untold(f"{each['name']} brought {each['turns']} turns; there were {dump and dump.turns}")
            session = self.sessions.get(dump.session)
            if session is None:
                session = Session(dump.session, "", dump.proxy, dump.group, lane=-1, odd=True, state="closed")
                self._add(session)
                self._came[dump.proxy]["sessions", "imported"] += 1
            self._came[dump.proxy]["turns", "imported"] += dump.turns
            session.trajectories[each["trajectory_id"]] = Trajectory(each["trajectory_id"], dump.turns)
            for name, nbytes in dump.shards.items():
                self.kept(dump.proxy, name, nbytes, session)
            self.imported.append(dump.name)

    def recovered(self, *, drops: bool, ends: str) -> None:
        """A recovery: `drops` says that all turns so far are newer than what it goes back to."""
        if drops:
            # What is dumped would be judged when it comes back in, which this model leaves alone.
            self.dumps.clear()
        for session in self.sessions.values():
            ended = session.state == "open" and ends != "keep"
            if ended and ends == "close":
                session.close_turns()
            if drops:
                self._drop(session)
            if ended and ends == "delete":
                session.drop_turns("discarded", "deleted")
                for each in session.ready():
                    each.discard("deleted")
            if ended:
                session.state = {"close": "closed", "delete": "deleted"}[ends]
        for group in list(self.groups):
            self._settle(group)

    def _drop(self, session: Session) -> None:
        for each in session.trajectories.values():
            each.doomed = each.doomed or each.state in ("ready", "leased")
            if each.state == "ready":
                each.discard("recovered")

    # The sums

    def _settle(self, group: str) -> None:
        """Free the rows of a group that has nothing left to decide."""
        members = self.groups.get(group, [])
        if not members or any(each.state == "open" or each.fate()[0] in ("live", "leased") for each in members):
            return
        for session in members:
            went = self._went[session.proxy]
            went["sessions", session.fate()] += 1
            for term, turns in session.turns().items():
                went["turns", term] += turns
            for shard in session.shards:
                self.shards[session.proxy].pop(shard, None)
            del self.sessions[session.name]
            self.gone.append(session.name)
        del self.groups[group]
        del self.gone[:-200]

    def audit(self, proxy: int) -> Json:
        """What `GET /audit` of a proxy must say; reasons to discard that nothing was discarded for are left out."""
        here = [each for each in self.sessions.values() if each.proxy == proxy]
        held: Counter[tuple[str, Term]] = Counter(self._went[proxy])
        for session in here:
            held["sessions", session.fate()] += 1
            for term, turns in session.turns().items():
                held["turns", term] += turns
        came = self._came[proxy]
        return {
            kind: {
                "created": came[kind, "created"],
                "imported": came[kind, "imported"],
                **{term: held[kind, (term, "")] for term in TERMS},
                "discarded": {
                    reason: n
                    for (each, (term, reason)), n in sorted(held.items())
                    if each == kind and term == "discarded" and n
                },
            }
            for kind in ("turns", "sessions")
        } | {
            "shards": {"count": len(self.shards[proxy]), "bytes": sum(self.shards[proxy].values()), "orphans": 0},
            "keys": len(here),
            "balanced": True,
        }


def comparable(audit: Json) -> Json:
    """A proxy's audit in the form of `Model.audit`."""
    sums = {
        kind: {**audit[kind], "discarded": {name: n for name, n in sorted(audit[kind]["discarded"].items()) if n}}
        for kind in ("turns", "sessions")
    }
    return {**sums, **{name: audit[name] for name in ("shards", "keys", "balanced")}}
