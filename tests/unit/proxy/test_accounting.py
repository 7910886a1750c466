"""Promises 3 to 5 whatever the order of things: a model beside a real store, compared after every step."""

import json
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.proxy.store.test_replacing import replace_in
from tests.unit.proxy.stores import SyncStore
from tests.unit.proxy.summing import said, summed

from rolloutfleet.wire import AskExport, GiveReward
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.domain.idempotency import keyed_call
from rolloutfleet_proxy.domain.stale import Patience, due
from rolloutfleet_proxy.exports.forms import json_pieces
from rolloutfleet_proxy.store import keeping, remains
from rolloutfleet_proxy.store.audit import audit
from rolloutfleet_proxy.store.groups import free, load_group
from rolloutfleet_proxy.store.leases import Grant, acknowledge, expire, grant, release, renew
from rolloutfleet_proxy.store.remains import clear_some
from rolloutfleet_proxy.store.rewards import give_reward
from rolloutfleet_proxy.store.trajectories import close_session, delete_session


@dataclass
class ModelTurn:
    name: str
    number: int
    parent: int | None
    asks: str
    delivered: bool
    reward: float | None = None
    trajectory: int | None = None
    discarded: str | None = None
    reclaimed: tuple[str, str] | None = None


@dataclass
class ModelTrajectory:
    state: str = "ready"
    lease: str | None = None
    frozen: bool = False
    reason: str | None = None
    content: Any = None


@dataclass
class ModelSession:
    id: int
    name: str
    group: int
    state: str = "open"
    turns: list[ModelTurn] = field(default_factory=list)
    trajectories: list[ModelTrajectory] = field(default_factory=list)
    discarded: str | None = None
    """Why it was first counted as discarded: that stays, whatever comes."""
    freed: bool = False
    touched: float = 0.0
    ended: float = 0.0
    reclaimed: tuple[str, str] | None = None

    def end(self, state: str, now: float) -> None:
        self.ended = now if self.state == "open" else self.ended
        self.state = state

    def open_turns(self) -> list[ModelTurn]:
        return [turn for turn in self.turns if turn.trajectory is None and not turn.discarded and not turn.reclaimed]

    def reclaim(self, *, dumped: bool) -> None:
        fate = ("dumped", "") if dumped else ("discarded", "no_dump_path")
        going = [turn for turn in self.turns if self.turn_fate(turn) == ("live", "")]
        for turn in going:
            turn.reclaimed = fate
        for trajectory in self.trajectories:
            trajectory.state = "reclaimed" if trajectory.state == "ready" else trajectory.state
        self.state = "closed"
        trained = any(trajectory.state == "acknowledged" for trajectory in self.trajectories)
        self.reclaimed = fate if going and (dumped or not trained) else self.fate()
        self.freed = True

    def ready(self) -> list[str]:
        return [
            f"{self.name}-trajectory-{number}"
            for number, trajectory in enumerate(self.trajectories, 1)
            if trajectory.state == "ready"
        ]

    def close_turns(self) -> None:
        open_turns = self.open_turns()
        if not open_turns:
            return
        for turn in open_turns:
            turn.trajectory = len(self.trajectories) + 1
        self.trajectories.append(ModelTrajectory())
        for turn in open_turns:
            later = [t for t in open_turns if t.number > turn.number and (t.parent, t.asks) == (turn.parent, turn.asks)]
            extended = any(t.parent == turn.number for t in self.turns)
            if later and not extended and not turn.delivered and turn.reward is None:
                turn.discarded = "orphan"

    def fate(self) -> tuple[str, str]:
        if self.reclaimed:
            return self.reclaimed
        states = {trajectory.state for trajectory in self.trajectories}
        if "leased" in states:
            return "leased", ""
        if self.state == "open" or "ready" in states:
            return "live", ""
        if "acknowledged" in states:
            return "acknowledged", ""
        self.discarded = self.discarded or ("deleted" if self.state == "deleted" else "empty")
        return "discarded", self.discarded

    def turn_fate(self, turn: ModelTurn) -> tuple[str, str]:
        if turn.reclaimed:
            return turn.reclaimed
        if turn.discarded:
            return "discarded", turn.discarded
        if turn.trajectory is None:
            return "live", ""
        trajectory = self.trajectories[turn.trajectory - 1]
        if trajectory.state == "ready":
            return "live", ""
        return trajectory.state, trajectory.reason or ""


