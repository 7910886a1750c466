"""A caller that closed its connection and asks again: has its leaving been noted by the time that it is looked for?

The event loop may learn of both at once, the end of one connection and what came over another. The request is then
read in fewer rounds than it takes from a closed connection to `Call.leave`, or to a call passed on that is closed too.
"""

import asyncio
from typing import Final

ROUNDS: Final = 16
"""Of the event loop. With 3 the tests pass, here and where the call is passed on; the rest is margin."""


async def noted() -> None:
    """Give the event loop time to note the ends of connections that it has heard of."""
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
