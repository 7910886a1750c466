"""Disruption slots of all fleets: which fleets hold one, and which wait for one.

Each fleet's newest decision is recorded here, and read by the next decisions of the others. Nothing is awaited between
the two, so no two fleets take the same slot. After a start no slot is given until every fleet has been observed once.
"""

from collections.abc import Iterable

from rolloutfleet_operator.policy.observed import OtherFleets, SlotRequest

START_GRACE = 60.0
"""Seconds after which a fleet that could not be looked at holds up the others no more."""


class Slots:
    def __init__(self, started: float) -> None:
        self._started = started
        self._notes: dict[str, tuple[int, tuple[SlotRequest, ...]]] = {}
        """What each fleet holds, and what it waits for."""
        self._expected: set[str] = set()

    def expect(self, fleet: str) -> None:
        """There is that fleet."""
        self._expected.add(fleet)

    def forget(self, fleet: str) -> None:
        self._expected.discard(fleet)
        self._notes.pop(fleet, None)

    def note(self, fleet: str, *, held: int, slot_requests: Iterable[SlotRequest]) -> None:
        self._notes[fleet] = held, tuple(slot_requests)

    def other_fleets(self, fleet: str, now: float) -> OtherFleets:
        """What the other fleets do."""
        others = [note for name, note in self._notes.items() if name != fleet]
        everyone = self._expected - {fleet} <= self._notes.keys()
        return OtherFleets(
            held=sum(held for held, _ in others),
            slot_requests=tuple(each for _, slot_requests in others for each in slot_requests),
            known=everyone or now - self._started > START_GRACE,
        )

    @property
    def held(self) -> int:
        return sum(held for held, _ in self._notes.values())
