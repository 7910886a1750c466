"""Disruption slots of all fleets: which fleets hold one, and which wait for one.

Each fleet's newest decision is recorded here, and read by the next decisions of the others. Nothing is awaited between
the two, so no two fleets take the same slot. After a start, and after the Lease was held by another, no slot is given
until every fleet has been observed once.
"""

from collections.abc import Iterable
from typing import Final

from rolloutfleet_operator.policy.observed import OtherFleets, SlotRequest

LOOKED_AT_WITHIN: Final = 60.0
"""Seconds of failures after which a fleet that could not be looked at holds up the others no more."""


class Slots:
    def __init__(self) -> None:
        self._notes: dict[str, tuple[int, tuple[SlotRequest, ...]]] = {}
        """What each fleet holds, and what it waits for."""
        self._expected: dict[str, float | None] = {}
        """Fleets that have to be looked at, and since when that fails."""

    def expect(self, fleet: str, *, failed_at: float | None = None) -> None:
        """There is that fleet, and what is noted of it may not be so any more; `failed_at`: a look failed then."""
        if failed_at is None or self._expected.get(fleet) is None:
            self._expected[fleet] = failed_at

    def forget(self, fleet: str) -> None:
        self._expected.pop(fleet, None)
        self._notes.pop(fleet, None)

    def note(self, fleet: str, *, held: int, slot_requests: Iterable[SlotRequest]) -> None:
        self._notes[fleet] = held, tuple(slot_requests)
        self._expected.pop(fleet, None)

    def other_fleets(self, fleet: str, now: float) -> OtherFleets:
        """What the other fleets do."""
        waited = {name: since for name, since in self._expected.items() if name != fleet}
        late = {name for name, since in waited.items() if since is not None and now - since > LOOKED_AT_WITHIN}
        self._notes = {name: note for name, note in self._notes.items() if name not in late}
        others = [note for name, note in self._notes.items() if name != fleet]
        return OtherFleets(
            held=sum(held for held, _ in others),
            slot_requests=tuple(each for _, slot_requests in others for each in slot_requests),
            known=waited.keys() <= late,
        )

    @property
    def held(self) -> int:
        return sum(held for held, _ in self._notes.values())
