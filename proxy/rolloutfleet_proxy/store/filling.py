"""What earlier versions left to be filled in, piece by piece: sums of sessions, and checksums of turns."""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Final

from rolloutfleet_proxy.domain.errors import DiskFull
from rolloutfleet_proxy.store import checksums, summaries
from rolloutfleet_proxy.store.store import Store
from rolloutfleet_proxy.store.transaction import Transaction, load_fact

REST: Final = 0.02
"""Seconds in which others have the writer, after each piece."""

_PIECES: Final[dict[str, Callable[[Transaction], None]]] = {
    summaries.NOT_YET: summaries.fill_some,
    checksums.NOT_YET: checksums.fill_some,
}
"""What fills in a piece, by the fact that is there as long as anything is left."""


async def fill(store: Store) -> None:
    """Fill in all there is. Where there is no room, the rest waits for the next time."""
    with contextlib.suppress(DiskFull):
        for left, fill_some in _PIECES.items():
            while await store.read(partial(load_fact, name=left)) is not None:
                await store.write(fill_some)
                await asyncio.sleep(REST)
