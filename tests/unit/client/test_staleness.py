"""The staleness budget: the reference's published cases, and any order of events."""

import pickle
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.threads import in_threads

from rolloutfleet.staleness import StalenessManager


def manager(*, max_concurrent: int = 10_000, max_staleness: int = 2, batch_size: int = 4) -> StalenessManager:
    return StalenessManager(max_concurrent=max_concurrent, max_staleness=max_staleness, batch_size=batch_size)


def started(made: StalenessManager, *, accepted: int = 0, running: int = 0) -> StalenessManager:
    made.on_submitted(accepted + running)
    made.on_accepted(accepted)
    return made


def test_the_references_recovery_at_version_268() -> None:
    budget = manager(max_staleness=2, batch_size=4)
    assert budget.capacity(268) == 1084
    budget.on_version_recovered(268)
    assert budget.capacity(268) == 12


@pytest.mark.parametrize("version", [0, 5, 10, 50])
def test_after_recovery_the_room_is_that_of_a_fresh_run(version: int) -> None:
    budget = manager(max_staleness=2, batch_size=16)
    budget.on_version_recovered(version)
    assert budget.capacity(version) == (2 + 1) * 16


@pytest.mark.parametrize("running", [1, 7, 60])
def test_what_runs_still_counts_after_recovery(running: int) -> None:
    budget = started(manager(max_staleness=2, batch_size=16), running=running)
    budget.on_version_recovered(10)
    assert budget.capacity(10) == (2 + 1) * 16 - running


def test_the_references_other_cases() -> None:
    assert started(manager(max_concurrent=5, max_staleness=100), running=3).capacity(0) == 2
    assert manager(max_staleness=2, batch_size=4).capacity(0) == 12
    assert manager(max_staleness=2, batch_size=4).capacity(5) == 32
    assert manager(max_staleness=0, batch_size=8).capacity(0) == 8
    assert manager(max_staleness=0, batch_size=8).capacity(5) == 48


def test_sessions_start_where_there_is_room_for_all_of_them() -> None:
    budget = manager(max_concurrent=6, max_staleness=0, batch_size=4)
    budget.on_enqueued(9)
    assert not budget.submit_if_room(5, version=0)
    assert budget.submit_if_room(3, version=0)
    assert not budget.submit_if_room(2, version=0)
    assert budget.submit_if_room(1, version=0)
    assert (budget.counts.enqueued, budget.counts.submitted, budget.counts.running) == (5, 4, 4)
    assert budget.submit_if_room(2, version=1)
    assert not budget.submit_if_room(1, version=1)


def test_threads_together_never_start_more_than_there_is_room_for() -> None:
    budget = manager(max_concurrent=1000, max_staleness=0, batch_size=500)
    ready = threading.Barrier(8)

    def start() -> None:
        ready.wait()
        for _ in range(200):
            budget.submit_if_room(1, version=0)

    in_threads(start, threads=8)
    assert budget.counts.running == budget.counts.submitted == 500


def test_less_than_nothing_is_reported_as_it_is() -> None:
    budget = started(manager(max_staleness=0, batch_size=4), accepted=3, running=6)
    assert budget.capacity(0) == -5
    lone = manager()
    lone.on_accepted()
    assert (lone.counts.accepted, lone.counts.running) == (1, -1)


def test_a_budget_of_nothing_still_makes_progress() -> None:
    budget = manager(max_concurrent=0, max_staleness=0, batch_size=0)
    assert (budget.max_concurrent, budget.batch_size, budget.capacity(0)) == (1, 1, 1)


def test_held_sessions_are_trained_yet_and_recovery_may_be_repeated() -> None:
    budget = manager(max_staleness=1, batch_size=4)
    for _ in range(3):
        budget.on_version_recovered(7, held=5)
    assert budget.counts.accepted == 7 * 4 + 5
    assert budget.capacity(7) == (1 + 1) * 4 - 5


def test_a_place_that_is_given_back_is_free() -> None:
    budget = started(manager(), accepted=12)
    assert budget.capacity(0) == 0
    budget.on_given_back(5)
    assert (budget.capacity(0), budget.counts.accepted, budget.counts.rejected) == (5, 7, 5)


def test_waiting_sessions_are_counted_until_they_start() -> None:
    budget = manager()
    budget.on_enqueued(5)
    budget.on_submitted(3)
    budget.on_dequeued()
    assert (budget.counts.enqueued, budget.counts.submitted, budget.counts.running) == (1, 3, 3)
    budget.on_submitted(2)
    assert (budget.counts.enqueued, budget.counts.running) == (0, 5)


@given(
    ranks=st.integers(1, 64), share=st.integers(1, 64), concurrent=st.integers(0, 10_000), staleness=st.integers(0, 9)
)
def test_ranks_share_one_budget(ranks: int, share: int, concurrent: int, staleness: int) -> None:
    each = StalenessManager.of_rank(ranks, max_concurrent=concurrent, max_staleness=staleness, batch_size=share * ranks)
    assert each.batch_size * ranks == share * ranks
    assert each.max_concurrent * ranks <= max(concurrent, ranks)


