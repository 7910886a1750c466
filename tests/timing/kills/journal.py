"""What the clients were answered, and what they wait for: the judge's only evidence.

An entry is made by the client that got a complete answer, from that answer alone; nothing here comes from a store, a
log or a failpoint. What contradicts an earlier entry is written down at once.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.integration.proxy.answers import Answer
from tests.integration.proxy.judge import said

from rolloutfleet.fleet.proxies import owner_of

CALL = "call"
START = "start"
START_AGAIN = "start again"
TURN = "turn"
REWARD = "reward"
CLOSE = "close"
EXPORT = "export"
ACK = "acknowledgement"
RELEASE = "release"
IMPORT = "import"

Json = Any


@dataclass(slots=True)
class Talk:
    """A session, as its agent saw it."""

    start_key: str
    session_id: str
    ordinal: int
    answers: list[Answer] = field(default_factory=list)
    left: bool = False
    """Its agent has gone without an end, so it is dumped once it is stale."""
    over: bool = False
    """Its agent asks nothing more, so it may be exported or dumped at any time."""


@dataclass(slots=True)
class Exported:
    """A trajectory, as the first answer brought it."""

    session_id: str
    ordinal: int
    turns: list[Json]
    acknowledged: bool = False


class Journal:
    """All clients' entries of one run."""

    def __init__(self) -> None:
        self.talks: dict[str, Talk] = {}
        """By session_id."""
        self.session_of: dict[str, str] = {}
        """By start key."""
        self.trajectories: dict[str, Exported] = {}
        self.imported: set[str] = set()
        """Names of dumps."""
        self.counts: Counter[str] = Counter()
        """Answers, by what was asked."""
        self.broken: Counter[str] = Counter()
        """Calls that ended without an answer, by what was asked. They were made again."""
        self.under_way: Counter[tuple[str, int]] = Counter()
        """What clients wait for at this moment, by (what was asked, ordinal of the proxy)."""
        self.contradictions: list[str] = []
        self.lost: set[str] = set()
        """Turns and trajectories that were answered, and are not there."""
        self.twice: set[str] = set()
        """Turns, trajectories and start keys that are there more than once."""

    @contextlib.contextmanager
    def asking(self, what: str, ordinal: int) -> Iterator[None]:
        """A client waits for a proxy until the block ends."""
        self.under_way[what, ordinal] += 1
        try:
            yield
        finally:
            self.under_way[what, ordinal] -= 1

    def waiting(self, ordinal: int | None = None) -> dict[str, int]:
        """How many clients wait for that proxy, or for any, by what they asked."""
        waiting: Counter[str] = Counter()
        for (what, of), number in self.under_way.items():
            if number and ordinal in (None, of):
                waiting[what] += number
        return dict(waiting)

    def started(self, key: str, session_id: str) -> Talk:
        """A start was answered, for the first time or again. Its session may be any proxy's."""
        before = self.session_of.get(key)
        self.counts[START if before is None else START_AGAIN] += 1
        if before not in (None, session_id):
            self.twice.add(key)
            self.contradict(f"start {key!r} brought {session_id}, and {before} before")
        self.session_of[key] = session_id
        return self.talks.setdefault(session_id, Talk(key, session_id, ordinal_of(session_id)))

    def answered(self, talk: Talk, answer: Answer) -> None:
        """A chat call was answered whole."""
        self.counts[TURN] += 1
        talk.answers.append(answer)

    def exported(self, trajectories: list[Json], *, by_library: bool = False) -> None:
        """An export brought these."""
        self._count(EXPORT, by_library)
        for trajectory in trajectories:
            name, turns = trajectory["trajectory_id"], [what_stays(turn) for turn in trajectory["turns"]]
            known = self.trajectories.get(name)
            if known is None:
                session = trajectory["session_id"]
                self.trajectories[name] = Exported(session, ordinal_of(session), turns)
                continue
            if known.acknowledged:
                self.twice.add(name)
                self.contradict(f"{name} was exported again after its acknowledgement was answered")
            if known.turns != turns:
                self.contradict(f"{name} came again with other turns")

    def acknowledged(self, trajectory_ids: list[str], *, by_library: bool = False) -> None:
        """An acknowledgement of these was answered."""
        self._count(ACK, by_library)
        for name in trajectory_ids:
            self.trajectories[name].acknowledged = True

    def check_came_again(self, forgotten: set[str], came: set[str]) -> None:
        """What was leased and not acknowledged is exported again, unless somebody else has acknowledged it since."""
        for name in forgotten - came:
            if not self.trajectories[name].acknowledged:
                self.lost.add(name)
                self.contradict(f"{name} was never acknowledged, and did not come again")

    def broke_off(self, what: str) -> None:
        """A call ended without an answer, and is made again."""
        self.broken[what] += 1

    def _count(self, what: str, by_library: bool) -> None:
        self.counts[f"{what} by the library" if by_library else what] += 1

    def imports(self, names: list[str]) -> None:
        """These dumps are known to be imported."""
        self.counts[IMPORT] += 1
        self.imported.update(names)

    def contradict(self, text: str) -> None:
        """Write down what can't be if every promise was kept; each once."""
        if text not in self.contradictions:
            self.contradictions.append(text)

    def turns_acknowledged(self, ordinal: int) -> int:
        """Of one proxy, by the answers."""
        known = self.trajectories.values()
        return sum(len(each.turns) for each in known if each.acknowledged and each.ordinal == ordinal)

    def as_json(self) -> Json:
        """All of it, for whoever looks for the cause of a contradiction."""
        return {
            "contradictions": self.contradictions,
            "talks": [asdict(talk) for talk in self.talks.values()],
            "trajectories": {name: asdict(each) for name, each in self.trajectories.items()},
            "imported": sorted(self.imported),
        }

    def check_every_answer_was_exported_once(self) -> None:
        """At the end, when all that was there has been exported and acknowledged."""
        places: dict[str, list[Json]] = {}
        for name, trajectory in self.trajectories.items():
            if not trajectory.acknowledged:
                self.lost.add(name)
                self.contradict(f"{name} was exported, and was never there again to acknowledge it")
            for turn in trajectory.turns:
                places.setdefault(turn["turn_id"], []).append(turn)
        for name, found in places.items():
            if len(found) > 1:
                self.twice.add(name)
                self.contradict(f"{name} is in {len(found)} trajectories")
        for talk in self.talks.values():
            for answer in talk.answers:
                turns = places.get(answer.turn_id)
                if turns is None:
                    self.lost.add(answer.turn_id)
                    self.contradict(f"{answer.turn_id} of {talk.session_id} was answered, and is lost")
                elif not is_of(answer, turns[0]):
                    self.contradict(f"{answer.turn_id} of {talk.session_id} is not what was answered")


def ordinal_of(session_id: str) -> int:
    """The proxy that owns a session, by its id."""
    ordinal = owner_of(session_id)
    assert ordinal is not None
    return ordinal


def is_of(answer: Answer, turn: Json) -> bool:
    """Whether an exported turn is what was answered."""
    told = (answer.parent_id, answer.finish_reason, said(answer.message))
    return told == (turn["parent_id"], turn["finish_reason"], said(turn["message"]))


def what_stays(turn: Json) -> Json:
    """Of an exported turn, what every export of it says, whichever way it came."""
    return {name: turn[name] for name in ("turn_id", "parent_id", "reward", "finish_reason", "message")}