@dataclass
class ModelLease:
    name: str
    key: str | None
    asked: AskExport
    members: list[str]
    statuses: list[tuple[str, str]]
    expires: float
    state: str = "open"
    acknowledged: set[str] = field(default_factory=set)


SECONDS = st.sampled_from([5.0, 10.0, 1000.0])
TURNS = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), min_size=1, max_size=4)
"""How many turns back the parent is (0: none), whether it was delivered, whether it asks what others ask, too."""
CLOSES = st.sampled_from([None, None, True, False])
TIMEOUT = st.sampled_from([6.0, 7.0, 106.0])
RARELY = st.sampled_from([False, False, False, True])


class Accounting(RuleBasedStateMachine):
    style = "concat"
    keep_fraction = 0.0

    @initialize(groups=st.lists(st.lists(TURNS, min_size=1, max_size=3), min_size=1, max_size=3))
    def begin(self, groups: list[list[list[tuple[int, bool, bool]]]]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rolloutfleet-accounting-"))
        self.store = SyncStore(self.folder)
        self.store.writer.keep_fraction = self.keep_fraction
        self.few_at_once = patch.object(remains, "TURNS_AT_ONCE", 2)
        self.few_at_once.start()
        self.sessions: list[ModelSession] = []
        self.leases: list[ModelLease] = []
        self.trained: set[str] = set()
        self.groups = 0
        self.names = 0
        for group in groups:
            self.start(len(group))
            for session, turns in zip(self.sessions[-len(group) :], group, strict=True):
                self.commit_to(session, turns)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.few_at_once.stop()
            self.store.close()
            shutil.rmtree(self.folder)

    # What the model knows

    def trajectory(self, trajectory_id: str) -> tuple[ModelSession, ModelTrajectory]:
        name, _, number = trajectory_id.rpartition("-trajectory-")
        session = next(session for session in self.sessions if session.name == name)
        return session, session.trajectories[int(number) - 1]

    def free(self) -> None:
        """Free every group that has nothing left to decide."""
        for group in {session.group for session in self.sessions}:
            members = [session for session in self.sessions if session.group == group]
            if all(one.state != "open" and one.fate()[0] in ("acknowledged", "discarded", "dumped") for one in members):
                for session in members:
                    session.freed = True

    def give_back(self, trajectory_ids: list[str], lease: ModelLease) -> None:
        for trajectory_id in trajectory_ids:
            session, trajectory = self.trajectory(trajectory_id)
            if trajectory.state == "leased" and trajectory.lease == lease.name:
                deleted = session.state == "deleted"
                trajectory.state, trajectory.lease = ("discarded" if deleted else "ready"), None
                trajectory.reason = "deleted" if deleted else None
                session.ended = self.store.seconds

    def expired(self) -> None:
        for lease in self.leases:
            if lease.state == "open" and lease.expires <= self.store.seconds:
                self.give_back(lease.members, lease)
                lease.state = "expired"
        self.free()

    def can_have(self, trajectory_id: str, lease: ModelLease) -> bool:
        """Whether, once what is late has expired, the lease has it or could take it."""
        session, trajectory = self.trajectory(trajectory_id)
        holder = next((one for one in self.leases if one.name == trajectory.lease), None)
        if trajectory.state == "leased" and holder is not None and holder.expires <= self.store.seconds:
            return session.state != "deleted"
        return trajectory.state == "ready" or (trajectory.state == "leased" and trajectory.lease == lease.name)

    def due(self, lease: ModelLease) -> str:
        """The lease's state once what is late has expired."""
        late = lease.state == "open" and lease.expires <= self.store.seconds
        return "expired" if late else lease.state

    def take(self, lease: ModelLease, granted: Grant) -> None:
        exported = json.loads(b"".join(json_pieces(self.store.read, granted, {"sessions": []})))["trajectories"]
        assert [one["trajectory_id"] for one in exported] == [member.trajectory_id for member in granted.members]
        for one in exported:
            _, trajectory = self.trajectory(one["trajectory_id"])
            for row in one["rows"]:
                del row["tensors"]["turn_ids"]
            del one["outcome"], one["outcome_reason"]  # of the session, which may have been open before
            if trajectory.frozen:
                assert one == trajectory.content, "the same trajectory, whatever became of its leases"
            trajectory.state, trajectory.lease, trajectory.frozen = "leased", lease.name, True
            trajectory.content = one

    def close_if_done(self, lease: ModelLease) -> None:
        held = [
            one
            for one in lease.members
            if self.trajectory(one)[1].state == "leased" and self.trajectory(one)[1].lease == lease.name
        ]
        if lease.acknowledged == set(lease.members):
            lease.state = "acknowledged"
        elif lease.state == "open" and not held:
            lease.state = "released"

    def dump(self) -> Any:
        tables = ("sessions", "turns", "trajectories", "leases", "leased", "ledger", "tombstones", "idempotency")
        return [self.store.rows(f"SELECT * FROM {table}") for table in tables]

    def expect(self, allowed: bool, operation: Any) -> Any:
        """Run an operation that the model says is allowed or refused; what is refused changes nothing."""
        before = self.dump()
        try:
            done = self.store.run(operation)
        except DomainError as error:
            assert not allowed, error
            assert self.dump() == before
            return None
        assert allowed
        return done

    def there(self) -> list[ModelSession]:
        return [session for session in self.sessions if not session.freed]

    # What happens

    @precondition(lambda self: len([one for one in self.sessions if one.state == "open"]) < 4)
    @rule(count=st.integers(1, 3))
    def start(self, count: int) -> None:
        self.groups += 1
        now = self.store.seconds
        self.sessions += [ModelSession(id, name, self.groups, touched=now) for id, name in self.store.start(count)]

    @precondition(lambda self: any(session.state == "open" for session in self.sessions))
    @rule(data=st.data(), turns=TURNS)
    def commit(self, data: st.DataObject, turns: list[tuple[int, bool, bool]]) -> None:
        session = data.draw(st.sampled_from([one for one in self.sessions if one.state == "open"]))
        self.commit_to(session, turns)

    def commit_to(self, session: ModelSession, turns: list[tuple[int, bool, bool]]) -> None:
        for back, delivered, again in turns:
            parent = session.turns[-back].number if 0 < back <= len(session.turns) else None
            self.names += 1
            name = f"turn-{self.names}"
            asks = "again" if again else name
            number = self.store.commit(
                session.id,
                name=name,
                parent=parent,
                asks=asks,
                delivered=delivered,
                prompt=[self.names],
                output=[1000 + self.names, 2000 + self.names],
                logprobs=[-0.25, -self.names],
                version=self.names % 7,
            )
            assert number == len(session.turns) + 1
            session.turns.append(ModelTurn(name, number, parent, asks, delivered))
            session.touched = self.store.seconds

    @precondition(lambda self: self.there())
    @rule(data=st.data(), value=st.sampled_from([0.0, 0.5, 1.0]), close=CLOSES, one=RARELY)
    def reward(self, data: st.DataObject, value: float, close: bool | None, one: bool) -> None:
        fresh = [session for session in self.sessions if session.open_turns()]
        session = data.draw(st.sampled_from(self.there() if one or not fresh else fresh))
        named = data.draw(st.sampled_from(session.turns)) if session.turns and one else None
        turn = named or (session.turns[-1] if session.turns else None)
        asked = GiveReward(reward=value, turn_id=named.name if named else None, close=close)
        allowed = turn is not None and session.state != "deleted" and turn.discarded is None
        if allowed and turn is not None and turn.trajectory and turn.reward != value:
            trajectory = session.trajectories[turn.trajectory - 1]
            allowed = not trajectory.frozen and trajectory.state != "discarded"
        given = self.expect(allowed, lambda transaction: give_reward(transaction, session.id, asked))
        if given is None or turn is None:
            return
        turn.reward = value
        session.touched = self.store.seconds
        if asked.closes:
            session.close_turns()
        expected = None if turn.trajectory is None else f"{session.name}-trajectory-{turn.trajectory}"
        assert (given.turn_id, given.trajectory_id) == (turn.name, expected)

    @precondition(lambda self: self.there())
    @rule(data=st.data(), again=RARELY)
    def close(self, data: st.DataObject, again: bool) -> None:
        still_open = [session for session in self.sessions if session.state == "open"]
        session = data.draw(st.sampled_from(self.there() if again or not still_open else still_open))
        self.expect(session.state != "deleted", lambda transaction: close_session(transaction, session.id))
        if session.state == "open":
            session.close_turns()
            session.end("closed", self.store.seconds)
            self.free()

    @precondition(lambda self: self.there())
    @rule(data=st.data(), now=RARELY)
    def delete(self, data: st.DataObject, now: bool) -> None:
        if not now:
            return
        session = data.draw(st.sampled_from(self.there()))
        self.expect(session.state != "deleted", lambda transaction: delete_session(transaction, session.id))
        session.end("deleted", self.store.seconds)
        for turn in session.open_turns():
            turn.discarded = "deleted"
        for trajectory in session.trajectories:
            if trajectory.state == "ready":
                trajectory.state, trajectory.reason = "discarded", "deleted"
        self.free()

    @precondition(lambda self: self.there())
    @rule(data=st.data(), now=RARELY)
    def replace(self, data: st.DataObject, now: bool) -> None:
        if not now:
            return
        session = data.draw(st.sampled_from(self.there()))
        if session.state == "deleted":
            return
        states = {trajectory.state for trajectory in session.trajectories}
        allowed = states.isdisjoint(("leased", "acknowledged"))
        made = self.expect(allowed, partial(replace_in, owner=self.store.owner, name=session.name))
        if made is None:
            return
        [(id,)] = self.store.rows("SELECT id FROM sessions WHERE name = ?", made)
        self.sessions.append(ModelSession(id, made, session.group, touched=self.store.seconds))
        before = session.fate()
        for turn in session.turns:
            if session.turn_fate(turn) == ("live", ""):
                turn.reclaimed = ("discarded", "replaced")
        for trajectory in session.trajectories:
            trajectory.state = "discarded" if trajectory.state == "ready" else trajectory.state
        session.reclaimed = ("discarded", "replaced") if before[0] == "live" else before
        session.state, session.freed, session.group = "closed", True, -session.id

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), seconds=SECONDS, keyed=st.booleans(), how=st.sampled_from(["sessions", "group", "number"]))
    def export(self, data: st.DataObject, seconds: float, keyed: bool, how: str) -> None:
        self.expired()
        chosen = data.draw(st.lists(st.sampled_from(self.sessions), min_size=1, max_size=4, unique_by=id))
        most = data.draw(st.integers(1, 5))
        how = "sessions" if how == "group" and chosen[0].group < 0 else how
        asks: dict[str, Any] = {"style": self.style, "discount": 0.5, "lease_seconds": seconds}
        if how == "sessions":
            asks["session_ids"] = [session.name for session in chosen]
        elif how == "group":
            chosen = [session for session in self.sessions if session.group == chosen[0].group]
            asks["group_id"] = self.group_name(chosen[0])
        else:
            asks["max_trajectories"] = most
        asked = AskExport(**asks)
        key = f"key-{len(self.leases)}-{self.names}-{self.store.seconds}" if keyed else None
        call = keyed_call(key, scope="export", body=asked.model_dump_json().encode())
        granted: Grant = self.expect(True, lambda transaction: grant(transaction, self.store.owner, asked, call))
        taken = [member.trajectory_id for member in granted.members]
        if how == "number":
            self.check_groups(taken, most)
        else:
            assert sorted(taken) == sorted(one for session in chosen for one in session.ready())
            assert {name for name, _ in granted.statuses} == {session.name for session in chosen}
            for name, status in granted.statuses:
                assert status == self.status(next(one for one in chosen if one.name == name))
        if granted.lease is None:
            assert not taken
            return
        lease = ModelLease(granted.lease, key, asked, taken, list(granted.statuses), self.store.seconds + seconds)
        self.leases.append(lease)
        self.take(lease, granted)

    def group_name(self, session: ModelSession) -> str:
        rows = self.store.rows(
            "SELECT group_name FROM sessions WHERE name = ? UNION SELECT group_name FROM tombstones WHERE name = ?",
            session.name,
            session.name,
        )
        return str(rows[0][0])

    def status(self, session: ModelSession) -> str:
        if session.freed or session.state == "deleted":
            return "gone"
        if session.ready():
            return "leased"
        if any(trajectory.state == "leased" for trajectory in session.trajectories):
            return "leased_elsewhere"
        return "not_ready" if session.state == "open" else "gone"

    def check_groups(self, taken: list[str], most: int) -> None:
        """Whole groups only, each member ended or with something ready, nothing leased; up to `most`, or one group."""
        complete = {}
        for group in {session.group for session in self.sessions}:
            members = [session for session in self.sessions if session.group == group]
            ready = [one for session in members for one in session.ready()]
            held = any(trajectory.state == "leased" for session in members for trajectory in session.trajectories)
            if ready and not held and all(session.state != "open" or session.ready() for session in members):
                complete[group] = ready
        groups = {self.trajectory(one)[0].group for one in taken}
        assert sorted(taken) == sorted(one for group in groups for one in complete[group])
        assert len(taken) <= most or len(groups) == 1
        assert bool(taken) == bool(complete)

    @precondition(lambda self: any(lease.key for lease in self.leases))
    @rule(data=st.data())
    def export_again(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from([one for one in self.leases if one.key]))
        call = keyed_call(lease.key, scope="export", body=lease.asked.model_dump_json().encode())
        left = [one for one in lease.members if one not in lease.acknowledged]
        allowed = bool(left) and all(self.can_have(one, lease) for one in left)
        granted = self.expect(allowed, lambda transaction: grant(transaction, self.store.owner, lease.asked, call))
        if granted is None:
            return
        self.expired()
        assert (granted.lease, granted.statuses) == (lease.name, lease.statuses)
        assert [member.trajectory_id for member in granted.members] == left
        if lease.state != "open":
            lease.state, lease.expires = "open", self.store.seconds + lease.asked.lease_seconds
        self.take(lease, granted)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        named = data.draw(st.none() | st.lists(st.sampled_from(lease.members), unique=True))
        wanted = [one for one in lease.members if named is None or one in named]
        todo = [one for one in wanted if one not in lease.acknowledged]
        allowed = all(self.can_have(one, lease) for one in todo)
        done = self.expect(allowed, lambda transaction: acknowledge(transaction, lease.name, named))
        if done is None:
            return
        assert done == wanted
        self.expired()
        for trajectory_id in todo:
            _, trajectory = self.trajectory(trajectory_id)
            trajectory.state, trajectory.lease = "acknowledged", lease.name
            lease.acknowledged.add(trajectory_id)
            self.train(trajectory.content)
        self.close_if_done(lease)
        self.free()

    def train(self, exported: Any) -> None:
        """What a trainer does: every sampled token counts once, over all that it ever acknowledged."""
        masked = sum(sum(row["tensors"]["loss_mask"]) for row in exported["rows"])
        names = [turn["turn_id"] for turn in exported["turns"]]
        assert masked == 2 * len(names)
        assert not self.trained.intersection(names)
        self.trained.update(names)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        named = data.draw(st.none() | st.lists(st.sampled_from(lease.members), unique=True))
        allowed = self.due(lease) in ("open", "released")
        done = self.expect(allowed, lambda transaction: release(transaction, lease.name, named))
        if done is None:
            return
        self.expired()
        wanted = [one for one in lease.members if named is None or one in named]
        assert done == [one for one in wanted if one not in lease.acknowledged]
        self.give_back(wanted, lease)
        self.close_if_done(lease)
        self.free()

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), seconds=SECONDS)
    def renew(self, data: st.DataObject, seconds: float) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        allowed = self.due(lease) == "open"
        self.expect(allowed, lambda transaction: renew(transaction, lease.name, seconds=seconds))
        if allowed:
            self.expired()
            lease.expires = self.store.seconds + seconds

    @rule(seconds=st.sampled_from([1, 6, 100]), tick=st.booleans())
    def wait(self, seconds: int, tick: bool) -> None:
        self.store.advance(seconds)
        if tick:
            self.store.run(expire)
            self.expired()

    @rule(dumped=st.booleans(), stale=TIMEOUT, unclaimed=TIMEOUT, data=st.data())
    def sweep(self, dumped: bool, stale: float, unclaimed: float, data: st.DataObject) -> None:
        """Each group, as a sweep comes to it; some sessions have a call in flight."""
        there = [session.name for session in self.there()]
        busy = data.draw(st.sets(st.sampled_from(there), max_size=1)) if there else set()
        for group in sorted({session.group for session in self.there()}):
            members = [session for session in self.there() if session.group == group]
            expected = self.due_sessions(members, stale, unclaimed, busy)
            name = self.group_name(members[0])
            found = due(
                self.store.read(lambda connection, name=name: load_group(connection, name)),  # type: ignore[misc]
                now=self.store.seconds,
                patience=Patience(stale, unclaimed),
                busy=busy.__contains__,
            )
            assert (found.names if found else ()) == tuple(session.name for session in expected)
            if found is None:
                continue
            self.store.run(partial(free, chosen=found, files=[] if dumped else None))
            for session in members:
                if session.state != "open" and found.reason == "stale":
                    session.ended = self.store.seconds
            for session in expected:
                session.reclaim(dumped=dumped)
            self.free()

    def due_sessions(
        self, members: list[ModelSession], stale: float, unclaimed: float, busy: set[str]
    ) -> list[ModelSession]:
        now = self.store.seconds
        unended = [session for session in members if session.state == "open"]
        if any(trajectory.state == "leased" for session in members for trajectory in session.trajectories):
            return []
        if unended:
            idle = [session for session in unended if now - session.touched >= stale and session.name not in busy]
            return unended if idle == unended else []
        late = now - max(session.ended for session in members) >= unclaimed
        return [session for session in members if session.ready()] if late else []

    @rule()
    def delete_what_is_left(self) -> None:
        self.store.run(clear_some)
        waiting = self.store.read(keeping.load_next)
        if waiting is not None:
            self.store.run(lambda transaction: keeping.let_go(transaction, waiting.session))

    @rule()
    def restart(self) -> None:
        self.store.reopen()
        self.store.writer.keep_fraction = self.keep_fraction

    # What always holds

    @invariant()
    def every_turn_and_session_is_accounted_for(self) -> None:
        if not hasattr(self, "store"):
            return
        found = self.store.read(audit)
        assert found["balanced"], found
        turns = Counter(session.turn_fate(turn) for session in self.sessions for turn in session.turns)
        sessions = Counter(session.fate() for session in self.sessions)
        for kind, expected in (("turns", turns), ("sessions", sessions)):
            sums = found[kind]
            assert sums["created"] == expected.total()
            for term in ("live", "leased", "acknowledged", "dumped"):
                assert sums[term] == expected[term, ""], (kind, term)
            discarded = {reason: n for reason, n in sums["discarded"].items() if n}
            assert discarded == {reason: n for (term, reason), n in expected.items() if term == "discarded"}

    @invariant()
    def rows_stay_until_they_are_freed(self) -> None:
        if not hasattr(self, "store"):
            return
        there = dict(self.store.rows("SELECT name, state FROM sessions"))
        assert there == {session.name: session.state for session in self.there()}
        buried = {name for (name,) in self.store.rows("SELECT name FROM tombstones")}
        assert buried == {session.name for session in self.sessions if session.freed}
        rows = dict(
            self.store.rows("SELECT turns.name, turns.reward FROM turns JOIN sessions ON sessions.id = turns.session")
        )
        assert rows == {turn.name: turn.reward for session in self.there() for turn in session.turns}
        left = self.store.rows("SELECT DISTINCT session FROM turns WHERE session NOT IN (SELECT id FROM sessions)")
        known = self.store.rows("SELECT id FROM freed_sessions UNION SELECT session FROM keeping ORDER BY id")
        assert {session for (session,) in left} <= {session for (session,) in known}, "none is forgotten"
        kept = {name for (name,) in self.store.rows("SELECT head ->> '$.session_id' FROM keeping")}
        assert kept <= {session.name for session in self.sessions if session.fate()[0] == "acknowledged"}

    @invariant()
    def rows_of_sessions_say_what_their_turns_do(self) -> None:
        if not hasattr(self, "store"):
            return
        assert said(self.store) == summed(self.store)
        used = dict(self.store.rows("SELECT name, last_activity_at FROM sessions"))
        assert used == {session.name: 1e9 + session.touched for session in self.there()}


class AccountingOfSingleTurns(Accounting):
    """Half of the sessions are kept as copies, which changes no sum."""

    style = "individual"
    keep_fraction = 0.5


TestAccounting = Accounting.TestCase
TestAccounting.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestAccountingOfSingleTurns = AccountingOfSingleTurns.TestCase
TestAccountingOfSingleTurns.settings = settings(max_examples=15, stateful_step_count=40, deadline=None)
