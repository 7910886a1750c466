"""Agents and trainers at work on a fleet, who keep a journal together."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from tests.fleets import ProxyProcess
from tests.timing.kills.agents import Agents
from tests.timing.kills.asking import TIMEOUT, asking
from tests.timing.kills.journal import Journal
from tests.timing.kills.trainers import Trainers

from rolloutfleet.fleet import AsyncFleet, Whereabouts

AGENTS = 2
"""For each proxy."""


@contextlib.asynccontextmanager
async def at_work(proxies: Sequence[ProxyProcess], journal: Journal, *, seed: int) -> AsyncIterator[None]:
    """Until the block ends, and then until all is exported and acknowledged. Raises what they raised.

    Where the journal holds a contradiction by then, it ends at once.
    """
    where = Whereabouts(urls=tuple(proxy.url for proxy in proxies), admin_key=proxies[0].key)
    async with asking(proxies, journal) as plain, AsyncFleet(where) as library, asyncio.TaskGroup() as tasks:
        trainers = Trainers(plain, library, proxies=len(proxies), seed=seed)
        agents = Agents(plain, proxies=len(proxies), seed=seed, closed=trainers.hand_over)
        ordinals = range(len(proxies))
        talking = [tasks.create_task(agents.work(each, at)) for at in ordinals for each in range(AGENTS)]
        taking = [tasks.create_task(work(at)) for at in ordinals for work in (trainers.train, trainers.import_dumps)]
        try:
            yield
            agents.end()
            if not journal.contradictions:
                await asyncio.gather(*talking)
                async with asyncio.timeout(10 * TIMEOUT):
                    for at in ordinals:
                        await trainers.until_nothing_is_left(at)
        finally:
            for task in (*talking, *taking):
                task.cancel()
