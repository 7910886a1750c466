"""The parent's decisions: never two owners, nothing given up that works, and the exit status that a start deserves."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutfleet.backoff import HEALTHY_AFTER, restart_delay
from rolloutfleet_proxy.process.decisions import (
    ENDING_TIMEOUT,
    Action,
    Decisions,
    Exit,
    Kill,
    Listen,
    Log,
    Spawn,
    Tell,
    how,
)

SIGTERM, SIGKILL, SIGINT = 15, 9, 2
LOG = {"ordinal": 0, "json": False, "level": "info"}
LISTEN = {"listen": {"host": "127.0.0.1", "port": 80, "timeout": 8.0, "ephemeral": False, "log": LOG}}
EPHEMERAL = {"listen": LISTEN["listen"] | {"ephemeral": True}}


class Site:
    """Carries out what is decided, as the machine would."""

    def __init__(self) -> None:
        self.decisions = Decisions()
        self.now = 0.0
        self.alive: set[int] = set()
        self.told_to_open: set[int] = set()
        self.told: list[tuple[int, Any]] = []
        self.killed: list[int] = []
        self.status: int | None = None
        self.act(self.decisions.spawn())

    @property
    def owners(self) -> set[int]:
        return self.alive & self.told_to_open

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            if self.status is not None:
                return
            match action:
                case Spawn(number):
                    self.alive.add(number)
                case Tell(number, message):
                    self.told.append((number, message))
                    if "open" in message:
                        assert number in self.alive, "nobody is there to open the store"
                        self.told_to_open.add(number)
                        assert len(self.owners) == 1, "two owners"
                case Kill(number):
                    self.killed.append(number)
                case Exit(status):
                    self.status = status

    def say(self, number: int, **message: Any) -> None:
        self.act(self.decisions.said(number, message, self.now))

    def end(self, number: int, status: int, peak: int | None = None, *, oom_killed: bool = False) -> None:
        self.alive.discard(number)
        self.act(self.decisions.ended(number, status, oom_killed, peak, self.now))

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.act(self.decisions.tick(self.now))

    def serve(self) -> int:
        """The newest worker gets to serve; returns its number."""
        number = max(self.alive)
        self.say(number, warm=True)
        self.say(number, serving=True)
        return number

    def last(self, number: int) -> Any:
        return [message for told, message in self.told if told == number][-1]


def test_a_first_worker_is_told_to_open_when_it_is_warm() -> None:
    site = Site()
    assert site.alive == {1} and not site.told
    assert site.decisions.said(1, LISTEN, 0.0) == [Log(LOG), Listen(1, "127.0.0.1", 80)]
    site.say(1, warm=True)
    assert site.told == [(1, {"open": {}})]


def test_a_restart_warms_the_next_worker_while_the_old_one_serves_and_opens_it_after_its_end() -> None:
    site = Site()
    site.serve()
    site.say(1, then="restart")
    assert site.alive == {1, 2}
    site.say(2, warm=True)
    assert site.last(1) == {"successor": "warm"} and site.owners == {1}
    site.say(1, ending=True)
    assert site.owners == {1}
    site.end(1, 0)
    assert site.last(2) == {"open": {}} and site.owners == {2}


def test_a_next_worker_that_fails_leaves_the_old_one_serving() -> None:
    site = Site()
    site.serve()
    site.say(1, then="restart")
    site.end(2, 2)
    assert site.last(1) == {"successor": "ended with exit status 2"}
    assert site.status is None and site.alive == {1}
    site.say(1, then="stay")
    site.say(1, then="restart")
    assert site.alive == {1, 3}


def test_an_undone_restart_needs_no_next_worker() -> None:
    site = Site()
    site.serve()
    site.say(1, then="restart")
    site.say(1, then="stay")
    assert site.killed == [2]
    site.end(2, -SIGKILL)
    assert site.alive == {1} and site.status is None


def test_a_worker_that_the_kernel_killed_for_want_of_memory_is_told_of_as_that() -> None:
    site = Site()
    site.serve()
    site.end(1, -SIGKILL, 1000, oom_killed=True)
    site.serve()
    assert site.last(2)["open"]["crash"] == "was killed by the kernel for want of memory"
    assert how(-SIGTERM, oom_killed=True) == "was killed by SIGTERM"


def test_a_worker_that_dies_is_followed_by_another_and_its_death_told() -> None:
    site = Site()
    site.serve()
    site.end(1, -SIGKILL, 1000)
    assert site.alive == {2}
    site.serve()
    assert site.last(2) == {"open": {"crash": "was killed by SIGKILL", "peak_rss": 1000}}
    site.end(2, 1)
    assert not site.alive and site.decisions.due == restart_delay(2) == 1.0
    site.tick(1.0)
    assert site.alive == {3}
    site.serve()
    site.now += HEALTHY_AFTER
    site.end(3, 1)
    assert site.alive == {4}, "after a steady time the first death counts as the first"


def test_a_worker_that_dies_in_the_middle_of_a_restart_is_followed_by_the_one_that_is_there() -> None:
    site = Site()
    site.serve()
    site.say(1, then="restart")
    site.end(1, -SIGKILL)
    assert site.alive == {2} and not site.owners
    site.say(2, warm=True)
    assert site.last(2)["open"]["crash"] == "was killed by SIGKILL"


@pytest.mark.parametrize(("status", "seen"), [(2, 2), (1, 1), (-9, 137)])
@pytest.mark.parametrize("opened", [False, True])
def test_a_proxy_that_never_served_ends_as_its_worker_did(status: int, seen: int, opened: bool) -> None:
    site = Site()
    if opened:
        site.say(1, warm=True)
    site.end(1, status)
    assert site.status == seen


def test_what_trying_again_cannot_mend_ends_the_proxy_later_as_well() -> None:
    site = Site()
    site.serve()
    site.end(1, -SIGKILL)
    site.say(2, warm=True)
    site.end(2, 2)
    assert site.status == 2


def test_a_drain_that_ends_in_an_exit_ends_the_parent() -> None:
    site = Site()
    site.serve()
    site.say(1, then="exit")
    site.say(1, ending=True)
    site.end(1, 0)
    assert site.status == 0 and site.alive == set()


def test_a_crash_before_such_a_drain_is_over_does_too() -> None:
    site = Site()
    site.serve()
    site.say(1, then="exit")
    site.end(1, -SIGKILL)
    assert site.status == 137


def test_the_first_signal_asks_and_the_second_kills() -> None:
    site = Site()
    site.decisions.said(1, LISTEN, 0.0)
    site.serve()
    site.say(1, then="restart")
    site.act(site.decisions.told_to_stop(SIGTERM, site.now))
    assert site.last(1) == {"quiesce": "SIGTERM"} and site.killed == [2]
    site.end(2, -SIGKILL)
    assert site.alive == {1} and site.status is None
    site.act(site.decisions.told_to_stop(SIGINT, site.now))
    assert site.killed == [2, 1] and site.status == 128 + SIGINT


def test_a_worker_that_does_not_end_in_time_is_killed() -> None:
    stopped, ending = Site(), Site()
    for site in (stopped, ending):
        site.decisions.said(1, LISTEN, 0.0)
        site.serve()
    stopped.act(stopped.decisions.told_to_stop(SIGTERM, stopped.now))
    ending.say(1, then="restart")
    ending.say(2, warm=True)
    ending.say(1, ending=True)
    for site, timeout in ((stopped, 8.0), (ending, ENDING_TIMEOUT)):
        site.tick(timeout - 1)
        assert not site.killed
        site.tick(1)
        assert site.killed == [1]
        site.end(1, -SIGKILL)
    assert stopped.status == 137
    assert ending.owners == {2} and ending.last(2)["open"]["crash"] == "was killed by SIGKILL"


@pytest.mark.parametrize("calls_take", [1.0, 80.0])
def test_a_stop_takes_as_long_as_was_said_however_late_the_worker_begins_to_end(calls_take: float) -> None:
    site = Site()
    site.decisions.said(1, {"listen": LISTEN["listen"] | {"timeout": 88.0}}, 0.0)
    site.serve()
    site.act(site.decisions.told_to_stop(SIGTERM, site.now))
    site.tick(calls_take)
    site.say(1, ending=True)
    site.tick(87 - calls_take)
    assert not site.killed
    site.tick(1)
    assert site.killed == [1]


@pytest.mark.parametrize("listen", [LISTEN, EPHEMERAL])
def test_a_stop_before_anything_serves_does_not_wait(listen: Any) -> None:
    site = Site()
    site.decisions.said(1, listen, 0.0)
    site.act(site.decisions.told_to_stop(SIGTERM, site.now))
    assert site.killed == [1] and site.status == 0


def test_stop_is_told_when_the_worker_serves_that_opens_the_store() -> None:
    site = Site()
    site.say(1, warm=True)
    site.act(site.decisions.told_to_stop(SIGTERM, site.now))
    assert site.last(1) == {"open": {}}
    site.say(1, serving=True)
    assert site.last(1) == {"quiesce": "SIGTERM"}
    site.say(1, ending=True)
    site.end(1, 0)
    assert site.status == 0


def crashed(listen: Any) -> Site:
    """Its worker died, and it waits before it starts another."""
    site = Site()
    site.decisions.said(1, listen, 0.0)
    site.serve()
    for _ in range(2):
        site.end(max(site.alive), -SIGKILL)
        if site.decisions.due is None:
            site.serve()
    assert not site.alive
    return site


@pytest.mark.parametrize("is_warming", [False, True])
def test_stop_after_a_crash_lets_another_worker_dump_when_storage_is_ephemeral(is_warming: bool) -> None:
    site = crashed(EPHEMERAL)
    if is_warming:
        site.tick(60.0)
    site.act(site.decisions.told_to_stop(SIGTERM, site.now))
    [number] = site.alive
    site.say(number, warm=True)
    site.say(number, serving=True)
    assert site.last(number) == {"quiesce": "SIGTERM"} and site.status is None
    site.say(number, then="exit")
    site.say(number, ending=True)
    site.end(number, 0)
    assert site.status == 0


def test_stop_after_a_crash_does_not_wait_when_storage_stays() -> None:
    site = crashed(LISTEN)
    site.act(site.decisions.told_to_stop(SIGTERM, site.now))
    assert site.status == 0


@pytest.mark.parametrize("is_warm", [False, True])
def test_worker_that_is_to_dump_is_killed_when_the_stop_takes_too_long(is_warm: bool) -> None:
    site = crashed(EPHEMERAL)
    site.act(site.decisions.told_to_stop(SIGTERM, site.now))
    [number] = site.alive
    if is_warm:
        site.say(number, warm=True)
    site.tick(8.0)
    assert site.killed == [number]
    site.end(number, -SIGKILL)
    assert site.status == 137


@pytest.mark.parametrize("status", [0, -SIGKILL])
def test_stop_in_a_restart_lets_the_next_worker_dump_when_storage_is_ephemeral(status: int) -> None:
    site = Site()
    site.decisions.said(1, EPHEMERAL, 0.0)
    site.serve()
    site.say(1, then="restart")
    site.say(2, warm=True)
    site.say(1, ending=True)
    site.act(site.decisions.told_to_stop(SIGTERM, site.now))
    assert not site.killed
    site.end(1, status)
    assert site.owners == {2} and site.status is None
    site.say(2, serving=True)
    assert site.last(2) == {"quiesce": "SIGTERM"}
    site.tick(8.0)
    assert site.killed == [2]


EVENTS = st.one_of(
    st.tuples(st.just("say"), st.sampled_from([EPHEMERAL, {"warm": True}, {"serving": True}, {"ending": True}])),
    st.tuples(st.just("say"), st.sampled_from([{"then": "restart"}, {"then": "stay"}, {"then": "exit"}])),
    st.tuples(st.just("end"), st.sampled_from([0, 0, 1, 2, -9, -15])),
    st.tuples(st.just("tick"), st.sampled_from([0.5, 5.0, 100.0])),
    st.tuples(st.just("signal"), st.just(SIGTERM)),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(EVENTS, st.booleans()), max_size=40))
def test_there_are_never_two_owners_and_somebody_is_always_on_the_way(events: list[Any]) -> None:
    site = Site()
    for (kind, what), newest in events:
        if site.status is not None:
            return
        if kind == "tick":
            site.tick(what)
        elif kind == "signal":
            site.act(site.decisions.told_to_stop(what, site.now))
        elif site.alive:
            number = max(site.alive) if newest else min(site.alive)
            if kind == "say":
                site.say(number, **what)
            else:
                site.end(number, what)
        assert len(site.owners) <= 1
        assert site.status is not None or site.alive or site.decisions.due is not None
