"""What is shown of a fleet, from two samples of it: pure, but for taking them."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from rolloutfleet.fleet import AsyncFleet
from rolloutfleet.wire import Proxy, Stats


@dataclass(frozen=True, slots=True)
class Sample:
    """What the fleet said."""

    at: float
    """Seconds of a clock that is never set."""
    proxies: Sequence[Proxy]
    stats: Mapping[int, Stats]
    failed: Mapping[int, str]
    """Why a proxy said nothing, by ordinal."""


async def take_sample(fleet: AsyncFleet) -> Sample:
    """Raises FleetError where no proxy answers."""
    proxies, stats = await asyncio.gather(fleet.proxies(), fleet.stats())
    return Sample(
        asyncio.get_running_loop().time(),
        proxies,
        {each.ordinal: each for each in stats.proxies},
        {each.ordinal: each.error.message for each in stats.failed},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyFigures:
    """One proxy. None: not known."""

    proxy: int
    state: str
    open: int | None = None
    ended: int | None = None
    in_flight: int | None = None
    leases: int | None = None
    sampled: float | None = None
    """Tokens of committed turns a second."""
    prompt: float | None = None
    memory: int | None = None
    budget: int | None = None
    version: int | None = None
    paused: str = ""
    """`paused`, or `too long`: calls are refused."""
    follow_ups: int = 0
    forks: int = 0
    """Of the follow-ups those that start a branch."""
    forked_by: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Forks by what differs; like all counts, since the proxy's process started."""
    refused: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """All of them, and what it comes to."""

    rows: Sequence[ProxyFigures]
    failed: Mapping[int, str]

    def total(self, what: Callable[[ProxyFigures], float | None]) -> float | None:
        """Over the proxies of which it is known; None where it is of none."""
        known = [value for row in self.rows if (value := what(row)) is not None]
        return sum(known) if known else None

    def most(self, what: Callable[[ProxyFigures], Mapping[str, int]]) -> list[tuple[str, int]]:
        """Counts by name, the largest first."""
        return sum((Counter(what(row)) for row in self.rows), Counter[str]()).most_common()

    @property
    def versions(self) -> list[int]:
        return sorted({row.version for row in self.rows if row.version is not None})

    @property
    def paused(self) -> str:
        """As of the proxy that is worst off."""
        states = {row.paused for row in self.rows}
        return next((state for state in (TOO_LONG, PAUSED) if state in states), "")

    def as_json(self) -> dict[str, Any]:
        """The same names as the columns."""
        sums = ("open", "ended", "in_flight", "leases", "sampled", "prompt", "memory", "follow_ups", "forks")
        return {
            "fleet": {
                **{name: self.total(attrgetter(name)) for name in sums},
                "versions": self.versions,
                "paused": self.paused,
                "forked_by": dict(self.most(lambda row: row.forked_by)),
                "refused": dict(self.most(lambda row: row.refused)),
            },
            "proxies": [dataclasses.asdict(row) for row in self.rows],
            "failed": {str(ordinal): why for ordinal, why in self.failed.items()},
        }


PAUSED: Final = "paused"
TOO_LONG: Final = "too long"

ORDERS: Final[dict[str, Callable[[ProxyFigures], float]]] = {
    "proxy": lambda row: row.proxy,
    "open": lambda row: -(row.open or 0),
    "in_flight": lambda row: -(row.in_flight or 0),
    "sampled": lambda row: -(row.sampled or 0),
    "memory": lambda row: -(row.memory or 0),
    "leases": lambda row: -(row.leases or 0),
    "forks": lambda row: -row.forks,
    "refused": lambda row: -sum(row.refused.values()),
}
"""Sorted by its ordinal, or the largest first."""


def figures(before: Sample, now: Sample) -> FleetFigures:
    """Rates are over the time between the two samples."""
    seconds = now.at - before.at
    rows = [
        _row(proxy, before.stats.get(proxy.ordinal), now.stats.get(proxy.ordinal), seconds) for proxy in now.proxies
    ]
    return FleetFigures(rows, now.failed)


def ordered(rows: Sequence[ProxyFigures], by: str, *, backwards: bool = False) -> list[ProxyFigures]:
    return sorted(rows, key=lambda row: (ORDERS[by](row), row.proxy), reverse=backwards)


def _row(proxy: Proxy, before: Stats | None, now: Stats | None, seconds: float) -> ProxyFigures:
    if now is None:
        return ProxyFigures(proxy=proxy.ordinal, state=proxy.state)
    return ProxyFigures(
        proxy=proxy.ordinal,
        state=proxy.state,
        open=now.sessions.open,
        ended=now.sessions.ended,
        in_flight=now.in_flight,
        leases=now.leases,
        sampled=_rate("completion", before, now, seconds),
        prompt=_rate("prompt", before, now, seconds),
        memory=now.rss_bytes,
        budget=now.rss_budget_bytes,
        version=now.version,
        paused=TOO_LONG if now.past_max_hold else PAUSED if now.paused else "",
        follow_ups=sum(now.follow_ups.values()),
        forks=now.follow_ups.get("branch", 0),
        forked_by=now.forks,
        refused=now.refused,
    )


def _rate(kind: str, before: Stats | None, now: Stats, seconds: float) -> float | None:
    """Tokens a second; not known of a process that started meanwhile, as its counts began anew."""
    if before is None or before.pid != now.pid or seconds <= 0:
        return None
    return max(0, now.tokens.get(kind, 0) - before.tokens.get(kind, 0)) / seconds
