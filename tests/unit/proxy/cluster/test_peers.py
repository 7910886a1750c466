"""Where sessions go, how proxies see each other, and steps over a whole fleet through real servers."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.proxy.cluster.served import Served, served, settings_of
from tests.unit.proxy.services import open_weights

from rolloutfleet_proxy.cluster.peers import Peer, Peers
from rolloutfleet_proxy.cluster.placement import MOST_WAITED, Placement, keeper_of, order
from rolloutfleet_proxy.cluster.weights import FleetWeights
from rolloutfleet_proxy.control import ops as ops_api
from rolloutfleet_proxy.control import weights as weights_api
from rolloutfleet_proxy.domain.errors import DomainError, Draining, NoRoom, StoreBusy
from rolloutfleet_proxy.domain.idempotency import KeyedCall, keyed_call
from rolloutfleet_proxy.http.errors import body_of, headers_of, status_of
from rolloutfleet_proxy.http.headers import KEPT
from rolloutfleet_proxy.ids import SESSION, Owner
from rolloutfleet_proxy.lifecycle.sealing import Seals
from rolloutfleet_proxy.process.drain import Drains
from rolloutfleet_proxy.services.access import Access
from rolloutfleet_proxy.services.weights import WeightService
from rolloutfleet_proxy.sessions.auth import AdminKeys
from rolloutfleet_proxy.sessions.registry import SessionRegistry
from rolloutfleet_proxy.store.database import open_database
from rolloutfleet_proxy.store.idempotency import check_claim, place_claim, recall, remember
from rolloutfleet_proxy.store.store import Reader
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.writer import ServedClock, Writer

KEY = "an-admin-key-for-tests"
PORTS = [7000, 7001, 7002]
SIZE = len(PORTS)


def table(*opens: int) -> list[Peer]:
    return [
        Peer(ordinal=ordinal, url="", state="ready", sessions_open=sessions, room=True)
        for ordinal, sessions in enumerate(opens)
    ]


def test_sessions_spread_evenly() -> None:
    rng = random.Random(1)
    peers = table(*[0] * 8)
    for _ in range(8_000):
        chosen = order(peers, rng)[0]
        peers[chosen] = replace(peers[chosen], sessions_open=peers[chosen].sessions_open + 1)
    placed = [peer.sessions_open for peer in peers]
    # Two choices keep the fullest within log log n of the mean (Azar, Broder, Karlin, Upfal 1994).
    assert max(placed) - min(placed) <= 8


def test_a_proxy_that_came_back_empty_fills_up_without_being_flooded() -> None:
    rng = random.Random(1)
    first = Counter(order(table(0, 100, 100, 100), rng)[0] for _ in range(4_000))
    assert 0.4 < first[0] / 4_000 < 0.6


@given(
    st.lists(st.tuples(st.sampled_from(["ready", "starting", "draining", "unreachable"]), st.booleans()), max_size=6),
    st.randoms(use_true_random=False),
)
def test_only_ready_proxies_with_room_are_tried_and_all_of_them(kinds: list[tuple[Any, bool]], rng: Any) -> None:
    peers = [Peer(ordinal=n, url="", state=state, room=room) for n, (state, room) in enumerate(kinds)]
    fit = {peer.ordinal for peer in peers if peer.state == "ready" and peer.room}
    assert set(order(peers, rng)) == fit
    assert len(order(peers, rng)) == len(fit)


@given(st.text(max_size=20), st.integers(1, 50))
def test_a_key_has_one_keeper_that_a_larger_fleet_seldom_changes(key: str, replicas: int) -> None:
    keeper = keeper_of(key, replicas)
    assert 0 <= keeper < replicas
    assert keeper_of(key, replicas + 1) in (keeper, replicas)


def test_keys_spread_over_their_keepers() -> None:
    kept = Counter(keeper_of(f"key {n}", 4) for n in range(2_000))
    assert min(kept.values()) > 400


class SilentEngines:
    """Confirms at once, and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def engines(self) -> list[str]:
        return []

    async def pause(self, mode: str) -> dict[str, str]:
        self.told.append(mode)
        return {}

    async def resume(self) -> dict[str, str]:
        self.told.append("continue")
        return {}

    async def load(self, path: str, version: int, *, flush_cache: bool, timeout: float) -> dict[str, str]:
        self.told.append(f"load {path}")
        return {}


