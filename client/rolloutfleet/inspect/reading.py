"""Turns and tokens of a fleet's sessions, by pages of `GET /sessions/{id}/conversation`, two of a proxy at once.

A proxy makes no more at a time, and refuses where too many wait. Tokens are read seven chunks at a time: a few more
than that fit into a page, so a page begins some tokens earlier. A character that is split over tokens is then whole,
wherever chunks end. What was read stays for a few seconds: who scrolls asks for its neighbours next.
"""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from rolloutfleet.fleet import AsyncFleet
from rolloutfleet.fleet.proxies import owner_of
from rolloutfleet.inspect.documents import TOKENS_A_CHUNK, part_of, strip
from rolloutfleet.inspect.sources import NotThere
from rolloutfleet.viewing import merged
from rolloutfleet.wire import Conversation, ShownTokens, ShownTurn

AT_ONCE: Final = 2
"""Pages that a proxy makes at once."""
CHUNKS_AT_ONCE: Final = 7
RUN_UP: Final = 16
"""Tokens before them that are read as well, so that no character is torn."""
ALL: Final = 9_999_999_999
"""More messages, or tokens, than a turn has: a cursor behind them leaves them out."""
KEPT: Final = 32
"""Reads of tokens that are kept, of up to 3,584 each."""
KEPT_SECONDS: Final = 10.0
"""Annotations and masks change."""
MOST_TURNS: Final = 20_000
"""Of a session that are shown."""


class ConversationReader:
    """Reads of one fleet. Raises FleetError's kinds, and NotThere."""

    def __init__(self, fleet: AsyncFleet, clock: Callable[[], float]) -> None:
        self._fleet, self._clock = fleet, clock
        self._places = defaultdict[int | None, asyncio.Semaphore](lambda: asyncio.Semaphore(AT_ONCE))
        """By ordinal."""
        self._reads: OrderedDict[tuple[str, str, int], tuple[float, asyncio.Task[ShownTokens]]] = OrderedDict()

    async def outline(self, session: str) -> list[ShownTurn]:
        """All turns, without messages and tokens, in order of commit."""
        found: list[ShownTurn] = []
        cursor: str | None = None
        while len(found) < MOST_TURNS:
            page = await self._page(session, cursor=cursor, outline=True)
            found += page.turns
            if (cursor := page.cursor) is None:
                break
        return found

    async def turn(self, session: str, turn: str) -> ShownTurn:
        """A turn with all of its messages, and the first of its tokens."""
        pages = [page async for page in self._pages_of_turn(session, turn)]
        found = merged(pages)
        if not found:
            raise NotThere
        return found[0]

    async def _pages_of_turn(self, session: str, turn: str) -> AsyncIterator[Conversation]:
        cursor: str | None = turn
        while cursor is not None:
            page = await self._page(session, branch=turn, cursor=cursor)
            yield page
            cursor = None if page.cursor is None else f"{turn}:{page.cursor.rsplit(':', 2)[1]}:{ALL}"

    async def strip(self, session: str, turn: str) -> list[float]:
        """Of a turn, however long it is."""
        logprobs: list[float] = []
        start = 0
        while True:
            page = await self._page(session, branch=turn, cursor=f"{turn}:{ALL}:{start}")
            if not page.turns:
                raise NotThere
            tokens, before = page.turns[0].tokens, page.turns[0].new_prompt_tokens
            logprobs += tokens.logprobs[max(0, before - start) :]
            start += len(tokens.input_ids)
            if page.cursor is None or not tokens.input_ids:
                return strip(logprobs)

    async def tokens(self, session: str, turn: str, chunk: int) -> ShownTokens:
        """A turn's tokens, those of this chunk and of some around it."""
        name = session, turn, chunk // CHUNKS_AT_ONCE
        self._forget()
        read = self._reads.get(name)
        if read is None:
            task = asyncio.create_task(self._read(*name))
            read = self._reads[name] = (self._clock(), task)
        try:
            return await asyncio.shield(read[1])
        except BaseException:
            # Whoever asks next tries again; a reader that went away alone breaks nothing off.
            if read[1].done() and self._reads.get(name) is read:
                del self._reads[name]
            raise

    def _forget(self) -> None:
        """What is old, and the oldest where there are many."""
        old = self._clock() - KEPT_SECONDS
        while self._reads:
            name, (at, task) = next(iter(self._reads.items()))
            if not task.done() or (at > old and len(self._reads) <= KEPT):
                return
            del self._reads[name]

    async def _read(self, session: str, turn: str, group: int) -> ShownTokens:
        first = group * CHUNKS_AT_ONCE * TOKENS_A_CHUNK
        page = await self._page(session, branch=turn, cursor=f"{turn}:{ALL}:{max(0, first - RUN_UP)}")
        if not page.turns:
            raise NotThere
        return part_of(page.turns[0].tokens, first, first + CHUNKS_AT_ONCE * TOKENS_A_CHUNK)

    async def _page(self, session: str, **asked: Any) -> Conversation:
        async with self._places[owner_of(session)]:
            return await anext(self._fleet.conversation(session, **asked))
