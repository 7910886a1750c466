"""How a caller waits for a turn and is answered, in its dialect: whole, streamed as it is made, or given again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct
from starlette.types import Receive, Send

from rolloutfleet.wire import JSON_MEDIA_TYPE
from rolloutfleet_proxy.capture.bodies import ClientLeft, left
from rolloutfleet_proxy.dialects.base import Dialect, Encoder, TokenBytes, TurnRequest
from rolloutfleet_proxy.dialects.registry import DialectCall
from rolloutfleet_proxy.domain.events import Committed, Event, Failed, events_of
from rolloutfleet_proxy.engine.generation import STRUCTURAL_TAG
from rolloutfleet_proxy.http.headers import Headers
from rolloutfleet_proxy.services.receipts import Receipts
from rolloutfleet_proxy.services.sessions import SessionService
from rolloutfleet_proxy.services.turns import TurnService
from rolloutfleet_proxy.sessions.calls import Call, Listener
from rolloutfleet_proxy.sessions.registry import Session
from rolloutfleet_proxy.settings import SettingsInForce
from rolloutfleet_proxy.telemetry import ignored_fields
from rolloutfleet_proxy.telemetry.calls import ChatCall
from rolloutfleet_proxy.telemetry.metrics import Metrics

IGNORED = b"x-rolloutfleet-ignored"
"""Header of an answer: the request's fields that had no effect."""
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True)
class Waiter:
    """One caller, and what it asked."""

    asked: DialectCall
    request: TurnRequest
    told: ChatCall
    receive: Receive
    send: Send

    @property
    def dialect(self) -> Dialect[Any]:
        return self.asked.dialect


