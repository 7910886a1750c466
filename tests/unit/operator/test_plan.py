"""The plan, tried on states and times by hand and at random; no process is started here."""

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutfleet.backoff import RESTARTS, crashes_in_a_row
from rolloutfleet_operator.local.plan import (
    Action,
    Child,
    GiveUp,
    Kind,
    ObservedChild,
    Phase,
    Start,
    Stop,
    Wait,
    plan,
)

START_LIMIT = 60.0


def child(name: str, body: str = "a") -> Child:
    return Child(
        name=name, kind=Kind.ENGINE, argv=(body,), url="", ready_path="", start_limit=START_LIMIT, stop_grace=1.0
    )


def observed(wanted: Child, phase: Phase, **more: object) -> ObservedChild:
    return replace(ObservedChild(child=wanted, phase=phase, since=0.0), **more)  # type: ignore[arg-type]


def decide(wanted: list[Child], there: list[ObservedChild], now: float = 0.0) -> tuple[Action, ...]:
    return plan(wanted, {each.child.name: each for each in there}, now)


A = child("a")


def test_what_is_missing_is_started_in_order() -> None:
    wanted = [child("a"), child("b"), child("c")]
    assert [action.child.name for action in decide(wanted, []) if isinstance(action, Start)] == ["a", "b", "c"]


def test_what_works_is_let_be() -> None:
    assert decide([A], [observed(A, Phase.READY)], now=1e9) == ()


def test_what_nobody_asked_for_is_stopped_once() -> None:
    assert decide([], [observed(A, Phase.READY)]) == (Stop("a", "no longer asked for"),)
    assert decide([], [observed(A, Phase.STOPPING)]) == ()
    assert decide([], [observed(A, Phase.ENDED)]) == ()


def test_changed_settings_replace_a_child_when_the_old_one_is_gone() -> None:
    new = child("a", body="b")
    assert decide([new], [observed(A, Phase.READY)]) == (Stop("a", "its settings changed"),)
    assert decide([new], [observed(A, Phase.STOPPING)]) == ()
    assert decide([new], [observed(A, Phase.ENDED)]) == (Start(new, "asked for"),)


def test_a_child_that_dies_is_started_again_and_the_cause_is_told() -> None:
    dead = observed(A, Phase.ENDED, ever_ready=True, crashes=1, ending="killed by SIGKILL")
    assert decide([A], [dead]) == (Start(A, "killed by SIGKILL"),)


def test_a_child_that_keeps_dying_waits_longer_each_time() -> None:
    dead = observed(A, Phase.ENDED, ever_ready=True, crashes=3, since=10.0)
    assert decide([A], [dead], now=10.0) == (Wait("a", 12.0),)
    assert isinstance(decide([A], [dead], now=12.0)[0], Start)


def test_a_child_that_never_worked_is_given_up() -> None:
    dead = observed(A, Phase.ENDED, crashes=1, ending="ended with exit status 1")
    assert decide([A], [dead]) == (GiveUp("a", "ended with exit status 1 before it was ready"),)


def test_a_start_that_takes_too_long_is_given_up_the_first_time_and_tried_again_later() -> None:
    assert decide([A], [observed(A, Phase.STARTING)], now=1.0) == (Wait("a", START_LIMIT),)
    assert decide([A], [observed(A, Phase.STARTING)], now=START_LIMIT) == (GiveUp("a", "not ready after 60 s"),)
    again = observed(A, Phase.STARTING, ever_ready=True)
    assert decide([A], [again], now=START_LIMIT) == (Stop("a", "not ready after 60 s"),)


# A world of children that die at any moment, for as long as there are faults.

NAMES = ("a", "b", "c")


@dataclass
class World:
    """Children that do what the plan says; `faults` names the next to die or to change."""

    wanted: dict[str, Child]
    now: float = 0.0
    there: dict[str, ObservedChild] = field(default_factory=dict)

    def decide(self) -> tuple[Action, ...]:
        return decide(list(self.wanted.values()), list(self.there.values()), self.now)

    def act(self, action: Action) -> None:
        match action:
            case Start(made, _):
                before = self.there.get(made.name)
                assert before is None or before.phase is Phase.ENDED, "two of one name"
                fresh = observed(made, Phase.STARTING, since=self.now)
                if before is not None:
                    fresh = replace(fresh, ever_ready=before.ever_ready, crashes=before.crashes)
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
                self.there[name] = replace(self.there[name], crashes=0)

    def die(self, name: str) -> None:
        each = self.there.get(name)
        if each is not None and each.phase is Phase.READY:
            crashes = crashes_in_a_row(before=each.crashes, healthy_for=self.now - each.since)
            self._turn(name, Phase.ENDED)
            self.there[name] = replace(self.there[name], crashes=crashes)

    def _turn(self, name: str, phase: Phase) -> None:
        self.there[name] = replace(self.there[name], phase=phase, since=self.now)

    def as_wanted(self) -> bool:
        working = {name: each.child for name, each in self.there.items() if each.phase is Phase.READY}
        running = {name for name, each in self.there.items() if each.phase is not Phase.ENDED}
        return working == self.wanted and running == set(working)


FAULT = st.tuples(
    st.sampled_from(["die", "change", "drop", "wait"]), st.sampled_from(NAMES), st.floats(0, 100), st.booleans()
)


@settings(max_examples=200)
@given(st.lists(FAULT, max_size=40))
def test_a_fleet_comes_right_once_the_faults_end(faults: list[tuple[str, str, float, bool]]) -> None:
    world = World({name: child(name) for name in NAMES})
    for what, name, seconds, settles in faults:
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
        world.now += RESTARTS.longest
        for action in world.decide():
            if not isinstance(action, Wait | GiveUp):
                world.act(action)
        world.settle()
    assert world.as_wanted()
    assert world.decide() == ()
