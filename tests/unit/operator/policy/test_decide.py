"""What is decided for a fleet, in the words of the design, in a world that acts by itself."""

from dataclasses import replace
from typing import Any, get_args

import pytest
from tests.unit.operator.policy.executor import Cut, Faults, Operator, settle
from tests.unit.operator.policy.fleets import condition, fleet, problems
from tests.unit.operator.policy.world import BASE_RSS, BY_HAND, World

from rolloutfleet.boots import KILLED_FOR_MEMORY
from rolloutfleet_operator.policy.actions import Evict
from rolloutfleet_operator.policy.decide import Evictable, decide
from rolloutfleet_operator.policy.observed import RESTART_NOTE, STATE_LABEL, ObservedFleet
from rolloutfleet_operator.policy.reasons import EventReason

OVER = 3 * 2**30
WAYS = ["Process", "Container", "Pod"]


def begun(world: World, operator: Operator | None = None) -> Operator:
    """The operator of that fleet, when it is Ready and at rest."""
    operator = operator or Operator()
    settle([world], operator, passes=100)
    assert condition(world) == ("True", "Serving")
    return operator


def go_on(world: World, operator: Operator, *, passes: int = 1, every: float = 5.0) -> None:
    for _ in range(passes):
        operator.run(world)
        world.tick(every)


def until(world: World, operator: Operator, step: str, *, passes: int = 100, every: float = 1.0) -> None:
    """Passes until the operator is at that step."""
    for _ in range(passes):
        if world.status.current is not None and world.status.current.step == step:
            return
        go_on(world, operator, every=every)
    raise AssertionError(f"never at {step}: {world.status.current}")


def said(world: World, pod: str | None = None) -> list[str]:
    return [event.reason for event in world.events if pod is None or event.pod == pod]


def test_a_decision_says_whether_it_disturbs_a_proxy() -> None:
    """So that nobody is drained or taken away by what was read a while ago."""
    world = World(fleet())
    operator = begun(world)

    def disturbs(observed: ObservedFleet) -> bool:
        return operator.decision is not None and operator.decision.disturbs(observed)

    assert not disturbs(world.snapshot())
    pod = world.pods["math-proxy-1"]
    pod.rss, pod.in_flight = OVER, 10
    before = world.snapshot()
    while pod.drain is None:
        before = world.snapshot()
        go_on(world, operator, every=1.0)
    assert disturbs(before), "the pass that asked for the drain"
    settle([world], operator, passes=100)
    assert not disturbs(world.snapshot())

    world.edit(replicas=1)
    while world.workload is not None and world.workload.replicas > 1:
        before = world.snapshot()
        go_on(world, operator, every=1.0)
    assert disturbs(before), "the pass that took the last proxies away"


# Memory


def test_a_budget_too_small_for_two_bodies_is_named_with_the_smallest_and_the_fleet_serves() -> None:
    world = World(fleet())
    operator = begun(world)
    for pod in world.pods.values():
        pod.rss = 2**28
    world.edit(budget=2**29 - 1)
    go_on(world, operator, passes=20)
    (problem,) = world.status.problems
    assert (problem.reason, problem.pod) == ("BudgetTooSmall", None)
    assert problem.message.startswith("memory.rssBudget, 511Mi,") and "512Mi is the smallest" in problem.message
    assert condition(world) == ("True", "Serving")
    world.edit(budget=2**29)
    go_on(world, operator, passes=20)
    assert problems(world) == []


@pytest.mark.parametrize("way", WAYS)
def test_a_proxy_over_its_budget_is_drained_and_restarted_as_asked(way: str) -> None:
    world = World(fleet(memory={"restart": way}))
    operator = begun(world)
    pod = world.pods["math-proxy-1"]
    pod.rss = OVER
    world.tick(1)
    settle([world], operator, passes=100)

    now = world.pods["math-proxy-1"]
    assert (now.uid == pod.uid) == (way != "Pod")
    [entry] = world.status.restarts.last
    assert (entry.pod, entry.reason, entry.before, entry.after) == ("math-proxy-1", "memory", OVER, BASE_RSS)
    assert world.status.restarts.memory == 1
    assert [boot.id for boot in now.store.boots] == [None, entry.id]
    assert len(world.deeds.restarted) == 1
    assert condition(world) == ("True", "Serving")
    steps = said(world, "math-proxy-1")
    assert steps[-2:] == [EventReason.RESTARTED, EventReason.PROBLEM_GONE], "once a new sample says so"
    assert steps.count(EventReason.PROBLEM_GONE) == 1
    assert EventReason.DRAIN_ASKED in steps


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("calls", "longest"), [(10, 16), (100, 30)])
def test_calls_in_flight_have_their_time_and_no_more(way: str, calls: int, longest: float) -> None:
    world = World(fleet(memory={"restart": way}))
    operator = begun(world)
    pod = world.pods["math-proxy-1"]
    pod.rss, pod.in_flight = OVER, calls
    until(world, operator, "Quiescing")
    began = world.now
    while not world.deeds.restarted:
        go_on(world, operator, every=1)
    assert min(calls, 20) / 3 <= world.now - began <= longest
    assert world.deeds.impatient == []


