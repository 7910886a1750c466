"""A call for another proxy's session, lease, group or shard is passed on to it, once, both ways as it streams.

Whose it is follows from the name or key that the call carries. What a retry, a stream and a cancellation need goes
through unchanged; who owns nothing here any more is told so, never given an empty session.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import aiohttp
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolloutfleet.http_failures import failure_in_words
from rolloutfleet_proxy.cluster.holding import Holding
from rolloutfleet_proxy.cluster.ownership import Ownership, key_of, named_by, owner_of_call, session_in, session_of
from rolloutfleet_proxy.cluster.peers import Peers
from rolloutfleet_proxy.cluster.receipting import Receipting
from rolloutfleet_proxy.dialects.registry import answer_to, dialect_call, turn_call
from rolloutfleet_proxy.domain.errors import BodyTooLarge, DomainError, OwnerFailed, OwnerUnavailable, OwnerUnreachable
from rolloutfleet_proxy.http.departures import closed_of
from rolloutfleet_proxy.http.errors import send_answer
from rolloutfleet_proxy.http.headers import (
    FORWARDED,
    FROM_PEER,
    LENGTH,
    RECEIPT,
    VOUCHER,
    Headers,
    LimitOf,
    declared_length,
    end_to_end,
    framing,
    has_body,
    passed,
    settle,
)
from rolloutfleet_proxy.http.last_bytes import emptied_of
from rolloutfleet_proxy.http.request_bodies import CheckKey
from rolloutfleet_proxy.ids import Owner, random_hex
from rolloutfleet_proxy.telemetry import logger
from rolloutfleet_proxy.telemetry.calls import ANSWERED, CUT_SHORT, CallFactory, ChatCall, PassedCall
from rolloutfleet_proxy.telemetry.metrics import Metrics
from rolloutfleet_proxy.telemetry.request_ids import PASSED_TO, request_id

_SMALL: Final = 64 << 10
"""Bytes up to which a body is read before its call is passed on, which then takes one write."""

_GIVEN_UP: Final = "it is lost, or has been silent for a minute"


class ClientLeft(Exception):
    """The caller closed the connection."""


@dataclass(frozen=True, slots=True)
class Forwarding:
    """ASGI: calls of other proxies go to them, all others to `app`.

    Those of sessions that were imported here stay, and `passing` is around each call on its way. `check_key` is asked
    before a caller is told why nobody owns what it names: of calls that are passed on their owner looks at the key.
    `holding` holds turns' calls while their owner can't be reached.
    """

    app: ASGIApp
    ownership: Ownership
    body_limit: LimitOf
    metrics: Metrics
    receipting: Receipting
    holding: Holding
    check_key: CheckKey | None = None
    is_peer: Callable[[str, str | None], bool] = lambda voucher, key: True
    passing: Callable[[Scope], AbstractAsyncContextManager[None]] = lambda scope: nullcontext()
    new_call: CallFactory = ChatCall

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner = None
        if scope["type"] == "http":
            settle(scope, self.is_peer)
            owner = owner_of_call(scope)
        if owner is None or owner == self.ownership.own or await self._is_here(scope):
            await self.app(scope, receive, send)
            return
        try:
            self._check(owner, scope)
        except DomainError as error:
            await self._refuse(await self._key_refused(scope) or error, scope, send)
        else:
            await self._pass_on(owner, scope, receive, send)

    async def _key_refused(self, scope: Scope) -> DomainError | None:
        try:
            if self.check_key is not None:
                call = dialect_call(scope)
                await self.check_key(key_of(scope) if call is None else call.needed_key())
        except DomainError as error:
            return error
        return None

    async def _refuse(self, error: DomainError, scope: Scope, send: Send) -> None:
        self.metrics.refused.labels(error.code).inc()
        call, answer = turn_call(scope), answer_to(scope, error)
        if call is None:
            await send_answer(answer, send)
            return
        told = self.new_call(
            self.metrics,
            request_id=request_id(scope),
            headers=call.headers,
            api=call.dialect.name,
            session_id=call.session or "",
        )
        told.status, told.outcome = answer[0], error.code
        try:
            await send_answer(answer, send)
        finally:
            told.ended()

    def _check(self, owner: Owner, scope: Scope) -> None:
        self.ownership.check(owner, named=named_by(scope["path"]), session=session_of(scope["path"]))

    async def _pass_on(self, owner: Owner, scope: Scope, receive: Receive, send: Send) -> None:
        told = None
        if turn_call(scope) is not None:
            told = PassedCall(self.metrics, request_id=request_id(scope), to=owner.ordinal)
        answer, refused = _PassedAnswer(send, scope), ""
        try:
            is_away = self.ownership.peers.is_silent(owner.ordinal)  # a call that will be held keeps its body unread
            body = None if is_away else await _small_body(scope, receive, limit=self.body_limit(scope))
            if told is None or scope.get(FROM_PEER, False):
                await self._pass_once(owner.ordinal, scope, receive, answer, body)
            else:
                await self._pass_or_hold(owner, scope, receive, answer, body, told)
        except ClientLeft:
            pass
        except DomainError as error:
            self.metrics.refused.labels(error.code).inc()
            refused = error.code
            await answer.end_with(error)
        finally:
            if told is not None:
                told.ended(status=answer.status, outcome=refused or (ANSWERED if answer.whole else CUT_SHORT))

    async def _pass_or_hold(
        self,
        owner: Owner,
        scope: Scope,
        receive: Receive,
        answer: "_PassedAnswer",
        body: bytes | None,
        told: PassedCall,
    ) -> None:
        """Pass a turn's call on; while its owner can't be reached, hold it and try again."""
        until = self.holding.until()
        while True:
            try:
                await self._pass_once(owner.ordinal, scope, receive, answer, body)
                return
            except OwnerUnreachable as unreachable:
                length = _declared(scope["headers"], limit=self.body_limit(scope))
                with told.held():
                    if not await self.holding.wait(unreachable, body=length, until=until, left=closed_of(scope)):
                        return
            self._check(owner, scope)  # The fleet may have shrunk meanwhile.

    async def _pass_once(
        self, ordinal: int, scope: Scope, receive: Receive, answer: "_PassedAnswer", body: bytes | None
    ) -> None:
        call, peers, limit = turn_call(scope), self.ownership.peers, self.body_limit(scope)
        receipt = None if call is None else random_hex()
        async with self.passing(scope):
            try:
                await pass_on(peers, ordinal, scope, receive, answer.send, body_limit=limit, body=body, receipt=receipt)
            finally:
                if call is not None and receipt is not None and answer.status == HTTPStatus.OK:
                    received = answer.whole and await emptied_of(scope)()
                    await self.receipting.give(ordinal, receipt, received=received)

    async def _is_here(self, scope: Scope) -> bool:
        session = session_of(scope["path"]) or session_in(scope["query_string"])
        return await self.ownership.adopted.holds(session)


@dataclass(slots=True)
class _PassedAnswer:
    """What has been sent of an answer, and how it ends where the passing on does not go well."""

    out: Send
    scope: Scope
    status: int = -1
    """Sent to the caller; -1 where nothing was."""
    whole: bool = False
    _is_stream: bool = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._is_stream = any(
                name == b"content-type" and value.startswith(b"text/event-stream") for name, value in message["headers"]
            )
        elif not message.get("more_body", False):
            self.whole = True
        await self.out(message)

    async def end_with(self, error: DomainError) -> None:
        """Say the error: as the answer, or a stream's last event. Of other answers the server closes the connection."""
        call = dialect_call(self.scope)
        if self.status < 0:
            await send_answer(answer_to(self.scope, error), self.send)
        elif self._is_stream and call is not None:
            await self.out({"type": "http.response.body", "body": call.dialect.error_event(error)})


