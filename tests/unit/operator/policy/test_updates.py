"""Gateway and engines keep the template that they were given until an update is due, and then go one after another."""

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.operator.policy.executor import Faults, Operator, settle
from tests.unit.operator.policy.fleets import condition, fleet
from tests.unit.operator.policy.world import World

from rolloutfleet_operator.policy.decide import decide
from rolloutfleet_operator.policy.observed import LOADED_WITHIN, READY_WITHIN, ObservedContainer, ObservedOtherPod
from rolloutfleet_operator.policy.reasons import EventReason


def at_rest(**spec: Any) -> tuple[World, Operator]:
    """A fleet, and its operator."""
    world, operator = World(fleet(**spec)), Operator()
    settle([world], operator, passes=200)
    return world, operator


def given(world: World) -> tuple[str, str]:
    """The templates of gateway and engines."""
    return world.deployments["gateway"].given, world.deployments["engine"].given


def upgrade(world: World, *parts: str) -> None:
    """Another operator makes other templates of the same spec."""
    for part in parts:
        world.deployments[part].wanted = "t2"


@pytest.mark.parametrize("policy", ["Automatic", "OnRequest"])
def test_another_default_replaces_no_engine_under_either_policy(policy: str) -> None:
    world, operator = at_rest(updatePolicy=policy)
    upgrade(world, "engine")
    settle([world], operator, passes=100)
    assert given(world) == ("t1", "t1")
    assert condition(world, "UpdateAvailable") == ("True", "UpdateWaits")
    assert condition(world) == ("True", "Serving")
    message = next(each.message for each in world.status.conditions if each.type == "UpdateAvailable")
    assert message == "engines get the new template when spec.restart.id is set"


def test_a_gateway_goes_by_the_policy() -> None:
    for policy, becomes in (("Automatic", "t2"), ("OnRequest", "t1")):
        world, operator = at_rest(updatePolicy=policy)
        upgrade(world, "gateway")
        settle([world], operator, passes=100)
        assert given(world) == (becomes, "t1")
        assert condition(world, "UpdateAvailable")[0] == str(policy == "OnRequest")


def test_engines_whose_own_part_of_the_spec_changed_are_replaced_under_automatic() -> None:
    for policy, becomes in (("Automatic", "t2"), ("OnRequest", "t1")):
        world, operator = at_rest(updatePolicy=policy)
        upgrade(world, "engine")
        world.deployments["engine"].part_changed = True
        settle([world], operator, passes=100)
        assert given(world) == ("t1", becomes)


@pytest.mark.parametrize("policy", ["Automatic", "OnRequest"])
def test_a_restart_by_id_brings_all_that_waits_and_is_answered_when_it_has(policy: str) -> None:
    world, operator = at_rest(updatePolicy=policy)
    upgrade(world, "gateway", "engine")
    world.edit(restart="now", template="t9")
    for _ in range(100):
        assert world.status.restart.observed_id is None or given(world) == ("t2", "t2")
        operator.run(world)
        world.tick(5.0)
    assert world.status.restart.observed_id == "now"
    assert condition(world, "UpdateAvailable") == ("False", "UpToDate")
    upgrade_again = world.deployments["engine"]
    upgrade_again.wanted = "t3"
    settle([world], operator, passes=100)
    assert given(world)[1] == "t2", "that request is answered"


def test_one_thing_at_a_time_is_away() -> None:
    """Proxies, gateway and engines share the fleet's maxUnavailable and the operator's slots."""
    worlds = [World(fleet(replicas=2, engine={"replicas": 3}), name=name) for name in ("a", "b")]
    operator = Operator(fleets=2)
    settle(worlds, operator, passes=200)
    for world in worlds:
        upgrade(world, "gateway", "engine")
        world.edit(template="t9", restart="all")
    for _ in range(400):
        for world in worlds:
            operator.run(world)
        assert sum(_away(world) for world in worlds) <= 1
        for world in worlds:
            world.tick(2.0)
    assert [given(world) for world in worlds] == [("t2", "t2")] * 2
    assert {condition(world) for world in worlds} == {("True", "Serving")}


