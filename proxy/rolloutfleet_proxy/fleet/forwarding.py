"""A call for another proxy's session, lease, group or shard is passed on to it, once, both ways as it streams.

Whose it is follows from the name or key that the call carries. What a retry, a stream and a cancellation need goes
through unchanged; who owns nothing here any more is told so, never given an empty session.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, MutableMapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Literal
from urllib.parse import parse_qs

import aiohttp
from starlette.responses import Response
from yarl import URL

from rolloutfleet.dumps import DumpName
from rolloutfleet.http_failures import failure_in_words
from rolloutfleet_proxy.domain.errors import (
    BodyTooLarge,
    DomainError,
    GroupNotFound,
    InvalidKey,
    InvalidRequest,
    KeptOnVolume,
    LeaseNotFound,
    OwnerGone,
    OwnerUnavailable,
    OwnerUnreachable,
    SessionNotFound,
    ShardNotFound,
    StoreLost,
)
from rolloutfleet_proxy.fleet.heads import FORWARDED, Headers, end_to_end, passed
from rolloutfleet_proxy.fleet.peers import NOT_CONNECTED, Peers
from rolloutfleet_proxy.http.errors import body_of, response_to, status_of
from rolloutfleet_proxy.ids import GROUP, LEASE, SESSION, TENSOR, Owner, owner_of_key, owner_of_name
from rolloutfleet_proxy.memory.body_limit import LENGTH, LimitOf, declared_length, framing, has_body
from rolloutfleet_proxy.sessions.auth import presented_key
from rolloutfleet_proxy.telemetry import logger
from rolloutfleet_proxy.telemetry.calls import ChatCall, PassedCall
from rolloutfleet_proxy.telemetry.metrics import Metrics
from rolloutfleet_proxy.telemetry.request_ids import PASSED_TO, request_id

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Holds = Callable[[str], Awaitable[bool]]
"""Says whether a session of another owner was imported here."""
CheckKey = Callable[[Scope], Awaitable[None]]
"""Raises InvalidKey where the key that a call carries, or has not, can open nothing here or elsewhere."""

_NAMED = re.compile(r"^/(sessions|leases|shards)/([^/]+)")
_KINDS = {"sessions": SESSION, "leases": LEASE, "shards": TENSOR}
Named = Literal["session", "lease", "shard", "group", "key"]
_WORDS: dict[str, Named] = {"sessions": "session", "leases": "lease", "shards": "shard"}
_UNKNOWN = {"session": SessionNotFound, "lease": LeaseNotFound, "shard": ShardNotFound, "group": GroupNotFound}


class ClientLeft(Exception):
    """The caller closed the connection."""


def owner_of_call(path: str, headers: Iterable[tuple[bytes, bytes]], *, query: bytes = b"") -> Owner | None:
    """Whose call this is, by its path, or under /v1 by its key; None where it names nobody.

    A shard whose id doesn't say it is its session's owner's, where the query names one.
    """
    named = _NAMED.match(path)
    if named is not None:
        owner = owner_of_name(named[2], kind=_KINDS[named[1]])
        return _owner_of_session(query) if owner is None and named[1] == "shards" else owner
    if path.startswith("/v1/"):
        key = presented_key({name.decode("latin-1"): value.decode("latin-1") for name, value in headers})
        return owner_of_key(key) if key is not None else None
    return None


def _owner_of_session(query: bytes) -> Owner | None:
    return owner_of_name(_session_in(query), kind=SESSION)


def _session_in(query: bytes) -> str:
    return parse_qs(query.decode("latin-1")).get("session_id", [""])[0]


def owner_of_names(
    names: Iterable[str], *, group: str | None, param: str, own: Owner, here: Container[str] = ()
) -> Owner | None:
    """Whose sessions or group a body names; None where none of the names is of our form.

    Those in `here` were imported here and are of `own`, whatever their names say. Raises InvalidRequest where they
    belong to several proxies: each has to be asked for its own.
    """
    owners = {own if name in here else owner_of_name(name, kind=SESSION) for name in names}
    if group is not None:
        owners.add(own if group in here else owner_of_name(group, kind=GROUP))
    return _one_owner({owner for owner in owners if owner is not None}, param)


def owner_of_shards(ids: Iterable[str], own: Owner, *, param: str) -> Owner:
    """Whose shards a body names; those whose ids say nothing of their owner are this proxy's, `own`.

    Raises InvalidRequest where they belong to several proxies.
    """
    return _one_owner({owner_of_name(name, kind=TENSOR) or own for name in ids}, param) or own


def _one_owner(owners: set[Owner], param: str) -> Owner | None:
    ordinals = sorted({owner.ordinal for owner in owners})
    if len(ordinals) > 1:
        raise InvalidRequest(
            f"These belong to proxies {', '.join(map(str, ordinals))}: ask each proxy for its own.", param=param
        )
    return next(iter(owners), None)


def check_owner(
    owner: Owner,
    own: Owner,
    *,
    peers: Peers,
    ephemeral: bool,
    named: Named,
    session: str = "",
) -> bool:
    """Whether this proxy is the owner; False where it is another one that is expected to be there.

    Raises where nobody is: StoreLost, KeptOnVolume or, with ephemeral storage, OwnerGone,
    which names the dumps that there may be of `session`: those follow from its id. Where the fleet never had such a
    proxy: what is not found, or InvalidKey for a key, by what `named` it.
    """
    if owner == own:
        return True
    if owner.ordinal == own.ordinal:
        raise StoreLost(
            f"This belongs to store {owner.store_id} of proxy {own.ordinal}, which is lost: its store is "
            f"{own.store_id} now."
        )
    if owner.ordinal < peers.replicas:
        return False
    if owner.ordinal >= peers.ever:
        raise _never_given(owner.ordinal, named)
    if ephemeral:
        raise _owner_gone(owner.ordinal, session)
    message = f"Proxy {owner.ordinal} has been scaled away; this is kept on its volume until it is back."
    # A retry within seconds can't help: somebody has to scale the fleet up again.
    raise KeptOnVolume(message)


def _never_given(ordinal: int, named: Named) -> DomainError:
    if named == "key":
        return InvalidKey()
    message = f"There is no such {named}: this fleet has never had a proxy {ordinal}."
    return _UNKNOWN[named](message)


def _owner_gone(ordinal: int, session: str) -> DomainError:
    names = [str(DumpName(session or "{session_id}", number)) for number in (1, None)]
    return OwnerGone(
        f"Proxy {ordinal} has been scaled away, and its storage with it. What was dumped of the session is in "
        f"{names[0]}, and so on for each trajectory, and in {names[1]}.",
        details={"dumps": names} if session else None,
    )


class Forwarding:
    """ASGI: calls of other proxies go to them, all others to `app`.

    `is_chat` says which are chat calls, `holds` which sessions of other owners were imported here, and `passing`
    is around each call on its way. `check_key` is asked before a caller is told why nobody owns what it names: of
    calls that are passed on their owner looks at the key.
    """

    def __init__(
        self,
        app: App,
        peers: Peers,
        *,
        own: Owner,
        ephemeral: bool,
        body_limit: LimitOf,
        metrics: Metrics,
        is_chat: Callable[[Scope], bool],
        holds: Holds | None = None,
        check_key: CheckKey | None = None,
        passing: Callable[[Scope], AbstractAsyncContextManager[None]] = lambda scope: nullcontext(),
    ) -> None:
        self._app = app
        self._peers = peers
        self._own = own
        self._ephemeral = ephemeral
        self._body_limit = body_limit
        self._metrics = metrics
        self._is_chat = is_chat
        self._holds = holds
        self._check_key = check_key
        self._passing = passing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner = None
        if scope["type"] == "http":
            owner = owner_of_call(scope["path"], scope["headers"], query=scope["query_string"])
        if owner is None or owner == self._own or await self._is_here(scope):
            await self._app(scope, receive, send)
            return
        try:
            check_owner(
                owner,
                self._own,
                peers=self._peers,
                ephemeral=self._ephemeral,
                named=_named_by(scope["path"]),
                session=_session_of(scope["path"]),
            )
        except DomainError as error:
            await self._refuse(await self._key_refused(scope) or error, scope, receive, send)
        else:
            await self._pass_on(owner.ordinal, scope, receive, send)

    async def _key_refused(self, scope: Scope) -> DomainError | None:
        try:
            if self._check_key is not None:
                await self._check_key(scope)
        except DomainError as error:
            return error
        return None

    async def _refuse(self, error: DomainError, scope: Scope, receive: Receive, send: Send) -> None:
        self._metrics.refused.labels(error.code).inc()
        if not self._is_chat(scope):
            await response_to(error)(scope, receive, send)
            return
        named = _NAMED.match(scope["path"])
        told = ChatCall(self._metrics, request_id=request_id(scope), session_id=named[2] if named else "")
        told.status, told.outcome = status_of(error), error.code
        try:
            await response_to(error)(scope, receive, send)
        finally:
            told.ended()

    async def _pass_on(self, ordinal: int, scope: Scope, receive: Receive, send: Send) -> None:
        told = PassedCall(self._metrics, request_id=request_id(scope), to=ordinal) if self._is_chat(scope) else None
        answer = _Answer(send if told is None else told.watched(send))
        try:
            async with self._passing(scope):
                await pass_on(self._peers, ordinal, scope, receive, answer.send, body_limit=self._body_limit(scope))
        except DomainError as error:
            self._metrics.refused.labels(error.code).inc()
            if told is not None:
                told.outcome = error.code
            await answer.end_with(error, scope, receive)
        finally:
            if told is not None:
                told.ended()

    async def _is_here(self, scope: Scope) -> bool:
        session = _session_of(scope["path"]) or _session_in(scope["query_string"])
        return self._holds is not None and await self._holds(session)


class _Answer:
    """What has been sent of an answer, and how it ends where the passing on does not go well."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = False
        self._is_stream = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begun = True
            self._is_stream = any(
                name == b"content-type" and value.startswith(b"text/event-stream") for name, value in message["headers"]
            )
        await self._send(message)

    async def end_with(self, error: DomainError, scope: Scope, receive: Receive) -> None:
        """Say the error: as the answer, or a stream's last event. Of other answers the server closes the connection."""
        if not self._begun:
            await response_to(error)(scope, receive, self._send)
        elif self._is_stream:
            await self._send({"type": "http.response.body", "body": b"data: " + body_of(error) + b"\n\n"})


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
) -> None:
    """Pass a call on and its answer back, both as they come. `body` is the request's, where it has been read.

    A caller that leaves ends the call at the owner, by its closed connection. An answer that breaks off closes the
    caller's connection. Raises, before anything is answered, BodyTooLarge; OwnerUnreachable where nothing was sent;
    OwnerUnavailable where the owner broke off.
    """
    headers = scope["headers"]
    scope[PASSED_TO] = ordinal
    by = next((value.decode("latin-1") for name, value in headers if name == FORWARDED.encode()), None)
    if by is not None:
        raise OwnerUnreachable(ordinal, f"proxy {by} took proxy {peers.own} for it")
    upload = _Upload(receive, body, limit=body_limit)
    upload.check_declared(headers)
    passing = asyncio.create_task(_pass(peers, ordinal, scope, upload, send))
    leaving = asyncio.create_task(upload.left())
    try:
        await asyncio.wait((passing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if passing.done():
            passing.result()
    except ClientLeft:
        pass
    finally:
        for task in (passing, leaving):
            task.cancel()
        await asyncio.gather(passing, leaving, return_exceptions=True)


async def _pass(peers: Peers, ordinal: int, scope: Scope, upload: "_Upload", send: Send) -> None:
    headers = passed(scope["headers"], FORWARDED, peers.own)
    query = scope["query_string"].decode("latin-1")
    url = URL(f"{peers.address(ordinal)}{_raw_path(scope)}{'?' if query else ''}{query}", encoded=True)
    try:
        response = await peers.http.request(
            scope["method"], url, headers=headers, data=upload.data(scope["headers"]), allow_redirects=False
        )
    except NOT_CONNECTED:
        peers.note_unreachable(ordinal)
        raise OwnerUnreachable(ordinal) from None
    except (aiohttp.ClientError, OSError) as error:
        if upload.ended is not None:
            raise upload.ended from None
        peers.note_unreachable(ordinal)
        raise OwnerUnavailable(ordinal, failure_in_words(error)) from None
    try:
        await send(
            {
                "type": "http.response.start",
                "status": response.status,
                "headers": end_to_end(response.raw_headers),
            }
        )
        async for data in response.content.iter_any():
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    except (aiohttp.ClientError, TimeoutError) as error:
        # Left without its end, the server closes the connection, which tells the caller that it was cut.
        logger.warning("the answer of proxy %d broke off: %s", ordinal, failure_in_words(error))
    finally:
        # Of an answer read to its end the connection is back in the pool already; any other is of no use.
        response.close()


class _Upload:
    """A request's body on its way, and the news that the caller has left."""

    def __init__(self, receive: Receive, body: bytes | None, *, limit: int) -> None:
        self.ended: DomainError | ClientLeft | None = None
        """Why the body was not read to its end."""
        self._receive = receive
        self._whole = body
        self._limit = limit
        self._read = asyncio.Event()
        self._gone = False

    def check_declared(self, headers: Headers) -> None:
        """Raises BodyTooLarge where the body says that it is too large."""
        if self._whole is None:
            declared_length(framing(headers).get(LENGTH, b"").decode("latin-1"), limit=self._limit)

    def data(self, headers: Headers) -> AsyncIterator[bytes] | bytes | None:
        """The body in aiohttp's terms; None for a request that has none."""
        if self._whole is not None:
            self._read.set()
            return self._whole
        if not has_body(headers):
            self._read.set()
            return None
        return self._chunks()

    async def left(self) -> None:
        """Return when the caller has closed the connection."""
        await self._read.wait()
        while not self._gone:
            self._gone = (await self._receive())["type"] == "http.disconnect"

    async def _chunks(self) -> AsyncIterator[bytes]:
        size, more = 0, True
        try:
            while more:
                message = await self._next()
                if message["type"] == "http.disconnect":
                    self._gone, self.ended = True, ClientLeft()
                    raise self.ended
                data = message.get("body", b"")
                size += len(data)
                if size > self._limit:
                    self.ended = BodyTooLarge(self._limit)
                    raise self.ended
                more = message.get("more_body", False)
                if data:
                    yield data
        finally:
            self._read.set()

    async def _next(self) -> Message:
        try:
            return await self._receive()
        except DomainError as error:
            self.ended = error
            raise


def _session_of(path: str) -> str:
    """The session that a path names, or nothing."""
    named = _NAMED.match(path)
    return named[2] if named is not None and named[1] == "sessions" else ""


def _named_by(path: str) -> Named:
    """What says whose a call is."""
    named = _NAMED.match(path)
    return "key" if named is None else _WORDS[named[1]]


def _raw_path(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.partition(b"?")[0].decode("latin-1")
