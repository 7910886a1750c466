"""Who holds a place of the budget: any order of events, beside a recount from all that ever happened."""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rolloutfleet.fleet.places import Place, Places
from rolloutfleet.staleness import StalenessManager

SESSIONS = [f"s{ordinal}-{number}" for ordinal in (0, 1) for number in range(4)]
NUMBERS = (1, 2, 3)


def manager() -> StalenessManager:
    return StalenessManager(max_concurrent=100, max_staleness=1, batch_size=8)


def started(*names: str) -> tuple[StalenessManager, Places]:
    budget = manager()
    budget.on_submitted(len(names))
    places = Places(budget)
    for name in names:
        places.started([name], ordinal=int(name[1]))
    return budget, places


@dataclass
class History:
    """All that happened to a session that the trainer started."""

    ended: bool = False
    gone: bool = False
    lost: bool = False
    left: set[str] = field(default_factory=set)
    too_old: set[str] = field(default_factory=set)
    trained: set[str] = field(default_factory=set)

    @property
    def place(self) -> Place:
        if self.gone or self.lost:
            return Place.NONE
        if not self.ended:
            return Place.RUNNING
        return Place.ACCEPTED if self.left > self.too_old else Place.NONE

    @property
    def over(self) -> bool:
        """From here on nothing of it is looked at any more."""
        return not self.lost and (self.gone or (self.ended and self.left <= self.trained | self.too_old))


names = st.sampled_from(SESSIONS)
numbers = st.sampled_from(NUMBERS)


class Recount(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.manager = manager()
        self.places = Places(self.manager)
        self.histories: dict[str, History] = {}

    def of(self, name: str) -> History | None:
        """The history that the next event belongs to."""
        found = self.histories.get(name)
        return None if found is None or found.over else found

    @rule(name=names)
    def start(self, name: str) -> None:
        if name not in self.histories:
            self.manager.on_submitted()
            self.places.started([name], ordinal=int(name[1]))
            self.histories[name] = History()

    @rule(name=names, number=numbers)
    def reward(self, name: str, number: int) -> None:
        history = self.of(name)
        if history is not None:
            history.left.add(f"{name}-trajectory-{number}")
        self.places.closed_trajectory(name, f"{name}-trajectory-{number}")

    @rule(name=names, left=st.sets(numbers))
    def end(self, name: str, left: set[int]) -> None:
        ids = {f"{name}-trajectory-{number}" for number in left}
        history = self.of(name)
        if history is not None:
            history.ended = True
            history.left |= ids
        self.places.ended(name, left=ids)

    @rule(name=names)
    def go(self, name: str) -> None:
        history = self.of(name)
        if history is not None:
            history.gone = True
        self.places.gone(name)

    @rule(name=names, number=numbers, too_old=st.booleans())
    def judge(self, name: str, number: int, too_old: bool) -> None:
        trajectory = f"{name}-trajectory-{number}"
        history = self.of(name)
        if history is not None:
            history.left.add(trajectory)
            history.too_old.discard(trajectory)
            if too_old:
                history.too_old.add(trajectory)
        self.places.judged(name, trajectory, too_old=too_old)

    @rule(name=names, number=numbers)
    def train(self, name: str, number: int) -> None:
        trajectory = f"{name}-trajectory-{number}"
        history = self.of(name)
        if history is not None:
            history.left.add(trajectory)
            history.trained.add(trajectory)
        self.places.trained(name, trajectory)

    @rule(ordinal=st.sampled_from((0, 1)), lost=st.booleans())
    def lose_or_find(self, ordinal: int, lost: bool) -> None:
        for name, history in self.histories.items():
            if int(name[1]) == ordinal and not history.over:
                history.lost = lost
        (self.places.lost if lost else self.places.found)(ordinal)

    @invariant()
    def the_manager_counts_what_a_recount_counts(self) -> None:
        counted = [history.place for history in self.histories.values()]
        assert self.manager.running == counted.count(Place.RUNNING)
        assert self.manager.accepted == counted.count(Place.ACCEPTED)

    @invariant()
    def only_what_may_still_change_is_kept(self) -> None:
        open_ones = {name for name, history in self.histories.items() if not history.over}
        assert set(self.places.sessions()) == open_ones


TestRecount = Recount.TestCase


def test_a_session_whose_trajectories_are_all_too_old_gives_its_place_back() -> None:
    budget, places = started("s0-1")
    places.ended("s0-1", left=["a", "b"])
    places.judged("s0-1", "a", too_old=True)
    assert (budget.accepted, budget.rejected) == (1, 0)
    places.judged("s0-1", "b", too_old=True)
    assert (budget.accepted, budget.rejected) == (0, 1)


def test_sessions_of_a_lost_proxy_give_their_places_back_until_it_returns() -> None:
    budget, places = started("s0-1", "s0-2", "s1-1")
    places.ended("s0-2", left=["a"])
    places.lost(0)
    assert (budget.running, budget.accepted) == (1, 0)
    places.found(0)
    assert (budget.running, budget.accepted) == (2, 1)


def test_what_is_trained_keeps_its_place_and_is_forgotten() -> None:
    budget, places = started("s0-1")
    places.ended("s0-1", left=["a"])
    places.trained("s0-1", "a")
    assert budget.accepted == 1
    assert places.sessions() == []
    places.lost(0)
    assert budget.accepted == 1


def test_adopted_sessions_count_as_running_or_as_held_already() -> None:
    budget = manager()
    places = Places(budget)
    places.adopt("s0-1", ordinal=0, ended=False)
    places.adopt("s0-2", ordinal=0, ended=True, left=["a"])
    assert (budget.running, budget.accepted) == (1, 0)
    budget.on_version_recovered(3, held=1)
    places.judged("s0-2", "a", too_old=True)
    assert budget.accepted == 3 * 8
