"""Passes of other fleets beside those with silent proxies: none is late."""

import asyncio
import contextlib
from collections import defaultdict
from itertools import pairwise
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from tests.unit.operator.cluster.api_server import ApiServer
from tests.unit.operator.cluster.operating import FleetThere, operating
from tests.waiting import comes_true

from rolloutfleet_operator.cluster.proxy_client import POLL_TIMEOUT, ProxyClient
from rolloutfleet_operator.policy.observed import ProxyStats

FLEETS: Final = 300
SILENT: Final = frozenset(f"10.1.0.{number}" for number in range(60))
INTERVAL: Final = 15.0
LATE: Final = 5.0
"""Seconds by which a look may come late of an operator whose process is the API server as well."""
MADE: Final = 300.0
"""Seconds in which all fleets are made and looked at once, at an API server in the same process."""


async def test_each_of_300_fleets_is_looked_at_in_time_beside_60_with_silent_proxies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, looked = ApiServer(), defaultdict[str, list[float]](list)

    async def stats(_client: ProxyClient, url: str, _key: str, **_: Any) -> ProxyStats | None:
        host = urlsplit(url).hostname or ""
        looked[host].append(asyncio.get_running_loop().time())
        if host not in SILENT:
            return ProxyStats(rss=1)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), POLL_TIMEOUT)
        return None

    monkeypatch.setattr(ProxyClient, "stats", stats)
    for number in range(FLEETS):
        FleetThere(server, f"fleet-{number}").apply(memory={"interval": f"{INTERVAL:.0f}s"})
    async with operating(server):
        await comes_true(lambda: len(server.of_kind("Pod")) == FLEETS, seconds=MADE)
        addresses = [
            *sorted(SILENT),
            *(f"10.2.{number // 200}.{number % 200}" for number in range(FLEETS - len(SILENT))),
        ]
        for pod, address in zip(server.of_kind("Pod"), addresses, strict=True):
            server.put({**pod, "status": {"phase": "Running", "podIP": address}})
        await comes_true(lambda: len(looked) == FLEETS, seconds=MADE)
        await asyncio.sleep(INTERVAL)  # passes for the pods that have just come
        clock = asyncio.get_running_loop().time
        looked.clear()
        began = clock()
        await asyncio.sleep(5 * INTERVAL)
        ended = clock()
    answering = [[began, *times, ended] for host, times in looked.items() if host not in SILENT]
    assert len(answering) == FLEETS - len(SILENT)
    assert max(later - time for times in answering for time, later in pairwise(times)) <= INTERVAL + LATE
