"""Dumps of a running fleet: over its endpoints, and through kill -9 in the middle of an import."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fleets import AgentSession, Fleet, ProxyProcess, running_fleet
from tests.unit.client.dumps.strangers import BAD_HEADS, BAD_LINES, IRREGULAR, SECRET
from tests.unit.proxy.lifecycle.imports import Store
from tests.waiting import PATIENCE, until

from rolloutfleet.dumps.checks import verify
from rolloutfleet_proxy.failpoints import IMPORT_COMMITTED, IMPORT_STAGED, VARIABLE

Json = Any

MODEL = "simulated"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    options = ("--latency", "0", "--token-latency", "0")
    with running_fleet(tmp_path_factory.mktemp("dumps"), proxies=2, engine_options=options) as fleet:
        yield fleet


def group(fleet: Fleet, size: int) -> list[AgentSession]:
    """A group at the first proxy, whose every member has a rewarded trajectory, a branch on it, and an open rest."""
    proxy = fleet.proxy
    with proxy.admin() as admin:
        while True:
            reply = admin.post("/sessions", json={"group_size": size, "task_id": "task", "metadata": {"seed": 1}})
            started = reply.raise_for_status().json()
            if started["group_id"].startswith("g0-"):
                break
            for session in started["sessions"]:
                admin.delete(f"/sessions/{session['session_id']}").raise_for_status()
    members = [
        AgentSession(proxy, session["session_id"], session["api_key"], session["base_url"])
        for session in started["sessions"]
    ]
    for member in members:
        messages: list[Json] = [{"role": "user", "content": f"begin {member.session_id}"}]
        for said in ("go on", "and on"):
            messages = _asked(member, messages, said)
        member.post("reward", {"reward": 0.5}).raise_for_status()
        _asked(member, messages[:2], "elsewhere")
        _asked(member, messages, "further")
        member.post("reward", {"reward": -1.0}).raise_for_status()
        _asked(member, messages, "an end")
    return members


def _asked(member: AgentSession, messages: list[Json], said: str) -> list[Json]:
    asked = [*messages[:-1], {"role": "user", "content": said}] if messages[-1]["role"] == "user" else messages
    reply = member.raw_chat({"model": MODEL, "messages": asked, "max_tokens": 60}).raise_for_status().json()
    message = {name: value for name, value in reply["choices"][0]["message"].items() if value is not None}
    message.pop("tool_calls", None)
    return [*asked, message, {"role": "user", "content": said}]


def exported(proxy: ProxyProcess, **asked: Json) -> dict[str, bytes]:
    """Of each form what is behind the lease, byte for byte; it is given back."""
    found = {}
    with proxy.admin() as admin:
        for media in ("application/json", "application/octet-stream"):
            answer = admin.post("/export", json=asked, headers={"accept": media}).raise_for_status()
            admin.post(f"/leases/{answer.headers['lease-id']}/release").raise_for_status()
            # The safetensors header's entries move with the lengths of the lease's id and time, which are before them.
            content = answer.content
            start = re.search(rb'\\?"trajectories\\?":', content)
            assert start is not None
            found[media] = content[start.start() :]
    return found


def dump_all(proxy: ProxyProcess) -> list[str]:
    """Dump every session of a proxy that is stopped, as its sweep would."""
    state = Path(proxy.settings["state_dir"])
    store = Store(state / "store", state / "dumps", ordinal=proxy.ordinal)
    try:
        return [name for (session,) in store.rows("SELECT id FROM sessions") for name in store.dump(session)]
    finally:
        store.close()


def restart(proxy: ProxyProcess, failpoint: str | None = None) -> list[str]:
    """Dump all between two lives; in the second it dies at the failpoint."""
    proxy.stop()
    names = dump_all(proxy)
    proxy.environment = {} if failpoint is None else {VARIABLE: failpoint}
    proxy.start()
    return names


def swept(proxy: ProxyProcess) -> list[str]:
    """Let the proxy's own clean-up dump everything; then it is as patient as before."""
    patient = proxy.settings
    proxy.settings = {**patient, "sessions": {"stale_after": 0.2, "unclaimed_after": 0.2, "cleanup_interval": 0.2}}
    proxy.stop()
    proxy.start()
    until(lambda: not proxy.audit()["sessions"]["live"])
    assert proxy.audit()["balanced"]
    proxy.stop()
    proxy.settings = patient
    proxy.start()
    with proxy.admin() as admin:
        ready = admin.get("/dumps", params={"state": "ready", "limit": 1000}).json()["dumps"]
    return [dump["name"] for dump in ready]


