"""The plan, tried on states and times by hand and at random; no process is started here."""

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutfleet.spec import FleetSpec
from rolloutfleet_operator.plan import (
    LONGEST_DELAY,
    STEADY_AFTER,
    Action,
    Child,
    GiveUp,
    Kind,
    Observed,
    Phase,
    Seen,
    Start,
    Stop,
    Wait,
    deaths_in_a_row,
    plan,
    restart_delay,
)

SPEC = FleetSpec.model_validate({"model": "m", "engine": {}})
START_LIMIT = 60.0


def child(name: str, body: str = "a") -> Child[str]:
    return Child(name=name, kind=Kind.ENGINE, start_limit=START_LIMIT, body=body)


@dataclass(frozen=True)
class FixedSite:
    """A place whose children are given."""

    wanted: tuple[Child[str], ...]

    def children(self, spec: FleetSpec) -> tuple[Child[str], ...]:
        return self.wanted


def seen(wanted: Child[str], phase: Phase, **more: object) -> Seen:
    base = Seen(name=wanted.name, kind=wanted.kind, fingerprint=wanted.fingerprint, phase=phase, since=0.0)
    return replace(base, **more)  # type: ignore[arg-type]


def decide(wanted: list[Child[str]], there: list[Seen], now: float = 0.0) -> tuple[Action[str], ...]:
    observed = Observed(site=FixedSite(tuple(wanted)), children={each.name: each for each in there})
    return plan(SPEC, observed, now)


A = child("a")


def test_what_is_missing_is_started_in_order() -> None:
    wanted = [child("a"), child("b"), child("c")]
    assert [action.child.name for action in decide(wanted, []) if isinstance(action, Start)] == ["a", "b", "c"]


def test_what_works_is_let_be() -> None:
    assert decide([A], [seen(A, Phase.READY)], now=1e9) == ()


def test_what_nobody_asked_for_is_stopped_once() -> None:
    assert decide([], [seen(A, Phase.READY)]) == (Stop("a", "no longer asked for"),)
    assert decide([], [seen(A, Phase.STOPPING)]) == ()
    assert decide([], [seen(A, Phase.ENDED)]) == ()


def test_changed_settings_replace_a_child_when_the_old_one_is_gone() -> None:
    new = child("a", body="b")
    assert decide([new], [seen(A, Phase.READY)]) == (Stop("a", "its settings changed"),)
    assert decide([new], [seen(A, Phase.STOPPING)]) == ()
    assert decide([new], [seen(A, Phase.ENDED)]) == (Start(new, "asked for"),)


def test_a_child_that_dies_is_started_again_and_the_cause_is_told() -> None:
    dead = seen(A, Phase.ENDED, ever_ready=True, deaths=1, ending="killed by SIGKILL")
    assert decide([A], [dead]) == (Start(A, "killed by SIGKILL"),)


def test_a_child_that_keeps_dying_waits_longer_each_time() -> None:
    dead = seen(A, Phase.ENDED, ever_ready=True, deaths=3, since=10.0)
    assert decide([A], [dead], now=10.0) == (Wait("a", 12.0),)
    assert isinstance(decide([A], [dead], now=12.0)[0], Start)
    delays = [restart_delay(deaths) for deaths in range(100)]
    assert delays == sorted(delays)
    assert delays[1] == 0.0
    assert delays[-1] == LONGEST_DELAY


def test_a_steady_time_clears_earlier_deaths() -> None:
    assert deaths_in_a_row(before=5, ready_for=STEADY_AFTER) == 1
    assert deaths_in_a_row(before=5, ready_for=STEADY_AFTER - 1) == 6


def test_a_child_that_never_worked_is_given_up() -> None:
    dead = seen(A, Phase.ENDED, deaths=1, ending="ended with exit status 1")
    assert decide([A], [dead]) == (GiveUp("a", "ended with exit status 1 before it was ready"),)