@dataclass
class OneProxy:
    """What the handlers of peers and weights need of a proxy."""

    owner: Owner
    weights: WeightService
    fleet_weights: FleetWeights
    peers: Peers
    writer: Writer
    sessions: SessionRegistry
    seen: Peer
    looking: asyncio.Task[None] | None = None
    started: list[str] = field(default_factory=list)
    refuses: str | None = None
    max_hold: float = 0.0
    holding: bool = False

    async def start_here(self, key: str | None) -> Response:
        """As a start does it: what the key did before, else who was asked, else whether there is room."""
        call = keyed_call(key, scope="start", body=b"")
        session = await self.writer.run(partial(self._start, call=call))
        if session not in self.started:
            self.started.append(session)
        self.seen = replace(self.seen, sessions_open=len(self.started))
        return Response(session, status_code=201)

    def _start(self, transaction: Transaction, *, call: KeyedCall | None) -> str:
        before = None if call is None else recall(transaction, call)
        if before is not None:
            return before
        if call is not None:
            check_claim(transaction, call.key)
        if self.refuses is not None:
            raise (NoRoom if self.refuses == "no_room" else Draining)("Not here.")
        session = self.owner.name(SESSION)
        if call is not None:
            remember(transaction, call, session)
        return session


@dataclass
class Fleet:
    proxies: list[OneProxy]
    urls: list[str]
    servers: list[Served]
    engines: SilentEngines
    client: httpx.AsyncClient

    async def call(self, ordinal: int, method: str, path: str, content: Any = None, **headers: str) -> httpx.Response:
        return await self.client.request(
            method, self.urls[ordinal] + path, json=content, headers={"Authorization": f"Bearer {KEY}", **headers}
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.02)


def app_of(proxy: OneProxy) -> FastAPI:
    app = FastAPI()
    access = Access(admin=AdminKeys([KEY]), registry=proxy.sessions, seals=Seals())
    app.state.services = SimpleNamespace(
        access=access,
        peers=proxy.peers,
        weights=proxy.weights,
        fleet_weights=proxy.fleet_weights,
        ordinals=[proxy.owner.ordinal],
    )
    app.include_router(weights_api.router)
    drains = cast(Drains, proxy)  # it has what is looked at of one
    placement = Placement(proxy.peers, proxy.writer, drains, random.Random(proxy.owner.ordinal))

    @app.get("/ready")
    async def ready() -> dict[str, Any]:
        seen = proxy.seen
        return {
            "ready": seen.state == "ready",
            "state": seen.state,
            "ordinal": seen.ordinal,
            "store_id": proxy.owner.store_id,
            "sessions_open": seen.sessions_open,
            "room": seen.room,
            "weights": proxy.weights.gate.state.as_json(),
        }

    @app.post("/sessions")
    async def start(request: Request) -> Response:
        key = request.headers.get("idempotency-key")
        return await placement.start(request, sessions=1, key=key, here=partial(proxy.start_here, key))

    @app.exception_handler(DomainError)
    async def answer(request: Request, error: DomainError) -> Response:
        response = Response(body_of(error), status_code=status_of(error), media_type="application/json")
        response.raw_headers += headers_of(error)
        return response

    app.include_router(ops_api.router)
    return app


@asynccontextmanager
async def opened(tmp: Path, ordinal: int, engines: SilentEngines) -> AsyncIterator[OneProxy]:
    clock = asyncio.get_running_loop().time
    database = open_database(tmp / f"store{ordinal}")
    writer = Writer(database, ServedClock(database, monotonic=clock))
    weights = await open_weights(writer, max_hold=5.0, clock=clock)
    reader = Reader(database)
    peers = peers_of(ordinal)
    yield (
        proxy := OneProxy(
            owner=Owner(ordinal, database.store_id),
            weights=weights,
            fleet_weights=FleetWeights(weights, ordinal=ordinal, engines=engines, clock=clock),
            peers=peers,
            writer=writer,
            sessions=SessionRegistry(reader, cache_bytes=0),
            seen=Peer(ordinal=ordinal, url=peers.address(ordinal), state="ready", sessions_open=0, room=True),
        )
    )
    if proxy.looking is not None:
        proxy.looking.cancel()
    await peers.close()
    await writer.close()
    reader.close()
    database.close()


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        engines = SilentEngines()
        proxies = [await stack.enter_async_context(opened(tmp_path, n, engines)) for n in range(SIZE)]
        servers = [await served(app_of(proxy), port) for proxy, port in zip(proxies, PORTS, strict=True)]
        for server in servers:
            stack.push_async_callback(server.stop)
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=None))
        urls = [proxy.peers.address(n) for n, proxy in enumerate(proxies)]
        running = Fleet(proxies, urls, servers, engines, client)
        for proxy in proxies:
            begin(proxy)
        await running.until(lambda: all(sees_all(proxy) for proxy in proxies))
        yield running


