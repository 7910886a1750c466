"""Batches of cases against a fleet: lanes ask at once, each answer is judged; after a batch the sums are compared."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import httpx
from tests.fleets import Fleet
from tests.integration.fuzz import breaking
from tests.integration.fuzz.asking import Ask, Lane
from tests.integration.fuzz.breaking import Case, Expect, Kind
from tests.integration.fuzz.choosing import any_route, something
from tests.integration.fuzz.fleetwide import EPISODES, Weights, never_right
from tests.integration.fuzz.judging import code_of, faults_of
from tests.integration.fuzz.model import Model, Untold, comparable
from tests.integration.fuzz.tour import call_all
from tests.integration.fuzz.wire import Answer, Connection, NoAnswer
from tests.waiting import PATIENCE

Json = Any

BODY_LIMIT = 200_000
SETTINGS: Json = {"body_limit": BODY_LIMIT, "shard_limit": BODY_LIMIT}
LANES = 16
ROUND = 12
"""Cases of each lane between two episodes."""
RIGHT_SHARE = 0.55
NEVER_RIGHT_SHARE = 0.06
LOOKED_AT_SHARE = 0.1
"""Of the answers after which the connection is looked at closely: does it go on, or end, by itself?"""
ENDLESS_AT_ONCE = 24
ENDLESS_EVERY = 150
"""Cases for each connection that is slow for ever."""
ENDLESS_ROUTES = frozenset({"POST /sessions", "POST /shards/batch", "PUT /shards/{id}"})
"""Where such a body holds nothing up that others wait for."""
SECONDS_TO_SETTLE = 60.0
"""For files and rows that go behind an answer."""
SECONDS_TO_SEND = 20.0
"""For the rest of a request that has been answered."""
MOST_FAULTS = 20
SHORTEST = 1_000.0
"""Seconds of leases and patience that a changed body may ask for: less might end while the fuzz runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that must not be, and all that is needed to see it again."""

    batch: int
    what: str
    route: str = ""
    kind: str = ""
    proxy: int | None = None
    sent: str = ""
    answered: str = ""


@dataclass(slots=True)
class Covered:
    """What was sent, and what came of it."""

    cases: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    by_route: dict[str, Counter[str]] = field(default_factory=dict)
    by_status: Counter[str] = field(default_factory=Counter)
    by_code: Counter[str] = field(default_factory=Counter)
    reached_2xx: int = 0
    audits: int = 0
    batches: int = 0

    def count(self, case: Case, answer: Answer | None) -> None:
        self.cases += 1
        self.by_kind[case.kind] += 1
        of_route = self.by_route.setdefault(case.ask.route, Counter())
        of_route[case.kind] += 1
        self.by_status[str(answer.status) if answer else "closed"] += 1
        if answer is None:
            return
        code = code_of(answer)
        self.by_code[code or "none"] += 1
        if 200 <= answer.status < 300 and code is None:
            self.reached_2xx += 1
            of_route["2xx"] += 1


class Fuzz:
    """One fuzz of one fleet. `model` may be another, to show that what it gets wrong is noticed."""

    def __init__(
        self, fleet: Fleet, *, seed: int, model: Model | None = None, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.covered = Covered()
        self.faults: list[Fault] = []
        self.model = model or Model(len(fleet.proxies))
        self._fleet = fleet
        self._say = say
        self._ports = [proxy.port for proxy in fleet.proxies]
        self._random = Random(seed)
        key = fleet.proxy.key
        self._secrets = [key.encode(), str(fleet.proxy.folder.parent).encode()]
        self._lanes = [self._lane(number, seed, key) for number in range(LANES)]
        self._fleetwide = self._lane(LANES, seed, key)
        self._weights = Weights()
        self._stores: list[str] = []
        self._kept: dict[tuple[int, int], Connection] = {}
        """The connection of a lane to a proxy that its next case goes over."""
        self._endless: set[asyncio.Task[None]] = set()
        self._endless_due = 0
        self._endless_begun = 0
        self._pids: list[int] = []

    def _lane(self, number: int, seed: int, key: str) -> Lane:
        return Lane(number, self.model, Random(f"{seed} {number}"), key, len(self._ports))

    # Batches

    async def run(self, cases: int, *, batch: int, until: float) -> None:
        """So many cases, or fewer where `until` (of time.monotonic) comes first or too much is wrong."""
        began = time.monotonic()
        self._endless_due = max(len(breaking.ENDLESS), cases // ENDLESS_EVERY)
        async with self._connections():
            stats = [await self._get(proxy, "/stats") for proxy in range(len(self._ports))]
            self._stores, self._pids = [each["store_id"] for each in stats], [each["pid"] for each in stats]
            while self.covered.cases < cases and time.monotonic() < until and len(self.faults) < MOST_FAULTS:
                await self._batch(min(batch, cases - self.covered.cases))
                rate = self.covered.cases / (time.monotonic() - began)
                self._say(f"batch {self.covered.batches}: {self._progress(cases)}, {rate:.0f}/s")
            if not self.faults:
                await asyncio.gather(*self._endless)
        await self._look_at_logs()

    def _progress(self, cases: int) -> str:
        share = self.covered.reached_2xx / max(1, self.covered.cases)
        faults = f", {len(self.faults)} FAULTS" if self.faults else ", audits equal"
        return f"{self.covered.cases:,} of {cases:,} cases, {share:.0%} reached 2xx{faults}"

    @contextlib.asynccontextmanager
    async def _connections(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            for task in self._endless:
                task.cancel()
            await asyncio.gather(*self._endless, return_exceptions=True)
            for connection in self._kept.values():
                await connection.close()

    async def _batch(self, cases: int) -> None:
        end = self.covered.cases + cases
        if not self.covered.batches:
            await self._tour()
        while self.covered.cases < end and len(self.faults) < MOST_FAULTS:
            each = max(1, min(ROUND, (end - self.covered.cases) // LANES))
            async with asyncio.TaskGroup() as lanes:
                for lane in self._lanes:
                    lanes.create_task(self._go_on(lane, each))
            makers, weights = zip(*EPISODES, strict=True)
            [episode] = self._random.choices(makers, weights)
            await episode(self._fleetwide, self._ask_plainly, self._weights)
            self._begin_endless()
        self.covered.batches += 1
        await self._compare()

    async def _tour(self) -> None:
        """Every call once, right; then every kind of case once."""
        self._begin_endless()
        await call_all(self._fleetwide, self._ask_plainly, self._weights)
        for kind in (*breaking.RIGHT, *self._wrong(self._fleetwide)):
            await self._case(self._fleetwide, self._made(self._fleetwide, partial(any_route, self._fleetwide), (kind,)))

    async def _go_on(self, lane: Lane, cases: int) -> None:
        for _ in range(cases):
            await self._case(lane, self._next(lane))

    async def _ask_plainly(self, ask: Ask) -> Answer | None:
        case = breaking.plain(ask, self._random)
        assert case is not None
        answer = await self._case(self._fleetwide, case)
        return answer if answer is not None and answer.status < 300 else None

    # Choosing

    def _next(self, lane: Lane) -> Case:
        if lane.random.random() < RIGHT_SHARE:
            return self._made(lane, partial(something, lane), breaking.RIGHT)
        wrong = self._wrong(lane)
        if lane.random.random() < NEVER_RIGHT_SHARE / (1 - RIGHT_SHARE):
            return self._made(lane, partial(never_right, lane), wrong)
        return self._made(lane, partial(any_route, lane), wrong)

    def _wrong(self, lane: Lane) -> tuple[tuple[Kind, float], ...]:
        return (
            *breaking.WRONG,
            (partial(breaking.other_key, keys=self._keys(lane)), 3),
            (partial(breaking.name, stores=self._stores), 5),
            (partial(breaking.huge, limit=BODY_LIMIT), 0.6),
        )

    def _keys(self, lane: Lane) -> list[str]:
        """Keys of sessions, of which all but one open something else than what is asked for."""
        keys = [session.key for session in self.model.sessions.values() if session.key]
        return lane.random.sample(keys, min(3, len(keys)))

    def _made(self, lane: Lane, ask: Callable[[], Ask], kinds: tuple[tuple[Kind, float], ...]) -> Case:
        makers, weights = zip(*kinds, strict=True)
        while True:
            asked = ask()
            [make] = lane.random.choices(makers, weights)
            case: Case | None = make(asked, lane.random)
            if case is not None and self._may_be_sent(case):
                return case

    def _may_be_sent(self, case: Case) -> bool:
        ask = case.ask
        if ask.fleetwide:
            return case.expect is Expect.REFUSED
        if case.kind == "other_key":
            # The session that the path names may have been the one that was drawn.
            drawn = {session.key for session in self.model.sessions.values() if session.name in ask.names}
            return not any(key and key.encode() in case.pieces[0] for key in drawn)
        return case.kind != "mutant" or _is_tame(ask.route, case.sent)

    # One case

    async def _case(self, lane: Lane, case: Case) -> Answer | None:
        """Send it, judge what comes, and tell the model; returns the answer."""
        try:
            answer = await self._exchange(lane, case)
        except NoAnswer as error:
            answer = None
            if not case.silent:
                self._fault(case, None, str(error))
        except OSError as error:
            answer = None
            self._fault(case, None, f"no connection: {error}")
        self.covered.count(case, answer)
        if answer is not None:
            self._judge(case, answer)
        return answer

    async def _exchange(self, lane: Lane, case: Case) -> Answer:
        if case.leaves is not None:
            await self._leave(case, case.leaves)
        connection = await self._connection(lane, case)
        try:
            answer = await self._sent(connection, case)
            if case.broken:
                await self._ends(lane, case, answer, connection)
            elif connection.usable and not case.short and lane.random.random() < LOOKED_AT_SHARE:
                await self._goes_on(case, answer, connection)
        except NoAnswer:
            connection.usable = False
            raise
        finally:
            if case.broken or case.short or not connection.usable:
                self._kept.pop((lane.number, case.ask.proxy), None)
                await connection.close()
        return answer

    async def _sent(self, connection: Connection, case: Case) -> Answer:
        """Send it, and take its answer. Raises NoAnswer."""
        before, connection.used_for = connection.used_for, f"{case.ask.route} {case.kind}"
        sending = asyncio.create_task(connection.send(case.pieces, pause=case.pause))
        try:
            for _ in range(case.ahead):
                ahead = await connection.answer("GET")
                if ahead.status != 200 or ahead.closes:
                    raise NoAnswer(f"a pipelined request was answered {ahead.status}")
            if case.short:
                await sending
                with contextlib.suppress(OSError):
                    connection.writer.write_eof()
            return await connection.answer(case.method)
        except NoAnswer as error:
            raise error.behind(before) from None
        finally:
            await _ended(sending)

    async def _connection(self, lane: Lane, case: Case) -> Connection:
        where = (lane.number, case.ask.proxy)
        kept = self._kept.get(where)
        if kept is not None and kept.fresh:
            return kept
        if kept is not None:
            await kept.close()
        self._kept[where] = await Connection.open(self._ports[case.ask.proxy])
        return self._kept[where]

    async def _leave(self, case: Case, seconds: float) -> None:
        """Ask, and be gone before the answer, or as it comes."""
        connection = await Connection.open(self._ports[case.ask.proxy])
        await connection.send(case.pieces)
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(seconds):
                await connection.reader.read(1)
        await connection.close(abruptly=True)

    async def _ends(self, lane: Lane, case: Case, answer: Answer, connection: Connection) -> None:
        """Nothing can be known of what is behind: the proxy closes, most often seen by closing this side first."""
        alone = lane.random.random() < LOOKED_AT_SHARE
        try:
            rest = await connection.ends(first=not alone)
            if rest and not case.silent:
                self._fault(case, answer, f"more than one answer came: {rest[:200]!r}")
        except NoAnswer as error:
            self._fault(case, answer, f"after a request whose end can't be known {error}")

    async def _goes_on(self, case: Case, answer: Answer, connection: Connection) -> None:
        """An answer that does not say that the connection ends leaves it as good as new."""
        try:
            await connection.send([b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"])
            again = await connection.answer("GET")
            if again.status != 200:
                self._fault(case, answer, f"the next request of its connection was answered {again.status}")
        except NoAnswer as error:
            self._fault(case, answer, f"its connection did not go on: {error}")

    def _judge(self, case: Case, answer: Answer) -> None:
        shows_keys = case.ask.shows_keys and answer.status == 201
        by_responses = "/v1/responses" in case.ask.route
        for what in faults_of(
            answer, method=case.method, secrets=self._secrets, shows_keys=shows_keys, by_responses=by_responses
        ):
            self._fault(case, answer, what)
        right = answer.status < 300
        if case.expect is Expect.RIGHT and not right:
            self._fault(case, answer, "what is right was refused")
        if case.expect is Expect.REFUSED and (right or (case.statuses and answer.status not in case.statuses)):
            expected = sorted(case.statuses) or "a 4xx"
            self._fault(case, answer, f"answered {answer.status}, not {expected}")
        elif right and code_of(answer) is None:
            self._tell(case, answer)

    def _tell(self, case: Case, answer: Answer) -> None:
        try:
            case.ask.effect(answer, case.sent)
        except Untold as error:
            self._fault(case, answer, str(error))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            self._fault(case, answer, f"the answer is not of the documented form: {error!r}")
        if case.kind == "lost" and case.ask.shows_keys:
            # Should the first try have been the later one, these keys are void.
            for each in answer.json["sessions"]:
                self.model.sessions[each["session_id"]].odd = True

    def _fault(self, case: Case, answer: Answer | None, what: str) -> None:
        sent = b"".join(case.pieces)
        told = "nothing" if answer is None else f"{answer.status} {answer.raw[:600]!r}"
        self.faults.append(
            Fault(
                batch=self.covered.batches,
                what=what,
                route=case.ask.route,
                kind=case.kind,
                proxy=case.ask.proxy,
                sent=f"{len(sent)} bytes in {len(case.pieces)} pieces: {sent[:900]!r}",
                answered=told,
            )
        )
        self._say(f"FAULT: {case.ask.route} {case.kind}: {what} ({told[:200]})")

    # Slow for ever

    def _begin_endless(self) -> None:
        """As early as may be: the last of them is waited for when all else is done."""
        while self._endless_begun < self._endless_due and len(self._endless) < ENDLESS_AT_ONCE:
            lane = self._random.choice(self._lanes)
            make = breaking.ENDLESS[self._endless_begun % len(breaking.ENDLESS)]
            case = make(any_route(lane), self._random)
            if case is not None and case.ask.route in ENDLESS_ROUTES and "session_id" not in case.ask.query:
                self._endless_begun += 1
                task = asyncio.create_task(self._wait_for_the_end_of(case))
                self._endless.add(task)
                task.add_done_callback(self._endless.discard)

    async def _wait_for_the_end_of(self, case: Case) -> None:
        connection = None
        try:
            connection = await Connection.open(self._ports[case.ask.proxy])
            await connection.send(case.pieces)
            answer: Answer | None = await connection.answer(case.method)
            if answer is not None:
                self._judge(case, answer)
        except (NoAnswer, OSError) as error:
            answer = None
            self._fault(case, None, str(error))
        finally:
            if connection is not None:
                await connection.close()
        self.covered.count(case, answer)

    # What holds after each batch

    async def _compare(self) -> None:
        for proxy in range(len(self._ports)):
            expected = self.model.audit(proxy)
            until = time.monotonic() + SECONDS_TO_SETTLE
            while (found := comparable(await self._get(proxy, "/audit"))) != expected and time.monotonic() < until:
                pass  # it takes its time to answer
            self.covered.audits += 1
            if found != expected:
                self._fault_of_proxy(proxy, f"the audit is {found}, and the answers said {expected}")
            pid = (await self._get(proxy, "/stats"))["pid"]
            if pid != self._pids[proxy]:
                self._fault_of_proxy(proxy, "its process died")

    async def _look_at_logs(self) -> None:
        for proxy in self._fleet.proxies:
            text = proxy.log.read_text(errors="replace")
            if "Traceback" in text:
                at = text.index("Traceback")
                self._fault_of_proxy(proxy.ordinal, f"its log has a traceback: {text[at : at + 3000]}")
            if proxy.key in text:
                self._fault_of_proxy(proxy.ordinal, "its log has the admin key")

    def _fault_of_proxy(self, proxy: int, what: str) -> None:
        self.faults.append(Fault(batch=self.covered.batches, proxy=proxy, what=what))
        self._say(f"FAULT: proxy {proxy}: {what}")

    async def _get(self, proxy: int, path: str) -> Json:
        own = self._fleet.proxies[proxy]
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {own.key}"}, timeout=PATIENCE) as client:
            return (await client.get(f"{own.url}{path}")).raise_for_status().json()


async def _ended(sending: asyncio.Task[None]) -> None:
    """Wait until all was sent, also of what was answered before its end; a peer that takes no more of it is cut off."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SECONDS_TO_SEND):
            await sending


def _is_tame(route: str, body: Json) -> bool:
    """Whether a changed body, should it be right, befalls its own lane alone and ends nothing by time."""
    if route == "POST /sessions":
        size, patience = body.get("group_size", 1), body.get("stale_after")
        return not (_is_number(size) and 3 < size <= 4096) and not (_is_number(patience) and patience < SHORTEST)
    if route in ("POST /export", "POST /leases/{id}/renew"):
        seconds = body.get("lease_seconds", SHORTEST)
        named = route != "POST /export" or body.get("session_ids") is not None or body.get("group_id") is not None
        return named and not (_is_number(seconds) and seconds < SHORTEST)
    bounds = {"messages": "max_tokens", "input": "max_output_tokens"}
    return all(body.get(bound) is not None for asked, bound in bounds.items() if asked in body)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
