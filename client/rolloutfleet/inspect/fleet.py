"""What is shown of a fleet, by the same API that everybody has. The admin key stays in this process."""

import asyncio
import contextlib
import shlex
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from rolloutfleet.fleet import AsyncFleet, Event, FleetError, Gone, KeyRefused, NotKnown
from rolloutfleet.fleet.proxies import owner_of
from rolloutfleet.inspect.documents import (
    TOKENS_A_CHUNK,
    chunk_document,
    newest,
    session_of_status,
    strip,
    tree_document,
    turn_document,
)
from rolloutfleet.inspect.listing import Listing
from rolloutfleet.inspect.looking import Looking
from rolloutfleet.inspect.names import is_name, is_session_id
from rolloutfleet.inspect.reading import ConversationReader
from rolloutfleet.inspect.sampling import LiveFigures
from rolloutfleet.inspect.sources import Json, NotNow, NotThere
from rolloutfleet.inspect.tabs import Tabs

FOLLOWED_AGAIN: Final = 10.0
"""Seconds after which events are asked for again, where a proxy let nobody in."""
FIGURES_WANTED: Final = 5.0
"""Seconds after a look at them for which figures are renewed: an overview asks each second."""
FIRST_WAIT: Final = 5.0
"""Seconds that a first page waits for a first answer."""


class FleetSource:
    """A `Source`. `running` keeps it up to date; without, `refresh` reads it once."""

    def __init__(self, fleet: AsyncFleet, tabs: Tabs, clock: Callable[[], float]) -> None:
        self._fleet, self._tabs, self.live = fleet, tabs, False
        self._looking = Looking(clock)
        self._overseen = Looking(clock, enough=FIGURES_WANTED)
        self._figures = LiveFigures(fleet, self._overseen)
        self._listing = Listing(fleet, self._looking, lambda: tabs.tell("sessions", {}), clock)
        self._reader = ConversationReader(fleet, clock)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """What is shown follows the fleet meanwhile."""
        self.live = True
        async with asyncio.TaskGroup() as group:
            works = (self._figures.keep(), self._listing.keep(), self._follow())
            tasks = [group.create_task(work) for work in works]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    async def refresh(self) -> None:
        """Figures over a second, and the list."""
        await asyncio.gather(self._figures.take(), self._listing.refresh())
        await asyncio.sleep(1.0)
        await self._figures.take()

    def seen(self) -> None:
        self._looking.now()

    async def overview(self) -> Json:
        self._overseen.now()
        await self._seen(self._figures.first)
        return {
            "source": "fleet",
            **self._figures.shown.as_json(),
            "failed": {**self._listing.failed, **self._figures.shown.failed},
            "trouble": self._figures.trouble or self._listing.trouble,
            **newest(self._listing.lines()),
            "complete": self._listing.complete,
            "unreadable": [],
        }

    async def sessions(self) -> tuple[list[Json], bool]:
        await self._seen(self._listing.first)
        return self._listing.lines(), self._listing.complete

    async def tree(self, key: str) -> Json:
        self.seen()
        session = _session(key)
        with _asked():
            status, turns = await asyncio.gather(self._fleet.status(session), self._reader.outline(session))
        return tree_document(session_of_status(status) | {"metadata": status.metadata}, turns)

    async def turn(self, key: str, turn: str) -> Json:
        with _asked():
            found = await self._reader.turn(_session(key), _turn(turn))
        own = found.new_prompt_tokens + found.completion_tokens
        whole = len(found.tokens.input_ids) >= own
        return turn_document(
            found, tokens=own, strip=strip(found.tokens.logprobs[found.new_prompt_tokens :]) if whole else None
        )

    async def strip(self, key: str, turn: str) -> Json:
        with _asked():
            return {"strip": await self._reader.strip(_session(key), _turn(turn))}

    async def chunk(self, key: str, turn: str, number: int) -> Json:
        with _asked():
            tokens = await self._reader.tokens(_session(key), _turn(turn), number)
        if tokens.start + len(tokens.input_ids) <= TOKENS_A_CHUNK * number:
            raise NotThere
        return chunk_document(tokens, number)

    async def command(self, key: str) -> str | None:
        if not self._figures.first.is_set():
            self._overseen.now()
        await self._seen(self._figures.first)
        url = self._figures.url_of(owner_of(_session(key)) or 0)
        if url is None:
            return None
        return (
            'curl --header "Authorization: Bearer $ROLLOUTFLEET_ADMIN_KEY" '
            f"{shlex.quote(f'{url}/sessions/{key}/conversation')}"
        )

    async def _seen(self, first: asyncio.Event) -> None:
        """Somebody looks; at the start a moment goes by until there is something to see."""
        self.seen()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_WAIT):
                await first.wait()

    async def _follow(self) -> None:
        """One reader a proxy, whatever the number of tabs."""
        while True:
            with contextlib.suppress(FleetError):
                async with self._fleet.events() as events:
                    self._tabs.tell("reset", {})
                    async for event in events:
                        self._tell(event)
            await asyncio.sleep(FOLLOWED_AGAIN)

    def _tell(self, event: Event) -> None:
        if event.commit is None:
            self._tabs.tell("reset", {})
            return
        commit = event.commit
        self._listing.touch(commit.session_id)
        told = {"session_id": commit.session_id, "turn_id": commit.turn_id, "parent_id": commit.parent_id}
        self._tabs.tell("commit", {"ordinal": event.ordinal, "key": commit.session_id, **told})


def _session(key: str) -> str:
    if not is_session_id(key):
        raise NotThere
    return key


def _turn(name: str) -> str:
    if not is_name(name):
        raise NotThere
    return name


@contextlib.contextmanager
def _asked() -> Iterator[None]:
    """What a fleet answers, in the words of a source."""
    try:
        yield
    except (NotKnown, Gone) as error:
        raise NotThere(error.said) from None
    except KeyRefused:
        raise NotNow("the fleet does not take the admin key that `rolloutfleet inspect` was started with") from None
    except FleetError as error:
        raise NotNow(str(error)) from None
