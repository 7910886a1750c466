"""A store of 200,000 turns, or of as many sessions: what has to look at all of them holds up nobody, and what needs no
key does not look."""

import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest
from tests.capture.fleets import AgentSession, ProxyProcess, running_fleet

CHAT = {"messages": [{"role": "user", "content": "Tell me something"}], "max_tokens": 8}
TURNS = 200_000
SESSIONS = 200_000
AUDITS = 4
LISTS = 6
LOOKS = 10
"""More than there are audits or lists: no look waits for one of them."""

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


def test_looking_a_session_up_waits_for_no_audit(big: tuple[ProxyProcess, AgentSession]) -> None:
    proxy, session = big
    with ThreadPoolExecutor(AUDITS) as pool, proxy.admin() as admin:
        audits = [pool.submit(proxy.audit) for _ in range(AUDITS)]
        looks = 0
        while not any(audit.done() for audit in audits):
            admin.get(f"/sessions/{session.session_id}").raise_for_status()
            looks += 1
        assert all(audit.result()["balanced"] and audit.result()["turns"]["live"] == TURNS + 1 for audit in audits)
    assert looks >= LOOKS


def test_metrics_wait_for_no_audit_and_say_the_same(big: tuple[ProxyProcess, AgentSession]) -> None:
    proxy, _ = big
    with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=proxy.url) as anyone:
        audit: Future[object] = pool.submit(proxy.audit)
        scrapes = 0
        while not audit.done():
            text = anyone.get("/metrics").raise_for_status().text
            scrapes += 1
    assert scrapes >= LOOKS // 2
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
            connection.execute(_START, (SESSIONS, session.session_id))
        connection.close()
        proxy.start()
        yield session


@pytest.mark.parametrize("chosen", [{"task_id": "no such"}, {"min_reward": "2"}], ids=["by task", "by reward"])
def test_looking_a_session_up_waits_for_no_list(crowded: AgentSession, chosen: dict[str, str]) -> None:
    with ThreadPoolExecutor(LISTS) as pool, crowded.proxy.admin() as admin:
        lists = [pool.submit(admin.get, "/sessions", params=chosen) for _ in range(LISTS)]
        looks = 0
        while not all(each.done() for each in lists):
            admin.get(f"/sessions/{crowded.session_id}").raise_for_status()
            looks += 1
        assert all(each.result().raise_for_status().json()["sessions"] == [] for each in lists)
    assert looks >= LOOKS