def folder(proxy: ProxyProcess) -> dict[str, Path]:
    return {file.name: file for file in (Path(proxy.settings["state_dir"]) / "dumps").iterdir()}


def test_dumps_over_the_endpoints(fleet: Fleet) -> None:
    members = group(fleet, 2)
    ids = [member.session_id for member in members]
    before = exported(fleet.proxy, session_ids=ids[:1], style="individual", discount=0.5)["application/json"]
    names = swept(fleet.proxy)
    assert len(names) == 6
    proxy, other = fleet.proxies
    with proxy.admin() as admin, other.admin() as elsewhere:
        page = admin.get("/dumps", params={"limit": 4}).json()
        rest = admin.get("/dumps", params={"limit": 4, "cursor": page["cursor"]}).json()
        assert [dump["name"] for dump in page["dumps"] + rest["dumps"]] == sorted(names) and rest["cursor"] is None
        assert {dump["task_id"] for dump in page["dumps"]} == {"task"}
        everywhere = elsewhere.get("/dumps", params={"scope": "fleet", "limit": 4}).json()
        assert everywhere["ordinals"] == [0, 1] and everywhere["cursor"] == f"0:{page['cursor']}"
        rest = elsewhere.get("/dumps", params={"scope": "fleet", "cursor": everywhere["cursor"]}).json()
        assert [dump["name"] for dump in everywhere["dumps"] + rest["dumps"]] == sorted(names)
        for asked in (admin, elsewhere):
            content = asked.get(f"/dumps/{names[0]}").raise_for_status().content
            assert content == folder(proxy)[names[0]].read_bytes()

        refused = elsewhere.post("/dumps/import", json={"names": names})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "dump_unknown")
        answer = admin.post("/dumps/import", json={"names": names}).raise_for_status().json()
        assert {each["name"] for each in answer["imported"]} == set(names) and answer["ordinals"] == [0]
        again = admin.post("/dumps/import", json={"names": names[:1]})
        assert (again.status_code, again.json()["error"]["code"]) == (409, "already_imported")
        assert again.headers["x-should-retry"] == "false"
        assert {dump["state"] for dump in admin.get("/dumps").json()["dumps"]} == {"imported"}

        rest = admin.post("/export", json={"group_id": admin.get(f"/sessions/{ids[0]}").json()["group_id"]}).json()
        assert len(rest["trajectories"]) == 6
        admin.post(f"/leases/{rest['lease_id']}/release").raise_for_status()
        after = exported(proxy, session_ids=ids[:1], style="individual", discount=0.5)["application/json"]
        aborted, open_then = (
            b'"outcome":"aborted","outcome_reason":"stale"',
            b'"outcome":null,"outcome_reason":null',
        )
        assert after.count(aborted) == 3
        after = after.replace(aborted, open_then)
        assert after.startswith(before.removesuffix(b"]}")), "what was open then is a third trajectory behind them"
        for member in members:
            assert admin.get(f"/sessions/{member.session_id}").json()["state"] == "closed"
            called = member.raw_chat({"model": MODEL, "messages": [{"role": "user", "content": "still there?"}]})
            assert (called.status_code, called.json()["error"]["code"]) == (410, "session_reclaimed")
        assert admin.post(f"/sessions/{ids[0]}/touch").json()["error"]["code"] == "session_reclaimed"
        lease = elsewhere.post("/export", json={"session_ids": ids}).json()["lease_id"]
        elsewhere.post(f"/leases/{lease}/ack").raise_for_status()
        audit = admin.get("/audit").json()
        assert audit["balanced"] and audit["turns"]["live"] == audit["keys"] == 0


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/dumps/..%2f..%2fstore%2fstore.sqlite3", None, 404),
        ("GET", "/dumps/store.sqlite3", None, 400),
        ("GET", "/dumps/s0-0123456789ab-0011223344556677-active.json", None, 404),
        ("GET", "/dumps/s1-0123456789ab-0011223344556677-active.json", None, 404),
        ("GET", "/dumps?limit=0", None, 400),
        ("GET", "/dumps?limit=1001", None, 400),
        ("GET", "/dumps?state=gone", None, 400),
        ("GET", "/dumps?cursor=0:a", None, 400),
        ("GET", "/dumps?scope=fleet&cursor=a", None, 400),
        ("GET", "/dumps?cursor=../", None, 400),
        ("POST", "/dumps/import", {}, 400),
        ("POST", "/dumps/import", {"names": []}, 400),
        ("POST", "/dumps/import", {"names": ["a", "a"]}, 400),
        ("POST", "/dumps/import", {"names": ["../x.json"]}, 400),
        ("POST", "/dumps/import", {"names": ["s0-0123456789ab-0011223344556677-active.json"]}, 404),
        ("POST", "/dumps/import", {"names": ["s0-0123456789ab-0011223344556677-active.json"], "force": True}, 400),
    ],
)
def test_bad_requests_change_nothing(fleet: Fleet, method: str, path: str, body: Json, status: int) -> None:
    before = fleet.proxy.audit()
    with fleet.proxy.admin() as admin:
        answer = admin.request(method, path, json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["code"] and fleet.proxy.audit() == before


def test_what_is_no_dump_is_one_entry_and_nothing_of_it_is_served(fleet: Fleet) -> None:
    proxy = fleet.proxy
    folder = Path(proxy.settings["state_dir"]) / "dumps"
    folder.mkdir(exist_ok=True)
    strangers = IRREGULAR | BAD_HEADS | BAD_LINES
    made = {f"s0-0123456789ab-{number:016x}-active.json": make for number, make in enumerate(strangers.values())}
    try:
        for name, make in made.items():
            make(folder / name)
        before = proxy.audit()
        with proxy.admin() as admin:
            listed = admin.get("/dumps", params={"limit": 1000}).raise_for_status().json()["dumps"]
            found = {each["name"]: each for each in listed if each["name"] in made}
            assert found.keys() == made.keys()
            *bad, behind_its_head = found.values()
            assert all(each["fault"] and each["task_id"] is None for each in bad), bad
            assert behind_its_head["fault"] is None and behind_its_head["task_id"] == "tâche"
            for name in list(made)[: len(IRREGULAR)]:
                reply = admin.get(f"/dumps/{name}")
                assert (reply.status_code, reply.json()["error"]["code"]) == (409, "dump_damaged")
                assert SECRET not in reply.text
            for name in made:
                reply = admin.post("/dumps/import", json={"names": [name]})
                assert (reply.status_code, reply.json()["error"]["code"]) == (409, "dump_damaged"), reply.text
        assert proxy.audit() == before and proxy.stats()["in_flight_bytes"] == 0
        assert {file.name for file in folder.iterdir()} >= made.keys(), "they are left as they are"
    finally:
        for name in made:
            file = folder / name
            file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink()


def test_dumps_need_the_admins_key(fleet: Fleet) -> None:
    session = fleet.proxy.start_session(here=True)
    for method, path in (("GET", "/dumps"), ("GET", "/dumps/x"), ("POST", "/dumps/import")):
        assert httpx.request(method, f"{fleet.proxy.url}{path}").status_code == 401
        headers = {"authorization": f"Bearer {session.api_key}"}
        assert httpx.request(method, f"{fleet.proxy.url}{path}", headers=headers).status_code == 403


def test_the_commands_take_all_dumps_in(fleet: Fleet, tmp_path: Path) -> None:
    foreign, *_ = [member.session_id for member in group(fleet, 2)]
    names = restart(fleet.proxy)

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        key = ("--admin-key-file", str(fleet.proxy.folder.parent / "admin.key"))
        command = [sys.executable, "-m", "rolloutfleet", "dumps", *words, "--url", fleet.proxies[1].url, *key]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)

    listed = run("list", "--state", "ready")
    assert listed.returncode == 0 and all(name in listed.stdout for name in names), listed.stderr
    checked = run("verify")
    assert checked.returncode == 0 and checked.stdout.count("whole") == len(names), checked.stderr
    shown = run("show", names[0], "--json")
    assert shown.stdout.encode() == folder(fleet.proxy)[names[0]].read_bytes()
    # One session's dumps are brought to the other proxy, as if the first were gone for good.
    elsewhere = Path(fleet.proxies[1].settings["state_dir"]) / "dumps"
    elsewhere.mkdir(exist_ok=True)
    for name in names:
        if name.startswith(foreign):
            folder(fleet.proxy)[name].rename(elsewhere / name)
    done = run("import", "--all")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"imported {len(names)} dumps of ")
    again = run("import", names[0])
    assert again.returncode == 1 and "no proxy has" in again.stderr and "Traceback" not in again.stderr
    owner, other = fleet.proxies
    with owner.admin() as at_owner, other.admin() as at_other:
        shown = at_other.get(f"/sessions/{foreign}").raise_for_status().json()
        assert (shown["ordinal"], shown["state"], shown["trajectories"]) == (1, "closed", 3)
        assert at_owner.get(f"/sessions/{foreign}").status_code in (404, 410), "its id leads to its first owner"
        for asked in ({"session_ids": [foreign]}, {"group_id": shown["group_id"]}):
            export = at_other.post("/export", json=asked).raise_for_status().json()
            assert (export["ordinals"], len(export["trajectories"])) == ([1], 3)
            at_owner.post(f"/leases/{export['lease_id']}/release").raise_for_status()
        lease = at_other.post("/export", json={"max_trajectories": 64}).json()["lease_id"]
        at_owner.post(f"/leases/{lease}/ack").raise_for_status()
        assert at_other.get(f"/sessions/{foreign}").status_code == 410
    assert all(proxy.audit()["balanced"] for proxy in fleet.proxies)


