"""The other proxies of the fleet: who they are, how they are, and how to ask them.

Their addresses follow from the settings; how they are is asked of each one's `/ready` about once a second.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

import aiohttp
import msgspec
from yarl import URL

from rolloutfleet.broadcast import Broadcast
from rolloutfleet.errors import EPOCH_STALE
from rolloutfleet.http_failures import failure_in_words
from rolloutfleet.settings import ProxySettings
from rolloutfleet_proxy.domain.errors import (
    DomainError,
    EpochStale,
    OwnerFailed,
    OwnerUnavailable,
    OwnerUnreachable,
    PeerError,
)
from rolloutfleet_proxy.domain.weights import WeightState
from rolloutfleet_proxy.engine.connections import CONNECT_TIMEOUT, new_session
from rolloutfleet_proxy.http.departures import Callers
from rolloutfleet_proxy.services.weights import WeightService
from rolloutfleet_proxy.telemetry import logger

State = Literal["ready", "starting", "draining", "unreachable"]

POLL_INTERVAL: Final = 1.0
"""Seconds between two looks at a peer, in a fleet of up to `POLLS_A_SECOND` others."""
POLLS_A_SECOND: Final = 20
POLL_TIMEOUT: Final = 2.0
ADOPTING_ROUNDS: Final = 3
"""How many rounds of looks take over what peers know of the weights. More than one: the first may come before this
proxy listens, and a pause that is called meanwhile reaches it neither way."""
GIVEN_UP_AFTER: Final = 60.0
"""Seconds of silence after which calls under way at a proxy end, unless it is known before to be lost. Where its node
is gone, the system itself ends a connection with unacknowledged bytes after a quarter of an hour."""
KEEP_ALIVE: Final = 30.0
"""Seconds that an idle connection is kept; less than a proxy's server keeps its own end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A proxy of the fleet, this one included, as last seen."""

    ordinal: int
    url: str
    state: State = "unreachable"
    sessions_open: int = 0
    room: bool = False