def test_ranks_that_would_train_another_number_are_refused() -> None:
    with pytest.raises(ValueError, match="can't be divided by 3 ranks"):
        StalenessManager.of_rank(3, max_concurrent=9, max_staleness=0, batch_size=8)
    with pytest.raises(ValueError, match="at least 1"):
        StalenessManager.of_rank(0, max_concurrent=9, max_staleness=0, batch_size=8)


@pytest.mark.parametrize(
    "wrong",
    [{}, {"accepted": 1}, {"enqueued": 0, "submitted": 0, "accepted": 0, "rejected": 0, "running": "1"}],
    ids=["empty", "part", "text"],
)
def test_a_state_that_is_none_changes_nothing(wrong: dict[str, object]) -> None:
    budget = started(manager(), accepted=2, running=1)
    before = budget.counts
    with pytest.raises(ValueError, match=r"saved state|whole number"):
        budget.restore(wrong)
    assert budget.counts is before


@pytest.mark.parametrize("name", ["on_enqueued", "on_dequeued", "on_submitted", "on_accepted", "on_rejected"])
def test_less_than_no_session_is_refused(name: str) -> None:
    budget = manager()
    with pytest.raises(ValueError, match="below 0"):
        getattr(budget, name)(-1)
    assert budget.state() == manager().state()


def test_threads_lose_no_count() -> None:
    budget = manager()
    begin = threading.Barrier(8)

    def work() -> None:
        begin.wait()
        for accepted in [True, False] * 500:
            budget.on_enqueued()
            budget.on_submitted()
            budget.on_accepted() if accepted else budget.on_rejected()

    in_threads(work, threads=8)
    assert budget.state() == {"enqueued": 0, "submitted": 8000, "accepted": 4000, "rejected": 4000, "running": 0}


@given(staleness=st.integers(0, 4), batch=st.integers(1, 6), versions=st.integers(1, 12))
def test_sessions_that_end_in_order_are_never_too_old(staleness: int, batch: int, versions: int) -> None:
    budget = manager(max_staleness=staleness, batch_size=batch)
    began: list[int] = []
    for version in range(versions):
        room = budget.capacity(version)
        budget.on_submitted(room)
        began += [version] * room
        budget.on_accepted(batch)
        assert all(version - age <= staleness for age in began[:batch])
        del began[:batch]


class Training(RuleBasedStateMachine):
    """A trainer that starts what the budget lets it, trains batches, crashes and recovers."""

    @initialize(concurrent=st.integers(1, 20), staleness=st.integers(0, 3), batch=st.integers(1, 5))
    def begin(self, concurrent: int, staleness: int, batch: int) -> None:
        self.bounds = {"max_concurrent": concurrent, "max_staleness": staleness, "batch_size": batch}
        self.budget = manager(**self.bounds)
        self.version = 0
        self.running = 0
        self.held = 0
        """Ended well, and not yet trained."""

    @rule(wanted=st.integers(1, 8))
    def start(self, wanted: int) -> None:
        sessions = min(wanted, max(0, self.budget.capacity(self.version)))
        self.budget.on_enqueued(wanted)
        self.budget.on_submitted(sessions)
        self.budget.on_dequeued(wanted - sessions)
        self.running += sessions

    @precondition(lambda self: self.running)
    @rule(well=st.booleans())
    def end(self, well: bool) -> None:
        self.running -= 1
        if well:
            self.budget.on_accepted()
            self.held += 1
        else:
            self.budget.on_rejected()

    @precondition(lambda self: self.held)
    @rule()
    def lose(self) -> None:
        self.budget.on_given_back()
        self.held -= 1

    @precondition(lambda self: self.held >= self.budget.batch_size)
    @rule()
    def train(self) -> None:
        self.held -= self.budget.batch_size
        self.version += 1

    @rule(checkpoint_is_old=st.booleans(), times=st.integers(1, 3))
    def crash_and_recover(self, checkpoint_is_old: bool, times: int) -> None:
        """The fleet keeps what runs and what ended; the trainer's own count of the accepted may be anything."""
        saved = pickle.loads(pickle.dumps(self.budget.state()))
        self.budget = manager(**self.bounds)
        self.budget.restore({**saved, "accepted": 0} if checkpoint_is_old else saved)
        for _ in range(times):
            self.budget.on_version_recovered(self.version, held=self.held)

    @invariant()
    def the_budget_knows_what_is_true(self) -> None:
        assert self.budget.counts.running == self.running <= self.budget.max_concurrent
        assert self.budget.counts.accepted == self.version * self.budget.batch_size + self.held
        assert self.budget.counts.enqueued == 0
        most = (self.budget.max_staleness + self.version + 1) * self.budget.batch_size
        assert self.budget.counts.accepted + self.running <= most


TestTraining = Training.TestCase