def test_one_that_was_drained_a_moment_ago_is_not_taken_for_one_that_serves_nobody() -> None:
    world = World(fleet(disruption={"drainTimeout": "60s"}))
    operator = begun(world)
    pod = world.pods["math-proxy-2"]
    pod.in_flight = 50
    world.drain_by_hand(pod, quiesce=False)
    world.tick(3)
    pod.drain = None  # undone; the kubelet's next probe has not been made yet
    assert not pod.ready
    world.edit(template="t2")
    go_on(world, operator, passes=2, every=1)
    settle([world], operator, passes=100)
    assert world.deeds.impatient == []


def test_one_that_is_not_ready_takes_no_place_from_itself() -> None:
    world = World(fleet())
    operator = begun(world)
    world.edit(template="t2")
    operator.run(world)
    observed = operator.see(world, Faults())
    unready = replace(observed.pods[1], ready=False)
    assert unready.stats is not None
    unready = replace(unready, stats=replace(unready.stats, sessions_open=3))
    decision = decide(world.spec, replace(observed, pods=(observed.pods[0], unready, observed.pods[2])), world.now)
    [entry] = decision.restarts.last
    assert entry.pod == unready.name, "not Ready first"


def test_a_fleet_whose_every_proxy_is_over_budget_is_served_one_at_a_time() -> None:
    world = World(fleet())
    operator = begun(world)
    for pod in world.pods.values():
        pod.rss = OVER
    for _ in range(60):
        go_on(world, operator, every=1)
        assert len(world.deeds.down) <= 1
    assert world.status.restarts.memory == 3
    assert sum(pod.ready for pod in world.pods.values()) == 3
    assert [entry.pod for entry in reversed(world.status.restarts.last)] == [f"math-proxy-{each}" for each in range(3)]


def test_a_fleets_own_bound_holds_however_many_the_operator_may_disrupt() -> None:
    for most in (1, 2):
        world = World(fleet(replicas=4, disruption={"maxUnavailable": most}))
        operator = begun(world, Operator(most=10))
        for pod in world.pods.values():
            pod.rss, pod.in_flight = OVER, 4
        under_way = set()
        while world.status.restarts.memory < 4 or world.status.current is not None:
            go_on(world, operator, every=1)
            assert len(world.deeds.down) <= most
            under_way.add(sum(entry.after is None for entry in world.status.restarts.last))
        assert max(under_way) == most


def test_a_proxy_that_is_missing_takes_a_place() -> None:
    world = World(fleet())
    operator = begun(world, Operator(most=10))
    world.pods["math-proxy-1"].rss = OVER
    go_on(world, operator, passes=2)
    observed = operator.see(world, Faults())
    missing = replace(observed, pods=tuple(pod for pod in observed.pods if pod.ordinal != 0))
    assert decide(world.spec, observed, world.now).restarts.memory == 1
    assert decide(world.spec, missing, world.now).restarts.memory == 0


def test_a_drain_of_ours_that_nothing_stands_for_is_undone() -> None:
    world = World(fleet())
    operator = begun(world)
    pod = world.pods["math-proxy-1"]
    pod.rss, pod.in_flight = OVER, 15
    until(world, operator, "Quiescing")
    world.edit(budget=4 * 2**30)
    operator.run(world, Faults(lost=frozenset(range(10))))
    assert world.status.restarts.last == []
    assert pod.drain is not None
    go_on(world, operator)
    assert pod.drain is None
    assert world.deeds.restarted == []


