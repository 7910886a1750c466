"""How many requests of a crowd are begun in one round of the event loop.

To read a request and make its prompt takes some milliseconds, and hundreds can be ready at once. All in a single round,
they would keep everything else waiting that comes meanwhile, `/health` among it, for as long as all of them take.
"""

import asyncio
from collections import deque
from typing import Final

A_ROUND: Final = 16
"""What else a round has to do follows from these, so it takes some 40 ms. Smaller rounds cost more: with 1,600 calls in
flight some 9 % of the rate went where 32 were begun in a round, and 20 % with 8, as whoever waits leaves the caches."""


class Pace:
    """Whoever has a long step to do waits for its turn: first come, first served."""

    def __init__(self, a_round: int = A_ROUND) -> None:
        self._a_round = a_round
        self._taken = 0
        """Steps of this round."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Returns at once where few steps were taken in this round. What follows up to the next `await` is the step."""
        loop = asyncio.get_running_loop()
        if self._taken < self._a_round and not self._waiting:
            if not self._taken:
                loop.call_soon(self._next_round)
            self._taken += 1
            return
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting.append(mine)
        await mine

    def _next_round(self) -> None:
        self._taken = 0
        while self._waiting and self._taken < self._a_round:
            waiting = self._waiting.popleft()
            if not waiting.done():  # else it was cancelled
                waiting.set_result(None)
                self._taken += 1
        if self._taken:
            asyncio.get_running_loop().call_soon(self._next_round)
