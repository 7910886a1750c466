"""What a pass read and left as it was, kept for the next one.

It is packed: as Python objects it takes some hundred kilobytes a fleet, and an operator may have hundreds of fleets.
"""

import json
import zlib
from dataclasses import dataclass
from typing import Final, Self

from rolloutfleet_operator.cluster.api import Object
from rolloutfleet_operator.cluster.apply import identity
from rolloutfleet_operator.cluster.looking import Look

_QUICKLY: Final = 1
"""The level of compression: the objects of a fleet repeat each other, so more gives little."""


@dataclass(frozen=True, slots=True)
class Rest:
    since: float
    """When it was read."""
    packed: bytes

    @classmethod
    def of(cls, body: Object, there: Look, *, since: float) -> Self:
        """The fleet, and what is watched of it."""
        parts = [body, list(there.children.values()), there.proxies, there.gateways, there.managed, there.claims]
        return cls(since, zlib.compress(json.dumps(parts, separators=(",", ":")).encode(), _QUICKLY))

    def unpacked(self) -> tuple[Object, Look]:
        """The fleet, and a look without what is not watched."""
        body, children, *pods, claims = json.loads(zlib.decompress(self.packed))
        proxies, gateways, managed = map(tuple, pods)
        by_name = {identity(each): each for each in children}
        return body, Look(children=by_name, proxies=proxies, gateways=gateways, managed=managed, claims=tuple(claims))
