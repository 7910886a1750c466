"""A store of 200,000 turns, or of as many sessions: what has to look at all of them holds up nobody, and what needs no
key does not look."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from tests.fleets import AgentSession, ProxyProcess, running_fleet

from rolloutfleet_proxy.store.checksums import install

CHAT = {"messages": [{"role": "user", "content": "Tell me something"}], "max_tokens": 8}
TURNS = 200_000
SESSIONS = 200_000
AUDITS = 4
LISTS = 6
LOOKS = 20
"""At least."""
SECONDS = 30.0

_FILL = """
WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
INSERT INTO turns (session, number, name, parent, state, delivered, mixed_cache, run, start, length, prompt_tokens,
    created_at, finish_reason, history, request, body, matching, versions, prompt_ids, output_ids, logprobs, output,
    messages)
SELECT session, i, name || i, NULL, state, delivered, mixed_cache, run, start, length, prompt_tokens, created_at,
    finish_reason, history, request, body, matching, versions, prompt_ids, output_ids, logprobs, output, messages
FROM turns, n WHERE number = 1 AND session = ?
"""

_START = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
INSERT INTO sessions (name, key_hash, group_name, limits, agent_may, state, fate, created_at, touched)
SELECT name || i, randomblob(32), group_name || i, limits, agent_may, state, fate, created_at, touched
FROM n, sessions WHERE name = ?
"""


def fill(proxy: ProxyProcess, filled: AgentSession) -> None:
    """Give a session of one turn many more, behind the back of its proxy, which is down."""
    with sqlite3.connect(proxy.store_file) as connection:
        install(connection)
        (session,) = connection.execute("SELECT id FROM sessions WHERE name = ?", (filled.session_id,)).fetchone()
        connection.execute(_FILL, (TURNS, session))
        added = TURNS - 1
        connection.execute("UPDATE ledger SET n = n + ? WHERE kind = 'turns' AND term IN ('created', 'live')", (added,))
    connection.close()


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ProxyProcess, AgentSession]]:
    """A proxy with a big store, and a small session in it."""
    with running_fleet(tmp_path_factory.mktemp("big")) as fleet:
        proxy = fleet.proxy
        filled, other = proxy.start_session(), proxy.start_session()
        for session in (filled, other):
            assert session.raw_chat(CHAT).status_code == 200
        proxy.stop()
        fill(proxy, filled)
        proxy.start()
        yield proxy, other


def results_beside(look: Callable[[], object], asked: Callable[[], Any], *, at_once: int) -> list[Any]:
    """What is asked again and again by so many threads, while somebody looks, who waits for none of them.

    Were each look to wait for the end of one, as many would end as there are looks, however long that is watched.
    """
    ended: list[Any] = []
    left = threading.Event()

    def again_and_again() -> None:
        while not left.is_set():
            ended.append(asked())

    with ThreadPoolExecutor(at_once) as pool:
        asking = [pool.submit(again_and_again) for _ in range(at_once)]
        try:
            looks, deadline = 0, time.monotonic() + SECONDS
            while looks < LOOKS or not ended or len(ended) > looks // 2:
                assert time.monotonic() < deadline, f"{looks} looks, {len(ended)} ended"
                look()
                looks += 1
        finally:
            left.set()
    for each in asking:
        each.result()
    return ended


def test_looking_a_session_up_waits_for_no_audit(big: tuple[ProxyProcess, AgentSession]) -> None:
    proxy, session = big
    with proxy.admin() as admin:
        path = f"/sessions/{session.session_id}"
        audits = results_beside(lambda: admin.get(path).raise_for_status(), proxy.audit, at_once=AUDITS)
    assert all(audit["balanced"] and audit["turns"]["live"] == TURNS + 1 for audit in audits)


def test_metrics_wait_for_no_audit_and_say_the_same(big: tuple[ProxyProcess, AgentSession]) -> None:
    proxy, _ = big
    with httpx.Client(base_url=proxy.url) as anyone:
        results_beside(lambda: anyone.get("/metrics").raise_for_status(), proxy.audit, at_once=1)
        text = anyone.get("/metrics").text
    assert f'rolloutfleet_ledger{{kind="turns",reason="",term="live"}} {float(TURNS + 1)}' in text
    assert "rolloutfleet_keys 2.0" in text


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentSession]:
    """One of very many sessions."""
    with running_fleet(tmp_path_factory.mktemp("crowded")) as fleet:
        proxy = fleet.proxy
        session = proxy.start_session()
        proxy.stop()
        with sqlite3.connect(proxy.store_file) as connection:
            install(connection)
            connection.execute(_START, (SESSIONS, session.session_id))
        connection.close()
        proxy.start()
        yield session


@pytest.mark.parametrize("chosen", [{"task_id": "no such"}, {"min_reward": "2"}], ids=["by task", "by reward"])
def test_looking_a_session_up_waits_for_no_list(crowded: AgentSession, chosen: dict[str, str]) -> None:
    with crowded.proxy.admin() as admin:
        path = f"/sessions/{crowded.session_id}"
        lists = results_beside(
            lambda: admin.get(path).raise_for_status(),
            lambda: admin.get("/sessions", params=chosen).raise_for_status().json()["sessions"],
            at_once=LISTS,
        )
    assert all(listed == [] for listed in lists)