def test_a_start_that_takes_too_long_is_given_up_the_first_time_and_tried_again_later() -> None:
    assert decide([A], [seen(A, Phase.STARTING)], now=1.0) == (Wait("a", START_LIMIT),)
    assert decide([A], [seen(A, Phase.STARTING)], now=START_LIMIT) == (GiveUp("a", "not ready after 60 s"),)
    again = seen(A, Phase.STARTING, ever_ready=True)
    assert decide([A], [again], now=START_LIMIT) == (Stop("a", "not ready after 60 s"),)


# A world of children that die at any moment, for as long as there are troubles.

NAMES = ("a", "b", "c")


@dataclass
class World:
    """Children that do what the plan says; `troubles` names the next to die or to change."""

    wanted: dict[str, Child[str]]
    now: float = 0.0
    there: dict[str, Seen] = field(default_factory=dict)

    def decide(self) -> tuple[Action[str], ...]:
        return decide(list(self.wanted.values()), list(self.there.values()), self.now)

    def act(self, action: Action[str]) -> None:
        match action:
            case Start(made, _):
                before = self.there.get(made.name)
                assert before is None or before.phase is Phase.ENDED, "two of one name"
                fresh = seen(made, Phase.STARTING, since=self.now)
                if before is not None:
                    fresh = replace(fresh, ever_ready=before.ever_ready, deaths=before.deaths)
                self.there[made.name] = fresh
            case Stop(name, _):
                assert self.there[name].phase in (Phase.STARTING, Phase.READY)
                self._turn(name, Phase.STOPPING)
            case GiveUp(name, _):
                assert not self.there[name].ever_ready
            case Wait(_, until):
                assert until > self.now

    def settle(self) -> None:
        """What was told to start or stop has done so."""
        for name, each in list(self.there.items()):
            if each.phase is Phase.STARTING:
                self._turn(name, Phase.READY)
                self.there[name] = replace(self.there[name], ever_ready=True)
            elif each.phase is Phase.STOPPING:
                self._turn(name, Phase.ENDED)
                self.there[name] = replace(self.there[name], deaths=0)

    def die(self, name: str) -> None:
        each = self.there.get(name)
        if each is not None and each.phase is Phase.READY:
            deaths = deaths_in_a_row(before=each.deaths, ready_for=self.now - each.since)
            self._turn(name, Phase.ENDED)
            self.there[name] = replace(self.there[name], deaths=deaths)

    def _turn(self, name: str, phase: Phase) -> None:
        self.there[name] = replace(self.there[name], phase=phase, since=self.now)

    def as_wanted(self) -> bool:
        working = {name: each.fingerprint for name, each in self.there.items() if each.phase is Phase.READY}
        running = {name for name, each in self.there.items() if each.phase is not Phase.ENDED}
        return working == {each.name: each.fingerprint for each in self.wanted.values()} and running == set(working)


TROUBLE = st.tuples(
    st.sampled_from(["die", "change", "drop", "wait"]), st.sampled_from(NAMES), st.floats(0, 100), st.booleans()
)


@settings(max_examples=200)
@given(st.lists(TROUBLE, max_size=40))
def test_a_fleet_comes_right_once_the_troubles_end(troubles: list[tuple[str, str, float, bool]]) -> None:
    world = World({name: child(name) for name in NAMES})
    for what, name, seconds, settles in troubles:
        actions = world.decide()
        assert len({action.child.name if isinstance(action, Start) else action.name for action in actions}) == len(
            actions
        ), "one action a child"
        for action in actions:
            world.act(action)
        if settles:
            world.settle()
        world.now += seconds
        match what:
            case "die":
                world.die(name)
            case "change":
                world.wanted[name] = child(name, body=f"{seconds}")
            case "drop":
                world.wanted.pop(name, None)
    for _ in range(4):
        world.now += LONGEST_DELAY
        for action in world.decide():
            if not isinstance(action, Wait | GiveUp):
                world.act(action)
        world.settle()
    assert world.as_wanted()
    assert world.decide() == ()
