"""Has an answer left, to its last byte, while its connection was open?

The server takes what an app sends, and writes it when it can; the app goes on meanwhile. A connection therefore offers
the app to wait until all of it is out of the process, under a name in the request's ASGI scope.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

Emptied = Callable[[], Awaitable[bool]]
"""Waits until all that was sent has left; False where the connection was lost before."""

EMPTIED: Final = "rolloutfleet.emptied"


async def _at_once() -> bool:
    return True


def emptied_of(scope: MutableMapping[str, Any]) -> Emptied:
    """Of a request's connection; of a server that offers nothing, everything leaves at once."""
    found: Emptied = scope.get(EMPTIED, _at_once)
    return found
