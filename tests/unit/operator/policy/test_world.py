"""Decisions in a world that acts by itself, and goes wrong: safe at every step, and Ready when it stops going wrong."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operator.policy.executor import Faults, Operator, settle
from tests.unit.operator.policy.fleets import condition, fleet
from tests.unit.operator.policy.world import BY_HAND_FOR, World

MOST_PASSES = 400
STUCK_AFTER = 240.0
"""Seconds after which a restart that does not go on may hold no slot of other fleets any more."""


@dataclass
class Play:
    """Worlds, the operator over them, and what must hold at every moment."""

    worlds: list[World]
    operator: Operator = field(default_factory=Operator)

    def __post_init__(self) -> None:
        self.operator.fleets = len(self.worlds)

    def run(self, world: World, faults: Faults, seconds: int) -> None:
        self.operator.run(world, faults)
        for each in self.worlds:
            for _ in range(seconds):
                each.tick(1)
                self.check()

    def check(self) -> None:
        for world in self.worlds:
            most = world.spec.disruption.max_unavailable
            assert len(world.deeds.down) <= most, f"down by our hand: {world.deeds.down}"
            assert world.deeds.lost_turns == [], "turns of an ephemeral pod were lost by our hand"
            assert world.deeds.impatient == [], "evicted in the middle of calls"
            assert world.deeds.cut == [], "a proxy was scaled away that had not been drained"
            asked = Counter(deed for deed in world.deeds.restarted if deed[1].startswith("restart-"))
            assert all(times == 1 for times in asked.values()), f"more than one restart for a request: {asked}"
        held = [since for world in self.worlds for since in world.deeds.down.values()]
        fresh = [since for since in held if self.worlds[0].now - since < STUCK_AFTER]
        assert len(fresh) <= self.operator.most, "more disruptions than the operator may cause at once"

    def heal(self) -> None:
        """Everything that went wrong stops, and the spec can be satisfied."""
        for world in self.worlds:
            world.edit(template="good", suspend=False, mode="Process")
            world.leak.clear()
            for pod in world.pods.values():
                pod.hangs = pod.node_lost = False
                pod.store.sessions = pod.store.turns = 0
            world.tick(BY_HAND_FOR)
        settle(self.worlds, self.operator, passes=MOST_PASSES)
        self.check()
        for world in self.worlds:
            assert condition(world) == ("True", "Serving"), world.status
            assert len(world.pods) == world.desired
            assert world.status.restart.observed_id == (world.spec.restart.id if world.spec.restart else None)
            assert [entry for entry in world.status.restarts.last if entry.after is None] == []
            assert world.status.current is None
            assert world.status.problems == []
            assert all(pod.drain is None for pod in world.pods.values())


ORDINALS = st.integers(0, 3)
FAULTS = st.builds(
    Faults,
    late=st.sampled_from([0, 0, 0, 1, 2, 4]),
    silent=st.frozensets(ORDINALS, max_size=2),
    cut=st.sampled_from([None, None, None, None, "before the status", "after the status", "after the children"]),
    lost=st.frozensets(st.integers(0, 6), max_size=3),
    twice=st.booleans(),
)
EDITS = st.one_of(
    st.builds(lambda n: {"replicas": n}, st.integers(0, 4)),
    st.builds(lambda name: {"template": name}, st.sampled_from(["t1", "t2", "t3", "bad1", "bad2"])),
    st.builds(lambda name: {"restart": name}, st.sampled_from("abc")),
    st.builds(lambda off: {"suspend": off}, st.booleans()),
    st.builds(lambda way: {"mode": way}, st.sampled_from(["Process", "Container", "Pod"])),
    st.builds(lambda size: {"budget": size * 2**30}, st.integers(2, 4)),
)
HAPPENINGS = st.one_of(
    st.tuples(st.just("nothing"), st.just(0)),
    st.tuples(st.just("edit"), EDITS),
    st.tuples(
        st.sampled_from(["crash", "lose", "node", "hang", "busy", "turns", "leak", "cordon", "quiesce"]), ORDINALS
    ),
    st.tuples(st.sampled_from(["scale by hand", "unmark"]), ORDINALS),
    st.tuples(st.just("operator"), st.just(0)),
)
MOMENTS = st.lists(st.tuples(st.integers(0, 1), HAPPENINGS, FAULTS, st.integers(1, 40)), max_size=40)


def happen(play: Play, world: World, what: str, told: Any) -> None:
    """One thing, to one fleet."""
    match what:
        case "nothing":
            pass
        case "edit":
            world.edit(**told)
        case "operator":
            play.operator.restart()
        case "scale by hand":
            world.scale_by_hand(told)
        case "leak":
            world.leak[told] = 100 * 2**20
        case _:
            for pod in world.among([told]):
                happen_to(world, pod, what)


def happen_to(world: World, pod: Any, what: str) -> None:
    match what:
        case "crash":
            world.crash(pod)
        case "lose":
            world.lose(pod)
        case "node":
            pod.node_lost = not pod.node_lost
        case "hang":
            pod.hangs = True
        case "busy":
            pod.in_flight = 60
        case "turns":
            pod.store.sessions, pod.store.turns = 2, 7
        case "cordon" | "quiesce":
            world.drain_by_hand(pod, quiesce=what == "quiesce")
        case "unmark":
            pod.notes.clear()


@given(moments=MOMENTS, ephemeral=st.booleans(), most=st.integers(1, 3), unavailable=st.integers(1, 2))
@settings(max_examples=30, deadline=None)
def test_whatever_happens_it_is_safe_and_then_ready(
    moments: list[Any], ephemeral: bool, most: int, unavailable: int
) -> None:
    disruption = {"maxUnavailable": unavailable}
    worlds = [World(fleet(ephemeral=ephemeral, disruption=disruption)), World(fleet(replicas=2), name="code")]
    play = Play(worlds, Operator(most=most))
    settle(worlds, play.operator, passes=MOST_PASSES)
    for which, (what, told), faults, seconds in moments:
        happen(play, worlds[which], what, told)
        play.run(worlds[which], faults, seconds)
    play.heal()
