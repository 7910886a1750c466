"""The generation path, as a plain ASGI route for every dialect: find the session, read, join or start the call, answer.

FastAPI's model layer doubles what a call costs, so this route stands beside it. What a turn is made of is in `turn`;
how a caller waits for one and is answered in `answering`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace
from starlette.types import Receive, Send

from rolloutfleet.errors import CLIENT_GONE
from rolloutfleet.wire import IDEMPOTENCY_KEY_HEADER
from rolloutfleet_proxy.capture.answering import Answering, Waiter
from rolloutfleet_proxy.capture.bodies import Body, ClientLeft, read_body
from rolloutfleet_proxy.capture.pacing import Pace
from rolloutfleet_proxy.capture.retries import Attempt, digest_of, earlier
from rolloutfleet_proxy.capture.sampling import as_owned
from rolloutfleet_proxy.capture.turn import TurnMaker
from rolloutfleet_proxy.dialects.base import Reading, TurnRequest
from rolloutfleet_proxy.dialects.lineage_headers import lineage_of
from rolloutfleet_proxy.dialects.registry import DialectCall
from rolloutfleet_proxy.digests import digest16
from rolloutfleet_proxy.domain.errors import DomainError, InternalError
from rolloutfleet_proxy.domain.idempotency import keyed_call
from rolloutfleet_proxy.domain.lineage import Lineage
from rolloutfleet_proxy.domain.messages import Conversation
from rolloutfleet_proxy.domain.session import OPEN
from rolloutfleet_proxy.http.departures import RESET_INTERVAL, Callers
from rolloutfleet_proxy.http.errors import send_answer
from rolloutfleet_proxy.http.in_flight import Held, InFlight
from rolloutfleet_proxy.process.drain import Drains
from rolloutfleet_proxy.services.access import Access
from rolloutfleet_proxy.sessions.calls import Call, forget_frames
from rolloutfleet_proxy.sessions.registry import Session
from rolloutfleet_proxy.settings import SettingsInForce
from rolloutfleet_proxy.telemetry import logger
from rolloutfleet_proxy.telemetry.calls import CallFactory, ChatCall
from rolloutfleet_proxy.telemetry.ignored_fields import one_of_each
from rolloutfleet_proxy.telemetry.metrics import JOINED, REPLAYED, Metrics
from rolloutfleet_proxy.telemetry.request_ids import REQUEST_ID

_IDEMPOTENCY_KEY = IDEMPOTENCY_KEY_HEADER.lower()


@dataclass(frozen=True, slots=True)
class _Read:
    """A request as it has been read, and digests that tell it from others."""

    request: TurnRequest
    conversation: Conversation
    body: bytes | None
    """Of the body as it came and its API, where the call has a key."""


class Endpoint(Struct, frozen=True, kw_only=True):
    """Calls for turns, whatever their dialect."""

    access: Access
    maker: TurnMaker
    answering: Answering
    reading: Reading
    metrics: Metrics
    in_flight: InFlight
    drains: Drains
    pace: Pace
    large_bodies: Executor
    settings: SettingsInForce
    new_call: CallFactory = ChatCall
    callers: Callers = field(default_factory=Callers)

    async def __call__(self, asked: DialectCall, receive: Receive, send: Send) -> None:
        """Serve a request to its end; a failure becomes the dialect's error."""
        told = self.new_call(
            self.metrics,
            request_id=asked.headers.get(REQUEST_ID, ""),
            headers=asked.headers,
            api=asked.dialect.name,
            session_id=asked.session or "",
        )
        try:
            await self._serve(asked, told, receive, send)
        except ClientLeft:
            told.outcome = CLIENT_GONE
        except Exception as error:
            refusal = refused(error, self.metrics)
            told.outcome = refusal.code
            answer = asked.dialect.answer_to(refusal)
            if told.status < 0:
                told.status = answer[0]
            try:
                with contextlib.suppress(OSError):
                    await send_answer(answer, send)
            finally:
                forget_frames(error)
        finally:
            told.ended()

    async def _serve(self, asked: DialectCall, told: ChatCall, receive: Receive, send: Send) -> None:
        session = await self.access.session(asked.needed_key(), asked.session)
        told.session_id = session.name
        held = self.in_flight.hold()
        try:
            await self._answer(session, asked, held, told, receive, send)
        finally:
            held.release()

    async def _answer(
        self, session: Session, asked: DialectCall, held: Held, told: ChatCall, receive: Receive, send: Send
    ) -> None:
        came_before = not self.drains.holding
        body, large = await self._body(session, asked, held, told, receive)
        session = await self.access.still_open(session, asked.key)
        # Nothing is awaited between this and the call's beginning: a retry that comes meanwhile must find the call.
        read = large or self._read(session, asked, body)
        del body  # A call may last for minutes, and nobody reads it again.
        lineage, unusable = lineage_of(asked.headers, session.lineages)
        request = read.request
        if unusable:
            request = replace(request, ignored=(*request.ignored, *unusable))
        self.metrics.ignored(request.ignored)
        told.read(session.name, request)
        attempt = _attempt(asked, read, lineage)
        alike = (session.name, attempt.digest)
        found = earlier(session, attempt)
        while not isinstance(found, Call):
            left = alike in self.callers and asked.closed()
            if left:
                raise ClientLeft  # Who waits may be its own retry, which was read before it.
            if left is None:
                await asyncio.sleep(RESET_INTERVAL)
            elif not await self.callers.departed(alike):
                if found is not None or not self.drains.holds(let_in=attempt.marked or came_before):
                    break
                with session.calls.arriving(), told.held():
                    await self.drains.passed(partial(_is_over, session))
            session = await self.access.still_open(session, asked.key)
            lineage, _ = lineage_of(asked.headers, session.lineages)
            found = earlier(session, attempt)
        waiter = Waiter(asked, request, told, receive, send)
        with self.callers.waits(alike, asked.closed):
            if isinstance(found, int):
                told.role = REPLAYED
                await self.answering.replay(session, found, waiter)
                return
            if found is None:
                call = self.maker.begin(session, request, read.conversation, attempt, lineage, told.headers, held)
            else:
                told.role = JOINED
                call = found
            told.waits_for(call.turn_name, call.phases)
            await self.answering.wait(session, call, waiter)

    async def _body(
        self, session: Session, asked: DialectCall, held: Held, told: ChatCall, receive: Receive
    ) -> tuple[Body, _Read | None]:
        """The body, and what a large one says, which is read on a thread of its own."""
        with session.calls.arriving():
            marked = asked.is_retry or _IDEMPOTENCY_KEY in asked.headers
            if self.drains.holding and not marked and not session.may_be_asked_again:
                with told.held():
                    await self.drains.passed(partial(_is_over, session))  # held with its body unread
            limit = self.settings.current.body_limit
            body = await read_body(receive, asked.headers, held, limit=limit, large_bodies=self.large_bodies)
            large = None
            if body.is_large:
                loop = asyncio.get_running_loop()
                large = await loop.run_in_executor(self.large_bodies, self._read, session, asked, body)
            await self.pace.turn()
        return body, large

    def _read(self, session: Session, asked: DialectCall, body: Body) -> _Read:
        # The same bytes may be a call of another API: that is another call.
        of_body = digest16(body.content, asked.dialect.tells_bodies) if _IDEMPOTENCY_KEY in asked.headers else None
        read = asked.dialect.read
        said = read_large(read, body.content, self.reading) if body.is_large else read(body.content, self.reading)
        request = as_owned(said, session.sampling)
        return _Read(request, self.maker.prompting.digest(request), of_body)


def read_large(read: Callable[[bytes, Reading], TurnRequest], body: bytes, reading: Reading) -> TurnRequest:
    """What a large body says, for a thread of its own. What it ignores is made few, to be counted on the event loop."""
    request = read(body, reading)
    return replace(request, ignored=one_of_each(request.ignored))


def refused(error: Exception, metrics: Metrics) -> DomainError:
    """What a caller is told of an error, and the metrics with it."""
    if not isinstance(error, DomainError):
        logger.error("a call failed by an internal error", exc_info=error)
        error = InternalError()
    metrics.refused.labels(error.code).inc()
    return error


def _is_over(session: Session) -> bool:
    return session.state != OPEN


def _attempt(asked: DialectCall, read: _Read, lineage: Lineage) -> Attempt:
    keyed = keyed_call(asked.headers.get(_IDEMPOTENCY_KEY), scope="chat", body=b"")
    if keyed is not None and read.body is not None:
        return Attempt(read.body, keyed.key, asked.is_retry)
    return Attempt(digest_of(read.request, read.conversation, lineage), None, asked.is_retry)