class Peers:
    """The table of all proxies, and the client to the others."""

    def __init__(
        self, settings: ProxySettings, *, ever: int = 0, grown: Callable[[int], object] = lambda ever: None
    ) -> None:
        """`ever` is how many proxies the fleet is known to have had; `grown` is told where that becomes more."""
        self.own = settings.ordinal
        self.replicas = settings.replicas
        self.ever = ever
        self._grown = grown
        self.learn(max(settings.replicas, settings.ordinal + 1))
        self.address = settings.address_of
        """Of the proxy of an ordinal."""
        self._seen = {ordinal: self._unseen(ordinal) for ordinal in self.others}
        self.itself: Callable[[], Peer] = lambda: self._unseen(self.own)
        """This proxy, as it describes itself."""
        self.voucher: Callable[[], str] = lambda: ""
        """What shows others that a call comes from a proxy."""
        self.callers = Callers()
        """Callers of requests that are passed on to others."""
        self.lost: frozenset[int] = frozenset(settings.lost_proxies)
        """Ordinals of proxies that nobody is to wait for."""
        self._awaited: dict[int, dict[object, Callable[[], None]]] = {}
        """Callbacks that end the waits for a proxy's answer, by its ordinal."""
        self._silent_since: dict[int, float] = {}
        """By ordinal, by the loop's clock."""
        self._changed = Broadcast()
        """A proxy has answered that did not before, or something else has changed for who waits for one."""
        self._session: aiohttp.ClientSession | None = None

    @property
    def others(self) -> list[int]:
        return [ordinal for ordinal in range(self.replicas) if ordinal != self.own]

    def is_silent(self, ordinal: int) -> bool:
        """Whether it did not answer when it was last looked at, a second or so ago."""
        return ordinal in self._seen and self._seen[ordinal].state == "unreachable"

    @property
    def waiting(self) -> int:
        """Calls that wait for a proxy to answer again."""
        return self._changed.waiting

    async def changed(self, seconds: float) -> None:
        """Return when a proxy answers that did not before, or after so many seconds."""
        await self._changed.wait(seconds)

    def look_again(self) -> None:
        """Those who wait for a proxy are to look whether they still do."""
        self._changed.wake()

    def table(self) -> list[Peer]:
        """All proxies by ordinal; a proxy that is scaled away counts itself too."""
        return sorted([*self._seen.values(), self.itself()], key=lambda peer: peer.ordinal)

    def follow(self, replicas: int, *, lost: Iterable[int] = ()) -> None:
        """The fleet has so many proxies from now on. Nothing is placed at a new one before it was looked at."""
        self.replicas, self.lost = replicas, frozenset(lost)
        self.look_again()
        self.learn(replicas)
        self._seen = {ordinal: self._seen.get(ordinal, self._unseen(ordinal)) for ordinal in self.others}

    def learn(self, ever: int) -> None:
        """The fleet has had so many proxies, or more."""
        if ever > self.ever:
            self.ever = ever
            self._grown(ever)

    def begin(
        self, weights: WeightService, *, own: Callable[[], Peer], rng: random.Random | None = None
    ) -> Coroutine[Any, Any, None]:
        """What looks at the peers. Calls wait until its first look has shown what they know of the weights."""
        self.itself = own
        weights.gate.starting = bool(self._seen)
        return self._poll(weights, rng or random.Random())

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def note_placed(self, ordinal: int, sessions: int) -> None:
        """Count sessions just started there, until the next look shows them."""
        if ordinal in self._seen:
            peer = self._seen[ordinal]
            self._seen[ordinal] = replace(peer, sessions_open=peer.sessions_open + sessions)

    def note_unreachable(self, ordinal: int) -> None:
        """It did not answer; nothing is placed there until the next look."""
        self._note(self._unseen(ordinal))

    @contextmanager
    def awaited(self, ordinal: int, give_up: Callable[[], None]) -> Iterator[None]:
        """A proxy's answer is waited for, until it comes or is given up."""
        waiting, this = self._awaited.setdefault(ordinal, {}), object()
        waiting[this] = give_up
        try:
            yield
        finally:
            del waiting[this]

    @asynccontextmanager
    async def request(
        self, ordinal: int, method: str, path: str, *, timeout: float | None = None, **parts: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A peer's answer, whatever its status, while it is read. `path` is as it goes over the wire.

        Raises OwnerUnreachable where nothing could be sent, and OwnerUnavailable where the peer broke off, or took more
        than `timeout` seconds.
        """
        url = URL(f"{self.address(ordinal)}{path}", encoded=True)
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_TIMEOUT)
        try:
            async with self._http().request(method, url, timeout=limits, allow_redirects=False, **parts) as response:
                yield response
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            raise OwnerUnreachable(ordinal) from None
        except (aiohttp.ClientError, OSError) as error:
            late = timeout is not None and isinstance(error, TimeoutError)
            why = f"no answer came within {timeout:g} s" if late else failure_in_words(error)
            raise OwnerUnavailable(ordinal, why) from None

    async def ask(
        self, ordinal: int, method: str, path: str, *, headers: Mapping[str, str], content: Any = None, timeout: float
    ) -> Any:
        """The JSON that a peer answers. Raises PeerError or EpochStale for its error, and what `request` raises."""
        data = None if content is None else msgspec.json.encode(content)
        headers = {"Content-Type": "application/json", **headers}
        async with self.request(ordinal, method, path, timeout=timeout, data=data, headers=headers) as response:
            status, body = response.status, await response.read()
        try:
            answer = msgspec.json.decode(body) if body else None
        except ValueError:
            raise OwnerUnavailable(ordinal, "its answer is not JSON") from None
        if status >= 400:
            raise _answered(ordinal, status, answer)
        return answer

    def _http(self) -> aiohttp.ClientSession:
        """The client to the others. It changes nothing about a request or an answer by itself."""
        # Made at the first use: aiohttp wants the running loop.
        if self._session is None:
            self._session = new_session(kept=KEEP_ALIVE, dns_kept=5, skipped=("Content-Type",))
        return self._session

    def _unseen(self, ordinal: int) -> Peer:
        return Peer(ordinal=ordinal, url=self.address(ordinal))

    async def _poll(self, weights: WeightService, rng: random.Random) -> None:
        # Who starts alone has nobody to learn from; whoever joins it later learns from it.
        adopted = 0 if self._seen else ADOPTING_ROUNDS
        while True:
            known = [state for state in await asyncio.gather(*map(self._look, self.others)) if state is not None]
            if adopted < ADOPTING_ROUNDS:
                try:
                    await weights.adopt(known)
                    adopted += 1
                except DomainError as error:
                    logger.warning("what the peers know of the weights could not be written: %s", error)
            interval = max(POLL_INTERVAL, len(self._seen) / POLLS_A_SECOND)
            # Spread out, so that proxies started together do not ask in step for ever.
            await asyncio.sleep(interval * rng.uniform(0.8, 1.2))

    async def _look(self, ordinal: int) -> WeightState | None:
        """Note how a peer is; returns what it knows of the weights."""
        try:
            async with self.request(ordinal, "GET", "/ready", timeout=POLL_TIMEOUT) as response:
                said = msgspec.json.decode(await response.read())
            self._note(_described(said, ordinal, self.address(ordinal)))
            self.learn(int(said.get("proxies_ever", 0)))
            return WeightState.from_json(said["weights"]) if "weights" in said else None
        except (OwnerFailed, ValueError, TypeError, LookupError):
            self.note_unreachable(ordinal)
            self._give_up(ordinal)
            return None

    def _give_up(self, ordinal: int) -> None:
        """End what waits for a proxy that did not answer, where it is lost, or has been silent for long."""
        now = asyncio.get_running_loop().time()
        since = self._silent_since.setdefault(ordinal, now)
        if ordinal in self.lost or now - since >= GIVEN_UP_AFTER:
            for give_up in self._awaited.get(ordinal, {}).values():
                give_up()

    def _note(self, peer: Peer) -> None:
        before = self._seen.get(peer.ordinal)
        if before is not None:  # it may have been scaled away while it was asked
            self._seen[peer.ordinal] = peer
            if peer.state != "unreachable":
                self._silent_since.pop(peer.ordinal, None)
            if before.state == "unreachable" != peer.state:
                self.look_again()


def _described(said: dict[str, Any], ordinal: int, url: str) -> Peer:
    """What a `/ready` says. Raises ValueError, TypeError or LookupError where it is not that peer's."""
    if said["ordinal"] != ordinal:
        raise ValueError(f"{url} is proxy {said['ordinal']}")
    state = said.get("state", "ready" if said["ready"] else "starting")
    if state not in get_args(State):
        raise ValueError(f"{state!r} is no state of a proxy")
    return Peer(
        ordinal=ordinal, url=url, state=state, sessions_open=int(said["sessions_open"]), room=said["room"] is True
    )


def _answered(ordinal: int, status: int, answer: Any) -> DomainError:
    """A peer's error as this one's own; of a stale epoch also how things stand there."""
    try:
        error = answer["error"]
        code, message = error["code"], f"Proxy {ordinal}: {error['message']}"
        if code == EPOCH_STALE:
            return EpochStale(message, {name: value for name, value in answer.items() if name != "error"})
        return PeerError(message, code=code, status=status, param=error.get("param"))
    except (TypeError, LookupError, AttributeError):
        return OwnerUnavailable(ordinal, f"it answered with status {status}")
