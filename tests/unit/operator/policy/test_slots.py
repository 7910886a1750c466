"""Slots: `maxUnavailable` of a fleet, and `maxConcurrentDisruptions` of the operator, shared fairly."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operator.policy.executor import Operator, settle
from tests.unit.operator.policy.fleets import fleet
from tests.unit.operator.policy.world import World

from rolloutfleet_operator.policy.causes import CAUSES
from rolloutfleet_operator.policy.observed import OtherFleets, SlotRequest
from rolloutfleet_operator.policy.slots import FORGOTTEN_AFTER, free_here, granted, to_spare

NOW = 1000.0
OVER = 3 * 2**30
PRIORITY = {cause.counter: priority for priority, cause in enumerate(CAUSES) if cause.slot}


def want(
    fleet: str = "a", cause: str = "memory", since: float = 0.0, *, begun: bool = False, renewed: float = NOW
) -> SlotRequest:
    return SlotRequest(fleet=fleet, priority=PRIORITY[cause], since=since, renewed=renewed, begun=begun)


def gets(own: SlotRequest, *others: SlotRequest, held: int = 0, other_fleets: int = 0, most: int = 1) -> bool:
    return granted(own, OtherFleets(held=other_fleets, slot_requests=others), held=held, most=most)


def test_what_is_down_for_other_reasons_takes_a_place() -> None:
    assert [free_here(max_unavailable=2, down=down) for down in range(4)] == [2, 1, 0, 0]


def test_no_more_than_the_operator_may_have() -> None:
    assert gets(want())
    assert not gets(want(), other_fleets=1)
    assert not gets(want(), held=1)
    assert gets(want(), held=1, other_fleets=1, most=3)


def test_who_waits_longest_comes_first() -> None:
    assert gets(want("a", since=1), want("b", since=2))
    assert not gets(want("a", since=2), want("b", since=1))
    assert gets(want("a", since=2), want("b", since=1), most=2)


def test_memory_comes_before_a_request_and_that_before_a_new_template() -> None:
    assert gets(want("a", "memory", 9), want("b", "requested", 1))
    assert gets(want("a", "requested", 9), want("b", "rollout", 1))
    assert not gets(want("a", "rollout", 1), want("b", "memory", 9))


def test_a_roll_that_has_begun_comes_before_one_that_has_not() -> None:
    assert gets(want("a", "rollout", 9, begun=True), want("b", "rollout", 1))
    assert not gets(want("a", "rollout", 1), want("b", "rollout", 9, begun=True))


def test_a_fleet_that_says_nothing_any_more_is_not_waited_for() -> None:
    silent = want("b", since=-10.0, renewed=NOW - FORGOTTEN_AFTER - 1)
    assert gets(want("a"), silent)
    assert not gets(want("a"), replace(silent, renewed=NOW))


def test_nothing_new_is_begun_before_all_fleets_were_looked_at() -> None:
    assert not granted(want(), OtherFleets(known=False), held=0, most=10)
    assert not to_spare(OtherFleets(known=False), held=0, most=10, now=NOW)


def test_only_what_nobody_wants_is_to_spare() -> None:
    assert to_spare(OtherFleets(), held=0, most=1, now=NOW)
    assert not to_spare(OtherFleets(held=1), held=0, most=1, now=NOW)
    assert not to_spare(OtherFleets(slot_requests=(want(),)), held=0, most=1, now=NOW)


@given(
    slot_requests=st.lists(
        st.builds(
            want,
            fleet=st.sampled_from("abcdef"),
            cause=st.sampled_from(sorted(PRIORITY)),
            since=st.integers(0, 3),
            begun=st.booleans(),
        ),
        unique_by=lambda each: each.fleet,
        max_size=6,
    ),
    most=st.integers(1, 4),
    held=st.integers(0, 4),
)
@settings(deadline=None)
def test_together_they_get_exactly_what_is_free(slot_requests: list[SlotRequest], most: int, held: int) -> None:
    served = [
        own
        for own in slot_requests
        if gets(own, *[other for other in slot_requests if other is not own], other_fleets=held, most=most)
    ]
    assert len(served) == min(len(slot_requests), max(0, most - held))


def test_many_fleets_over_budget_take_turns() -> None:
    worlds = [World(fleet(replicas=2), name=name) for name in ("a", "b", "c")]
    operator = Operator(fleets=3)
    settle(worlds, operator, passes=100)
    for world in worlds:
        for pod in world.pods.values():
            pod.rss = OVER
    order: list[str] = []
    for _ in range(150):
        for world in worlds:
            operator.run(world)
        for world in worlds:
            world.tick(2)
            order += [world.name] * (len(world.deeds.restarted) - order.count(world.name))
        assert sum(len(world.deeds.down) for world in worlds) <= 1
    assert len(order) == 6
    assert set(order[:3]) == {"a", "b", "c"}, "each is served before one is served twice"


def test_with_one_slot_fleets_roll_one_after_another() -> None:
    worlds = [World(fleet(replicas=3), name=name) for name in ("a", "b")]
    operator = Operator(fleets=2)
    settle(worlds, operator, passes=100)
    for world in worlds:
        world.edit(template="t2")
    order: list[str] = []
    while len(order) < 6:
        for world in worlds:
            operator.run(world)
            order += [world.name] * (len(world.deeds.restarted) - order.count(world.name))
        for world in worlds:
            world.tick(2)
    assert order in (list("aaabbb"), list("bbbaaa"))


def test_a_stuck_restart_takes_no_slot_beside_an_update_of_its_fleet_and_another_fleet() -> None:
    world = World(fleet(replicas=4, disruption={"maxUnavailable": 3}))
    operator = Operator(most=2)
    settle([world], operator, passes=100)
    world.pods["math-proxy-0"].rss = OVER
    for passed in range(100):
        if passed == 10:
            world.deployments["gateway"].wanted, world.deployments["gateway"].stuck = "t2", True
        operator.run(world)
        world.pods["math-proxy-0"].warm_at = world.now + 60
        world.tick(3)
    assert operator.decision is not None and operator.decision.held == 2
    assert "RestartStuck" in [each.reason for each in world.status.problems]
    operator.board["another"] = (1, ())
    operator.run(world)
    assert operator.decision.held == 1


def test_a_fleet_that_is_stuck_holds_up_no_other() -> None:
    worlds = [World(fleet(replicas=2), name=name) for name in ("a", "b")]
    operator = Operator(fleets=2)
    settle(worlds, operator, passes=100)
    worlds[0].edit(template="bad1")
    for _ in range(30):
        for world in worlds:
            operator.run(world)
            world.tick(5)
    worlds[1].pods["b-proxy-0"].rss = OVER
    for _ in range(200):
        for world in worlds:
            operator.run(world)
            world.tick(5)
    assert [pod for pod, _ in worlds[1].deeds.restarted] == ["b-proxy-0"]
