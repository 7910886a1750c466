"""Settings that change while a proxy runs: in force at once where they can be, refused whole where they are wrong."""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fleets import Fleet, ProxyProcess, running_fleet
from tests.integration.proxy.cleaning import CHAT, is_gone, talk
from tests.waiting import PATIENCE, until

from rolloutfleet.errors import KEPT_ON_VOLUME, NO_ROOM, PAUSED
from rolloutfleet.settings import ProxySettings
from rolloutfleet_proxy.reloading import take
from rolloutfleet_proxy.settings import SettingsInForce, Told

Json = Any


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[ProxyProcess]:
    with running_fleet(tmp_path_factory.mktemp("settings"), beside=shared, settings={"generation": 1}) as fleet:
        yield fleet.proxy


def write(proxy: ProxyProcess, **changes: Json) -> None:
    """Put a whole file in the place of the other, as a volume of Kubernetes changes."""
    written = proxy.folder / "settings.new"
    written.write_text(json.dumps({**proxy.settings, **changes}))
    written.replace(proxy.folder / "settings.json")


def in_force(proxy: ProxyProcess, generation: int) -> bool:
    return bool(proxy.stats()["settings"]["generation"] == generation)


def pid_of(proxy: ProxyProcess) -> int | None:
    """None where its worker dies under the question."""
    try:
        return int(proxy.stats()["pid"])
    except httpx.TransportError:
        return None


def test_sessions_settings_are_in_force_without_a_restart(proxy: ProxyProcess) -> None:
    pid = proxy.stats()["pid"]
    session = proxy.start_session()
    talk(session)
    with proxy.admin() as admin, ThreadPoolExecutor(1) as pool:
        admin.post("/pause", json={}).raise_for_status()
        held = pool.submit(session.raw_chat, CHAT)
        write(proxy, generation=2, sessions={"max_hold": 0.1, "limits": {"sessions": 1}})
        assert held.result(PATIENCE).json()["error"]["code"] == PAUSED
        assert in_force(proxy, 2)
        assert proxy.gauge("rolloutfleet_past_max_hold") == proxy.gauge("rolloutfleet_paused") == 1
        admin.post("/continue", json={}).raise_for_status()
        assert proxy.gauge("rolloutfleet_past_max_hold") == 0
        assert admin.post("/sessions", json={}).json()["error"]["code"] == NO_ROOM
        write(proxy, generation=3, sessions={"stale_after": 0.3, "cleanup_interval": 0.1, "dump": {"path": ""}})
        until(lambda: is_gone(session))
        assert admin.get("/audit").json()["turns"]["discarded"] == {"no_dump_path": 1}
        assert admin.post("/sessions", json={}).status_code == 201
    write(proxy, generation=4)
    until(lambda: in_force(proxy, 4))
    assert proxy.stats()["pid"] == pid


def test_dumps_are_listed_shown_and_imported_from_a_folder_that_was_named_later(
    proxy: ProxyProcess, tmp_path: Path
) -> None:
    session = proxy.start_session()
    talk(session)
    write(proxy, dump_dir=str(tmp_path), sessions={"stale_after": 0.3, "cleanup_interval": 0.1})
    until(lambda: is_gone(session))
    write(proxy, dump_dir=str(tmp_path))
    with proxy.admin() as admin:
        [dump] = admin.get("/dumps").json()["dumps"]
        assert admin.get(f"/dumps/{dump['name']}").content == (tmp_path / dump["name"]).read_bytes()
        assert admin.post("/dumps/import", json={"names": [dump["name"]]}).status_code == 200
    write(proxy)


def test_the_memory_budget_is_reported_as_it_is_now(proxy: ProxyProcess) -> None:
    write(proxy, generation=5, memory={"rss_budget": "3Gi"})
    until(lambda: in_force(proxy, 5))
    assert proxy.stats()["rss_budget_bytes"] == proxy.gauge("rolloutfleet_memory_budget_bytes") == 3 * 2**30


def test_copies_of_trained_sessions_are_kept_from_when_they_are_asked_for(proxy: ProxyProcess) -> None:
    def trained() -> Path:
        """Where the copy of a session goes that was acknowledged."""
        session = proxy.start_session()
        talk(session)
        session.post("close").raise_for_status()
        with proxy.admin() as admin:
            lease = admin.post("/export", json={"session_ids": [session.session_id]}).json()["lease_id"]
            admin.post(f"/leases/{lease}/ack").raise_for_status()
        assert is_gone(session)
        return folder / f"{session.session_id}-kept.json"

    folder = proxy.folder / "copies"
    unasked = trained()
    write(proxy, generation=6, inspect={"keep": {"fraction": 1}}, kept_dir=str(folder))
    until(lambda: in_force(proxy, 6))
    until(trained().exists)
    until(lambda: proxy.gauge('rolloutfleet_sessions_kept_total{outcome="copied"}') == 1)
    assert not unasked.exists() and proxy.audit()["balanced"]
    write(proxy, generation=7)
    until(lambda: in_force(proxy, 7))
    assert not trained().exists()


def test_a_bad_file_changes_nothing_and_is_said(proxy: ProxyProcess) -> None:
    before = proxy.stats()["settings"]
    assert before["error"] is None
    write(proxy, generation=9, sessions={"stale_after": -1})
    stats = until(lambda: (now := proxy.stats()["settings"])["error"] and now)
    assert "sessions.stale_after" in stats["error"] and stats["generation"] == before["generation"]
    (proxy.folder / "settings.json").write_text("{")
    until(lambda: "can't be read" in (proxy.stats()["settings"]["error"] or ""))
    write(proxy, generation=before["generation"])
    until(lambda: proxy.stats()["settings"]["error"] is None)
    assert proxy.stats()["settings"] == before