def test_proxies_on_lost_nodes_are_named_until_their_node_is_back() -> None:
    world = World(fleet())
    operator = begun(world)
    pod = world.pods["math-proxy-1"]

    def lost() -> tuple[int, ...]:
        go_on(world, operator)
        assert operator.decision is not None
        return operator.decision.lost_proxies

    assert lost() == ()
    pod.node_lost = True
    assert lost() == (1,)
    pod.terminating_since = world.now
    assert lost() == (1,), "Kubernetes has asked for its end, which nobody on that node hears"
    pod.terminating_since, pod.node_lost = None, False
    assert lost() == ()


def test_it_says_who_waits_for_a_slot_and_who_for_the_cool_down() -> None:
    world = World(fleet())
    operator = begun(world)
    world.pods["math-proxy-0"].node_lost = True
    world.pods["math-proxy-1"].rss = OVER
    go_on(world, operator, passes=5)
    current = world.status.current
    assert current is not None
    assert (current.action, current.pod, current.waiting_for) == ("MemoryRestart", "math-proxy-1", "slot")
    assert ("math-proxy-0", "NodeLost") in problems(world)
    assert world.deeds.restarted == []

    world.pods["math-proxy-0"].node_lost = False
    settle([world], operator, passes=100)
    world.pods["math-proxy-1"].rss = OVER
    go_on(world, operator, passes=4)
    current = world.status.current
    assert current is not None
    assert (current.pod, current.waiting_for) == ("math-proxy-1", "cooldown")
    assert condition(world, "MemoryWithinBudget") == ("False", "OverBudget")


@pytest.mark.parametrize("way", WAYS)
def test_two_restarts_that_do_not_help_are_the_last_until_budget_or_template_changes(way: str) -> None:
    world = World(fleet(memory={"restart": way}))
    operator = begun(world)
    world.needs[0] = OVER
    world.pods["math-proxy-0"].rss = OVER
    for place in range(80):
        go_on(world, operator)
        if place % 7 == 0:
            operator.restart()
    assert world.status.restarts.memory == 2
    assert problems(world) == [("math-proxy-0", "BudgetTooSmall")]
    assert "3072 MiB right after its boot" in world.status.problems[0].message
    assert condition(world, "MemoryWithinBudget") == ("False", "BudgetTooSmall")
    assert condition(world) == ("True", "Serving")
    assert world.pods["math-proxy-0"].notes[STATE_LABEL] == "budget-too-small"

    world.edit(budget=4 * 2**30)
    settle([world], operator, passes=100)
    assert problems(world) == []
    assert condition(world, "MemoryWithinBudget") == ("True", "WithinBudget")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cut", get_args(Cut))
def test_an_operator_killed_at_any_step_restarts_exactly_once(way: str, cut: Cut) -> None:
    for passes in range(14):
        world = World(fleet(memory={"restart": way}))
        operator = begun(world)
        world.pods["math-proxy-1"].rss = OVER
        world.pods["math-proxy-1"].in_flight = 3
        go_on(world, operator, passes=passes, every=2)
        operator.run(world, Faults(cut=cut))
        world.tick(2)
        settle([world], operator, passes=200, every=2)
        assert [pod for pod, _ in world.deeds.restarted] == ["math-proxy-1"]
        assert len(world.pods["math-proxy-1"].store.boots) == 2
        assert world.status.restarts.memory == 1
        assert condition(world) == ("True", "Serving")


def test_a_restart_that_is_not_needed_any_more_is_taken_back() -> None:
    world = World(fleet())
    operator = begun(world)
    pod = world.pods["math-proxy-1"]
    pod.rss, pod.in_flight = OVER, 15
    until(world, operator, "Quiescing")
    world.edit(budget=4 * 2**30)
    settle([world], operator, passes=100)
    assert pod.drain is None
    assert world.deeds.restarted == []
    assert world.status.restarts.memory == 0
    assert EventReason.WITHDRAWN in said(world, pod.name)


def test_a_proxy_that_answers_nobody_is_evicted() -> None:
    world = World(fleet())
    operator = begun(world)
    pod = world.pods["math-proxy-2"]
    pod.hangs = True
    go_on(world, operator, passes=6)
    assert ("math-proxy-2", "Unresponsive") in problems(world)
    settle([world], operator, passes=100)
    assert world.pods["math-proxy-2"].uid != pod.uid
    assert world.deeds.restarted == [("math-proxy-2", "evicted: crash")]
    assert world.status.restarts.crash == 1


