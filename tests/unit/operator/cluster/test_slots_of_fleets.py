"""The slots of other fleets, as a fleet is told of them."""

from rolloutfleet_operator.cluster.slots import LOOKED_AT_WITHIN, Slots
from rolloutfleet_operator.policy.observed import OtherFleets, SlotRequest

UNKNOWN = OtherFleets(known=False)
LATER = LOOKED_AT_WITHIN + 1
WAITS = SlotRequest(fleet="a", priority=1, since=0, renewed=0)


def looked_at(*fleets: str, held: int = 0) -> Slots:
    slots = Slots()
    for each in fleets:
        slots.expect(each)
        slots.note(each, held=held, slot_requests=[])
    return slots


def test_nothing_is_known_before_each_fleet_was_looked_at_or_that_failed_for_a_minute() -> None:
    slots = looked_at("b")
    slots.expect("a")
    assert slots.other_fleets("b", 1000) == slots.other_fleets("b", 1000 + LATER) == UNKNOWN, (
        "its pass is still to come"
    )
    slots.expect("a", failed_at=2000)
    slots.expect("a", failed_at=2010)
    assert slots.other_fleets("b", 2000 + LOOKED_AT_WITHIN) == UNKNOWN
    assert slots.other_fleets("b", 2000 + LATER) == OtherFleets(), "since the first that failed"
    slots.expect("a")
    assert slots.other_fleets("b", 2000 + LATER) == UNKNOWN, "as after a time without the Lease"


def test_slots_held_and_waited_for_are_told_to_the_other_fleets() -> None:
    slots = looked_at("b")
    slots.note("a", held=2, slot_requests=[WAITS])
    assert slots.other_fleets("b", 0) == OtherFleets(held=2, slot_requests=(WAITS,))
    assert slots.other_fleets("a", 0) == OtherFleets()
    slots.forget("a")
    assert (slots.other_fleets("b", 0), slots.held) == (OtherFleets(), 0)


def test_a_fleet_whose_passes_fail_holds_its_slot_for_a_minute_in_which_nothing_is_begun() -> None:
    slots = looked_at("a", "b", held=1)
    slots.expect("a", failed_at=1000)
    assert slots.other_fleets("b", 1000) == OtherFleets(held=1, known=False)
    assert slots.other_fleets("b", 1000 + LATER) == OtherFleets()
    assert slots.held == 1
    slots.note("a", held=1, slot_requests=[])
    assert slots.other_fleets("b", 1000 + 2 * LATER) == OtherFleets(held=1)
