"""Every call of the API once, right, by one caller, in an order in which each finds what it needs.

A fuzz begins with it, so that which calls were answered with a 2xx is no matter of chance, however few its cases are.
"""

from collections.abc import Callable
from functools import partial

from tests.integration.fuzz import agents, asking
from tests.integration.fuzz.asking import LONG, SESSIONS_A_LANE, Ask, Lane, end_of, export_of
from tests.integration.fuzz.fleetwide import Ask_, Weights, recover, retire_one, update_weights
from tests.integration.fuzz.model import Lease, Session
from tests.integration.fuzz.wire import Answer

SESSIONS = SESSIONS_A_LANE // 2 + 1
"""Open ones, so that one may be closed and then one deleted: of fewer than half a lane's, neither is."""
TRIES = 1_000
"""Of what is made by chance, until it is what is looked for: what makes it less often than one time in ten fails."""
READING = (
    (asking.health, ("GET /health", "GET /ready", "GET /metrics")),
    (asking.figures, ("GET /proxies", "GET /stats", "GET /audit", "GET /version", "GET /openapi.json")),
    (asking.commits, ("GET /events",)),
    (asking.peers, ("GET /peers/weights", "GET /peers/weights/at-stake", "GET /peers/weights/recovered")),
    (asking.models, ("GET /v1/models", "GET /v1/models/{id}")),
    (asking.listing, ("GET /sessions",)),
    (asking.show, ("GET /sessions/{id}", "GET /sessions/{id}/turns", "GET /sessions/{id}/conversation")),
    (asking.show, ("GET /sessions/{id}/v1/models", "GET /sessions/{id}/v1/models/{id}")),
    (asking.dumps, ("GET /dumps",)),
)
SHARDS = ("PUT /shards/{id}", "GET /shards/{id}", "POST /shards/batch", "DELETE /shards")


async def call_all(lane: Lane, ask: Ask_, weights: Weights) -> None:
    """Leaves an open session with turns. What a fault keeps from being asked is left out: its call has no 2xx then."""
    tour = _Tour(lane, ask)
    for proxy in range(lane.proxies):
        await tour.life_of_a_session(proxy)
    for make, routes in READING:
        for route in routes:
            await tour.ask(make, _is(route))
    for make, route in zip((asking.put, asking.get, asking.batch, asking.clear), SHARDS, strict=True):
        await tour.ask(make, _is(route))
    await tour.ask(asking.touch)
    await tour.ask(asking.delete)
    await update_weights(lane, ask, weights)
    await recover(lane, ask, weights)
    for proxy in range(lane.proxies):
        await tour.dump_of_a_session(proxy)
    await tour.session_with_turns(0)
    await tour.ask(asking.annotate)
    for method in ("GET", "DELETE"):
        for path in ("/v1/responses/{id}", "/sessions/{id}/v1/responses/{id}"):
            await tour.ask(agents.response, _is(f"{method} {path}"))


def _is(route: str) -> Callable[[Ask], bool]:
    return lambda asked: asked.route == route


class _Tour:
    def __init__(self, lane: Lane, ask: Ask_) -> None:
        self._lane = lane
        self._ask = ask

    async def ask(
        self, make: Callable[[Lane], Ask | None], fits: Callable[[Ask], bool] = lambda asked: True
    ) -> Answer | None:
        """The first of what is made that fits; returns its answer where that is a 2xx."""
        made = (make(self._lane) for _ in range(TRIES))
        asked = next((each for each in made if each is not None and fits(each)), None)
        return None if asked is None else await self._ask(asked)

    async def life_of_a_session(self, proxy: int) -> None:
        """Turns, a reward, the end; leased and given back, leased and acknowledged."""
        session = await self.session_with_turns(proxy)
        if session is None:
            return
        await self.ask(asking.reward, lambda asked: asked.names == (session.name,))
        await self.ask(asking.close, lambda asked: asked.names == (session.name,))
        for ends in (("renew", "release"), ("ack",)):
            lease = await self._lease_of(session)
            if lease is None:
                return
            for what in ends:
                await self.ask(partial(end_of, lease=lease, what=what), _names_something)

    async def dump_of_a_session(self, proxy: int) -> None:
        if await self.session_with_turns(proxy) is not None:
            await retire_one(self._lane, self._ask, proxy=proxy, brings_in=1)
            await self.ask(asking.dumps, _is("GET /dumps/{id}"))

    async def session_with_turns(self, proxy: int) -> Session | None:
        session = await self._session_at(proxy)
        if session is not None:
            for names in ((), (session.name,)):
                for make in (agents.chat, agents.messages, agents.count, agents.responses):
                    await self.ask(make, partial(_with, session.key, names))
        return session

    async def _session_at(self, proxy: int) -> Session | None:
        """A new one that is alone in its group: where it is made is for the fleet to choose."""
        lane, known = self._lane, set(self._lane.model.sessions)
        for _ in range(TRIES):
            here = [each for each in lane.sessions() if each.name not in known and each.proxy == proxy]
            if here and len(lane.sessions()) >= SESSIONS:
                return here[0]
            full = len(lane.sessions()) >= SESSIONS_A_LANE
            if await (self.ask(asking.delete) if full else self.ask(asking.start, _alone)) is None:
                break
        return None

    async def _lease_of(self, session: Session) -> Lease | None:
        lane, body = self._lane, {"session_ids": [session.name], "lease_seconds": LONG}
        await self._ask(export_of(lane, body, proxy=lane.any_proxy(), owner=session.proxy))
        return next(iter(lane.leases()), None)


def _with(key: str, names: tuple[str, ...], asked: Ask) -> bool:
    return (asked.key, asked.names) == (key, names)


def _alone(asked: Ask) -> bool:
    return "group_size" not in asked.json


def _names_something(asked: Ask) -> bool:
    return "trajectory_ids" not in asked.json or bool(asked.json["trajectory_ids"])
