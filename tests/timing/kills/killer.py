"""Kills, each while its target was seen at work, and each of a proxy followed by a look at what it did.

A kill counts only where what is under way was observed: the process was stopped at a failpoint on the way of a call,
commit, dump, import, export or acknowledgement; or `/stats` or the engine's own counters showed calls in flight just
before, and clients waited for their answers. What was not seen in time is a miss, and tried again.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import httpx
from tests.processes import NotServing, end_of
from tests.timing.kills.journal import CALL, Journal
from tests.timing.kills.kinds import AT_WORK, COMMIT, PLACES, STARTING, UNDER_WAY, Kill, Kind
from tests.timing.kills.looking import look_at
from tests.timing.kills.schedule import Schedule
from tests.timing.kills.targets import PLAIN, NotComingBack, ProxyTarget, Target, Targets
from tests.waiting import PATIENCE

from rolloutfleet_proxy.failpoints import (
    AFTER_COMMIT,
    AFTER_ENGINE,
    BEFORE_COMMIT,
    IN_TRANSACTION,
    MID_ACK,
    MID_EXPORT,
)

SECONDS_TO_SEE = 20.0
LOOK = 0.02
"""Seconds between two looks."""
SECONDS_TO_ANSWER = 3.0
SECONDS_HELD = 0.2
"""From when a process has stopped at a place, and answers others, until it is killed there."""
IN_THE_STORE = (IN_TRANSACTION, BEFORE_COMMIT, AFTER_COMMIT, MID_EXPORT, MID_ACK)
"""Places where the store's thread stops, and a proxy goes on beside it."""
WORKER_DEATHS = 2
"""Of one parent's life, before the parent is started anew: it lets a worker that keeps dying wait for longer."""
TRIES_TO_COME_BACK = 3


