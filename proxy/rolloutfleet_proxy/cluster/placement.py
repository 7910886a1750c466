"""Where a new session goes: on a ready proxy with room, the emptier of two drawn at random.

A start with an Idempotency-Key has a keeper, which follows from the key and the number of proxies alone, whoever is up
and whoever has room. Every such start goes through it, and it knows what became of the key: sessions of its own, or
another proxy that it asked for want of room, which it noted before. So a key never starts sessions twice; while
its keeper, or who was asked, can't be reached, nobody can say what it started, and nobody else starts any. The start
waits for them for a while (`holding`), unless its caller has other keys to try (`Prefer: wait=0`, RFC 7240).
"""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rolloutfleet_proxy.cluster.holding import Holding
from rolloutfleet_proxy.cluster.peers import Peer, Peers
from rolloutfleet_proxy.domain.errors import Draining, NoRoom, OwnerFailed, OwnerUnreachable
from rolloutfleet_proxy.http.departures import closed_of
from rolloutfleet_proxy.http.headers import KEPT, PASSED, PLACED, end_to_end, passed
from rolloutfleet_proxy.process.drain import Drains
from rolloutfleet_proxy.store.idempotency import PlacedElsewhere, place_claim, withdraw_claim
from rolloutfleet_proxy.store.writer import Writer

T = TypeVar("T")
Ask = Callable[[int, str], Awaitable[Response]]
"""Asks the proxy of an ordinal to start the sessions, with `PLACED` or `KEPT`."""

_TIMEOUT: Final = {PLACED: 30.0, KEPT: 50.0}
"""Seconds for a peer to start sessions; a keeper may have to ask others."""

MOST_WAITED: Final = 45.0
"""Seconds that a start waits at the most: callers and the proxy that passed it on give up after 50 s or more."""

_ELSEWHERE = (NoRoom, Draining, OwnerUnreachable)
"""Answers after which another proxy is tried: nothing was started."""


def order(peers: Sequence[Peer], rng: random.Random) -> list[int]:
    """Ordinals of the ready proxies with room, in the order in which they are tried."""
    fit = [peer for peer in peers if peer.state == "ready" and peer.room]
    rng.shuffle(fit)
    drawn = sorted(fit[:2], key=lambda peer: peer.sessions_open)
    return [peer.ordinal for peer in (*drawn, *fit[2:])]


def keeper_of(key: str, replicas: int) -> int:
    """The ordinal of the proxy that every start with this key goes through, in a fleet of so many.

    By rendezvous hashing: another number of proxies changes it for few keys.
    """
    return min(range(replicas), key=lambda ordinal: blake2b(f"{ordinal} {key}".encode(), digest_size=8).digest())