def test_an_operator_that_reaches_nobody_restarts_nobody() -> None:
    world = World(fleet())
    operator = begun(world)
    for _ in range(60):
        operator.run(world, Faults(silent=frozenset(range(3))))
        world.tick(5)
    assert world.deeds.restarted == []
    assert {reason for _, reason in problems(world)} == {"StatsUnknown"}


def test_a_cordoned_proxy_that_the_operator_cannot_reach_is_left_until_its_drain_is_over() -> None:
    world = World(fleet())
    operator = begun(world)
    pod = world.pods["math-proxy-2"]
    world.drain_by_hand(pod, quiesce=False)
    go_on(world, operator, passes=1)
    pod.hangs = True
    assert pod.drain is not None and pod.drain.expires is not None
    while world.now < pod.drain.expires:
        assert world.deeds.restarted == []
        operator.run(world)
        world.tick(5)
    assert ("math-proxy-2", "StatsUnknown") in problems(world)
    settle([world], operator, passes=100)
    assert world.deeds.restarted == [("math-proxy-2", "evicted: crash")]


def test_somebody_elses_drain_is_waited_for() -> None:
    world = World(fleet(disruption={"maxUnavailable": 2}))
    operator = begun(world)
    pod = world.pods["math-proxy-1"]
    pod.rss = OVER
    go_on(world, operator, passes=2)
    world.drain_by_hand(pod, quiesce=False)
    go_on(world, operator, passes=1)
    assert world.deeds.restarted == []
    assert pod.drain is not None
    assert pod.drain.id == BY_HAND
    world.tick(90)
    settle([world], operator, passes=100)
    assert [name for name, _ in world.deeds.restarted] == [pod.name]


# Rolls and requested restarts


def test_a_roll_takes_the_oldest_first_one_at_a_time() -> None:
    world = World(fleet())
    operator = begun(world)
    world.lose(world.pods["math-proxy-0"])
    settle([world], operator, passes=50)
    world.edit(template="t2")
    settle([world], operator, passes=200)
    assert [pod for pod, _ in world.deeds.restarted] == ["math-proxy-1", "math-proxy-2", "math-proxy-0"]
    assert {pod.template for pod in world.pods.values()} == {"t2"}
    assert world.status.restarts.rollout == 3
    assert (world.status.updated_replicas, world.status.ready_replicas) == (3, 3)


def test_a_roll_stops_at_the_first_updated_pod_that_does_not_become_ready_and_says_which() -> None:
    world = World(fleet(disruption={"maxUnavailable": 2}))
    operator = begun(world)
    world.edit(template="bad1")
    go_on(world, operator, passes=100)
    broken = [pod.name for pod in world.pods.values() if pod.broken]
    assert len(broken) <= 2
    assert (broken[0], "RollStopped") in problems(world)
    assert (broken[0], "ImagePullFailed") in problems(world)
    assert condition(world)[0] == "False"
    assert condition(world, "Progressing") == ("False", "RollStopped")
    assert sum(pod.ready for pod in world.pods.values()) >= 1

    before = len(world.deeds.restarted)
    world.edit(template="t2")
    settle([world], operator, passes=200)
    order = [pod for pod, _ in world.deeds.restarted[before:]]
    assert order[: len(broken)] == broken, "a corrected spec replaces those first"
    assert condition(world) == ("True", "Serving")
    assert problems(world) == []


def test_pods_that_are_down_are_replaced_without_a_slot() -> None:
    world = World(fleet(replicas=3), template="bad1")
    operator = Operator()
    go_on(world, operator, passes=5)
    assert not any(pod.ready for pod in world.pods.values())
    world.edit(template="t2")
    settle([world], operator, passes=60)
    assert condition(world) == ("True", "Serving")
    assert {why for _, why in world.deeds.restarted} == {"evicted: rollout"}


def test_nothing_is_evicted_before_new_pods_would_get_the_new_template() -> None:
    world = World(fleet())
    operator = begun(world)
    world.edit(template="t2")
    observed = operator.see(world, Faults())
    assert observed.workload is not None
    assert observed.workload.template_hash == "t1"
    operator.run(world)
    assert world.status.restarts.last == []


