"""Which kill is next: as many of each kind, in an order drawn anew, gateway and engines spread over the whole. Pure."""

from collections import Counter
from collections.abc import Sequence
from random import Random

from tests.timing.kills.kinds import OF_NO_PROXY, Kind

AHEAD = 8
"""How far a start-up may be moved to the front, where a proxy has just been killed and has to start anyway."""


class Schedule:
    """What is still to be done of so many kills. A kind that was taken and missed is put back."""

    def __init__(self, count: int, kinds: Sequence[Kind], random: Random) -> None:
        drawn = [kinds[number % len(kinds)] for number in range(count)]
        random.shuffle(drawn)
        self._of_proxies = [kind for kind in drawn if kind not in OF_NO_PROXY]
        self._between = [kind for kind in drawn if kind in OF_NO_PROXY]
        self._counts = Counter(proxies=len(self._of_proxies), between=len(self._between))

    def for_proxy(self) -> Kind | None:
        """The next of a proxy that serves: start-ups come where one is to start anyway, as long as there are others."""
        other = (at for at, kind in enumerate(self._of_proxies) if kind is not Kind.START_UP)
        return self._of_proxies.pop(next(other, 0)) if self._of_proxies else None

    def for_dead_proxy(self) -> Kind | None:
        """A start-up, where one is near."""
        if not self.start_up_is_near:
            return None
        self._of_proxies.remove(Kind.START_UP)
        return Kind.START_UP

    @property
    def start_up_is_near(self) -> bool:
        return Kind.START_UP in self._of_proxies[:AHEAD]

    @property
    def more_between(self) -> bool:
        """Whether gateway and engines still have a turn to come."""
        return bool(self._between)

    def between(self) -> Kind | None:
        """The next of gateway and engines, once it is their turn."""
        share = len(self._between) * self._counts["proxies"] - len(self._of_proxies) * self._counts["between"]
        return self._between.pop(0) if self._between and share >= 0 else None

    def put_back(self, kind: Kind) -> None:
        """It was missed."""
        (self._between if kind in OF_NO_PROXY else self._of_proxies).append(kind)
