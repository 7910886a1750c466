"""Turns as the proxies commit them: one stream of each, opened again whenever it ends.

A stream goes on behind the last turn that was seen, so a restart loses nothing. Events wait in a queue with room for a
few hundred. Where nobody takes them no more are read, and a proxy that has gone on too far says so.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final, Self

from pydantic import ValidationError

from rolloutfleet.fleet.exceptions import FleetError, Refused, Unreachable
from rolloutfleet.fleet.proxies import REFRESH_INTERVAL, Proxies
from rolloutfleet.fleet.retries import wait_before_retry
from rolloutfleet.tasks import end_tasks
from rolloutfleet.wire import EVENTS_MEDIA_TYPE, LAST_EVENT_ID_HEADER, CommittedTurn

log = logging.getLogger("rolloutfleet.fleet")

MOST_WAITING: Final = 256
SILENCE: Final = 45.0
"""Seconds without a line, after which a stream is opened anew: a proxy sends one every 15 s."""
FIRST_WAIT: Final = 5.0
"""Seconds that proxies have to answer in before the block of `async with` begins."""


@dataclass(frozen=True, slots=True)
class Event:
    """A turn that a proxy committed; or None where some were missed: read again what you know of its sessions."""

    ordinal: int
    commit: CommittedTurn | None


@dataclass(slots=True)
class _Stream:
    """What is known of one proxy's."""

    last: str = ""
    """The id of the last event."""
    failures: int = 0
    opened: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False, repr=False)
class AsyncEvents(AsyncIterator[Event]):
    """`async with fleet.events() as events: async for event in events: …`

    What is committed within the block comes, also at proxies that restart, or that are new. Raises Refused where a
    proxy does not let it in; eight may follow one.
    """

    _proxies: Proxies
    _waiting: asyncio.Queue[Event | FleetError] = field(default_factory=lambda: asyncio.Queue(MOST_WAITING), init=False)
    _streams: dict[int, _Stream] = field(default_factory=dict, init=False)
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _watching: asyncio.Task[None] | None = field(default=None, init=False)

    @property
    def waiting(self) -> int:
        """Events that have come and were not taken."""
        return self._waiting.qsize()

    async def __aenter__(self) -> Self:
        await self._follow_all()
        self._watching = asyncio.create_task(self._watch())
        first = [asyncio.create_task(stream.opened.wait()) for stream in self._streams.values()]
        _, late = await asyncio.wait(first, timeout=FIRST_WAIT) if first else ((), ())
        for each in late:
            each.cancel()
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_tasks([*self._tasks.values(), *([self._watching] if self._watching is not None else [])])

    async def __anext__(self) -> Event:
        found = await self._waiting.get()
        if isinstance(found, FleetError):
            raise found
        return found

    async def _watch(self) -> None:
        """Follow proxies that come, and none that are gone."""
        while True:
            await asyncio.sleep(REFRESH_INTERVAL)
            try:
                await self._follow_all()
            except FleetError as error:
                log.debug("the proxies are not known now: %s", error)

    async def _follow_all(self) -> None:
        known = await self._proxies.ordinals()
        for ordinal in known:
            if ordinal not in self._tasks:
                stream = self._streams.setdefault(ordinal, _Stream())
                self._tasks[ordinal] = asyncio.create_task(self._follow(ordinal, stream))
        for ordinal in [each for each in self._tasks if each not in known]:
            self._tasks.pop(ordinal).cancel()

    async def _follow(self, ordinal: int, stream: _Stream) -> None:
        while True:
            failure: FleetError = Unreachable(f"proxy {ordinal} ended the stream")
            try:
                await self._read(ordinal, stream)
            except FleetError as error:
                failure = error
            stream.opened.set()
            wait = wait_before_retry(failure, attempt=stream.failures, chance=random.random())
            # A proxy may not know yet that the connection before has broken.
            full = isinstance(failure, Refused) and failure.status == 429 and not stream.last
            if wait is None or full:
                await self._waiting.put(failure)
                return
            stream.failures += 1
            await asyncio.sleep(wait)

    async def _read(self, ordinal: int, stream: _Stream) -> None:
        headers = {"accept": EVENTS_MEDIA_TYPE}
        if stream.last:
            headers[LAST_EVENT_ID_HEADER] = stream.last
        event: dict[str, str] = {}
        async with self._proxies.stream(ordinal, "/events", headers=headers, silence=SILENCE) as answer:
            async for line in answer.aiter_lines():
                name, _, value = line.partition(":")
                if name:
                    event[name] = value.removeprefix(" ")
                elif not line:
                    await self._take(ordinal, stream, event)
                    event = {}

    async def _take(self, ordinal: int, stream: _Stream, event: dict[str, str]) -> None:
        """One block of a stream."""
        stream.failures = 0
        match event.get("event"):
            case "commit":
                await self._waiting.put(Event(ordinal, _commit(event.get("data", ""))))
            case "reset":
                await self._waiting.put(Event(ordinal, None))
        stream.last = event.get("id", stream.last)
        stream.opened.set()


def _commit(data: str) -> CommittedTurn:
    try:
        return CommittedTurn.model_validate_json(data)
    except ValidationError:
        raise FleetError("a proxy sent something else than an event") from None