def test_on_request_a_new_template_waits_for_a_restart_by_id() -> None:
    world = World(fleet(updatePolicy="OnRequest"))
    operator = begun(world)
    world.edit(template="t2")
    settle([world], operator, passes=50)
    assert world.deeds.restarted == []
    assert condition(world, "UpdateAvailable") == ("True", "UpdateWaits")
    assert condition(world) == ("True", "Serving")
    world.edit(restart="now")
    settle([world], operator, passes=200)
    assert {pod.template for pod in world.pods.values()} == {"t2"}
    assert len(world.deeds.restarted) == 3
    assert world.status.restart.observed_id == "now"


def test_on_request_too_a_corrected_template_replaces_what_the_wrong_one_broke() -> None:
    world = World(fleet(updatePolicy="OnRequest"))
    operator = begun(world)
    world.edit(template="bad1", restart="now")
    go_on(world, operator, passes=30)
    [broken] = [pod.name for pod in world.pods.values() if pod.broken]
    before = len(world.deeds.restarted)
    world.edit(template="t2")
    settle([world], operator, passes=200)
    assert world.deeds.restarted[before][0] == broken
    assert condition(world) == ("True", "Serving")
    assert world.status.restart.observed_id == "now"


@pytest.mark.parametrize("policy", ["Automatic", "OnRequest"])
def test_a_rollout_restart_with_kubectl_replaces_each_proxy_once_after_its_drain(policy: str) -> None:
    world = World(fleet(updatePolicy=policy))
    operator = begun(world)
    world.rollout_restart()
    go_on(world, operator, passes=5)
    assert condition(world, "Progressing") == ("True", "RollingOut")
    assert condition(world, "UpdateAvailable")[0] == "False"
    assert sum(not pod.ready for pod in world.pods.values()) <= 1
    settle([world], operator, passes=300)
    assert sorted(world.deeds.restarted) == [(world.pod_name(ordinal), "evicted: rollout") for ordinal in range(3)]
    assert {pod.restarted_at for pod in world.pods.values()} == {world.restarted_at}
    assert condition(world) == ("True", "Serving") and not world.deeds.cut


def test_while_something_is_on_its_way_it_is_looked_at_often() -> None:
    world = World(fleet())
    operator = begun(world)
    assert operator.decision is not None
    assert operator.decision.requeue_at is None
    world.edit(suspend=True)
    while world.pods:
        operator.run(world)
        assert operator.decision.requeue_at is not None
        assert operator.decision.requeue_at - world.now <= 2
        world.tick(1)


def test_what_was_over_budget_is_not_said_for_ever() -> None:
    world = World(fleet(disruption={"maxUnavailable": 3}))
    operator = begun(world)
    world.pods["math-proxy-1"].rss = OVER
    world.crash(world.pods["math-proxy-1"])
    world.tick(6)
    world.pods["math-proxy-1"].rss = OVER
    go_on(world, operator, passes=5)
    assert condition(world, "MemoryWithinBudget") == ("False", "OverBudget")
    operator.restart()
    operator.run(world)
    assert condition(world, "MemoryWithinBudget") == ("False", "OverBudget"), "too few samples to say otherwise"
    world.pods["math-proxy-2"].node_lost = True
    world.pods["math-proxy-1"].rss = BASE_RSS
    go_on(world, operator, passes=5)
    assert condition(world, "MemoryWithinBudget") == ("True", "WithinBudget")


def test_a_worker_that_the_kernel_killed_is_counted_as_its_parent_says() -> None:
    """The container goes on, and the worker was measured long before, at little of its limit."""
    world = World(fleet())
    operator = begun(world)
    world.crash(world.pods["math-proxy-1"], KILLED_FOR_MEMORY)
    go_on(world, operator, passes=5)
    assert (world.status.restarts.oom, world.status.restarts.crash) == (1, 0)
    assert ("math-proxy-1", "OOMKilled") in problems(world)


