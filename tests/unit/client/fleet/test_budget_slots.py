"""Who holds a place of the budget: any order of events, beside a recount from all that ever happened."""

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rolloutfleet.fleet.budget_slots import BudgetSlots, Slot
from rolloutfleet.staleness import StalenessManager

SESSIONS = [f"s{ordinal}-{number}" for ordinal in (0, 1) for number in range(4)]
NUMBERS = (1, 2, 3)


def manager() -> StalenessManager:
    return StalenessManager(max_concurrent=100, max_staleness=1, batch_size=8)


def started(*names: str) -> tuple[StalenessManager, BudgetSlots]:
    budget = manager()
    budget.on_submitted(len(names))
    slots = BudgetSlots(budget)
    for name in names:
        slots.started([name], ordinal=int(name[1]))
    return budget, slots


@dataclass
class History:
    """All that happened to a session that the trainer started."""

    ended: bool = False
    gone: bool = False
    lost: bool = False
    given_back: bool = False
    left: set[str] = field(default_factory=set)
    too_old: set[str] = field(default_factory=set)
    trained: set[str] = field(default_factory=set)

    @property
    def slot(self) -> Slot:
        if self.gone or self.lost:
            return Slot.NONE
        if not self.ended:
            return Slot.RUNNING
        return Slot.ACCEPTED if self.left > self.too_old and not self.given_back else Slot.NONE

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
        self.slots = BudgetSlots(self.manager)
        self.histories: dict[str, History] = {}

    def of(self, name: str) -> History | None:
        """The history that the next event belongs to."""
        found = self.histories.get(name)
        return None if found is None or found.over else found

    @rule(name=names)
    def start(self, name: str) -> None:
        if name not in self.histories:
            self.manager.on_submitted()
            self.slots.started([name], ordinal=int(name[1]))
            self.histories[name] = History()

    @rule(name=names, number=numbers)
    def reward(self, name: str, number: int) -> None:
        history = self.of(name)
        if history is not None:
            history.left.add(f"{name}-trajectory-{number}")
        self.slots.closed_trajectory(name, f"{name}-trajectory-{number}")

    @rule(name=names, left=st.sets(numbers))
    def end(self, name: str, left: set[int]) -> None:
        ids = {f"{name}-trajectory-{number}" for number in left}
        history = self.of(name)
        if history is not None:
            history.ended = True
            history.left |= ids
        self.slots.ended(name, left=ids)

    @rule(name=names)
    def go(self, name: str) -> None:
        history = self.of(name)
        if history is not None:
            history.gone = True
        self.slots.gone(name)

    @rule(given_back=st.sets(names))
    def give_back(self, given_back: set[str]) -> None:
        for name in given_back:
            history = self.of(name)
            if history is not None:
                history.given_back = True
        self.slots.given_back(given_back)

    @rule(name=names, number=numbers, too_old=st.booleans())
    def judge(self, name: str, number: int, too_old: bool) -> None:
        trajectory = f"{name}-trajectory-{number}"
        history = self.of(name)
        if history is not None:
            history.left.add(trajectory)
            history.given_back = False
            history.too_old.discard(trajectory)
            if too_old:
                history.too_old.add(trajectory)
        self.slots.judged(name, trajectory, too_old=too_old)

    @rule(name=names, number=numbers)
    def train(self, name: str, number: int) -> None:
        trajectory = f"{name}-trajectory-{number}"
        history = self.of(name)
        if history is not None:
            history.left.add(trajectory)
            history.given_back = False
            history.trained.add(trajectory)
        self.slots.trained(name, trajectory)

    @rule(ordinal=st.sampled_from((0, 1)), lost=st.booleans())
    def lose_or_find(self, ordinal: int, lost: bool) -> None:
        for name, history in self.histories.items():
            if int(name[1]) == ordinal and not history.over:
                history.lost = lost
        self.slots.mark(ordinal, lost=lost)

    @invariant()
    def the_manager_counts_what_a_recount_counts(self) -> None:
        counted = [history.slot for history in self.histories.values()]
        assert self.manager.counts.running == counted.count(Slot.RUNNING)
        assert self.manager.counts.accepted == counted.count(Slot.ACCEPTED)

    @invariant()
    def only_what_may_still_change_is_kept(self) -> None:
        open_ones = {name for name, history in self.histories.items() if not history.over}
        assert set(self.slots.sessions()) == open_ones


TestRecount = Recount.TestCase


def test_a_session_whose_trajectories_are_all_too_old_gives_its_place_back() -> None:
    budget, slots = started("s0-1")
    slots.ended("s0-1", left=["a", "b"])
    slots.judged("s0-1", "a", too_old=True)
    assert (budget.counts.accepted, budget.counts.rejected) == (1, 0)
    slots.judged("s0-1", "b", too_old=True)
    assert (budget.counts.accepted, budget.counts.rejected) == (0, 1)


def test_sessions_of_a_lost_proxy_give_their_places_back_until_it_returns() -> None:
    budget, slots = started("s0-1", "s0-2", "s1-1")
    slots.ended("s0-2", left=["a"])
    slots.mark(0, lost=True)
    assert (budget.counts.running, budget.counts.accepted) == (1, 0)
    slots.mark(0, lost=False)
    assert (budget.counts.running, budget.counts.accepted) == (2, 1)


def test_what_is_trained_keeps_its_place_and_is_forgotten() -> None:
    budget, slots = started("s0-1")
    slots.ended("s0-1", left=["a"])
    slots.trained("s0-1", "a")
    assert budget.counts.accepted == 1
    assert slots.sessions() == []
    slots.mark(0, lost=True)
    assert budget.counts.accepted == 1


def test_adopted_sessions_count_as_running_or_as_held_already() -> None:
    budget = manager()
    slots = BudgetSlots(budget)
    slots.adopt("s0-1", ordinal=0, ended=False)
    slots.adopt("s0-2", ordinal=0, ended=True, left=["a"])
    assert (budget.counts.running, budget.counts.accepted) == (1, 0)
    budget.on_version_recovered(3, held=1)
    slots.judged("s0-2", "a", too_old=True)
    assert budget.counts.accepted == 3 * 8


@pytest.mark.parametrize("ended", [False, True], ids=["open", "ended"])
@pytest.mark.parametrize("left", [[], ["t1"]], ids=["nothing", "something"])
def test_a_session_that_takes_anothers_place_has_the_only_place_of_the_two(ended: bool, left: list[str]) -> None:
    budget, slots = started("s0-0", "s0-1")
    if ended:
        slots.ended("s0-0", left=left)
    slots.replaced("s0-0", "s0-2", ordinal=0)
    assert (budget.counts.running, budget.counts.accepted) == (2, 0)
    assert slots.sessions() == ["s0-1", "s0-2"]
    slots.ended("s0-2", left=["t1"])
    assert (budget.counts.running, budget.counts.accepted) == (1, 1)
