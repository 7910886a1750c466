"""Which engines a gateway is told of: whatever it knew before, it comes to know those that there are."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.operator.policy.executor import Operator, settle
from tests.unit.operator.policy.fleets import fleet
from tests.unit.operator.policy.world import World

from rolloutfleet_operator.policy.actions import Action, AddWorker, AskDrain, RemoveWorker
from rolloutfleet_operator.policy.decide import decide
from rolloutfleet_operator.policy.observed import ObservedEngines, ObservedFleet, ObservedGateway, ObservedWorker
from rolloutfleet_operator.policy.workers import changes_of

URLS = [f"http://10.0.0.{number}:30000" for number in range(5)]
SETS = st.frozensets(st.sampled_from(URLS))
NOW = 1_000_000.0


def worker(url: str, *, draining: bool = False, healthy: bool = True) -> ObservedWorker:
    return ObservedWorker(url=url, healthy=healthy and not draining, id=f"id of {url}", draining=draining)


LISTED = st.dictionaries(st.sampled_from(URLS), st.tuples(st.booleans(), st.booleans())).map(
    lambda found: [worker(url, draining=drains, healthy=well) for url, (drains, well) in found.items()]
)


class Smg:
    """A gateway's list, as smg keeps it: what is removed drains first, and an address that is listed is not added."""

    def __init__(self, listed: list[ObservedWorker]) -> None:
        self.listed = {each.url: each for each in listed}

    def told(self, ready: frozenset[str], there: frozenset[str]) -> bool:
        """Whether there was anything to tell."""
        changes = list(changes_of("gateway", list(self.listed.values()), ready=ready, there=there))
        for change in changes:
            if isinstance(change, AddWorker):
                assert change.url not in self.listed
                self.listed[change.url] = worker(change.url)
            else:
                known = self.listed[change.url]
                assert not known.draining, "a second removal would take the next engine at that address"
                assert change.id == known.id
                self.listed[change.url] = replace(known, draining=True, healthy=False)
        return bool(changes)

    def settle(self) -> None:
        self.listed = {url: each for url, each in self.listed.items() if not each.draining}


@given(listed=LISTED, there=SETS, data=st.data())
def test_from_any_list_a_gateway_comes_to_have_what_is_ready_and_nothing_that_is_gone(
    listed: list[ObservedWorker], there: frozenset[str], data: st.DataObject
) -> None:
    ready = frozenset(data.draw(st.sets(st.sampled_from(sorted(there)))) if there else ())
    gateway = Smg(listed)
    for _ in range(3):
        gateway.told(ready, there)
        gateway.settle()
    assert ready <= set(gateway.listed) <= there
    assert not gateway.told(ready, there), "and at rest nothing is told"


@given(listed=LISTED, there=SETS)
def test_an_engine_that_is_there_and_not_ready_is_neither_told_of_nor_taken_away(
    listed: list[ObservedWorker], there: frozenset[str]
) -> None:
    changes = list(changes_of("gateway", listed, ready=frozenset(), there=there))
    assert not any(isinstance(change, AddWorker) for change in changes)
    assert {change.url for change in changes} & there == set()


def observed(**lists: tuple[ObservedWorker, ...]) -> ObservedFleet:
    found = World(fleet(replicas=1)).snapshot()
    engines = ObservedEngines(urls=tuple(URLS[:2]), ready=tuple(URLS[:1]))
    return replace(found, engines=engines, gateway=ObservedGateway(lists=lists))


def told(found: ObservedFleet, **more: Any) -> set[tuple[str, str, str]]:
    actions = decide(fleet(replicas=1, **more), found, NOW).actions
    return {
        (type(each).__name__, each.gateway, each.url) for each in actions if isinstance(each, AddWorker | RemoveWorker)
    }


def test_each_gateway_is_told_what_it_lacks_itself() -> None:
    found = observed(new=(), old=(worker(URLS[0]), worker(URLS[4])))
    assert told(found) == {("AddWorker", "new", URLS[0]), ("RemoveWorker", "old", URLS[4])}


def test_an_engine_that_ends_is_removed_before_anything_that_takes_time() -> None:
    """It serves on for some seconds only, and a proxy may take 30 s to answer."""
    world, operator = World(fleet()), Operator()
    settle([world], operator, passes=100)
    world.edit(restart="now")
    while not any(isinstance(action, AskDrain) for action in _actions_of(world)):
        operator.run(world)
        world.tick(1)
    assert isinstance(_actions_of(world)[0], RemoveWorker)


def _actions_of(world: World) -> tuple[Action, ...]:
    """Of the next pass, to which a gateway lists an engine that is gone and lacks one."""
    engines = ObservedEngines(urls=tuple(URLS[:1]), ready=tuple(URLS[:1]))
    lists = ObservedGateway(lists={"gateway": (worker(URLS[4]),)})
    return decide(world.spec, replace(world.snapshot(), engines=engines, gateway=lists), world.now).actions


def test_a_gateway_that_did_not_answer_and_engines_that_could_not_be_listed_change_nothing() -> None:
    assert told(observed()) == set()
    assert told(replace(observed(old=(worker(URLS[4]),)), engines=ObservedEngines(urls=None))) == set()


def test_engines_named_by_address_are_the_gateways_own() -> None:
    named: dict[str, Any] = {"engine": None, "gateway": {"engines": {"urls": [URLS[3]]}}}
    found = replace(observed(old=(worker(URLS[4]),)), engines=ObservedEngines(urls=(URLS[3],)))
    assert told(found, **named) == set()
