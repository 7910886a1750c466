"""A cause of restarts is one entry of `causes.CAUSES`: all else follows from it, as a cause of the tests' own shows."""

import itertools
import json
from collections.abc import Iterator

import pytest
from tests.unit.operator.policy.executor import Operator, settle
from tests.unit.operator.policy.fleets import condition, fleet
from tests.unit.operator.policy.world import World

from rolloutfleet.status import FleetStatus, RestartsStatus, RestartStatus
from rolloutfleet.wire import Boot
from rolloutfleet_operator import crd
from rolloutfleet_operator.cluster.metrics import OperatorMetrics
from rolloutfleet_operator.policy import causes
from rolloutfleet_operator.policy.causes import CAUSES, FleetState, Label, Need, RestartCause
from rolloutfleet_operator.policy.observed import STATE_LABEL, ObservedPod
from rolloutfleet_operator.policy.reasons import EventReason

WAYS = ["Process", "Container", "Pod"]
OLD_AFTER = 600.0
PASSES = 40


def age_of(pod: ObservedPod, state: FleetState) -> float:
    return 0.0 if pod.stats is None else state.now - pod.stats.boots[-1].time


def too_old(pod: ObservedPod, state: FleetState) -> Need | None:
    age = age_of(pod, state)
    return Need(since=state.now - age + OLD_AFTER, key=f"{int(state.now)}") if age > OLD_AFTER else None


AGE = RestartCause(
    id="age",
    counter="age",
    help="Served for too long.",
    action="AgeRestart",
    needed=too_old,
    wanted=lambda entry, pod, state: age_of(pod, state) > OLD_AFTER,
    cooldown=lambda spec: 0.0,
    label=Label(value="old", holds=lambda pod, state: age_of(pod, state) > OLD_AFTER),
)
ALWAYS = RestartCause(
    id="always",
    counter="always",
    help="Nothing cures it.",
    action="AlwaysRestart",
    needed=lambda pod, state: Need(since=0.0, key=f"{int(state.now)}"),
    wanted=lambda entry, pod, state: True,
    cooldown=lambda spec: OLD_AFTER,
)