def _away(world: World) -> int:
    """Proxies taken down by us, and Deployments whose pods are being replaced."""
    wanted = {"gateway": world.gateway_replicas, "engine": world.engine_replicas}
    rolling = sum(each.templates != [each.given] * wanted[kind] for kind, each in world.deployments.items())
    return len(world.deeds.down) + rolling


def test_ready_waits_for_an_update_that_is_due_and_says_what_it_is_at() -> None:
    world, operator = at_rest(engine={"replicas": 2})
    upgrade(world, "gateway")
    operator.run(world)
    assert condition(world) == ("False", "RollingOut")
    assert condition(world, "Progressing") == ("True", "RollingOut")
    current = world.status.current
    assert current is not None and (current.action, current.waiting_for) == ("GatewayUpdate", None)
    settle([world], operator, passes=100)
    assert condition(world) == ("True", "Serving") and world.deployments["gateway"].since is None


def test_a_fleet_of_one_engine_is_told_that_it_will_have_none() -> None:
    for replicas, warned in ((1, True), (2, False)):
        world, operator = at_rest(engine={"replicas": replicas})
        upgrade(world, "engine")
        world.edit(restart="now")
        settle([world], operator, passes=200)
        (said,) = [each for each in world.events if each.reason == EventReason.UPDATING]
        assert ("it is the only engine" in said.message) == warned


def test_an_update_that_is_stuck_gives_its_slot_up_and_a_corrected_one_goes_on() -> None:
    stuck, other = World(fleet(), name="a"), World(fleet(), name="b")
    operator = Operator(fleets=2)
    settle([stuck, other], operator, passes=200)
    upgrade(stuck, "engine")
    stuck.deployments["engine"].part_changed = True
    operator.run(stuck)
    assert given(stuck)[1] == "t2"
    stuck.tick(1.0)
    stuck.deployments["engine"].stuck = True
    upgrade(other, "gateway")
    for _ in range(10):
        operator.run(stuck)
        operator.run(other)
        stuck.tick(2.0)
        other.tick(2.0)
    assert given(other)[0] == "t1", "it waits for the slot"
    current = other.status.current
    assert current is not None and (current.action, current.waiting_for) == ("GatewayUpdate", "slot")
    stuck.tick(2 * LOADED_WITHIN)
    for _ in range(10):
        operator.run(stuck)
        operator.run(other)
        other.tick(2.0)
    assert given(other)[0] == "t2"
    stuck.deployments["engine"].wanted = "t3"
    stuck.deployments["engine"].part_changed = True
    operator.run(stuck)
    assert given(stuck)[1] == "t3"
    stuck.deployments["engine"].stuck = False
    settle([stuck, other], operator, passes=200)
    assert condition(stuck) == ("True", "Serving")


LOADS = ObservedContainer(running=True)
CANT_START = ObservedContainer(waiting="ImagePullBackOff")


@pytest.mark.parametrize(
    ("since", "pods", "failed", "held"),
    [
        (3 * READY_WITHIN, {3 * READY_WITHIN: LOADS}, "", 1),
        (LOADED_WITHIN + 1, {LOADED_WITHIN + 1: LOADS}, "", 0),
        (4 * READY_WITHIN, {4 * READY_WITHIN: ObservedContainer(started=True), 60: LOADS}, "", 1),
        (READY_WITHIN + 1, {READY_WITHIN + 1: ObservedContainer()}, "", 0),
        (60, {60: CANT_START}, "", 0),
        (60, {3600: CANT_START, 60: LOADS}, "", 1),
        (3 * READY_WITHIN + 1, {}, "exceeded quota", 0),
        (3 * READY_WITHIN - 1, {}, "exceeded quota", 1),
        (3 * LOADED_WITHIN + 1, {}, "", 0),
    ],
    ids=[
        "it loads",
        "it loads in vain",
        "the second loads",
        "it finds no node",
        "no image",
        "the old one has no image",
        "no pod can be made",
        "no pod can be made for a moment",
        "nothing happens",
    ],
)
def test_an_update_keeps_its_slot_while_engines_load_and_gives_it_up_when_stuck(
    since: float, pods: dict[float, ObservedContainer], failed: str, held: int
) -> None:
    world, _ = at_rest(engine={"replicas": 2})
    seen, now = world.snapshot(), world.now
    made = [
        ObservedOtherPod(name=f"math-engine-{age}", created=now - age, ready=container.started, container=container)
        for age, container in pods.items()
    ]
    assert seen.engines.deployment is not None
    deployment = replace(
        seen.engines.deployment, updating_since=now - since, pods=tuple(made), ready=0, failed_create=failed
    )
    updating = replace(seen, engines=replace(seen.engines, deployment=deployment))
    assert decide(world.spec, updating, now).held == held


