"""The durable log of boots."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.proxy.stores import SyncStore

from rolloutfleet_proxy.store import boots
from rolloutfleet_proxy.store.boots import KEPT, Crash


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SyncStore]:
    opened = SyncStore(tmp_path / "store")
    yield opened
    opened.close()


def boot(store: SyncStore, crash: Crash | None = None, drain: str | None = None) -> dict[str, Any]:
    """Boot; returns the newest entry."""
    store.run(partial(boots.begin, crash=crash, drain=drain))
    return store.read(boots.load)[-1]


def test_the_first_boot_says_so_and_every_boot_gets_its_memory(store: SyncStore) -> None:
    first = {"time": 1e9, "reason": "first", "id": None, "rss_before": None, "rss_after": None}
    assert boot(store) == first
    store.run(partial(boots.measured, rss=200))
    assert store.read(boots.load) == [{**first, "rss_after": 200}]


def test_a_life_that_ended_on_purpose_is_in_its_own_words_once(store: SyncStore) -> None:
    boot(store)
    store.run(partial(boots.end, reason="planned: memory", drain="d-1", rss=100))
    store.reopen()
    planned = boot(store, Crash(how="was killed by SIGKILL"), drain="another")
    assert (planned["reason"], planned["id"], planned["rss_before"]) == ("planned: memory", "d-1", 100)
    assert store.read(lambda connection: boots.has(connection, "d-1"))
    assert not store.read(lambda connection: boots.has(connection, "another"))
    assert boot(store)["reason"] == "crash: its end was not recorded"


def test_a_crash_is_told_as_the_parent_saw_it_with_the_drain_that_it_ended(store: SyncStore) -> None:
    boot(store)
    crashed = boot(store, Crash(how="was killed by SIGKILL", peak_rss=300), drain="d-2")
    assert (crashed["reason"], crashed["id"], crashed["rss_before"]) == ("crash: was killed by SIGKILL", "d-2", 300)


def test_the_last_boots_are_kept(store: SyncStore) -> None:
    for number in range(KEPT + 5):
        store.run(partial(boots.end, reason="stopped", drain=str(number), rss=None))
        boot(store)
    assert [entry["id"] for entry in store.read(boots.load)] == [str(number) for number in range(5, KEPT + 5)]
