"""A store that another program has locked: calls wait, are refused in time, and nothing that was generated is lost."""

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import httpx
import pytest
from tests.fleets import Fleet, ProxyProcess, running_fleet
from tests.waiting import until

from rolloutfleet.errors import STORE_BUSY

CHAT = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[ProxyProcess]:
    with running_fleet(tmp_path_factory.mktemp("locked"), beside=shared) as fleet:
        yield fleet.proxy


@contextmanager
def locked(proxy: ProxyProcess) -> Iterator[None]:
    """Held as `sqlite3 store.sqlite3 'BEGIN IMMEDIATE'` does."""
    with closing(sqlite3.connect(proxy.store_file, isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def is_busy(reply: httpx.Response) -> bool:
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, STORE_BUSY), reply.text
    return reply.headers["retry-after"] == "5"


def test_a_turn_generated_under_a_lock_is_there_for_the_retry(proxy: ProxyProcess, shared: Fleet) -> None:
    whole, streamed = proxy.start_session(), proxy.start_session()
    with locked(proxy), ThreadPoolExecutor() as pool:
        replies = pool.submit(whole.raw_chat, CHAT), pool.submit(streamed.raw_chat, CHAT | {"stream": True})
        with proxy.admin() as admin:
            assert is_busy(admin.post("/sessions", json={}))
            ready = until(lambda: (found := admin.get("/ready")).status_code == 503 and found.json())
        assert is_busy(replies[0].result())
        stream = replies[1].result()
        assert stream.status_code == 200 and f'"{STORE_BUSY}"' in stream.text and "[DONE]" not in stream.text
        assert is_busy(whole.raw_chat(CHAT)), "whoever asks meanwhile is told at once"
    assert ready["problem"].startswith("the store has been locked by process ")
    until(lambda: proxy.stats()["in_flight"] == 0)
    asked = len(generations(shared))
    for session in (whole, streamed):
        assert session.raw_chat(CHAT).status_code == 200
    assert len(generations(shared)) == asked, "no turn was generated anew"
    with proxy.admin() as admin:
        until(lambda: admin.get("/ready").json()["problem"] is None)
        audit = admin.get("/audit").json()
    assert (audit["turns"]["created"], audit["sessions"]["created"], audit["balanced"]) == (2, 2, True)


def test_a_short_lock_only_makes_calls_wait(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    with ThreadPoolExecutor() as pool:
        with locked(proxy):
            reply = pool.submit(session.raw_chat, CHAT)
            until(lambda: proxy.stats()["in_flight"] == 1)
        assert reply.result().status_code == 200


def generations(fleet: Fleet) -> list[object]:
    """Requests that the engines have seen to their ends."""
    return [request for engine in fleet.engines for request in engine.log()]
