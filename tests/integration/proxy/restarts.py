"""Restarts of a proxy's worker: what tests wait for, and what its parent's log tells of them."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import httpx
from tests.fleets import ProxyProcess
from tests.waiting import eventually

Json = Any
GENERATION = ("--latency", "0.8", "--token-latency", "0.01", "--jitter", "0.3")


async def booted(proxy: ProxyProcess, drain: str) -> Json:
    """The entry of the boot that a drain led to, once it is there."""

    def entry() -> Json:
        return next((boot for boot in proxy.stats()["boots"] if boot["id"] == drain and boot["rss_after"]), None)

    return await until(entry)


async def until(what: Callable[[], Any]) -> Any:
    """What it returns once that is true. A proxy that is just changing its worker may break off an answer."""
    found = None

    def holds() -> bool:
        nonlocal found
        try:
            found = what()
        except (httpx.TransportError, httpx.HTTPStatusError):
            return False
        return bool(found)

    await eventually(holds)
    return found


def assert_one_owner_at_a_time(proxy: ProxyProcess) -> int:
    """By the parent's own lines a worker serves only when the one before has ended; returns how often one took over."""
    lines = re.findall(r"worker (\d+) (serves|ended|was killed)", proxy.log.read_text())
    serving: str | None = None
    taken = 0
    for worker, what in lines:
        if what == "serves":
            assert serving is None, "two workers serve"
            serving, taken = worker, taken + 1
        elif worker == serving:
            serving = None
    return taken - 1


async def restart(proxy: ProxyProcess, times: int) -> None:
    """Plan restarts, one after the other."""
    for number in range(times):
        id = f"restart-{number}"
        reply = await asyncio.to_thread(proxy.drain, id, reason="memory", mode="quiesce", then="restart")
        assert reply.status_code == 200, reply.text
        boot = await booted(proxy, id)
        assert boot["reason"] == "planned: memory" and boot["rss_before"] > 0
