"""The generation path, as a plain ASGI route for every dialect: find the session, read, join or start the call, answer.

FastAPI's model layer doubles what a call costs, so this route stands beside it. What a turn is made of is in `turn`;
how a caller waits for one and is answered in `answering`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from msgspec import Struct
from msgspec.structs import replace
from starlette.types import Receive, Send

from rolloutfleet.errors import CLIENT_GONE
from rolloutfleet.wire import IDEMPOTENCY_KEY_HEADER
from rolloutfleet_proxy.capture import departures
from rolloutfleet_proxy.capture.answering import Answering, Waiter
from rolloutfleet_proxy.capture.bodies import ClientLeft, read_body
from rolloutfleet_proxy.capture.pacing import Pace
from rolloutfleet_proxy.capture.prompting import LARGE_REQUEST
from rolloutfleet_proxy.capture.retries import Attempt, earlier
from rolloutfleet_proxy.capture.sampling import as_owned
from rolloutfleet_proxy.capture.turn import TurnMaker
from rolloutfleet_proxy.dialects.base import Reading, TurnRequest
from rolloutfleet_proxy.dialects.lineage_headers import lineage_of
from rolloutfleet_proxy.dialects.registry import DialectCall
from rolloutfleet_proxy.digests import digest16
from rolloutfleet_proxy.domain.errors import DomainError, InternalError
from rolloutfleet_proxy.domain.idempotency import keyed_call
from rolloutfleet_proxy.domain.session import OPEN
from rolloutfleet_proxy.http.errors import send_answer
from rolloutfleet_proxy.http.in_flight import Held, InFlight
from rolloutfleet_proxy.lifecycle.sealing import Seals
from rolloutfleet_proxy.process.drain import Drains
from rolloutfleet_proxy.refusals import ended
from rolloutfleet_proxy.services.access import Access
from rolloutfleet_proxy.sessions.calls import forget_frames
from rolloutfleet_proxy.sessions.registry import Session
from rolloutfleet_proxy.settings import SettingsInForce
from rolloutfleet_proxy.telemetry import logger
from rolloutfleet_proxy.telemetry.calls import ChatCall
from rolloutfleet_proxy.telemetry.metrics import JOINED, REPLAYED, Metrics, one_of_each
from rolloutfleet_proxy.telemetry.request_ids import REQUEST_ID

_IDEMPOTENCY_KEY = IDEMPOTENCY_KEY_HEADER.lower()


class Endpoint(Struct, frozen=True, kw_only=True):
    """Calls for turns, whatever their dialect."""

    access: Access
    maker: TurnMaker
    answering: Answering
    reading: Reading
    metrics: Metrics
    in_flight: InFlight
    drains: Drains
    seals: Seals
    pace: Pace
    large_bodies: Executor
    settings: SettingsInForce

    async def __call__(self, asked: DialectCall, receive: Receive, send: Send) -> None:
        """Serve a request to its end; a failure becomes the dialect's error."""
        told = ChatCall(self.metrics, request_id=asked.headers.get(REQUEST_ID, ""), session_id=asked.session or "")
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
        body, attempt, request = await self._body(session, asked, held, told, receive)
        session = await self._open(session, asked.key)
        # Nothing is awaited between this and the call's beginning: a retry that comes meanwhile must find the call.
        if attempt is None:
            attempt = _attempt(asked, body)
        lineage, unusable = lineage_of(asked.headers, session.lineages)
        found = earlier(session, attempt)
        if request is None:
            request = asked.dialect.read(body, self.reading)
        if unusable:
            request = replace(request, ignored=(*request.ignored, *unusable))
        self.metrics.fields_ignored.count(request.ignored)
        request = as_owned(request, session.sampling)
        told.read(session_id=session.name, messages=len(request.messages), stream=request.stream)
        del body  # A call may last for minutes, and nobody reads it again.
        while found is None and self.drains.holds(retry=attempt.marked):
            with session.calls.arriving(), told.held():
                await self.drains.passed(partial(_is_over, session))
            session = await self._open(session, asked.key)
            lineage, _ = lineage_of(asked.headers, session.lineages)
            found = earlier(session, attempt)
        waiter = Waiter(asked.dialect, request, told, receive, send)
        if isinstance(found, int):
            told.role = REPLAYED
            await self.answering.replay(session, found, waiter)
            return
        if found is None:
            call = self.maker.begin(session, request, attempt, lineage, asked.headers, held)
        else:
            told.role = JOINED
            call = found
        told.waits_for(call.turn_name, call.phases)
        await self.answering.wait(session, call, waiter)

    async def _body(
        self, session: Session, asked: DialectCall, held: Held, told: ChatCall, receive: Receive
    ) -> tuple[bytes, Attempt | None, TurnRequest | None]:
        """The body, and what a large one says, which is read on a thread of its own."""
        with session.calls.arriving():
            if self.drains.holding and _IDEMPOTENCY_KEY not in asked.headers and not asked.is_retry:
                with told.held():
                    await self.drains.passed(partial(_is_over, session))  # held with its body unread
            body = await read_body(receive, asked.headers, held, limit=self.settings.current.body_limit)
            is_large = len(body) >= LARGE_REQUEST
            attempt, request = await self._read_apart(asked, body) if is_large else (None, None)
            await self.pace.turn()
            if asked.is_retry:
                await departures.noted()
        return body, attempt, request

    async def _read_apart(self, asked: DialectCall, body: bytes) -> tuple[Attempt, TurnRequest]:
        loop = asyncio.get_running_loop()
        attempt = await loop.run_in_executor(self.large_bodies, _attempt, asked, body)
        return attempt, await loop.run_in_executor(
            self.large_bodies, read_large, asked.dialect.read, body, self.reading
        )

    async def _open(self, session: Session, key: str | None) -> Session:
        """The session, once no sweep holds it. Raises what `ended` says where it is over, and as `Access.session`."""
        while session.name in self.seals:
            await self.seals.opened(session.name)
            session = await self.access.session(key, session.name)
        if session.state != OPEN:
            raise ended(session)
        return session


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


def _attempt(asked: DialectCall, body: bytes) -> Attempt:
    keyed = keyed_call(asked.headers.get(_IDEMPOTENCY_KEY), scope="chat", body=b"")
    return Attempt(body=digest16(body), idempotency_key=None if keyed is None else keyed.key, marked=asked.is_retry)