@pytest.mark.parametrize("way", WAYS)
def test_a_restart_by_id_is_made_once_of_each_proxy_and_then_answered(way: str) -> None:
    world = World(fleet(memory={"restart": way}))
    operator = begun(world)
    world.edit(restart="2026-11-21")
    while world.status.restart.observed_id is None:
        assert world.status.restart.observed_id is None
        go_on(world, operator)
    assert sorted(pod for pod, _ in world.deeds.restarted) == sorted(world.pods)
    settle([world], operator, passes=50)
    assert world.status.restarts.requested == 3
    assert all(pod.notes[RESTART_NOTE] == "2026-11-21" for pod in world.pods.values())
    world.lose(world.pods["math-proxy-1"])
    settle([world], operator, passes=50)
    assert world.status.restarts.requested == 3, "a pod that comes later has it with its template"


def test_an_id_that_comes_back_is_a_new_request() -> None:
    world = World(fleet(replicas=1))
    operator = begun(world)
    for made, name in enumerate(["a", "b", "a", "b", "a"], start=1):
        world.edit(restart=name)
        settle([world], operator, passes=100)
        assert len(world.deeds.restarted) == made


# Scaling, suspending


def test_a_proxy_that_is_scaled_away_serves_until_it_is_empty() -> None:
    world = World(fleet())
    operator = begun(world)
    last = world.pods["math-proxy-2"]
    last.store.sessions, last.store.turns = 1, 4
    world.edit(replicas=1)
    go_on(world, operator, passes=8)
    assert last.drain is not None
    assert (last.drain.mode, last.drain.holding) == ("cordon", False)
    current = world.status.current
    assert current is not None
    assert (current.action, current.pod, current.step) == ("ScaleDown", "math-proxy-2", "Cordoned")
    assert sorted(world.pods) == [f"math-proxy-{each}" for each in range(3)], "those below wait for those above"
    last.store.sessions = last.store.turns = 0
    settle([world], operator, passes=50)
    assert sorted(world.pods) == ["math-proxy-0"]
    assert world.status.parked.ordinals == []
    assert world.deeds.cut == []


def test_a_proxy_that_is_scaled_away_has_its_time_though_the_operator_cannot_reach_it() -> None:
    world = World(fleet())
    operator = begun(world)
    last, began = world.pods["math-proxy-2"], world.now
    last.store.sessions, last.store.turns = 1, 4
    world.edit(replicas=2)
    go_on(world, operator, passes=8)
    while world.workload is not None and world.workload.replicas == 3:
        operator.run(world, Faults(silent=frozenset({2})))
        world.tick(5)
    assert world.now - began >= world.spec.disruption.retire_timeout
    assert world.status.parked.ordinals == [2]


def test_a_proxy_that_was_cordoned_by_hand_has_its_time_when_it_is_scaled_away() -> None:
    world = World(fleet())
    operator = begun(world)
    last = world.pods["math-proxy-2"]
    last.store.sessions, last.store.turns = 1, 4
    world.drain_by_hand(last, quiesce=False)
    assert last.drain is not None
    last.drain = last.drain.model_copy(update={"since": world.now - 3600, "expires": world.now + 3600})
    world.tick(5)
    began = world.now
    world.edit(replicas=2)
    while world.workload is not None and world.workload.replicas == 3:
        go_on(world, operator)
    assert world.spec.disruption.retire_timeout <= world.now - began < 2 * world.spec.disruption.retire_timeout
    assert (world.status.parked.ordinals, world.status.parked.turns) == ([2], 4)


def test_past_its_time_what_it_holds_is_parked_and_counted_until_scaled_up_again() -> None:
    world = World(fleet())
    operator = begun(world)
    for ordinal in (1, 2):
        store = world.pods[f"math-proxy-{ordinal}"].store
        store.sessions, store.turns = ordinal, 10 * ordinal
    world.edit(replicas=1)
    settle([world], operator, passes=100)
    assert sorted(world.pods) == ["math-proxy-0"]
    parked = world.status.parked
    assert (parked.ordinals, parked.sessions, parked.turns) == ([1, 2], 3, 30)

    world.edit(replicas=2)
    settle([world], operator, passes=100)
    parked = world.status.parked
    assert (parked.ordinals, parked.sessions, parked.turns) == ([2], 2, 20)
    world.edit(replicas=3)
    settle([world], operator, passes=100)
    assert world.status.parked.ordinals == []
    assert world.status.parked.turns == 0
    assert [event.reason for event in world.events].count(EventReason.PARKED) == 2


