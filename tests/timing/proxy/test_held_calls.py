"""A thousand calls that wait for their owner at another proxy: what they take there, and what the others notice."""

import asyncio
import time
from collections import Counter
from pathlib import Path

import httpx
from tests.fleets import AgentSession, ProxyProcess, running_fleet
from tests.waiting import START, comes_true

HELD = 1000
ASKED = 300
"""Calls by which a percentile is told."""
MOST_ADDED = 0.025
"""Seconds, to the 99th percentile of the others."""
MOST_TAKEN = 50e6
"""Bytes."""


async def test_a_thousand_held_calls_take_50_mb_and_the_others_25_ms_longer_at_most(tmp_path: Path) -> None:
    with running_fleet(tmp_path, proxies=2) as fleet:
        holding, owner = fleet.proxies
        held, own = owner.start_session(here=True), holding.start_session(here=True)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=2 * START, limits=limits) as many, httpx.AsyncClient(timeout=START) as one:
            await asked(one, holding, own)
            alone = await asked(one, holding, own)
            await asyncio.to_thread(owner.kill)
            before = holding.stats()["rss_bytes"]
            words = "x" * 2000
            calls = [asyncio.create_task(call(many, holding, held, f"{words} {each}")) for each in range(HELD)]
            await comes_true(lambda: holding.gauge('rolloutfleet_calls_held{by="owner"}') == HELD, seconds=START)
            beside = await asked(one, holding, own)
            taken = holding.stats()["rss_bytes"] - before
            await asyncio.to_thread(owner.start)
            answered = Counter(await asyncio.gather(*calls))
    print(f"{taken / 1e6:.0f} MB; 99th percentile {1000 * alone:.1f} ms alone, {1000 * beside:.1f} ms beside them")
    assert answered == {200: HELD}
    assert taken <= MOST_TAKEN
    assert beside - alone <= MOST_ADDED


async def asked(client: httpx.AsyncClient, proxy: ProxyProcess, session: AgentSession) -> float:
    """The 99th percentile of calls that follow each other, in seconds."""
    took = []
    for number in range(ASKED):
        began = time.perf_counter()
        assert await call(client, proxy, session, f"hello {number}") == 200
        took.append(time.perf_counter() - began)
    return sorted(took)[ASKED * 99 // 100]


async def call(client: httpx.AsyncClient, proxy: ProxyProcess, session: AgentSession, said: str) -> int:
    """The status of a short chat, asked of that proxy, whoever owns the session."""
    answer = await client.post(
        f"{proxy.url}/sessions/{session.session_id}/v1/chat/completions",
        headers={"authorization": f"Bearer {session.api_key}"},
        json={"messages": [{"role": "user", "content": said}], "max_tokens": 4},
    )
    return answer.status_code
