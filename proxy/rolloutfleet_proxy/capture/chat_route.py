"""The generation path, as a plain ASGI route: read, find the session, join or start the call, answer.

FastAPI's model layer doubles what a call costs, so this route stands beside it. What a turn is made of is in
`turn`; this module deals with the people who wait for one.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from rolloutfleet.errors import CLIENT_GONE
from rolloutfleet.wire import JSON_MEDIA_TYPE
from rolloutfleet_proxy.api.access import session_with_key
from rolloutfleet_proxy.capture import departures, turn
from rolloutfleet_proxy.capture.retries import Attempt, earlier
from rolloutfleet_proxy.chat.request import ChatRequest, Reading, body_digest, parse_chat
from rolloutfleet_proxy.domain.errors import BodyTooLarge, DomainError, InternalError
from rolloutfleet_proxy.engines.generation import STRUCTURAL_TAG
from rolloutfleet_proxy.http.errors import body_of, send_error, status_of
from rolloutfleet_proxy.memory.body_limit import declared_length
from rolloutfleet_proxy.memory.in_flight import Held
from rolloutfleet_proxy.proxy import Proxy
from rolloutfleet_proxy.refusals import ended
from rolloutfleet_proxy.sessions.auth import presented_key
from rolloutfleet_proxy.sessions.calls import Call, Listener, forget_frames
from rolloutfleet_proxy.sessions.idempotency import keyed_call
from rolloutfleet_proxy.sessions.sessions import OPEN, Session
from rolloutfleet_proxy.telemetry import logger
from rolloutfleet_proxy.telemetry.calls import ChatCall
from rolloutfleet_proxy.telemetry.metrics import JOINED, REPLAYED
from rolloutfleet_proxy.telemetry.request_ids import request_id
from rolloutfleet_proxy.turns.rows import Turn, load_turn, set_delivered

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_PATH = re.compile(r"^(?:/sessions/([^/]+))?/v1/chat/completions$")
_RETRIED = re.compile(r"0*[1-9][0-9]*")
RETRY_COUNT = "x-stainless-retry-count"
IGNORED = b"x-rolloutfleet-ignored"
"""Header of an answer: the request's fields that had no effect."""
_COMMENT = b": waiting for the engine\n\n"
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ClientLeft(Exception):
    """The connection was closed before the answer was complete."""


def serves(scope: Scope) -> bool:
    """Whether a request is for this route."""
    return scope["type"] == "http" and scope["method"] == "POST" and _PATH.match(scope["path"]) is not None


def is_retry(scope: Scope) -> bool:
    """Whether a request's SDK says that it asks again."""
    named = RETRY_COUNT.encode()
    return any(name == named and _RETRIED.fullmatch(value.decode("latin-1")) for name, value in scope["headers"])