@pytest.fixture
def with_age(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A table with one more entry, and no other change."""
    monkeypatch.setattr(causes, "CAUSES", (*CAUSES[:-1], AGE, CAUSES[-1]))
    yield


def grown_old(world: World, operator: Operator) -> None:
    """That fleet, Ready and at rest, when its proxies have served for too long."""
    settle([world], operator, passes=100)
    world.tick(OLD_AFTER)


@pytest.mark.usefixtures("with_age")
@pytest.mark.parametrize("way", WAYS)
def test_a_new_cause_is_planned_carried_out_and_counted_without_flapping(way: str) -> None:
    world, operator, metrics = World(fleet(memory={"restart": way})), Operator(), OperatorMetrics()
    grown_old(world, operator)
    metrics.saw(("default", "math"), world.status, budget=1)
    # One serves calls for longer than some passes take, so that its restart is decided long before it is made.
    world.pods["math-proxy-0"].in_flight = 15
    labels, actions = set(), set()
    for _ in range(PASSES):
        operator.run(world)
        stored = json.loads(world.status.model_dump_json(by_alias=True, exclude_none=True))
        world.status = FleetStatus.model_validate(stored)
        metrics.saw(("default", "math"), world.status, budget=1)
        labels |= {pod.notes.get(STATE_LABEL) for pod in world.pods.values()}
        actions |= set() if world.status.current is None else {world.status.current.action}
        world.tick(4)

    steps = [event.reason for event in world.events]
    assert EventReason.WITHDRAWN not in steps
    assert steps.count(EventReason.RESTARTED) == 3
    assert sorted(pod for pod, _ in world.deeds.restarted) == sorted(world.pods)
    if way != "Pod":
        assert all(
            boot.id is None or boot.id.startswith("age-") for pod in world.pods.values() for boot in pod.store.boots
        )
    assert {entry.reason for entry in world.status.restarts.last} == {"age"}
    assert all(entry.after is not None for entry in world.status.restarts.last)
    assert world.status.restarts.count("age") == 3
    assert (
        metrics.registry.get_sample_value(
            "rolloutfleet_operator_restarts_total", {"fleet": "default/math", "reason": "age"}
        )
        == 3
    )
    assert "old" in labels
    assert actions == {"AgeRestart"}
    assert condition(world) == ("True", "Serving")


@pytest.mark.parametrize("way", WAYS)
def test_a_cause_that_no_restart_cures_restarts_each_proxy_once_a_cool_down(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(causes, "CAUSES", (*CAUSES[:-1], ALWAYS, CAUSES[-1]))
    world, operator = World(fleet(memory={"restart": way})), Operator()
    settle([world], operator, passes=100)
    times: dict[str, list[float]] = {}
    for _ in range(400):
        before = len(world.deeds.restarted)
        operator.run(world)
        world.tick(4)
        for pod, _ in world.deeds.restarted[before:]:
            times.setdefault(pod, []).append(world.now)

    assert sorted(times) == ["math-proxy-0", "math-proxy-1", "math-proxy-2"]
    for made in times.values():
        assert len(made) >= 2
        assert all(later - earlier >= OLD_AFTER - 4 for earlier, later in itertools.pairwise(made))


@pytest.mark.usefixtures("with_age")
def test_a_new_causes_counter_is_a_field_of_the_resource() -> None:
    status = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    counted = status["properties"]["restarts"]["properties"]
    assert counted["age"] == {"type": "integer", "description": "Served for too long."}


@pytest.mark.usefixtures("with_age")
def test_a_restart_for_a_later_cause_does_what_a_new_one_asks_for() -> None:
    world, operator = World(fleet()), Operator()
    settle([world], operator, passes=100)
    world.edit(template="t2")
    operator.run(world)
    world.tick(OLD_AFTER)
    settle([world], operator, passes=100)
    assert (world.status.restarts.rollout, world.status.restarts.count("age")) == (3, 0)


@pytest.mark.usefixtures("with_age")
def test_a_new_causes_lost_drain_is_undone() -> None:
    world, operator = World(fleet()), Operator()
    grown_old(world, operator)
    world.pods["math-proxy-0"].in_flight = 60
    while all(pod.drain is None for pod in world.pods.values()):
        operator.run(world)
        world.tick(1)
    world.status = world.status.model_copy(update={"restarts": RestartsStatus()})
    [drained] = [pod for pod in world.pods.values() if pod.drain is not None]
    drained.store.boots[-1] = Boot(time=world.now, reason="first")
    operator.run(world)
    assert drained.drain is None


def test_what_another_release_began_for_a_cause_unknown_here_is_withdrawn_and_its_count_kept() -> None:
    world, operator = World(fleet()), Operator()
    settle([world], operator, passes=100)
    uid = world.pods["math-proxy-1"].uid
    entry = RestartStatus(pod="math-proxy-1", reason="age", time="2026-11-21T18:00:00Z", id="age-1", uid=uid)
    world.status = world.status.model_copy(
        update={"restarts": RestartsStatus.model_validate({"age": 7, "last": [entry], "other": {"not": "a count"}})}
    )
    settle([world], operator, passes=20)
    assert (world.status.restarts.last, world.status.restarts.count("age")) == ([], 7)
    assert world.deeds.restarted == []


def test_every_entry_that_a_cause_writes_is_found_again() -> None:
    for cause in CAUSES:
        entry = RestartStatus(pod="p", reason=cause.counter, time="", id=f"{cause.id}-key")
        assert causes.cause_of(entry) is cause
        assert causes.is_ours(f"{cause.id}-key")


def test_every_counter_of_the_status_has_a_cause() -> None:
    assert RestartsStatus.model_fields.keys() - {"last"} <= set(causes.counters())