class Placement:
    """Starts sessions where they belong."""

    def __init__(self, peers: Peers, store: Writer, drains: Drains, rng: random.Random | None = None) -> None:
        """No start waits while a drain holds calls here."""
        self._peers = peers
        self._store = store
        self._holding = Holding(
            peers=peers, max_hold=lambda: min(MOST_WAITED, drains.max_hold), ending=lambda: drains.holding
        )
        self._rng = rng or random.Random()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By key, of starts that this proxy keeps: one at a time may look for a place."""

    async def start(
        self, request: Request, *, sessions: int, key: str | None, here: Callable[[], Awaitable[T]]
    ) -> T | Response:
        """What `here` returns, or another proxy's answer. `here` raises PlacedElsewhere where `claims` say so.

        Raises what `here` raises; NoRoom where no ready proxy has any; Draining where all that answer are draining;
        OwnerUnavailable where a proxy broke off, so that it is not known whether it started any; OwnerUnreachable where
        the one that would know what the key started can't be reached, and is not waited for, or no longer; Stopping
        where this proxy begins to drain meanwhile.
        """
        until = self._holding.until()
        while True:
            try:
                return await self._start(request, partial(self._there, request, sessions), here, key)
            except OwnerUnreachable as unreachable:
                body, left = len(await request.body()), closed_of(request.scope)
                waits = _may_wait(request) and unreachable.ordinal in self._peers.others
                if not (waits and await self._holding.wait(unreachable, body=body, until=until, left=left)):
                    raise

    async def _start(
        self, request: Request, there: Ask, here: Callable[[], Awaitable[T]], key: str | None
    ) -> T | Response:
        if PLACED in request.headers:
            try:
                return await here()
            except PlacedElsewhere as placed:  # by a keeper that this proxy was in a fleet of another size
                return await there(placed.ordinal, PLACED)
        if key is None:
            return await self._anywhere(there, here, key=None)
        keeper = keeper_of(key, self._peers.replicas)
        if keeper != self._peers.own and KEPT not in request.headers:
            return await self._through(keeper, there)
        turn = self._turns.setdefault(key, asyncio.Lock())
        async with turn:
            return await self._keep(there, here, key)

    async def _through(self, keeper: int, there: Ask) -> Response:
        if self._peers.is_silent(keeper):
            raise OwnerUnreachable(keeper, "it did not answer when it was last checked, and only it knows this key")
        return await there(keeper, KEPT)

    async def _keep(self, there: Ask, here: Callable[[], Awaitable[T]], key: str) -> T | Response:
        """As the key's keeper."""
        try:
            return await here()
        except PlacedElsewhere as placed:
            answer = await there(placed.ordinal, PLACED)
            if not _refused(answer):
                return answer
            await self._store.run(partial(withdraw_claim, key=key))
        except _ELSEWHERE:
            pass
        return await self._anywhere(there, here, key=key)

    async def _anywhere(self, there: Ask, here: Callable[[], Awaitable[T]], *, key: str | None) -> T | Response:
        """On the first of the proxies that takes it. Those others that a key's keeper asks are noted before."""
        table = self._peers.table()
        for ordinal in order(table, self._rng):
            try:
                if ordinal == self._peers.own:
                    return await here()
                if key is not None:
                    await self._store.run(partial(place_claim, key=key, ordinal=ordinal))
                answer = await there(ordinal, PLACED)
            except _ELSEWHERE:
                pass
            else:
                if not _refused(answer):
                    return answer
            if key is not None and ordinal != self._peers.own:
                await self._store.run(partial(withdraw_claim, key=key))
        if not any(peer.state == "ready" for peer in table) and any(peer.state == "draining" for peer in table):
            raise Draining("Every proxy that answers is draining.")
        raise NoRoom("No ready proxy has room for more sessions now.")

    async def _there(self, request: Request, sessions: int, ordinal: int, how: str) -> Response:
        """The peer's answer. Raises OwnerUnreachable where nothing was sent, else OwnerUnavailable."""
        peers = self._peers
        own = [header for header in request.scope["headers"] if header[0] not in PASSED]
        headers, body = passed(own, how, ordinal), await request.body()
        try:
            async with peers.request(
                ordinal, "POST", "/sessions", timeout=_TIMEOUT[how], data=body, headers=headers
            ) as response:
                answer = Response(await response.read(), status_code=response.status)
                answer.raw_headers = end_to_end(response.raw_headers)
        except OwnerFailed:
            peers.note_unreachable(ordinal)
            raise
        peers.note_placed(ordinal, sessions if answer.status_code == 201 else 0)
        return answer


def _may_wait(request: Request) -> bool:
    preferences = "".join(",".join(request.headers.getlist("prefer")).lower().split())
    return PLACED not in request.headers and "wait=0" not in re.split("[,;]", preferences)


def _refused(answer: Response) -> bool:
    """Whether the proxy started nothing, as it had no room or is draining."""
    if answer.status_code not in (429, 503):
        return False
    try:
        return msgspec.json.decode(answer.body)["error"]["code"] in {kind.code for kind in _ELSEWHERE}
    except (ValueError, TypeError, LookupError):
        return False