class Answering(Struct, frozen=True, kw_only=True):
    """Answers callers."""

    turns: TurnService
    receipts: Receipts
    metrics: Metrics
    token_bytes: TokenBytes
    settings: SettingsInForce
    sessions: SessionService

    async def replay(self, session: Session, number: int, waiter: Waiter) -> None:
        """Give a committed turn again."""
        self.turns.give(session, number)
        handed_over = False
        try:
            turn = await self.turns.again(session, number)
            ids = await self.turns.prompt_ids(session, number) if waiter.request.token_ids else None
            self.sessions.note_use(session)
            ignored = self._ignored(waiter.request, tools_unconstrained=turn.extras.constrained != STRUCTURAL_TAG)
            encoder = self._encoder(waiter)
            if waiter.request.stream:
                await _begin(waiter, [*_STREAM_HEADERS, *ignored])
                await _send(waiter, b"".join(map(encoder.encode, events_of(turn, ids))), last=True)
            else:
                await _send_whole(waiter, encoder.whole(Committed(turn, ids)), ignored)
            waiter.told.answered(turn)
            handed_over = await self._hand_over(session, number, waiter)
        finally:
            if not handed_over:
                self.turns.lost(session, number)

    async def wait(self, session: Session, call: Call, waiter: Waiter) -> None:
        """Answer a caller as its call goes on. Raises ClientLeft, and the call's error where nothing has been sent."""
        call.join()
        if call.number is not None:
            self.turns.give(session, call.number)
        handed_over = False
        leaving = asyncio.ensure_future(left(waiter.receive))
        patience = waiter.dialect.silence_after or self.settings.current.stream_comment
        try:
            with contextlib.closing(call.listen(patience=patience if waiter.request.stream else None)) as listener:
                leaving.add_done_callback(listener.wake)
                if waiter.request.stream:
                    await self._stream(call, waiter, listener, leaving)
                else:
                    await self._whole(call, waiter, listener, leaving)
            if isinstance(call.ending, Committed):
                handed_over = await self._hand_over(session, call.ending.turn.number, waiter)
        finally:
            leaving.cancel()
            call.leave(grace=self.settings.current.sessions.retry_grace)
            if call.number is not None and call.abandoned and not handed_over:
                self.turns.lost(session, call.number)

    async def _whole(self, call: Call, waiter: Waiter, listener: Listener, leaving: asyncio.Future[None]) -> None:
        while call.ending is None:
            await listener.wait()
            if leaving.done():
                raise ClientLeft
            if call.ending is None and call.stalled is not None:
                raise call.stalled
        if isinstance(call.ending, Failed):
            raise call.ending.error
        ignored = self._ignored(waiter.request, tools_unconstrained=call.tools_unconstrained)
        await _send_whole(waiter, self._encoder(waiter).whole(call.ending), ignored)
        waiter.told.answered(call.ending.turn)

    async def _stream(self, call: Call, waiter: Waiter, listener: Listener, leaving: asyncio.Future[None]) -> None:
        """Send events as they come, and what keeps the connection alive while there are none.

        The status waits for the first of either, so that what fails before it is an ordinary HTTP error.
        """
        encoder = self._encoder(waiter)
        begun, sent, still = False, 0, False
        ending: Committed | Failed | None = None
        while ending is None:
            woken = await listener.wait(still=still)
            if leaving.done():
                raise ClientLeft
            ending = call.ending or (None if call.stalled is None else Failed(call.stalled))
            if isinstance(ending, Failed):
                if not begun:
                    raise ending.error
                self.metrics.refused.labels(ending.error.code).inc()
                waiter.told.outcome = ending.error.code
            events, sent = _since(call, sent, ending), len(call.events)
            data = b"".join(map(encoder.encode, events))
            if not data and not woken and (begun or not call.unreachable):
                data = encoder.silence()
            still = woken and not data
            if data and not begun:
                ignored = self._ignored(waiter.request, tools_unconstrained=call.tools_unconstrained)
                await _begin(waiter, [*_STREAM_HEADERS, *ignored])
                begun = True
            if data:
                await _send(waiter, data, last=ending is not None)
        if isinstance(ending, Committed):
            waiter.told.answered(ending.turn)

    async def _hand_over(self, session: Session, number: int, waiter: Waiter) -> bool:
        """Wait for the last byte to leave; False where the connection was lost before. Where it went to another proxy,
        what became of it is said by a receipt."""
        receipt = waiter.asked.receipt
        if receipt is not None:
            self.receipts.expect(receipt, session, number)
        has_left = await waiter.asked.emptied()
        if receipt is None and has_left:
            self.turns.arrived(session, number)
        elif receipt is not None and not has_left:
            self.receipts.drop(receipt)
        return has_left

    def _ignored(self, request: TurnRequest, *, tools_unconstrained: bool) -> Headers:
        """Names what has no effect, as far as that is known when the status leaves."""
        paths = request.ignored
        if tools_unconstrained and request.calls is not None:
            paths = (*paths, *request.calls.wishes)
        return ignored_header(paths)

    def _encoder(self, waiter: Waiter) -> Encoder:
        return waiter.dialect.encoder(waiter.request, model=self.settings.current.model, token_bytes=self.token_bytes)


def ignored_header(paths: Sequence[str]) -> Headers:
    """The header that names a caller's fields without effect, if there are any."""
    return [(IGNORED, ", ".join(ignored_fields.names(paths)).encode())] if paths else []


async def _send_whole(waiter: Waiter, body: bytes, ignored: Headers) -> None:
    length = (b"content-length", b"%d" % len(body))
    await _begin(waiter, [(b"content-type", JSON_MEDIA_TYPE.encode()), length, *ignored])
    await _send(waiter, body, last=True)


async def _begin(waiter: Waiter, headers: Headers) -> None:
    waiter.told.status = 200
    await waiter.send({"type": "http.response.start", "status": 200, "headers": headers})


async def _send(waiter: Waiter, data: bytes, *, last: bool) -> None:
    await waiter.send({"type": "http.response.body", "body": data, "more_body": not last})


def _since(call: Call, sent: int, ending: Committed | Failed | None) -> Iterable[Event]:
    """The events that a stream has not sent. A call that was asked for whole has no deltas: its turn has them."""
    if not call.streams and isinstance(ending, Committed):
        return events_of(ending.turn, ending.prompt_ids, begun=sent > 0)
    return call.events[sent:] if call.ending is ending or ending is None else [*call.events[sent:], ending]