def peers_of(ordinal: int) -> Peers:
    return Peers(settings_of(ordinal, PORTS, replicas=SIZE))


def begin(proxy: OneProxy) -> None:
    looking = proxy.peers.begin(proxy.weights, own=lambda: proxy.seen, rng=random.Random(0))
    proxy.looking = asyncio.create_task(looking)


def sees_all(proxy: OneProxy) -> bool:
    return all(peer.state == "ready" for peer in proxy.peers.table())


async def test_every_proxy_shows_all_with_their_states(fleet: Fleet) -> None:
    fleet.proxies[1].seen = replace(fleet.proxies[1].seen, state="draining", sessions_open=7)
    await fleet.servers[2].stop()
    await fleet.until(
        lambda: [peer.state for peer in fleet.proxies[0].peers.table()][1:] == ["draining", "unreachable"]
    )
    shown = (await fleet.call(0, "GET", "/proxies")).json()
    assert shown["ordinals"] == [0]
    assert [(one["ordinal"], one["url"], one["state"]) for one in shown["proxies"]] == [
        (0, fleet.urls[0], "ready"),
        (1, fleet.urls[1], "draining"),
        (2, fleet.urls[2], "unreachable"),
    ]
    assert shown["proxies"][1]["sessions_open"] == 7


async def test_another_proxy_at_a_peers_address_is_no_peer(fleet: Fleet) -> None:
    fleet.proxies[1].seen = replace(fleet.proxies[1].seen, ordinal=2)
    await fleet.until(lambda: fleet.proxies[0].peers.table()[1].state == "unreachable")


async def test_a_trainer_on_one_connection_does_not_fill_one_proxy(fleet: Fleet) -> None:
    for _ in range(60):
        assert (await fleet.call(0, "POST", "/sessions", {})).status_code == 201
    assert min(len(proxy.started) for proxy in fleet.proxies) >= 10


async def test_where_the_chosen_one_can_not_another_does(fleet: Fleet) -> None:
    await fleet.servers[1].stop()
    fleet.proxies[2].refuses = "no_room"
    for _ in range(10):
        assert (await fleet.call(0, "POST", "/sessions", {})).status_code == 201
    assert [len(proxy.started) for proxy in fleet.proxies] == [10, 0, 0]


async def test_no_room_anywhere_is_429_with_retry_after(fleet: Fleet) -> None:
    for proxy in fleet.proxies:
        proxy.refuses = "no_room"
    answer = await fleet.call(0, "POST", "/sessions", {})
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "no_room")
    assert int(answer.headers["retry-after"]) > 0


async def test_a_start_that_was_placed_is_placed_no_further(fleet: Fleet) -> None:
    for _ in range(5):
        await fleet.call(2, "POST", "/sessions", {}, **{"X-RolloutFleet-Placed": "2"})
    assert [len(proxy.started) for proxy in fleet.proxies] == [0, 0, 5]


async def test_a_retry_with_the_same_key_comes_to_the_same_proxy_from_anywhere(fleet: Fleet) -> None:
    for n in range(6):
        answers = [await fleet.call(o, "POST", "/sessions", {}, **{"Idempotency-Key": f"k{n}"}) for o in range(SIZE)]
        assert len({answer.text for answer in answers}) == 1


def kept_by(ordinal: int) -> str:
    """An Idempotency-Key that this proxy keeps."""
    return next(key for n in range(1_000) if keeper_of(key := f"key {n} of {ordinal}", SIZE) == ordinal)


async def start(fleet: Fleet, at: int, key: str) -> httpx.Response:
    return await fleet.call(at, "POST", "/sessions", {}, **{"Idempotency-Key": key})


