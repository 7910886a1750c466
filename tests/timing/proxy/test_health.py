"""Promise 8: /health answers within a second whatever the load, while the worker is up."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save as one_tensor
from tests.fleets import AgentSession, Fleet, ProxyProcess, running_fleet
from tests.integration.proxy.cleaning import LIVES, SOON, dump_folder, is_gone, talk
from tests.timing.stalls import Stalls
from tests.waiting import PATIENCE, until

SECONDS = 8.0
AGENTS = 60
LARGE = 100_000_000
LONG = "A long document has many words in it. " * 6000
"""Some 100,000 tokens of the shipped model, encoded by `fastokens` in a thread."""
LONG_FOR_TOKENIZERS = f"{LONG} \u017f"
"""The same, but a letter makes it one for `tokenizers`: it is rendered in a process of its own."""


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("busy"), engine_options=("--latency", "0.05")) as running:
        yield running


@asynccontextmanager
async def probed(proxy: ProxyProcess, *, pause: float = 0.0) -> AsyncIterator[list[float]]:
    """Seconds of each answer of /health, asked for until the block ends, less those that this process stood still."""
    waits: list[float] = []
    left = asyncio.Event()

    async def probe() -> None:
        async with httpx.AsyncClient(timeout=PATIENCE) as prober:
            while not left.is_set():
                began = time.monotonic()
                assert (await prober.get(f"{proxy.url}/health")).status_code == 200
                ended = time.monotonic()
                waits.append(ended - began - stalls.between(began, ended))
                await asyncio.sleep(pause)

    with Stalls() as stalls:
        probing = asyncio.create_task(probe())
        try:
            yield waits
        finally:
            left.set()
            await probing


async def ask(client: httpx.AsyncClient, session: AgentSession, **body: Any) -> int:
    reply = await client.post(
        f"{session.base_url}/chat/completions", json=body, headers={"authorization": f"Bearer {session.api_key}"}
    )
    return reply.status_code


async def test_health_answers_while_agents_talk_long_prompts_are_rendered_and_exports_are_written(busy: Fleet) -> None:
    proxy = busy.proxy
    sessions = [proxy.start_session() for _ in range(AGENTS)]
    reading = proxy.start_session()
    until = time.monotonic() + SECONDS
    statuses: list[int] = []

    async def talk(client: httpx.AsyncClient, session: AgentSession) -> None:
        while time.monotonic() < until:
            said = [{"role": "user", "content": f"Tell me of {len(statuses)}"}]
            statuses.append(await ask(client, session, messages=said, max_tokens=300))

    async def read(client: httpx.AsyncClient) -> None:
        while time.monotonic() < until:
            for text in (LONG, LONG_FOR_TOKENIZERS):
                said = [{"role": "user", "content": f"{len(statuses)} {text}"}]
                statuses.append(await ask(client, reading, messages=said, max_tokens=5))

    async def export(client: httpx.AsyncClient) -> None:
        headers = {"authorization": f"Bearer {proxy.key}"}
        while time.monotonic() < until:
            for session in sessions[:10]:
                rewarded = f"{proxy.url}/sessions/{session.session_id}/reward"
                await client.post(rewarded, json={"reward": 1.0}, headers=headers)
            reply = await client.post(f"{proxy.url}/export", json={"max_trajectories": 64}, headers=headers)
            statuses.append(reply.status_code)
            if reply.headers.get("lease-id"):
                await client.post(f"{proxy.url}/leases/{reply.headers['lease-id']}/ack", headers=headers)
            await asyncio.sleep(0.1)

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=PATIENCE, limits=limits) as client, probed(proxy, pause=0.02) as waits:
        await asyncio.gather(*(talk(client, session) for session in sessions), read(client), export(client))

    assert set(statuses) == {200} and len(statuses) > 2 * AGENTS
    assert len(waits) > 20
    assert max(waits) < 1.0
    assert proxy.audit()["balanced"]


async def test_health_answers_while_bodies_of_many_megabytes_are_read(busy: Fleet) -> None:
    """Read and digested away from the loop, one at a time; hopeless ones are refused before a tokenizer sees them."""
    proxy = busy.proxy
    session = proxy.start_session()
    hopeless = [{"role": "user", "content": "word " * 10_000_000}]
    short = [{"role": "user", "content": "Hello"}]
    bodies = [
        json.dumps({"messages": messages, **more, "max_tokens": 5}).encode()
        for messages, more in ((hopeless, {}), (short, {"user": "u" * 50_000_000}))
    ]
    async with probed(proxy) as waits:
        replies = await asyncio.gather(*(asyncio.to_thread(session.raw_chat, body) for body in bodies * 2))
    assert [reply.status_code for reply in replies] == [400, 200] * 2
    assert replies[0].json()["error"]["code"] == "context_length_exceeded"
    assert max(waits) < 1.0
    assert proxy.stats()["in_flight_bytes"] == 0


async def test_health_answers_while_a_large_dump_is_written_and_taken_in_again(tmp_path: Path) -> None:
    """Long turns, and a tensor of 100 MB: the file has a line of more than 100 MB."""
    with running_fleet(tmp_path, settings={"sessions": {**SOON, "unclaimed_after": LIVES}}) as fleet:
        proxy = fleet.proxy
        session = proxy.start_session(stale_after=3600)
        tensor = np.random.default_rng(1).random(LARGE // 4, dtype=np.float32)
        with proxy.admin() as admin:
            tied = {"session_id": session.session_id}
            admin.put("/shards/large", params=tied, content=one_tensor({"large": tensor})).raise_for_status()
        messages = [{"role": "user", "content": LONG}]
        turns = await asyncio.to_thread(talk, session, turns=3, messages=messages)

        def goes_and_comes_back() -> None:
            session.post("reward", {"reward": 1.0}).raise_for_status()
            session.post("close").raise_for_status()
            until(lambda: is_gone(session))
            [name] = [file.name for file in dump_folder(proxy).iterdir()]
            assert (dump_folder(proxy) / name).stat().st_size > LARGE
            with proxy.admin() as admin:
                admin.post("/dumps/import", json={"names": [name]}).raise_for_status()

        async with probed(proxy, pause=0.1) as waits:
            await asyncio.to_thread(goes_and_comes_back)
        audit = proxy.audit()
        assert audit["balanced"] and audit["turns"]["imported"] == len(turns)
        assert audit["shards"]["bytes"] >= LARGE
        assert max(waits) < 1.0