def test_what_needs_a_restart_is_named(proxy: ProxyProcess) -> None:
    generation = proxy.stats()["settings"]["generation"]
    write(proxy, generation=20, drain_timeout=5, tokenizer={**proxy.settings["tokenizer"], "renderer": "qwen3"})
    stats = until(lambda: (now := proxy.stats()["settings"])["needs_restart"] and now)
    assert sorted(stats["needs_restart"]) == ["drain_timeout", "tokenizer.renderer"]
    assert stats["generation"] == generation, "what is in force is not all of the new one"
    assert stats["live_generation"] == 20, "what waits is all that is missing"
    until(lambda: "tokenizer.renderer" in proxy.log.read_text())
    write(proxy, generation=21)
    until(lambda: in_force(proxy, 21))
    assert proxy.stats()["settings"]["needs_restart"] == []


def test_what_only_another_release_knows_waits_for_it_and_stops_nothing(proxy: ProxyProcess) -> None:
    """As an operator's file has it, which says that it was checked. From people's it is a mistake."""
    generation = proxy.stats()["settings"]["generation"]
    later = {"sessions": {"stale_after": 77, "dump": {"tape": True}}, "teleport": {"to": "x"}}
    write(proxy, generation=22, **later)
    until(lambda: "teleport" in (proxy.stats()["settings"]["error"] or ""))

    write(proxy, generation=23, checked=True, **later)
    told = until(lambda: (now := proxy.stats()["settings"])["needs_restart"] and now)
    assert sorted(told["needs_restart"]) == ["sessions.dump.tape", "teleport"]
    assert told["error"] is None and told["generation"] == generation, "what is in force is not all of the new one"
    assert told["live_generation"] == 23

    before = proxy.stats()["pid"]
    proxy.kill_worker()
    until(lambda: pid_of(proxy) not in (None, before))
    told = until(lambda: (now := proxy.stats()["settings"])["needs_restart"] and now)
    assert sorted(told["needs_restart"]) == ["sessions.dump.tape", "teleport"] and told["generation"] == 0

    write(proxy, generation=24, checked=True)
    until(lambda: in_force(proxy, 24))
    assert proxy.stats()["settings"]["needs_restart"] == []


def test_admin_keys_rotate_while_it_runs(proxy: ProxyProcess) -> None:
    file = Path(proxy.settings["admin_key_file"])
    old, new = file.read_text().strip(), "a-newer-admin-key-of-this-fleet"
    pid = proxy.stats()["pid"]

    def status(key: str) -> int:
        return httpx.get(f"{proxy.url}/stats", headers={"Authorization": f"Bearer {key}"}).status_code

    assert (status(old), status(new)) == (200, 401)
    file.write_text(f"{new}\n{old}\n")
    until(lambda: status(new) == 200)
    assert status(old) == 200, "both are valid while keys rotate"
    file.write_text("short\n")
    until(lambda: "the earlier ones stay valid" in proxy.log.read_text())
    assert (status(old), status(new)) == (200, 200)
    file.write_text(f"{new}\n")
    until(lambda: status(old) != 200)
    file.write_text(f"{old}\n")
    until(lambda: status(old) == 200)
    assert proxy.stats()["pid"] == pid


def test_a_fleet_shrinks_and_grows_while_it_runs(tmp_path: Path, shared: Fleet) -> None:
    with running_fleet(tmp_path, beside=shared, proxies=2, settings={"generation": 1}) as fleet:
        first, second = fleet.proxies

        def ready() -> list[int]:
            with first.admin() as admin:
                return [each["ordinal"] for each in admin.get("/proxies").json()["proxies"] if each["state"] == "ready"]

        until(lambda: ready() == [0, 1])
        session = next(there for _ in range(100) if (there := first.start_session()).base_url.startswith(second.url))

        def asked_of_first() -> httpx.Response:
            with first.admin() as admin:
                return admin.get(f"/sessions/{session.session_id}")

        assert asked_of_first().status_code == 200, "passed on to its owner"
        write(first, generation=2, replicas=1)
        until(lambda: ready() == [0])
        answer = asked_of_first()
        assert answer.json()["error"]["code"] == KEPT_ON_VOLUME and answer.headers["x-should-retry"] == "false"
        write(first, generation=3, replicas=2)
        until(lambda: ready() == [0, 1])
        assert asked_of_first().json()["session_id"] == session.session_id


def test_a_hangup_has_the_settings_read_again(proxy: ProxyProcess) -> None:
    assert proxy.process is not None
    pid = proxy.stats()["pid"]
    write(proxy, generation=30)
    proxy.process.send_signal(signal.SIGHUP)
    until(lambda: in_force(proxy, 30))
    assert proxy.stats()["pid"] == pid


def test_what_is_taken_of_changed_settings(tmp_path: Path) -> None:
    def settings(**more: Json) -> ProxySettings:
        given = {"fleet": "f", "model": "m", "state_dir": tmp_path, "gateway_url": "http://127.0.0.1:1", **more}
        return ProxySettings.model_validate(given)

    before = settings(generation=1, sessions={"stale_after": 1, "dump": {"volume": {"emptyDir": {}}}})
    after = settings(generation=2, sessions={"stale_after": 2, "limits": {"turns": 3}}, port=1, peers={"base_port": 5})
    taken = take(before, Told(after, ("sessions.later",)))
    assert taken.waiting == ("port", "peers.base_port", "sessions.dump.volume", "sessions.later")
    assert taken.current.sessions == after.sessions and taken.current.port == before.port
    assert taken.current.generation == 1
    assert take(before, Told(before)) == SettingsInForce(before)