def test_a_restart_for_memory_does_not_wait_for_engines_that_load() -> None:
    world, operator = at_rest(replicas=2)
    upgrade(world, "engine")
    world.deployments["engine"].part_changed = True
    operator.run(world)
    world.tick(1.0)
    world.deployments["engine"].stuck = True
    world.pods["math-proxy-0"].rss = 2.0 * world.spec.memory.rss_budget
    for _ in range(10):
        operator.run(world)
        world.tick(world.spec.memory.interval)
    assert [pod for pod, _ in world.deeds.restarted] == ["math-proxy-0"]
    assert world.deployments["engine"].since is not None


def test_one_of_which_no_pod_ever_ran_is_updated_without_a_slot_and_unasked() -> None:
    """Its image can't be pulled, say, and the operator's default is corrected."""
    world, operator = at_rest(updatePolicy="OnRequest")
    engine, proxy = world.deployments["engine"], world.pods["math-proxy-0"]
    engine.templates.clear()
    engine.stuck = True
    proxy.node_lost = True
    world.tick(5.0)
    upgrade(world, "engine")
    operator.run(world)
    assert given(world)[1] == "t2"


def test_a_roll_ends_though_another_template_comes_that_is_not_due() -> None:
    world, operator = at_rest(engine={"replicas": 2})
    upgrade(world, "engine")
    world.deployments["engine"].part_changed = True
    operator.run(world)
    world.tick(2.0)
    world.deployments["engine"].wanted = "t3"
    settle([world], operator, passes=100)
    assert given(world)[1] == "t2" and world.deployments["engine"].since is None
    assert condition(world) == ("True", "Serving")
    assert condition(world, "UpdateAvailable") == ("True", "UpdateWaits")


def test_a_template_that_is_corrected_in_a_roll_that_was_asked_for_is_part_of_that() -> None:
    world, operator = at_rest(updatePolicy="OnRequest")
    upgrade(world, "engine")
    world.edit(restart="now")
    for _ in range(40):
        operator.run(world)
        world.tick(5.0)
        if given(world)[1] == "t2":
            break
    world.deployments["engine"].stuck = True
    operator.run(world)
    assert world.status.restart.observed_id is None
    world.deployments["engine"].wanted = "t3"
    operator.run(world)
    assert given(world)[1] == "t3"
    world.deployments["engine"].stuck = False
    settle([world], operator, passes=100)
    assert world.status.restart.observed_id == "now"


@pytest.mark.parametrize("cut", ["before the status", "after the status", "after the children"])
def test_an_operator_that_dies_in_an_update_is_followed_by_one_that_goes_on(cut: Any) -> None:
    world, operator = at_rest(engine={"replicas": 2})
    upgrade(world, "engine")
    world.edit(restart="now")
    operator.run(world, Faults(cut=cut))
    settle([world], operator, passes=200)
    assert given(world)[1] == "t2" and world.deployments["engine"].templates == ["t2", "t2"]
    assert world.status.restart.observed_id == "now"


def test_a_suspended_deployment_gets_the_newest_template_at_once() -> None:
    world, operator = at_rest(updatePolicy="OnRequest")
    world.edit(suspend=True)
    settle([world], operator, passes=200)
    upgrade(world, "gateway", "engine")
    settle([world], operator, passes=20)
    assert given(world) == ("t2", "t2")
