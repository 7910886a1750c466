"""A disk that is truly full, and the proxy's log on it: the API empties it, whoever filled it."""

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.fleets import AgentSession, Fleet, ProxyProcess, running_fleet
from tests.integration.proxy import judge
from tests.integration.proxy.cleaning import dump_folder
from tests.system.disks import fill, small_disk
from tests.waiting import until

TEXT = "All work and no play makes a dull text. "
SWEEPING = {"limits": {"bytes": "1Ti"}, "stale_after": "1h", "cleanup_interval": "200ms"}


@dataclass(frozen=True, slots=True)
class Full:
    """A proxy on a small disk, with its store, its dumps and its log."""

    fleet: Fleet
    proxy: ProxyProcess
    disk: Path

    @property
    def filler(self) -> Path:
        return self.disk / "filler"

    def fill(self) -> None:
        fill(self.filler)

    def leave(self, megabytes: int) -> None:
        """Take what is more than that."""
        disk = os.statvfs(self.disk)
        with (self.disk / "ballast").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, disk.f_bavail * disk.f_frsize - (megabytes << 20)))


DISKS = [(24, "tmpfs"), (200, "ext4")]
"""Megabytes, and the file system."""


@pytest.fixture(params=DISKS, ids=lambda param: f"{param[0]} MB, {param[1]}")
def full(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Full]:
    megabytes, kind = request.param
    settings = {"sessions": SWEEPING, "log": {"level": "debug"}}
    with (
        small_disk(tmp_path / "disk", megabytes=megabytes, kind=kind) as disk,
        running_fleet(tmp_path / "fleet", settings=settings, start_proxies=False) as fleet,
    ):
        proxy = fleet.proxy
        proxy.settings["state_dir"] = str(disk / "state")
        proxy.folder.mkdir(parents=True)
        proxy.log.symlink_to(disk / "proxy.log")
        proxy.start()
        yield Full(fleet, proxy, disk)
        proxy.stop()


def talk(session: AgentSession, *, turns: int = 2, letters: int = 20_000) -> None:
    for number in range(turns):
        content = (f"{number} " + TEXT * (letters // len(TEXT)))[:letters]
        reply = session.raw_chat({"messages": [{"role": "user", "content": content}], "max_tokens": 8})
        assert reply.status_code == 200, reply.text


def export(proxy: ProxyProcess, **asked: Any) -> Any:
    with proxy.admin() as admin:
        reply = admin.post("/export", json=asked, headers={"accept": "application/json"})
    assert reply.status_code == 200, reply.text
    return reply.json()


def ack(proxy: ProxyProcess, lease: str) -> None:
    with proxy.admin() as admin:
        reply = admin.post(f"/leases/{lease}/ack")
    assert reply.status_code == 200, reply.text


def delete(session: AgentSession) -> None:
    with session.proxy.admin() as admin:
        reply = admin.delete(f"/sessions/{session.session_id}")
    assert reply.status_code == 204, reply.text


def change_settings(proxy: ProxyProcess, **changed: Any) -> None:
    """Change them while it runs."""
    proxy.settings.update(changed)
    (proxy.folder / "settings.json").write_text(json.dumps(proxy.settings))


def test_what_frees_is_written_on_a_disk_that_others_filled(full: Full) -> None:
    proxy = full.proxy
    sessions = [proxy.start_session() for _ in range(8)]
    for session in sessions:
        talk(session)
    deleted, closed, rewarded, leased, *others = sessions
    assert leased.post("close").status_code == 200
    lease = export(proxy, session_ids=[leased.session_id])["lease_id"]
    full.fill()

    # The log may have room yet for a turn or two.
    until(lambda: others[0].raw_chat({"messages": [{"role": "user", "content": TEXT * 500}]}).status_code == 507)
    delete(deleted)
    assert closed.post("close").status_code == 200
    reward = rewarded.post("reward", {"reward": 1.0}, idempotency_key="once")
    assert reward.status_code == 200 and rewarded.post("reward", {"reward": 1.0}, idempotency_key="once").is_success
    ack(proxy, lease)
    ack(proxy, export(proxy, session_ids=[closed.session_id])["lease_id"])
    audit = proxy.audit()
    assert audit["balanced"] and audit["turns"]["acknowledged"] == 4 and audit["turns"]["discarded"] == {"deleted": 2}

    # A planned stop and a kill, and others take what the stop gives back.
    for end in (proxy.stop, proxy.kill):
        end()
        full.fill()
        proxy.start()
        assert proxy.audit() == audit
        full.fill()
        delete(others.pop())
        audit = proxy.audit()
        assert audit["balanced"]

    full.filler.unlink()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(talk, [proxy.start_session() for _ in range(4)]))
    until(lambda: proxy.stats()["store"]["reserved"])
    judge.assert_sound(proxy)


def test_a_disk_that_the_store_filled_is_emptied_to_the_last_session(full: Full) -> None:
    """Through checkpoints and a log that grew as far as it could; each session goes its own way."""
    proxy = full.proxy
    sessions: list[AgentSession] = []
    refused = threading.Event()
    full.leave(30)

    def until_full(letters: int) -> None:
        while not refused.is_set():
            with proxy.admin() as admin:
                started = admin.post("/sessions", json={})
            if started.status_code == 507:
                return
            names = {name: started.json()[name] for name in ("session_id", "api_key", "base_url")}
            session = AgentSession(proxy, **names)
            sessions.append(session)
            for number in range(4):
                body = {"messages": [{"role": "user", "content": f"{number} {TEXT * (letters // 40)}"}]}
                reply = session.raw_chat({**body, "max_tokens": 4})
                if reply.status_code != 200:
                    assert reply.status_code == 507, reply.text
                    refused.set()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(until_full, (4_000, 40_000, 200_000)))
    full.fill()
    assert len(sessions) > 8

    for number, session in enumerate(sessions):
        if number % 2:
            delete(session)
        elif session.show()["turns"]:
            assert session.post("reward", {"reward": 1.0}).status_code == 200
            assert session.post("close").status_code == 200
            ack(proxy, export(proxy, session_ids=[session.session_id])["lease_id"])
        else:
            assert session.post("close").status_code == 200
    audit = proxy.audit()
    assert audit["balanced"] and audit["keys"] == 0 and audit["turns"]["live"] == audit["turns"]["leased"] == 0
    # The file gives back what it no longer holds, and the reserve is whole again.
    until(lambda: proxy.stats()["store"]["reserved"])
    judge.assert_sound(proxy)