def test_what_is_parked_is_written_down_before_its_proxy_goes() -> None:
    world = World(fleet())
    operator = begun(world)
    world.pods["math-proxy-2"].store.turns = 4
    world.edit(replicas=2)
    while not world.status.parked.ordinals:
        assert world.workload is not None
        assert world.workload.replicas == 3
        go_on(world, operator)
        assert operator.decision is not None
        assert operator.decision.replicas == 3
    settle([world], operator, passes=50)
    assert len(world.pods) == 2


def test_raised_again_in_the_middle_it_is_taken_back() -> None:
    world = World(fleet())
    operator = begun(world)
    uids = {pod.uid for pod in world.pods.values()}
    world.pods["math-proxy-2"].store.turns = 4
    world.edit(replicas=1)
    until(world, operator, "Cordoned")
    go_on(world, operator, passes=2)
    world.edit(replicas=3)
    settle([world], operator, passes=100)
    assert {pod.uid for pod in world.pods.values()} == uids
    assert all(pod.drain is None for pod in world.pods.values())


def test_proxies_hear_of_new_ones_before_those_start() -> None:
    world = World(fleet(replicas=1))
    operator = begun(world)
    world.edit(replicas=2)
    operator.run(world)
    assert (world.peers, world.workload and world.workload.replicas) == (2, 1)
    settle([world], operator, passes=100)
    assert len(world.pods) == 2


def test_a_suspended_fleet_keeps_its_data_and_frees_all_else() -> None:
    world = World(fleet())
    operator = begun(world)
    world.pods["math-proxy-1"].store.turns = 5
    world.pods["math-proxy-0"].in_flight = 4
    world.edit(suspend=True)
    operator.run(world)
    while world.pods:
        assert world.gateway_replicas == 2, "proxies need their engines to the end"
        world.tick(1)
        before = set(world.pods)
        operator.run(world)
        assert before == set() or world.gateway_replicas == 2
    settle([world], operator, passes=50)
    assert world.pods == {}
    assert (world.gateway_replicas, world.engine_replicas) == (0, 0)
    assert condition(world, "Suspended") == ("True", "Suspended")
    assert condition(world) == ("True", "Suspended")
    assert (world.status.parked.ordinals, world.status.parked.turns) == ([1], 5)
    assert world.deeds.cut == []

    world.edit(suspend=False)
    settle([world], operator, passes=50)
    assert condition(world) == ("True", "Serving")
    assert world.status.parked.ordinals == []


# Ephemeral storage


@pytest.mark.parametrize("volume", [None, {"emptyDir": {}}, {"ephemeral": {"volumeClaimTemplate": {}}}])
def test_no_ephemeral_pod_with_undumped_turns_goes_by_our_hand(volume: dict[str, Any] | None) -> None:
    world = World(fleet(ephemeral=True, sessions={"dump": {"volume": volume}}))
    operator = begun(world)
    pod = world.pods["math-proxy-1"]
    pod.store.sessions, pod.store.turns = 1, 4
    world.edit(template="t2")
    go_on(world, operator, passes=200)
    assert world.pods["math-proxy-1"].uid == pod.uid
    assert ("math-proxy-1", "UndumpedTurns") in problems(world)
    assert condition(world, "Durable") == ("False", "DumpsOnPod")

    world.allow_loss = frozenset({"math-proxy-1"})
    settle([world], operator, passes=100)
    assert world.pods["math-proxy-1"].uid != pod.uid
    assert world.deeds.lost_turns == []


def test_an_ephemeral_pod_whose_dumps_would_go_with_it_stays_and_serves() -> None:
    world = World(fleet(ephemeral=True))
    operator = begun(world)
    pod = world.pods["math-proxy-2"]
    pod.store.sessions, pod.store.turns = 1, 4
    world.edit(replicas=1)
    go_on(world, operator, passes=60)
    assert (pod.store.turns, world.pods["math-proxy-2"].uid) == (4, pod.uid)
    assert pod.drain is not None
    assert pod.drain.mode == "cordon"
    assert ("math-proxy-2", "UndumpedTurns") in problems(world)
    pod.store.sessions = pod.store.turns = 0
    settle([world], operator, passes=50)
    assert sorted(world.pods) == ["math-proxy-0"]