class ChatRoute:
    """`POST /sessions/{id}/v1/chat/completions`, and the same under /v1 by the session's key."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._reading = Reading(
            strict=proxy.settings.compatibility.requests == "strict",
            takes_effort=proxy.chat_format.takes("reasoning_effort"),
            vocabulary_size=proxy.chat_format.vocabulary_size,
            holds_calls=proxy.chat_format.holds_calls,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = _PATH.match(scope["path"])
        assert named is not None
        told = ChatCall(self._proxy.metrics, request_id=request_id(scope), session_id=named[1] or "")
        try:
            await self._serve(scope, named[1], told, receive, send)
        except ClientLeft:
            told.outcome = CLIENT_GONE
        except Exception as error:
            refused = self._refused(error)
            told.outcome = refused.code
            if told.status < 0:
                told.status = status_of(refused)
            try:
                with contextlib.suppress(OSError):
                    await send_error(refused, send)
            finally:
                forget_frames(error)
        finally:
            told.ended()

    async def _serve(self, scope: Scope, name: str | None, told: ChatCall, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        key = presented_key(headers)
        session = await session_with_key(self._proxy, key, name)
        told.session_id = session.name
        held = self._proxy.in_flight.hold()
        try:
            await self._answer(session, key, headers, held, told, receive, send)
        finally:
            held.release()

    async def _answer(
        self,
        session: Session,
        key: str | None,
        headers: dict[str, str],
        held: Held,
        told: ChatCall,
        receive: Receive,
        send: Send,
    ) -> None:
        drains = self._proxy.drains
        with session.calls.arriving():
            if drains.holding and "idempotency-key" not in headers and not _is_retry(headers):
                with told.held():
                    await drains.passed(partial(_is_over, session))  # held with its body unread
            body = await _read_body(receive, headers, held, limit=self._proxy.settings.body_limit)
            read = await self._read_apart(headers, body) if len(body) >= turn.LARGE_REQUEST else None
            await self._proxy.pace.turn()
            if _is_retry(headers):
                await departures.noted()
        session = await self._open(session, key)
        # Nothing is awaited between this and the call's beginning: a retry that comes meanwhile must find the call.
        attempt = read[0] if read else _attempt(headers, body)
        found = earlier(session, attempt)
        request = read[1] if read else parse_chat(body, self._reading)
        self._proxy.metrics.fields_ignored.count(request.ignored)
        told.read(session_id=session.name, messages=len(request.messages), stream=request.stream)
        del body, read  # A call may last for minutes, and nobody reads these again.
        while found is None and drains.holds(retry=attempt.marked):
            with session.calls.arriving(), told.held():
                await drains.passed(partial(_is_over, session))
            session = await self._open(session, key)
            found = earlier(session, attempt)
        if isinstance(found, int):
            told.role = REPLAYED
            await self._replay(session, found, request, told, send)
            return
        if found is None:
            call = turn.begin(self._proxy, session, request, attempt, headers, held)
        else:
            told.role = JOINED
            call = found
        told.waits_for(call.turn_name, call.phases)
        await self._wait(session, call, request, told, receive, send)

    async def _open(self, session: Session, key: str | None) -> Session:
        """The session, once no sweep holds it. Raises what `ended` says where it is over, and as `session_with_key`."""
        while session.name in self._proxy.seals:
            await self._proxy.seals.opened(session.name)
            session = await session_with_key(self._proxy, key, session.name)
        if session.state != OPEN:
            raise ended(session)
        return session

    async def _read_apart(self, headers: dict[str, str], body: bytes) -> tuple[Attempt, ChatRequest]:
        loop, thread = asyncio.get_running_loop(), self._proxy.large_bodies
        attempt = await loop.run_in_executor(thread, _attempt, headers, body)
        return attempt, await loop.run_in_executor(thread, parse_chat, body, self._reading)

    def _ignored(self, request: ChatRequest, *, tools_unconstrained: bool) -> Headers:
        """Names what has no effect, as far as that is known when the status leaves."""
        paths = request.ignored
        if tools_unconstrained and request.calls is not None:
            paths = (*paths, *request.calls.wishes)
        names = self._proxy.metrics.fields_ignored.names(paths)
        return [(IGNORED, ", ".join(names).encode())] if names else []

    async def _replay(self, session: Session, number: int, request: ChatRequest, told: ChatCall, send: Send) -> None:
        """Give a committed turn again, from its row."""
        made = await self._proxy.reader.run(lambda connection: load_turn(connection, session.id, number))
        if made is None:
            raise ended(session)
        self._note_delivery(session, number, delivered=True)
        self._proxy.note_use(session)
        answers = self._proxy.answers
        told.status = 200
        ignored = self._ignored(request, tools_unconstrained=made.constrained != STRUCTURAL_TAG)
        if request.stream:
            headers = [*_STREAM_HEADERS, *ignored]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": answers.whole_stream(made, request)})
        else:
            await _send_json(send, answers.completion(made, request), ignored)
        _note_answered(told, made)

    async def _wait(
        self,
        session: Session,
        call: Call,
        request: ChatRequest,
        told: ChatCall,
        receive: Receive,
        send: Send,
    ) -> None:
        call.join()
        leaving = asyncio.ensure_future(_left(receive))
        try:
            if call.events is not None:
                await self._stream(call, request, told, leaving, send)
            else:
                await self._complete(call, request, told, leaving, send)
        except ClientLeft:
            if call.outcome.done() and call.waiters == 1 and call.outcome.exception() is None:
                self._note_delivery(session, call.outcome.result().number, delivered=False)
            raise
        finally:
            leaving.cancel()
            call.leave(grace=self._proxy.settings.sessions.retry_grace)

    async def _complete(
        self, call: Call, request: ChatRequest, told: ChatCall, leaving: "asyncio.Future[None]", send: Send
    ) -> None:
        listener = call.listen()
        leaving.add_done_callback(listener.wake)
        await listener.wait()
        if leaving.done():
            raise ClientLeft
        made = call.outcome.result()
        told.status = 200
        ignored = self._ignored(request, tools_unconstrained=call.tools_unconstrained)
        await _send_json(send, self._proxy.answers.completion(made, request), ignored)
        _note_answered(told, made)

    async def _stream(
        self, call: Call, request: ChatRequest, told: ChatCall, leaving: "asyncio.Future[None]", send: Send
    ) -> None:
        """Send events as they come, and comments while there are none.

        The status waits for the first of either, so that what fails before it is an ordinary HTTP error.
        """
        with contextlib.closing(call.listen(patience=self._proxy.settings.stream_comment)) as listener:
            leaving.add_done_callback(listener.wake)
            await self._send_events(call, request, told, leaving, listener, send)

    async def _send_events(
        self,
        call: Call,
        request: ChatRequest,
        told: ChatCall,
        leaving: "asyncio.Future[None]",
        listener: Listener,
        send: Send,
    ) -> None:
        assert call.events is not None
        started = False
        sent = 0
        while True:
            woken = await listener.wait()
            if leaving.done():
                raise ClientLeft
            ended = call.outcome.done()
            news = b"".join(call.events[sent:])
            sent = len(call.events)
            error = call.outcome.exception() if ended else None
            if error is not None:
                if not started:
                    raise error
                refused = self._refused(error)
                told.outcome = refused.code
                news += b"data: " + body_of(refused) + b"\n\n"
            elif not news and not woken and not ended:
                news = _COMMENT
            if news and not started:
                started = True
                told.status = 200
                headers = [*_STREAM_HEADERS, *self._ignored(request, tools_unconstrained=call.tools_unconstrained)]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            if news or ended:
                await send({"type": "http.response.body", "body": news, "more_body": not ended})
            if ended:
                if error is None:
                    _note_answered(told, call.outcome.result())
                return

    def _refused(self, error: BaseException) -> DomainError:
        """What a caller is told of an error, which is counted here, and logged where it is a mistake of ours."""
        if not isinstance(error, DomainError):
            logger.error("a chat call failed by a mistake of ours", exc_info=error)
            error = InternalError()
        self._proxy.metrics.refused.labels(error.code).inc()
        return error

    def _note_delivery(self, session: Session, number: int, *, delivered: bool) -> None:
        brief = session.briefs.get(number)
        if brief is None or brief.delivered == delivered:
            return
        brief.delivered = delivered
        self._proxy.write_soon(lambda transaction: set_delivered(transaction, session.id, number, delivered))


def _note_answered(told: ChatCall, made: Turn) -> None:
    told.answered(made.name, prompt_tokens=made.prompt_tokens, completion_tokens=len(made.output_ids))


def _is_over(session: Session) -> bool:
    return session.state != OPEN


def _is_retry(headers: dict[str, str]) -> bool:
    """Whether the caller's SDK says that it asks again."""
    return _RETRIED.fullmatch(headers.get(RETRY_COUNT, "")) is not None


def _attempt(headers: dict[str, str], body: bytes) -> Attempt:
    keyed = keyed_call(headers.get("idempotency-key"), scope="chat", body=b"")
    return Attempt(
        body=body_digest(body),
        idempotency_key=None if keyed is None else keyed.key,
        marked=_is_retry(headers),
    )


async def _read_body(receive: Receive, headers: dict[str, str], held: Held, *, limit: int) -> bytes:
    """Raises BodyTooLarge and TooManyInFlight, and reads no further then."""
    held.expect(declared_length(headers.get("content-length", ""), limit=limit))
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientLeft
    held.add(len(message["body"]))
    if not message.get("more_body"):
        return _within(message["body"], limit)
    body = bytearray(message["body"])
    while message.get("more_body"):
        _within(body, limit)
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        held.add(len(message.get("body", b"")))
        body += message.get("body", b"")
    return _within(bytes(body), limit)


def _within(body: Any, limit: int) -> bytes:
    if len(body) > limit:
        raise BodyTooLarge(limit)
    return body  # type: ignore[no-any-return]


async def _left(receive: Receive) -> None:
    """Returns when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_json(send: Send, body: bytes, more: Headers) -> None:
    headers = [(b"content-type", JSON_MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
