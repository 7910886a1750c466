"""A full disk: what can't be kept is refused, what is there stays, and it works again when there is room."""

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.fleets import AgentSession, Fleet, ProxyProcess, running_fleet
from tests.integration.proxy import judge
from tests.system.disks import fill, small_disk
from tests.waiting import until

from rolloutfleet.errors import NO_ROOM, STORE_FULL

DISK = 16
"""Megabytes."""
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me something"}], "max_tokens": 60}
NO_LIMIT = {"sessions": {"limits": {"bytes": "1Ti"}}}
"""So that the disk refuses, and not the proxy's own care."""


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A proxy whose store is on a small disk of its own."""

    fleet: Fleet
    proxy: ProxyProcess

    @property
    def filler(self) -> Path:
        return Path(self.proxy.settings["state_dir"]) / "filler"

    def fill(self) -> None:
        fill(self.filler)

    def free(self) -> None:
        self.filler.unlink()


@pytest.fixture(params=[{}, NO_LIMIT], ids=["careful", "unlimited"])
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SmallDisk]:
    with running_fleet(tmp_path, settings=request.param, start_proxies=False) as fleet:
        state = Path(fleet.proxy.settings["state_dir"])
        with small_disk(state, megabytes=DISK):
            try:
                fleet.proxy.start()
                yield SmallDisk(fleet, fleet.proxy)
            finally:
                fleet.proxy.stop()


def talk(session: AgentSession, *, turns: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = list(CHAT["messages"])
    for number in range(turns):
        reply = session.raw_chat({**CHAT, "messages": messages})
        assert reply.status_code == 200, reply.text
        messages += [reply.json()["choices"][0]["message"], {"role": "user", "content": f"And {number}?"}]
    return messages


def test_a_full_disk_refuses_what_it_cant_keep_and_loses_nothing(disk: SmallDisk) -> None:
    proxy = disk.proxy
    session, other = proxy.start_session(), proxy.start_session()
    messages = talk(session, turns=4)
    talk(other, turns=1)
    turns = session.turns()
    body = {**CHAT, "messages": messages}
    free = proxy.gauge('rolloutfleet_disk_bytes{kind="free"}')
    assert 0 < free < proxy.gauge('rolloutfleet_disk_bytes{kind="total"}') <= DISK << 20
    limit = proxy.gauge("rolloutfleet_store_limit_bytes")
    assert proxy.gauge("rolloutfleet_store_full") == 0 and (limit == 2**40 or 0 < limit < DISK << 20)

    disk.fill()
    # The log may have room within its file.
    until(lambda: other.raw_chat(CHAT).status_code == 507)
    until(lambda: other.post("touch").status_code == 507)
    before = proxy.audit()
    received = disk.fleet.engine.counters()["received"]
    refused = session.raw_chat(body, idempotency_key="while full")
    assert refused.status_code == 507 and refused.json()["error"]["code"] == STORE_FULL
    assert refused.headers["x-should-retry"] == "false"
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: other.raw_chat(CHAT), range(8)))
    assert {(reply.status_code, reply.json()["error"]["code"]) for reply in replies} == {(507, STORE_FULL)}
    streamed = session.raw_chat({**body, "stream": True})
    assert f'"code":"{STORE_FULL}"' in streamed.text
    assert '"finish_reason":"' not in streamed.text and "[DONE]" not in streamed.text
    touched = session.post("touch")
    assert touched.status_code == 507 and touched.json()["error"]["code"] == STORE_FULL, touched.text
    with proxy.admin() as admin:
        start = admin.post("/sessions", json={})
        expected = (507, STORE_FULL) if "sessions" in proxy.settings else (429, NO_ROOM)
        assert (start.status_code, start.json()["error"]["code"]) == expected, start.text
        assert admin.get("/health").status_code == 200
    assert session.turns() == turns and proxy.audit() == before and before["balanced"]
    assert proxy.stats()["in_flight"] == 0
    assert proxy.gauge("rolloutfleet_store_full") == 1
    # Of the calls, one may have begun before the proxy looked at the disk again; for all others nothing was generated.
    assert disk.fleet.engine.counters()["received"] - received <= 1

    for end in (proxy.kill, proxy.stop):
        end()
        proxy.start()
        assert session.turns() == turns and proxy.audit() == before
        assert session.raw_chat(body).status_code == 507

    disk.free()
    again = session.raw_chat(body, idempotency_key="while full")
    assert again.status_code == 200, again.text
    assert session.raw_chat({**body, "stream": True}).text.rstrip().endswith("[DONE]")
    assert proxy.start_session().raw_chat(CHAT).status_code == 200
    assert session.post("reward", {"reward": 1.0}).status_code == 200
    kept = session.turns()
    assert [turn["turn_id"] for turn in kept[:4]] == [turn["turn_id"] for turn in turns]
    assert kept[4]["turn_id"] == again.json()["id"] and kept[4]["parent_id"] == kept[3]["turn_id"]
    assert len(kept) == 6
    judge.assert_the_engines_own(kept, judge.engine_notes(disk.fleet))
    after = proxy.audit()
    assert after["balanced"] and after["turns"]["created"] == before["turns"]["created"] + 3
    judge.assert_sound(proxy)


def test_a_disk_that_fills_under_load_keeps_what_it_answered(disk: SmallDisk) -> None:
    """The store itself fills the disk, through a checkpoint and more; every 200 is kept, and nothing else."""
    proxy = disk.proxy
    sessions = [proxy.start_session() for _ in range(4)]
    answered: dict[str, set[str]] = {session.session_id: set() for session in sessions}
    long = "All work and no play makes a dull text. " * 3000

    def until_full(session: AgentSession) -> int:
        for number in range(1000):
            content = f"{number} {long}"
            reply = session.raw_chat({"messages": [{"role": "user", "content": content}], "max_tokens": 5})
            if reply.status_code != 200:
                assert reply.status_code == 507 and reply.json()["error"]["code"] == STORE_FULL, reply.text
                return number
            answered[session.session_id].add(reply.json()["id"])
        raise AssertionError("the disk did not fill")

    with ThreadPoolExecutor(len(sessions)) as pool:
        list(pool.map(until_full, sessions))
    for restarted in (False, True):
        if restarted:
            proxy.kill()
            proxy.start()
        for session in sessions:
            assert {turn["turn_id"] for turn in session.turns()} == answered[session.session_id]
        audit = proxy.audit()
        assert audit["balanced"] and audit["turns"]["live"] == sum(map(len, answered.values()))
    judge.assert_sound(proxy)


@pytest.mark.parametrize("disk", [NO_LIMIT | {"inspect": {"keep": {"fraction": 1}}}], indirect=True, ids=["keeping"])
def test_on_a_full_disk_no_copy_is_made_and_what_was_trained_goes_all_the_same(disk: SmallDisk) -> None:
    proxy = disk.proxy
    folder = Path(proxy.settings["state_dir"]) / "kept"

    def copies(outcome: str) -> float:
        return proxy.gauge(f'rolloutfleet_sessions_kept_total{{outcome="{outcome}"}}')

    def leased() -> tuple[AgentSession, str]:
        session = proxy.start_session()
        talk(session, turns=3)
        session.post("close").raise_for_status()
        with proxy.admin() as admin:
            lease: str = admin.post("/export", json={"session_ids": [session.session_id]}).json()["lease_id"]
        return session, lease

    def acknowledge(lease: str) -> None:
        with proxy.admin() as admin:
            admin.post(f"/leases/{lease}/ack").raise_for_status()

    _, lease = leased()
    disk.fill()
    acknowledge(lease)
    until(lambda: copies("failed") == 1)
    assert not list(folder.glob("*")) and proxy.audit()["balanced"]
    with closing(sqlite3.connect(proxy.store_file)) as store:
        until(lambda: store.execute("SELECT count(*) FROM turns").fetchone() == (0,))

    disk.free()
    session, lease = leased()
    acknowledge(lease)
    until(lambda: copies("copied") == 1)
    assert [file.name for file in folder.iterdir()] == [f"{session.session_id}-kept.json"]