def test_a_dump_without_room_waits_and_holds_up_nothing(full: Full) -> None:
    proxy = full.proxy
    deleted, closed = (proxy.start_session(stale_after=3600) for _ in range(2))
    stale, empty = (proxy.start_session() for _ in range(2))
    for session in (deleted, closed):
        talk(session)
    # What the store gives back meanwhile is room for a dump. This one needs more, and a planned stop ends the log.
    talk(stale, letters=200_000)
    assert closed.post("close").status_code == 200
    proxy.stop()
    proxy.start()
    full.fill()
    change_settings(proxy, sessions={**SWEEPING, "stale_after": 0.1})

    until(lambda: proxy.stats()["dump"]["failing"])
    dump = proxy.stats()["dump"]
    assert "waits for room" in dump["error"] and dump["groups_failing"] == 1
    until(lambda: proxy.audit()["keys"] == 3)
    delete(deleted)
    ack(proxy, export(proxy, session_ids=[closed.session_id])["lease_id"])
    assert stale.show()["turns"] == 2, "kept"
    until(lambda: not list(dump_folder(proxy).glob("*")))  # but for a moment of each try
    with proxy.admin() as admin:
        assert admin.get(f"/sessions/{empty.session_id}").status_code == 410, "what needs no file goes"

    full.filler.unlink()
    until(lambda: proxy.audit()["turns"]["dumped"] == 2)
    until(lambda: not proxy.stats()["dump"]["failing"])
    judge.assert_sound(proxy)


def post(proxy: ProxyProcess, path: str, **asked: Any) -> Any:
    with proxy.admin() as admin:
        reply = admin.post(path, json=asked)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_trainer_recovers_and_pauses_on_a_disk_that_others_filled(full: Full) -> None:
    proxy = full.proxy
    ended, left_open, *others = [proxy.start_session() for _ in range(6)]
    for session in (ended, left_open, *others):
        talk(session)
    assert ended.post("close").status_code == 200
    full.fill()
    until(lambda: others[0].raw_chat({"messages": [{"role": "user", "content": TEXT * 500}]}).status_code == 507)
    turns = proxy.audit()["turns"]["live"]

    epoch = post(proxy, "/pause")["epoch"]
    full.fill()
    assert post(proxy, "/recover", version=0, run=1, newer="drop", confirm=True)["recovered"]["dropped_turns"] == 2
    assert post(proxy, "/recover", version=0, run=2, newer="keep", open="delete")["recovered"]["ended_sessions"] == 5
    full.fill()
    assert post(proxy, "/continue", epoch=epoch)["paused"] is False
    with proxy.admin() as admin:
        assert admin.put("/version", json={"version": 4}).status_code == 200
        assert admin.get(f"/sessions/{left_open.session_id}").status_code == 410
    audit = proxy.audit()
    assert audit["balanced"] and audit["keys"] == 0
    assert audit["turns"]["discarded"] == {"recovered": 2, "deleted": turns - 2}
    judge.assert_sound(proxy)