def says(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def started(fleet: Fleet) -> list[int]:
    return [len(proxy.started) for proxy in fleet.proxies]


async def test_start_goes_to_no_other_proxy_while_the_keeper_of_its_key_is_down(fleet: Fleet) -> None:
    key = kept_by(2)
    first = await start(fleet, 0, key)
    assert started(fleet) == [0, 0, 1]
    await fleet.servers[2].stop()
    for at in (0, 1, 0):  # found down by this call, and known to be down
        refused = await start(fleet, at, key)
        assert says(refused) == (503, "owner_unreachable")
        assert refused.headers["retry-after"] == "1" and "x-should-retry" not in refused.headers
    again = await served(app_of(fleet.proxies[2]), PORTS[2])
    await fleet.until(lambda: sees_all(fleet.proxies[0]))
    assert (await start(fleet, 0, key)).text == first.text
    assert started(fleet) == [0, 0, 1]
    await again.stop()


async def test_start_is_held_until_the_keeper_of_its_key_answers(fleet: Fleet) -> None:
    key, keeper = kept_by(2), fleet.proxies[2]
    await fleet.servers[2].stop()
    fleet.proxies[0].max_hold = 300.0
    held = [asyncio.create_task(start(fleet, 0, key)) for _ in range(2)]
    await fleet.until(lambda: not sees_all(fleet.proxies[0]))
    for preference in ("wait=0", "respond-async, Wait=0"):
        others = {"Idempotency-Key": key, "Prefer": preference}
        assert says(await fleet.call(0, "POST", "/sessions", {}, **others)) == (503, "owner_unreachable")
    assert not any(each.done() for each in held)
    again = await served(app_of(keeper), PORTS[2])
    assert [(await each).status_code for each in held] == [201, 201]
    assert started(fleet) == [0, 0, 1]
    await again.stop()


async def test_start_is_held_until_the_proxy_that_took_it_for_its_keeper_answers(fleet: Fleet) -> None:
    key = kept_by(0)
    await fleet.proxies[0].writer.run(partial(place_claim, key=key, ordinal=2))
    await fleet.servers[2].stop()
    await fleet.until(lambda: not sees_all(fleet.proxies[0]))
    fleet.proxies[0].max_hold = 300.0
    held = [asyncio.create_task(start(fleet, at, key)) for at in (0, 1)]
    await fleet.until(lambda: fleet.proxies[0].peers.waiting == 2)
    again = await served(app_of(fleet.proxies[2]), PORTS[2])
    assert [(await each).status_code for each in held] == [201, 201]
    assert started(fleet) == [0, 0, 1]
    await again.stop()


async def test_start_is_refused_at_once_where_its_proxy_is_none_of_the_fleets(fleet: Fleet) -> None:
    key = kept_by(0)
    await fleet.proxies[0].writer.run(partial(place_claim, key=key, ordinal=2))
    await fleet.servers[2].stop()
    fleet.proxies[0].peers.follow(2)
    fleet.proxies[0].max_hold = 300.0
    began = asyncio.get_running_loop().time()
    assert says(await start(fleet, 0, key)) == (503, "owner_unreachable")
    assert asyncio.get_running_loop().time() - began < 10.0


async def test_held_start_is_sent_away_by_a_drain(fleet: Fleet) -> None:
    await fleet.servers[2].stop()
    fleet.proxies[0].max_hold = 300.0
    held = asyncio.create_task(start(fleet, 0, kept_by(2)))
    await fleet.until(lambda: fleet.proxies[0].peers.waiting == 1)
    fleet.proxies[0].holding = True
    fleet.proxies[0].peers.look_again()
    assert says(await held) == (503, "draining")


async def test_start_is_refused_where_the_keeper_of_its_key_stays_away(fleet: Fleet) -> None:
    await fleet.servers[2].stop()
    fleet.proxies[0].max_hold = 300.0
    began = asyncio.get_running_loop().time()
    assert says(await start(fleet, 0, kept_by(2))) == (503, "owner_unreachable")
    assert MOST_WAITED <= asyncio.get_running_loop().time() - began < 300.0


@pytest.mark.parametrize("why", ["no_room", "draining"])
async def test_a_key_stays_with_the_proxy_that_took_it_for_its_keeper(fleet: Fleet, why: str) -> None:
    """The keeper has room again, and still knows where it went, also in its next life."""
    key = kept_by(0)
    keeper = fleet.proxies[0]
    keeper.refuses = why
    first = await start(fleet, 1, key)
    assert first.status_code == 201 and keeper.started == []
    keeper.refuses = None
    for at in range(SIZE):
        assert (await start(fleet, at, key)).text == first.text
    [taker] = [proxy.owner.ordinal for proxy in fleet.proxies if proxy.started]
    await fleet.servers[taker].stop()
    for at in {0, 1, 2} - {taker}:
        assert says(await start(fleet, at, key)) == (503, "owner_unreachable")
    assert sum(started(fleet)) == 1


async def test_a_key_that_nobody_had_room_for_starts_sessions_when_somebody_has(fleet: Fleet) -> None:
    key = kept_by(1)
    for proxy in fleet.proxies:
        proxy.refuses = "no_room"
    assert says(await start(fleet, 0, key)) == (429, "no_room")
    fleet.proxies[1].refuses = None
    first = await start(fleet, 0, key)
    assert started(fleet) == [0, 1, 0]
    fleet.proxies[2].refuses = None
    assert (await start(fleet, 2, key)).text == first.text


async def test_who_was_asked_for_a_keeper_and_refuses_now_gives_the_key_back(fleet: Fleet) -> None:
    """It died before it wrote anything, came back full, and the keeper has room."""
    key = kept_by(0)
    await fleet.proxies[0].writer.run(partial(place_claim, key=key, ordinal=1))
    fleet.proxies[1].refuses = "no_room"
    first = await start(fleet, 2, key)
    assert first.status_code == 201 and fleet.proxies[1].started == []
    fleet.proxies[1].refuses = None
    assert (await start(fleet, 1, key)).text == first.text
    assert sum(started(fleet)) == 1


async def test_many_starts_at_once_with_one_key_are_one(fleet: Fleet) -> None:
    key = kept_by(0)
    fleet.proxies[0].refuses = "no_room"
    answers = await asyncio.gather(*(start(fleet, n % SIZE, key) for n in range(12)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.text for answer in answers}) == sum(started(fleet)) == 1


async def test_a_start_that_broke_off_is_owner_unavailable_as_it_may_have_been_made(fleet: Fleet) -> None:
    async def take_and_leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    await fleet.servers[2].stop()
    await fleet.until(lambda: not sees_all(fleet.proxies[0]))
    breaking = await asyncio.start_server(take_and_leave, "127.0.0.1", PORTS[2])
    async with breaking:
        # To its keeper it would not be sent now; a keeper whose fleet was larger asks it all the same.
        await fleet.proxies[0].writer.run(partial(place_claim, key=(key := kept_by(0)), ordinal=2))
        refused = await start(fleet, 0, key)
        assert says(refused) == (503, "owner_unavailable") and refused.headers["retry-after"] == "1"
    assert started(fleet) == [0, 0, 0]


async def test_the_keeper_decides_whatever_it_thinks_of_the_fleets_size(fleet: Fleet) -> None:
    answer = await fleet.call(1, "POST", "/sessions", {}, **{"Idempotency-Key": kept_by(2), KEPT: "1"})
    assert answer.status_code == 201 and started(fleet) == [0, 1, 0]


async def test_a_fleet_is_paused_updated_and_continued_from_any_proxy(fleet: Fleet) -> None:
    paused = await fleet.call(1, "POST", "/pause?scope=fleet", {"mode": "in_place"})
    assert paused.status_code == 200
    assert paused.json() | {"epoch": 1, "paused": True, "ordinals": [0, 1, 2], "failed": []} == paused.json()
    assert [proxy.weights.gate.paused for proxy in fleet.proxies] == [True] * SIZE
    assert (await fleet.call(2, "PUT", "/version?scope=fleet", {"version": 3, "epoch": 1})).json()["version"] == 3
    continued = (await fleet.call(0, "POST", "/continue?scope=fleet", {"epoch": 1})).json()
    assert (continued["paused"], continued["ordinals"]) == (False, [0, 1, 2])
    assert [proxy.weights.gate.version for proxy in fleet.proxies] == [3] * SIZE
    assert fleet.engines.told[0] == "in_place"
    assert set(fleet.engines.told[1:]) == {"continue"}
    shown = (await fleet.call(0, "GET", "/version?scope=fleet")).json()
    assert {(one["version"], one["epoch"], one["paused"]) for one in shown["proxies"]} == {(3, 1, False)}


async def test_without_scope_a_proxy_covers_itself(fleet: Fleet) -> None:
    for proxy in fleet.proxies:  # one that has just started adopts a newer version of its peers
        assert proxy.looking is not None
        proxy.looking.cancel()
    answer = (await fleet.call(1, "PUT", "/version", {"version": 3})).json()
    assert (answer["version"], answer["run"], answer["epoch"], answer["ordinals"]) == (3, 0, 0, [1])
    assert [proxy.weights.gate.version for proxy in fleet.proxies] == [0, 3, 0]
    backwards = await fleet.call(0, "PUT", "/version?scope=fleet", {"version": 2})
    assert (backwards.status_code, backwards.json()["error"]["code"]) == (409, "version_backwards")
    assert backwards.json()["version"] == 3
    assert [proxy.weights.gate.version for proxy in fleet.proxies] == [0, 3, 0]


async def test_a_proxy_that_is_down_is_named_and_catches_up_when_it_starts(fleet: Fleet) -> None:
    await fleet.servers[2].stop()
    paused = (await fleet.call(0, "POST", "/pause?scope=fleet", {})).json()
    assert paused["ordinals"] == [0, 1]
    assert [(one["ordinal"], one["error"]["code"]) for one in paused["failed"]] == [(2, "owner_unreachable")]
    recovered = (await fleet.call(0, "POST", "/recover?scope=fleet", {"version": 1, "run": 1, "newer": "keep"})).json()
    assert (recovered["run"], recovered["version"], recovered["ordinals"]) == (1, 1, [0, 1])
    assert recovered["recovered"]["kept_trajectories"] == 0
    down = fleet.proxies[2]
    assert down.looking is not None
    down.looking.cancel()
    await down.peers.close()
    down.peers = peers_of(2)
    begin(down)
    assert down.weights.gate.starting, "calls wait until it has asked"
    await fleet.until(lambda: not down.weights.gate.starting)
    assert down.weights.gate.state == fleet.proxies[0].weights.gate.state
    assert (down.weights.gate.paused, down.weights.gate.run) == (True, 1)


async def test_a_proxy_whose_store_is_busy_while_it_starts_learns_the_version_at_a_later_look(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting = fleet.proxies[2]
    assert starting.looking is not None
    starting.looking.cancel()
    await fleet.proxies[0].weights.advance(3)
    run, busy = starting.writer.run, [StoreBusy()]

    async def run_or_fail(*args: Any, **kwargs: Any) -> Any:
        if busy:
            raise busy.pop()
        return await run(*args, **kwargs)

    monkeypatch.setattr(starting.writer, "run", run_or_fail)
    begin(starting)
    await fleet.until(lambda: not starting.weights.gate.starting)
    assert not busy and starting.weights.gate.version == 3


async def test_what_others_answer_late_or_refuse_is_told_as_it_is(fleet: Fleet) -> None:
    async def generating() -> None:
        async with fleet.proxies[1].weights.gate.submission():
            await asyncio.Event().wait()

    call = asyncio.create_task(generating())
    await asyncio.sleep(0)
    late = await fleet.call(0, "POST", "/pause?scope=fleet", {"mode": "wait", "timeout": 0.3})
    assert (late.status_code, late.json()["error"]["code"]) == (504, "pause_timeout")
    assert (late.json()["paused"], late.json()["failed"]) == (False, [])
    assert not any(proxy.weights.gate.paused for proxy in fleet.proxies)
    stale = await fleet.call(2, "POST", "/continue?scope=fleet", {"epoch": 0})
    assert (stale.status_code, stale.json()["error"]["code"], stale.json()["epoch"]) == (409, "epoch_stale", 1)
    call.cancel()


BAD: list[tuple[str, str, Any]] = [
    ("PUT", "/version", {"version": True}),
    ("PUT", "/version", {"version": 1.5}),
    ("PUT", "/version", {"version": -1}),
    ("PUT", "/version", {"version": 2**31}),
    ("PUT", "/version", {}),
    ("POST", "/pause", {"mode": "soft"}),
    ("POST", "/pause", {"timeout": 0}),
    ("POST", "/pause", {"timeout": "5"}),
    ("POST", "/continue", {"epoch": -1}),
    ("POST", "/recover", {"version": 1}),
    ("POST", "/recover", {"version": 1, "run": 1, "newer": "burn"}),
    ("POST", "/pause?scope=galaxy", {}),
    ("POST", "/peers/weights/join", {"epoch": 1}),
]


async def test_bad_input_and_a_missing_key_change_nothing(fleet: Fleet) -> None:
    for method, path, content in BAD:
        assert (await fleet.call(0, method, path, content)).status_code in (400, 422)
        assert (await fleet.client.request(method, fleet.urls[0] + path)).status_code == 401
    for path in ("/version", "/proxies", "/peers/weights"):
        assert (await fleet.client.get(fleet.urls[0] + path)).status_code == 401
        other = await fleet.client.get(fleet.urls[0] + path, headers={"x-api-key": "some-other-key-than-that"})
        assert other.status_code == 401
    assert fleet.proxies[0].weights.gate.state == fleet.proxies[1].weights.gate.state
    assert not fleet.proxies[0].weights.gate.paused