def test_where_dumps_outlive_it_an_ephemeral_proxy_dumps_when_its_time_is_up() -> None:
    volume = {"persistentVolumeClaim": {"claimName": "dumps"}}
    world = World(fleet(ephemeral=True, sessions={"dump": {"volume": volume}}))
    operator = begun(world)
    for pod in world.pods.values():
        pod.store.sessions, pod.store.turns = 1, 4
    world.edit(replicas=1)
    settle([world], operator, passes=100)
    assert sorted(world.pods) == ["math-proxy-0"]
    assert world.deeds.lost_turns == []
    assert world.status.parked.ordinals == []
    world.edit(suspend=True)
    settle([world], operator, passes=100)
    assert world.pods == {}
    assert world.deeds.lost_turns == []


# Crashes


def test_crashes_are_counted_once_each() -> None:
    world = World(fleet())
    operator = begun(world)
    for made in range(1, 9):
        world.crash(world.pods[f"math-proxy-{made % 3}"])
        world.tick(10)
        operator.run(world, Faults(cut="after the status" if made % 2 else None))
        operator.run(world, Faults(lost=frozenset(range(3))))
        settle([world], operator, passes=20)
        assert world.status.restarts.crash == made
    assert len(world.status.restarts.last) == 5


def test_nothing_is_done_at_rest() -> None:
    world = World(fleet())
    operator = begun(world)
    before = world.version
    for _ in range(100):
        assert operator.run(world) is False
        world.tick(15)
    assert world.version == before


def test_an_eviction_names_the_pod_that_was_seen() -> None:
    world = World(fleet(memory={"restart": "Pod"}))
    operator = begun(world)
    world.edit(template="t2")
    until(world, operator, "Evicting")
    operator.run(world)
    assert operator.decision is not None
    evictions = [action for action in operator.decision.actions if isinstance(action, Evict)]
    assert all(world.pods[each.pod].uid == each.uid for each in evictions)


OPEN, SHUT = Evictable(ready=1, unready=True), Evictable(ready=0, unready=False)


def test_pods_whose_volumes_cant_leave_their_nodes_go_by_the_operators_evictions_alone() -> None:
    world = World(fleet(memory={"restart": "Pod"}))
    world.node_local = True
    operator = begun(world)
    assert world.evictable == SHUT
    before = {pod.uid for pod in world.pods.values()}
    world.edit(template="t2")
    given = []
    for _ in range(200):
        go_on(world, operator, every=2.0)
        given.append(world.evictable)
    assert not before & {pod.uid for pod in world.pods.values()}
    assert all(each.ready == 0 for each in given), "what is ready goes with no drain"
    assert given.count(SHUT) > len(given) - 5 * len(before)
    assert (condition(world), given[-1]) == (("True", "Serving"), SHUT)


def test_a_proxy_gets_no_new_pod_while_its_node_is_cordoned_and_the_others_do() -> None:
    world = World(fleet(memory={"restart": "Pod"}))
    world.node_local = True
    operator = begun(world)
    before = {name: pod.uid for name, pod in world.pods.items()}
    world.pods["math-proxy-1"].cordoned_node = "node-a"
    world.edit(template="t2")
    go_on(world, operator, passes=100)
    assert condition(world) == ("False", "RollingOut")
    assert [name for name, pod in world.pods.items() if pod.uid == before[name]] == ["math-proxy-1"]
    world.edit(disruption={**world.spec.model_dump(by_alias=True)["disruption"], "maintenance": True})
    settle([world], operator, passes=100)
    assert world.pods["math-proxy-1"].uid != before["math-proxy-1"]


def test_a_silent_proxy_gets_no_new_pod_while_its_node_is_cordoned() -> None:
    world = World(fleet())
    world.node_local = True
    operator = begun(world)
    pod = world.pods["math-proxy-1"]
    pod.hangs, pod.cordoned_node = True, "node-a"
    go_on(world, operator, passes=20)
    assert ("math-proxy-1", "Unresponsive") in problems(world) and world.deeds.restarted == []
    pod.cordoned_node = None
    settle([world], operator, passes=100)
    assert world.deeds.restarted == [("math-proxy-1", "evicted: crash")]


def test_a_drain_may_take_such_pods_under_maintenance_and_others_at_any_time() -> None:
    world = World(fleet(disruption={"maintenance": True, "maxUnavailable": 2}))
    world.node_local = True
    begun(world)
    assert world.evictable == Evictable(ready=2, unready=True)
    elsewhere = World(fleet())
    begun(elsewhere)
    assert elsewhere.evictable == OPEN
