"""Calls that ask how long a prompt would be: matched and built as a turn's would be, and dropped.

They change nothing, so they are as reads are elsewhere: a pause and a drain hold none of them, a session goes stale in
spite of them, and no limit of turns or tokens counts for them. Only so many are built at once; turns wait for the same
threads.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import Executor
from typing import Final

from msgspec import Struct
from starlette.types import Receive, Send

from rolloutfleet.wire import JSON_MEDIA_TYPE
from rolloutfleet_proxy.capture.answering import ignored_header
from rolloutfleet_proxy.capture.bodies import Body, ClientLeft, read_body
from rolloutfleet_proxy.capture.endpoint import read_large, refused
from rolloutfleet_proxy.capture.pacing import Pace
from rolloutfleet_proxy.capture.prompting import Prompting, PromptJob
from rolloutfleet_proxy.capture.sampling import as_owned
from rolloutfleet_proxy.dialects.base import Reading, TurnRequest
from rolloutfleet_proxy.dialects.lineage_headers import read_lineage
from rolloutfleet_proxy.dialects.registry import DialectCall
from rolloutfleet_proxy.domain.errors import ContextExceeded, TooManyCounts
from rolloutfleet_proxy.http.errors import send_answer
from rolloutfleet_proxy.http.headers import Headers
from rolloutfleet_proxy.http.in_flight import Held, InFlight
from rolloutfleet_proxy.services.access import Access
from rolloutfleet_proxy.services.models import check_served
from rolloutfleet_proxy.sessions.calls import forget_frames
from rolloutfleet_proxy.sessions.registry import Session
from rolloutfleet_proxy.settings import SettingsInForce
from rolloutfleet_proxy.telemetry.metrics import Metrics

AT_ONCE: Final = 4


class Counting(Struct, frozen=True, kw_only=True):
    """Counts, whatever their dialect."""

    access: Access
    prompting: Prompting
    reading: Reading
    metrics: Metrics
    in_flight: InFlight
    pace: Pace
    large_bodies: Executor
    settings: SettingsInForce
    places: asyncio.Semaphore
    """Of those that are built at once."""

    async def __call__(self, asked: DialectCall, receive: Receive, send: Send) -> None:
        """Serve a request to its end; a failure becomes the dialect's error."""
        try:
            answer = await self._answer(asked, receive)
        except ClientLeft:
            return
        except Exception as error:
            answer = asked.dialect.answer_to(refused(error, self.metrics))
            forget_frames(error)
        with contextlib.suppress(OSError):
            await send_answer(answer, send)

    async def _answer(self, asked: DialectCall, receive: Receive) -> tuple[int, Headers, bytes]:
        session = await self.access.session(asked.needed_key(), asked.session)
        held = self.in_flight.hold()
        try:
            limit = self.settings.current.body_limit
            body = await read_body(receive, asked.headers, held, limit=limit, large_bodies=self.large_bodies)
            await self.pace.turn()
            if self.places.locked():
                raise TooManyCounts()
            async with self.places:
                request = await self._read(asked, body)
                tokens = await self._count(session, asked, request, held)
        finally:
            held.release()
        self.metrics.ignored(request.ignored)
        counted = asked.dialect.counted(tokens)
        head = [(b"content-type", JSON_MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(counted))]
        return 200, [*head, *ignored_header(request.ignored)], counted

    async def _read(self, asked: DialectCall, body: Body) -> TurnRequest:
        read = asked.dialect.read_to_count
        request: TurnRequest
        if body.is_large:
            loop = asyncio.get_running_loop()
            request = await loop.run_in_executor(self.large_bodies, read_large, read, body.content, self.reading)
        else:
            request = read(body.content, self.reading)
        if request.model is not None:
            check_served(request.model, self.settings.current, param=request.called("model"))
        return request

    async def _count(self, session: Session, asked: DialectCall, request: TurnRequest, held: Held) -> int:
        session = await self.access.still_open(session, asked.key)
        job = PromptJob(
            session=session,
            request=as_owned(request, session.sampling),
            lineage=session.lineages.seen(read_lineage(asked.headers).lineage),
            nbytes=held.nbytes,
        )
        try:
            return await self.prompting.length(job)
        except ContextExceeded as error:
            # What is too long to be encoded at all; a lower bound tells a client what it wants to know.
            if error.prompt_tokens is None:
                raise
            return error.prompt_tokens
