"""Where a new session goes: on a ready proxy with room, the emptier of two drawn at random.

A start with an Idempotency-Key has an order of its own, which follows from the key: a retry, whichever proxy it
comes to, asks the same proxy first, and gets the same session.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import Final, TypeVar

import aiohttp
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rolloutfleet.errors import DRAINING, NO_ROOM, OWNER_UNAVAILABLE, STARTING
from rolloutfleet_proxy.errors import ApiError
from rolloutfleet_proxy.fleet.forwarding import end_to_end, in_text
from rolloutfleet_proxy.fleet.peers import CONNECT_PATIENCE, Peer, Peers, unavailable

T = TypeVar("T")

PLACED: Final = "x-rolloutfleet-placed"
"""Header of a start that has been placed: whoever gets it starts the session or refuses."""
RETRY_AFTER: Final = 5.0
DRAINING_RETRY_AFTER: Final = 1.0
PATIENCE: Final = 30.0
"""Seconds for a peer to start sessions."""

_ELSEWHERE = frozenset({NO_ROOM, STARTING, DRAINING, OWNER_UNAVAILABLE})
"""Answers after which another proxy is tried."""


def order(peers: Sequence[Peer], rng: random.Random) -> list[int]:
    """Ordinals of the ready proxies with room, in the order in which they are tried."""
    fit = [peer for peer in peers if peer.state == "ready" and peer.room]
    rng.shuffle(fit)
    drawn = sorted(fit[:2], key=lambda peer: peer.sessions_open)
    return [peer.ordinal for peer in (*drawn, *fit[2:])]


def order_by_key(peers: Sequence[Peer], key: str) -> list[int]:
    """Ordinals of the ready proxies in the order that a key gives them.

    Room does not count: a proxy that is full, or draining, still knows what it started with this key.
    """

    def rank(ordinal: int) -> bytes:
        return blake2b(f"{ordinal} {key}".encode(), digest_size=8).digest()

    return sorted((peer.ordinal for peer in peers if peer.state in ("ready", "draining")), key=rank)


class Placement:
    """Starts sessions where they belong."""

    def __init__(self, peers: Peers, rng: random.Random | None = None) -> None:
        self._peers = peers
        self._rng = rng or random.Random()

    async def start(
        self, request: Request, *, sessions: int, key: str | None, here: Callable[[], Awaitable[T]]
    ) -> T | Response:
        """What `here` returns, or another proxy's answer.

        Raises what `here` raises; ApiError 429 where no ready proxy has room; 503 where all that answer are draining,
        or where a proxy broke off, so that it is not known whether it started any.
        """
        if PLACED in request.headers:
            return await here()
        table = self._peers.table()
        for ordinal in order(table, self._rng) if key is None else order_by_key(table, key):
            if ordinal == self._peers.own:
                try:
                    return await here()
                except ApiError as error:
                    if error.code not in (NO_ROOM, DRAINING):
                        raise
                    continue
            answer = await self._there(request, ordinal)
            if answer is not None:
                self._peers.note_placed(ordinal, sessions if answer.status_code == 201 else 0)
                return answer
        if not any(peer.state == "ready" for peer in table) and any(peer.state == "draining" for peer in table):
            raise ApiError(503, DRAINING, "Every proxy that answers is draining.", retry_after=DRAINING_RETRY_AFTER)
        raise ApiError(429, NO_ROOM, "No ready proxy has room for more sessions now.", retry_after=RETRY_AFTER)

    async def _there(self, request: Request, ordinal: int) -> Response | None:
        """The peer's answer; None where it started nothing and another may be asked."""
        headers = [*in_text(end_to_end(request.scope["headers"])), (PLACED, str(ordinal))]
        try:
            async with self._peers.http.post(
                f"{self._peers.address(ordinal)}/sessions",
                data=await request.body(),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=PATIENCE, sock_connect=CONNECT_PATIENCE),
            ) as response:
                answer = Response(await response.read(), status_code=response.status)
                answer.raw_headers = end_to_end(response.raw_headers)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            self._peers.note_unreachable(ordinal)
            return None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._peers.note_unreachable(ordinal)
            raise unavailable(ordinal, f"it broke off while it started sessions ({error!r})") from None
        return None if _refused_room(answer) else answer


def _refused_room(answer: Response) -> bool:
    if answer.status_code not in (429, 503):
        return False
    try:
        return msgspec.json.decode(answer.body)["error"]["code"] in _ELSEWHERE
    except (ValueError, TypeError, LookupError):
        return False