def test_kills_in_the_middle_of_an_import_lose_nothing_and_double_nothing(fleet: Fleet) -> None:
    proxy = fleet.proxy
    ids = [member.session_id for member in group(fleet, 2)]
    restart(proxy)
    with proxy.admin() as admin:
        ready = [dump["name"] for dump in admin.get("/dumps", params={"state": "ready"}).json()["dumps"]]
        admin.post("/dumps/import", json={"names": ready}).raise_for_status()
    before = exported(proxy, session_ids=ids)
    turns = proxy.audit()["turns"]["live"]
    outcomes = set()
    for place in (f"{IMPORT_STAGED}:4", IMPORT_COMMITTED):
        names = restart(proxy, place)
        with proxy.admin() as admin, pytest.raises(httpx.TransportError):
            admin.post("/dumps/import", json={"names": names})
        proxy.wait_until_killed(PATIENCE)
        proxy.environment = {}
        proxy.start()
        audit = proxy.audit()
        assert audit["balanced"], place
        assert audit["turns"]["live"] in (0, turns), f"{place}: all or nothing"
        outcomes.add(audit["turns"]["live"])
        with proxy.admin() as admin:
            states = {(dump["name"], dump["state"]) for dump in admin.get("/dumps").json()["dumps"]}
            there = {name for name in names if (name, "ready") in states}
            assert there == (set() if audit["turns"]["live"] else set(names)), place
            assert "importing" not in {state for _, state in states}, place
            answer = admin.post("/dumps/import", json={"names": names})
            assert answer.status_code == (409 if audit["turns"]["live"] else 200), place
        assert exported(proxy, session_ids=ids) == before, place
        for file in folder(proxy).values():
            with file.open("rb") as opened:
                assert verify(opened) == []
    assert outcomes == {0, turns}, "deaths on both sides of the commit"
    assert "Traceback" not in proxy.log.read_text()
