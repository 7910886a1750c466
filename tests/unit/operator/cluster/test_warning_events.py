"""Warning Events that can't be read."""

import asyncio

from kubernetes.aio.client import ApiClient, Configuration

from rolloutfleet_operator.cluster.api import Api
from rolloutfleet_operator.cluster.observe import Warnings
from rolloutfleet_operator.cluster.warning_events import CACHE_TTL, WarningEvents


async def test_where_they_cant_be_read_nobody_tries_again_at_once() -> None:
    """Else those who wait would try one after another, each for as long as a request may take."""
    nowhere = Api(ApiClient(Configuration(host="http://127.0.0.1:9")))
    now, tries = 100.0, 0

    class Counted(WarningEvents):
        async def _list(self, namespace: str) -> Warnings:
            nonlocal tries
            tries += 1
            return await super()._list(namespace)

    warning_events = Counted(nowhere, lambda: now)
    try:
        told = await asyncio.gather(*(warning_events.of("any") for _ in range(8)))
        assert tries == 1 and not any(each.by_uid for each in told)
        now += CACHE_TTL
        await warning_events.of("any")
        assert tries == 2
    finally:
        await nowhere.close()
