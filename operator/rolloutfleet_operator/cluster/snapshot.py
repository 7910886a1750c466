"""What a pass read and left, kept for the next one.

It is packed: as Python objects it takes some hundred kilobytes a fleet, and an operator may have hundreds of fleets.
"""

import zlib
from dataclasses import dataclass
from typing import Final, Self

import msgspec

from rolloutfleet_operator.cluster.api import Object
from rolloutfleet_operator.cluster.reading import Found

_QUICKLY: Final = 1
"""The level of compression: the objects of a fleet repeat each other, so more gives little."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    since: float
    """When all of it was read; parts may be newer."""
    packed: bytes

    @classmethod
    def of(cls, body: Object, found: Found, *, since: float) -> Self:
        """The fleet, and what is watched of it."""
        return cls(since, zlib.compress(msgspec.msgpack.encode((body, found)), _QUICKLY))

    def unpacked(self) -> tuple[Object, Found]:
        body, found = msgspec.msgpack.decode(zlib.decompress(self.packed), type=tuple[Object, dict[str, list[Object]]])
        return body, found
