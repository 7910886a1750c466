"""Sessions with more turns than a full disk's reserve could free at once: they go all the same, through any kill."""

import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.fleets import ProxyProcess, running_fleet
from tests.integration.proxy import judge
from tests.system.disks import fill, small_disk
from tests.unit.proxy.stores import SyncStore, new_turn
from tests.waiting import PATIENCE, until

from rolloutfleet.wire import AskExport
from rolloutfleet_proxy.domain.turn import NewTurn
from rolloutfleet_proxy.failpoints import MID_FREEING, VARIABLE
from rolloutfleet_proxy.store import leases
from rolloutfleet_proxy.store.audit import audit
from rolloutfleet_proxy.store.database import Database, StoreUnusable, open_database
from rolloutfleet_proxy.store.trajectories import close_session
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.turns import commit_turn

MEGABYTES = 48
LONG = 20_000
"""Turns of which each takes about a kilobyte: three times what the reserve of such a disk holds."""
AT_ONCE = 1000
PATIENT = {"limits": {"bytes": "1Ti"}, "stale_after": "1h", "cleanup_interval": "200ms", "dump": {"path": ""}}


@pytest.fixture(params=["tmpfs", "ext4"])
def proxy(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ProxyProcess]:
    """On a small disk, with its log."""
    settings = {"sessions": PATIENT}
    with (
        small_disk(tmp_path / "disk", megabytes=MEGABYTES, kind=request.param) as disk,
        running_fleet(tmp_path / "fleet", settings=settings, start_proxies=False) as fleet,
    ):
        proxy = fleet.proxy
        proxy.settings["state_dir"] = str(disk / "state")
        proxy.folder.mkdir(parents=True)
        proxy.log.symlink_to(disk / "proxy.log")
        yield proxy
        proxy.stop()


def filled(proxy: ProxyProcess, turns: Sequence[int]) -> list[str]:
    """Start sessions of so many turns behind the back of the proxy, which is down; returns their names."""
    open_database(proxy.store_file.parent, with_reserve=True).close()
    store = SyncStore(proxy.store_file.parent)
    sessions = [store.start()[0] for _ in turns]
    for (session, _), count in zip(sessions, turns, strict=True):
        for begin in range(0, count, AT_ONCE):
            store.run(partial(_commit, session=session, numbers=range(begin, min(count, begin + AT_ONCE))))
    store.close()
    return [name for _, name in sessions]


def _commit(transaction: Transaction, *, session: int, numbers: Sequence[int]) -> None:
    for number in numbers:
        commit_turn(transaction, _turn(session, number))


def _turn(session: int, number: int) -> NewTurn:
    """The turn behind `number` others."""
    name, parent = f"{session}-{number}", number or None
    return new_turn(session, name=name, parent=parent, covered=2 * number, tokens=62 * number, output=range(60))


def leased(proxy: ProxyProcess, name: str) -> str:
    """Close a session and lease all of it, likewise; returns the lease."""
    store = SyncStore(proxy.store_file.parent)
    [(session,)] = store.rows("SELECT id FROM sessions WHERE name = ?", name)
    store.run(lambda transaction: close_session(transaction, session))
    asked = AskExport(session_ids=[name], lease_seconds=3600)
    lease = store.run(lambda transaction: leases.grant(transaction, store.owner, asked)).lease
    store.close()
    assert lease is not None
    return lease


def full(proxy: ProxyProcess) -> None:
    fill(Path(proxy.settings["state_dir"]).parent / "filler")


def turns_left(proxy: ProxyProcess) -> int:
    with closing(sqlite3.connect(f"file:{proxy.store_file}?mode=ro", uri=True)) as store:
        [turns] = store.execute("SELECT count(*) FROM turns").fetchone()
    return int(turns)


def delete(proxy: ProxyProcess, name: str) -> None:
    with proxy.admin() as admin:
        reply = admin.delete(f"/sessions/{name}")
        assert reply.status_code == 204, reply.text


def sums(proxy: ProxyProcess) -> dict[str, Any]:
    found = proxy.audit()
    assert found["balanced"], found
    return {kind: found[kind] for kind in ("turns", "sessions", "keys")}


def sums_of_a_dead(proxy: ProxyProcess) -> dict[str, Any]:
    database: Database = until(lambda: _opened(proxy.store_file.parent))
    with closing(database.connect(read_only=True)) as connection:
        found = audit(connection)
    database.close()
    assert found["balanced"], found
    return {kind: found[kind] for kind in ("turns", "sessions", "keys")}


def _opened(store: Path) -> Database | None:
    """None as long as a process that was killed still has it."""
    with suppress(StoreUnusable):
        return open_database(store, with_reserve=True)
    return None


def test_a_session_of_any_length_is_deleted_through_kills(proxy: ProxyProcess) -> None:
    long, short = filled(proxy, [LONG, 20])
    full(proxy)
    proxy.environment = {VARIABLE: f"{MID_FREEING}:2"}
    proxy.start()
    assert sums(proxy)["turns"]["live"] == LONG + 20
    delete(proxy, long)
    proxy.wait_until_killed(PATIENCE)
    deleted = sums_of_a_dead(proxy)
    assert deleted["turns"]["discarded"] == {"deleted": LONG} and deleted["turns"]["live"] == 20
    left = turns_left(proxy)
    assert left > LONG / 2, "not at once"

    full(proxy)
    assert sums_of_a_dead(proxy) == deleted
    proxy.environment = {VARIABLE: f"{MID_FREEING}:20"}
    proxy.launch()
    proxy.wait_until_killed(PATIENCE)
    assert sums_of_a_dead(proxy) == deleted
    assert 20 < turns_left(proxy) < left
    judge.assert_sound(proxy)

    proxy.environment = {}
    full(proxy)
    proxy.start()
    until(lambda: turns_left(proxy) == 20)
    assert sums(proxy) == deleted
    until(lambda: proxy.stats()["store"]["reserved"])
    delete(proxy, short)
    assert proxy.is_gone(long) and proxy.is_gone(short)
    assert sums(proxy)["turns"]["live"] == 0
    judge.assert_sound(proxy)


def test_what_was_acknowledged_or_is_stale_goes_likewise(proxy: ProxyProcess) -> None:
    closed, _ = filled(proxy, [LONG // 2, LONG // 2])
    lease = leased(proxy, closed)
    full(proxy)
    proxy.start()
    with proxy.admin() as admin:
        acknowledged = admin.post(f"/leases/{lease}/ack")
        assert acknowledged.status_code == 200, acknowledged.text
    assert sums(proxy)["turns"]["acknowledged"] == LONG // 2
    proxy.settings["sessions"] = {**PATIENT, "stale_after": 0.1}
    proxy.stop()
    full(proxy)
    proxy.start()
    until(lambda: sums(proxy)["turns"]["discarded"] == {"no_dump_path": LONG // 2})
    until(lambda: turns_left(proxy) == 0)
    after = sums(proxy)
    assert after["keys"] == after["turns"]["live"] == after["turns"]["leased"] == 0
    judge.assert_sound(proxy)


def test_many_sessions_are_deleted_at_once(proxy: ProxyProcess) -> None:
    names = filled(proxy, [150] * 100)
    full(proxy)
    proxy.start()
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(partial(delete, proxy), names))
        assert all(pool.map(proxy.is_gone, names))
    after = sums(proxy)
    assert after["keys"] == 0 and after["turns"]["discarded"] == {"deleted": 100 * 150}
    until(lambda: turns_left(proxy) == 0)
    assert sums(proxy) == after
    judge.assert_sound(proxy)