class PassedOn(Response):
    """A handler's answer to a call whose body names another proxy's sessions: that proxy's own answer."""

    def __init__(self, peers: Peers, ordinal: int, *, body: bytes) -> None:
        super().__init__()
        self._peers = peers
        self._ordinal = ordinal
        self._whole = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await pass_on(self._peers, self._ordinal, scope, receive, send, body_limit=len(self._whole), body=self._whole)


async def pass_on(
    peers: Peers,
    ordinal: int,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    body_limit: int,
    body: bytes | None = None,
    receipt: str | None = None,
) -> None:
    """Pass a call on and its answer back, both as they come. `body` is the request's, where it has been read, and
    `receipt` the name under which the owner will be told what became of the answer.

    A caller that leaves ends the call at the owner, by its closed connection. An answer that breaks off closes the
    caller's connection. Raises, before anything is answered, BodyTooLarge; OwnerUnreachable where nothing was sent;
    OwnerUnavailable where the owner broke off. Raises that at any time where the owner is given up.
    """
    headers = scope["headers"]
    scope[PASSED_TO] = ordinal
    by = next((value.decode("latin-1") for name, value in headers if name == FORWARDED.encode()), None)
    if by is not None:
        raise OwnerUnreachable(ordinal, f"proxy {by} took proxy {peers.own} for it")
    upload = _Upload(receive, body, limit=body_limit)
    upload.check_declared(headers)
    alike, closed = (scope["path"], key_of(scope)), closed_of(scope)
    if alike in peers.callers and closed():
        return  # Who waits may be its own retry, which was read before it.
    await peers.callers.departed(alike)
    ending = _Ending()
    leaving = asyncio.create_task(upload.left())
    leaving.add_done_callback(lambda left: None if left.cancelled() else ending.end(ClientLeft()))
    # Of who leaves sooner the owner gets no whole request.
    with (
        peers.callers.waits(alike, lambda: closed() and upload.is_read),
        peers.awaited(ordinal, lambda: ending.end(OwnerUnavailable(ordinal, _GIVEN_UP))),
    ):
        try:
            # The connection is closed where this ends, and the system told before it goes on: a retry comes behind it.
            with ending.watching():
                await _pass(peers, ordinal, scope, upload, send, receipt)
        except ClientLeft:
            pass
        finally:
            leaving.cancel()


