"""A fleet's figures, taken once a second while somebody looks; those that came last are at hand at once."""

import asyncio
from typing import Final

from rolloutfleet.fleet import AsyncFleet, FleetError
from rolloutfleet.inspect.looking import Looking
from rolloutfleet.viewing.figures import FleetFigures, Sample, figures, take_sample

EVERY: Final = 1.0


class LiveFigures:
    """What the fleet said last."""

    def __init__(self, fleet: AsyncFleet, looking: Looking) -> None:
        self._fleet, self._looking = fleet, looking
        self._last: Sample | None = None
        self.shown = FleetFigures([], {})
        self.trouble: str | None = None
        self.first = asyncio.Event()

    async def keep(self) -> None:
        """Take them again and again, while somebody looks."""
        while True:
            await self._looking.wait()
            await self.take()
            await asyncio.sleep(EVERY)

    async def take(self) -> None:
        try:
            sample = await take_sample(self._fleet)
            self.shown = figures(self._last or sample, sample)
            self._last, self.trouble = sample, None
        except FleetError as error:
            self.trouble = str(error)
        self.first.set()

    def url_of(self, ordinal: int) -> str | None:
        """Where a proxy answers."""
        proxies = self._last.proxies if self._last is not None else ()
        return next((each.url for each in proxies if each.ordinal == ordinal), None)