class Killer:
    """Kills, and looks after each kill."""

    def __init__(
        self,
        targets: Targets,
        journal: Journal,
        *,
        seed: int,
        at_work: Sequence[str | None] = AT_WORK,
        killed: Callable[[Kill], object] = lambda kill: None,
    ) -> None:
        """`at_work` are the places where a worker or parent is killed that neither starts nor ends; `killed` is told
        of each kill that counts."""
        self.kills: list[Kill] = []
        self.misses: Counter[str] = Counter()
        self._targets = targets
        self._at_work = at_work
        self._journal = journal
        self._random = Random(f"killer {seed}")
        self._killed = killed
        self._places: dict[str, list[Any]] = {}

    async def run(self, count: int, *, kinds: Sequence[Kind], until: float) -> None:
        """So many kills, as many of each kind; fewer where the time is over, or clients were told what can't be.

        Several proxies are killed at once, and the gateway or an engine beside them. `until` is of time.monotonic().
        """
        self._schedule, self._until = Schedule(count, kinds, self._random), until
        async with asyncio.TaskGroup() as strikers:
            for proxy in self._targets.proxies:
                strikers.create_task(self._strike_again_and_again(proxy))
            strikers.create_task(self._strike_between())

    @property
    def _over(self) -> bool:
        return time.monotonic() >= self._until or bool(self._journal.contradictions)

    async def _strike_again_and_again(self, proxy: ProxyTarget) -> None:
        """One kill of a proxy after the other; a look at what each did where it serves again between them."""
        while not self._over:
            kind = self._schedule.for_proxy() if proxy.parent_lives else self._schedule.for_dead_proxy()
            if kind is None and proxy.parent_lives:
                return
            if kind is not None:
                try:
                    self._count(kind, await self._strike_proxy(kind, proxy))
                finally:
                    proxy.disarm()
            if self._journal.contradictions or (not proxy.parent_lives and self._schedule.start_up_is_near):
                continue
            await self._bring_back(proxy)
            await look_at(proxy, self._journal)
        if not self._journal.contradictions:
            await self._bring_back(proxy)

    async def _strike_between(self) -> None:
        """Gateway and engines, one at a time."""
        while self._schedule.more_between and not self._over:
            kind = self._schedule.between()
            if kind is None:
                await asyncio.sleep(LOOK)
            elif kind is Kind.GATEWAY:
                self._count(kind, await self._kill_between(kind, self._targets.gateway, self._targets.engines))
            else:
                engine = self._random.choice(self._targets.engines)
                self._count(kind, await self._kill_between(kind, engine, [engine]))

    def _count(self, kind: Kind, kill: Kill | None) -> None:
        if kill is None:
            self.misses[kind] += 1
            self._schedule.put_back(kind)
        else:
            self.kills.append(kill)
            self._killed(kill)

    async def _strike_proxy(self, kind: Kind, proxy: ProxyTarget) -> Kill | None:
        if kind is Kind.START_UP:
            return await self._kill_starting(proxy)
        if kind is Kind.DRAIN:
            how = self._next("drains", (self._kill_draining, self._stop, self._restart))
            kill: Kill | None = await how(proxy)
            return kill
        place = self._next(kind, PLACES.get(kind, self._at_work))
        if place is None:
            return await self._kill_in_flight(kind, proxy)
        return await self._kill_at(kind, proxy, place)

    def _next(self, name: str, choices: Sequence[Any]) -> Any:
        """Each of them in turn, in an order drawn anew each time."""
        left = self._places.setdefault(name, [])
        if not left:
            left += self._random.sample(choices, len(choices))
        return left.pop()

    # Kinds of kills

    async def _kill_at(self, kind: Kind, proxy: ProxyTarget, place: str) -> Kill | None:
        """A proxy that has stopped at a failpoint."""
        worker = await self._held_at(proxy, place)
        if worker is None:
            return None
        clients = self._journal.waiting(proxy.ordinal)
        if kind in (Kind.WORKER, Kind.PARENT) and not clients:
            return None
        await self._let_answers_through(proxy, place)
        victim = kind if kind in (Kind.WORKER, Kind.PARENT) else self._random.choice((Kind.WORKER, Kind.PARENT))
        return self._kill(kind, proxy, victim, worker, clients=clients, seen_by=place)

    async def _kill_in_flight(self, kind: Kind, proxy: ProxyTarget) -> Kill | None:
        """A proxy that says that it has calls in flight."""
        stats = await self._seen(proxy, lambda stats: bool(stats["in_flight"]))
        clients = self._journal.waiting(proxy.ordinal)
        if stats is None or not clients.get(CALL):
            return None
        return self._kill(kind, proxy, kind, stats["pid"], clients=clients, seen_by="/stats")

    async def _kill_starting(self, proxy: ProxyTarget) -> Kill | None:
        """A proxy in the middle of a commit of its start, which nobody was served by yet."""
        place = self._next(Kind.START_UP, STARTING)
        if proxy.parent_lives:
            proxy.proxy.kill_alone()
        proxy.arm(place)
        proxy.launch()
        worker = await proxy.until_held(place, seconds=3 * SECONDS_TO_SEE)
        if worker is None or await proxy.is_ready(seconds=SECONDS_HELD):
            return None
        clients = self._journal.waiting(proxy.ordinal)
        victim = self._random.choice((Kind.WORKER, Kind.PARENT))
        kill = self._kill(Kind.START_UP, proxy, victim, worker, clients=clients, seen_by=place)
        await proxy.until_ended(PATIENCE)
        return kill

    async def _kill_draining(self, proxy: ProxyTarget) -> Kill | None:
        """A proxy that drains, with calls in flight that it waits for."""
        if not await self._drain(proxy, then="exit"):
            return None
        stats = await self._seen(proxy, lambda stats: bool(stats["drain"] and stats["drain"]["under_way"]), seconds=5)
        clients = self._journal.waiting(proxy.ordinal)
        if stats is None or not clients:
            return None
        victim = self._random.choice((Kind.WORKER, Kind.PARENT))
        kill = self._kill(Kind.DRAIN, proxy, victim, stats["pid"], clients=clients, seen_by="/stats")
        await proxy.until_ended(PATIENCE)
        return kill

    async def _stop(self, proxy: ProxyTarget) -> Kill | None:
        """SIGTERM for a proxy with calls in flight, which it finishes."""
        stats = await self._seen(proxy, lambda stats: bool(stats["in_flight"]))
        clients = self._journal.waiting(proxy.ordinal)
        process = proxy.proxy.process
        if stats is None or process is None or not clients.get(CALL):
            return None
        process.send_signal(signal.SIGTERM)
        status = await asyncio.to_thread(process.wait, PATIENCE)
        if status != 0:
            self._journal.contradict(f"proxy {proxy.ordinal} ended with status {status} when it was told to stop")
        return _kill(Kind.DRAIN, proxy, "SIGTERM of the parent", under_way=CALL, seen_by="/stats", clients=clients)

    async def _restart(self, proxy: ProxyTarget) -> Kill | None:
        """A planned restart of a worker with calls in flight."""
        stats = await self._seen(proxy, lambda stats: bool(stats["in_flight"]))
        clients = self._journal.waiting(proxy.ordinal)
        if stats is None or not clients.get(CALL) or not await self._drain(proxy, then="restart"):
            return None
        again = await self._seen(proxy, lambda now: bool(now["pid"] != stats["pid"]), seconds=PATIENCE)
        if again is None:
            self._journal.contradict(f"proxy {proxy.ordinal} was told to restart, and did not")
        return _kill(Kind.DRAIN, proxy, "planned restart", under_way=CALL, seen_by="/stats", clients=clients)

    async def _kill_between(self, kind: Kind, target: Target, engines: Sequence[Target]) -> Kill | None:
        """The gateway or an engine, while engines say that they work on calls."""
        ends = time.monotonic() + SECONDS_TO_SEE
        while time.monotonic() < ends:
            running = [await self._targets.running(engine) for engine in engines]
            clients = self._journal.waiting()
            if sum(running) and clients.get(CALL):
                break
            await asyncio.sleep(LOOK)
        else:
            return None
        target.kill()
        target.start_again()
        try:
            await asyncio.to_thread(target.wait_until_ready)
        except NotServing as error:
            raise NotComingBack(str(error)) from None
        return Kill(
            kind=kind,
            target=target.name,
            how="SIGKILL",
            under_way=CALL,
            seen_by="the engines' counters",
            clients=clients,
        )

    # Steps

    async def _held_at(self, proxy: ProxyTarget, place: str) -> int | None:
        """The worker that has stopped there. A commit is a call's: the worker stops first where the engine answered."""
        if UNDER_WAY[place] == COMMIT:
            proxy.arm(AFTER_ENGINE)
            if await proxy.until_held(AFTER_ENGINE, seconds=SECONDS_TO_SEE) is None:
                return None
            proxy.arm(place)
            proxy.let_go(AFTER_ENGINE)
        else:
            proxy.arm(place)
        return await proxy.until_held(place, seconds=SECONDS_TO_SEE)

    async def _let_answers_through(self, proxy: ProxyTarget, place: str) -> None:
        """What a proxy says too early reaches its client: it answers others meanwhile where the store alone is held."""
        if place in IN_THE_STORE:
            await proxy.is_ready(seconds=SECONDS_TO_ANSWER)
        await asyncio.sleep(SECONDS_HELD)

    def _kill(
        self,
        kind: Kind,
        proxy: ProxyTarget,
        victim: Kind,
        worker: int,
        *,
        clients: dict[str, int],
        seen_by: str,
    ) -> Kill:
        if victim is Kind.PARENT:
            proxy.proxy.kill_alone()
        else:
            os.kill(worker, signal.SIGKILL)
            proxy.worker_deaths += 1
        how = f"SIGKILL of the {victim}"
        return _kill(kind, proxy, how, under_way=UNDER_WAY.get(seen_by, CALL), seen_by=seen_by, clients=clients)

    async def _drain(self, proxy: ProxyTarget, *, then: str) -> bool:
        asked = {"id": f"killer {len(self.kills)} {self.misses.total()}", "mode": "quiesce", "then": then}
        headers = {"authorization": f"Bearer {proxy.proxy.key}"}
        async with httpx.AsyncClient(base_url=proxy.proxy.url, headers=headers, timeout=10, verify=PLAIN) as client:
            with contextlib.suppress(httpx.TransportError):
                return (await client.post("/drain", json=asked)).is_success
        return False

    async def _seen(
        self, proxy: ProxyTarget, holds: Callable[[dict[str, Any]], bool], *, seconds: float = SECONDS_TO_SEE
    ) -> dict[str, Any] | None:
        """The figures of a proxy of which that holds; None where it does not in that time."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            stats = await proxy.stats()
            if stats is not None and holds(stats):
                return stats
            if not proxy.parent_lives:
                return None
            await asyncio.sleep(LOOK)
        return None

    async def _bring_back(self, proxy: ProxyTarget) -> None:
        """The proxy serves again, whatever became of it."""
        if proxy.worker_deaths >= WORKER_DEATHS and proxy.parent_lives:
            proxy.proxy.kill_alone()
        for attempt in range(TRIES_TO_COME_BACK):
            if not proxy.parent_lives:
                proxy.launch()
            try:
                await proxy.until_ready()
                return
            except NotServing:
                # Killed before it ever served, or told to exit, it ends with its worker.
                if attempt == TRIES_TO_COME_BACK - 1:
                    raise NotComingBack(end_of(proxy.proxy.log)) from None


def _kill(kind: Kind, proxy: ProxyTarget, how: str, **seen: Any) -> Kill:
    return Kill(kind=kind, target=f"proxy {proxy.ordinal}", how=how, **seen)