class _Ending:
    """Ends what the task that made it does, from outside and with an exception."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._reason: Exception | None = None
        self._is_over = False

    def end(self, reason: Exception) -> None:
        if self._task is not None and self._reason is None and not self._is_over:
            self._reason = reason
            self._task.cancel()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A context around what can be ended. Raises the reason."""
        try:
            yield
        except asyncio.CancelledError:
            if self._reason is None or self._task is None or self._task.uncancel():
                raise  # by somebody else, too
            raise self._reason from None
        finally:
            self._is_over = True


async def _small_body(scope: Scope, receive: Receive, *, limit: int) -> bytes | None:
    """The whole of a small body; None for any other, which passes as it comes. Raises BodyTooLarge, ClientLeft."""
    if not 0 < _declared(scope["headers"], limit=limit) <= _SMALL:
        return None
    return b"".join([piece async for piece in _Upload(receive, None, limit=limit).chunks()])


async def _pass(peers: Peers, ordinal: int, scope: Scope, upload: "_Upload", send: Send, receipt: str | None) -> None:
    query = scope["query_string"].decode("latin-1")
    path = f"{_raw_path(scope)}{'?' if query else ''}{query}"
    headers, data = passed(scope["headers"], FORWARDED, peers.own), upload.data(scope["headers"])
    headers.append((VOUCHER, peers.voucher()))
    if receipt is not None:
        headers = [*((name, value) for name, value in headers if name != RECEIPT), (RECEIPT, receipt)]
    try:
        async with peers.request(ordinal, scope["method"], path, headers=headers, data=data) as response:
            await _pass_back(response, ordinal, send)
    except OwnerFailed:
        if upload.ended is not None:
            raise upload.ended from None
        peers.note_unreachable(ordinal)
        raise


async def _pass_back(response: aiohttp.ClientResponse, ordinal: int, send: Send) -> None:
    headers = end_to_end(response.raw_headers)
    try:
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        async for data in response.content.iter_any():
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    except (aiohttp.ClientError, TimeoutError) as error:
        # Left without its end, the server closes the connection, which tells the caller that it was cut.
        logger.warning("the answer of proxy %d broke off: %s", ordinal, failure_in_words(error))
    finally:
        # Of an answer read to its end the connection is back in the pool already; any other is of no use.
        response.close()


@dataclass(slots=True)
class _Upload:
    """A request's body on its way, and the news that the caller has left."""

    receive: Receive
    body: bytes | None
    limit: int
    ended: DomainError | ClientLeft | None = field(init=False, default=None)
    """Why the body was not read to its end."""
    _read: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _gone: bool = field(init=False, default=False)

    @property
    def is_read(self) -> bool:
        """True once all of it has come: from then on a caller's leaving is heard at once."""
        return self._read.is_set()

    def check_declared(self, headers: Headers) -> None:
        """Raises BodyTooLarge where the body says that it is too large."""
        if self.body is None:
            _declared(headers, limit=self.limit)

    def data(self, headers: Headers) -> AsyncIterator[bytes] | bytes | None:
        """The body in aiohttp's terms; None for a request that has none."""
        if self.body is None and has_body(headers):
            return self.chunks()
        self._read.set()
        return self.body

    async def left(self) -> None:
        """Return when the caller has closed the connection."""
        await self._read.wait()
        while not self._gone:
            self._gone = (await self.receive())["type"] == "http.disconnect"

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises BodyTooLarge, ClientLeft."""
        size, more = 0, True
        try:
            while more:
                message = await self.receive()
                if message["type"] == "http.disconnect":
                    self._gone = True
                    raise ClientLeft
                data = message.get("body", b"")
                size += len(data)
                if size > self.limit:
                    raise BodyTooLarge(self.limit)
                more = message.get("more_body", False)
                if not more:
                    self._read.set()
                if data:
                    yield data
        except (ClientLeft, DomainError) as error:
            self.ended = error
            raise
        finally:
            self._read.set()


def _declared(headers: Headers, *, limit: int) -> int:
    """Bytes of a request's body, 0 where it does not say. Raises BodyTooLarge."""
    return declared_length(framing(headers).get(LENGTH, b"").decode("latin-1"), limit=limit)


def _raw_path(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.partition(b"?")[0].decode("latin-1")
