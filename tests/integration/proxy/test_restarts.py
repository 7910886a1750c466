"""Promise 9: restarts, planned and not, as agents with a stock SDK see them.

The judge is the clients' own record of answers, as in `test_kills`; here a call that breaks off, or ends with an error
after the SDK's default retries, is itself a failure.
"""

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from tests.fleets import Fleet, ProxyProcess, running_fleet
from tests.integration.proxy import judge
from tests.integration.proxy.calls import BODY, opened
from tests.integration.proxy.load import Load, Way
from tests.integration.proxy.restarts import GENERATION, assert_one_owner_at_a_time, booted, restart, until
from tests.waiting import PATIENCE, START, eventually

from rolloutfleet.dumps.reading import decode

RESTARTS = 2
WAYS = [Way(stream=stream, keyed=False, tools=tools) for stream in (False, True) for tools in (False, True)] * 2

Json = Any


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    settings = {"drain_timeout": 30}
    with running_fleet(tmp_path_factory.mktemp("restarts"), engine_options=GENERATION, settings=settings) as running:
        yield running


@pytest.fixture
def hasty(tmp_path: Path, shared: Fleet) -> Iterator[Fleet]:
    """A fleet whose drains don't wait for calls."""
    settings = {"drain_timeout": 0.5, "stream_comment": 0.2}
    with running_fleet(tmp_path, beside=shared, settings=settings) as running:
        yield running


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Fleet]:
    with running_fleet(tmp_path, proxies=2, engine_options=("--latency", "0.5")) as running:
        yield running


def turn_of(client: openai.OpenAI) -> str:
    """The turn that a call is answered with."""
    answer: Any = client.chat.completions.create(model="simulated", **BODY)
    turn: str = answer.id
    return turn


async def test_no_agent_notices_restarts(fleet: Fleet) -> None:
    """And they leave nothing with the parent. How long they take: `tests/timing`."""
    proxy, parent = fleet.proxy, fleet.proxy.process
    assert parent is not None
    load = Load(proxy, seed=3, ways=WAYS, retries=openai.DEFAULT_MAX_RETRIES)
    workers, held = {proxy.stats()["pid"]}, held_by(parent.pid)
    async with load.running():
        await restart(proxy, RESTARTS)
        workers.add(proxy.stats()["pid"])
        await eventually(lambda: load.answers > 2 * len(WAYS))
    assert len(workers) == 2 and parent.poll() is None
    assert load.interrupted["chat"] == load.interrupted["stream"] == 0
    assert assert_one_owner_at_a_time(proxy) == RESTARTS
    assert held_by(parent.pid) == held
    for conversation in load.conversations:
        conversation.exactly_once = True  # nothing broke off, so there is a turn for each answer and no other
    judge.assert_all_is_kept(fleet, load.conversations)


def held_by(pid: int) -> tuple[int, int, int]:
    """Descriptors, threads and children of a process."""
    process = psutil.Process(pid)
    return process.num_fds(), process.num_threads(), len(process.children())


async def test_what_outlasts_a_restarts_time_is_cut_and_asked_for_again(hasty: Fleet) -> None:
    proxy, engine = hasty.proxy, hasty.engine
    session = proxy.start_session()
    engine.fault("never", count=2)
    whole = asyncio.create_task(asyncio.to_thread(turn_of, session.client(max_retries=2)))
    async with opened(session, {**BODY, "stream": True}) as streamed:
        lines = streamed.aiter_lines()
        await anext(lines)  # its first comment, and with it its status
        await eventually(lambda: engine.counters()["running"] == 2)
        assert proxy.drain("cut", then="restart").status_code == 200
        events = [line async for line in lines if line.startswith("data: ")]
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "draining"
    answer = await whole
    await booted(proxy, "cut")
    assert [turn["turn_id"] for turn in session.turns()] == [answer]
    assert proxy.audit()["balanced"]


async def test_held_calls_go_on_when_the_drain_is_undone_or_its_time_is_up(fleet: Fleet) -> None:
    proxy = fleet.proxy
    for undone in (True, False):
        session = proxy.start_session()
        assert proxy.drain("hold", ttl=60 if undone else 8).json()["id"] == "hold"
        calls = [
            asyncio.create_task(asyncio.to_thread(session.raw_chat, {**BODY, "stream": stream}))
            for stream in (False, True)
        ]
        await until(lambda: (proxy.stats()["drain"] or {}).get("held") == 2)
        assert fleet.engine.counters()["running"] == 0
        assert proxy.drain("another").json()["error"]["code"] == "drain_conflict"
        with proxy.admin() as admin:
            assert admin.get("/ready").status_code == 503 and admin.get("/health").status_code == 200
            assert admin.post("/sessions", json={}).json()["error"]["code"] == "draining"
            if undone:
                assert admin.delete("/drain").json()["undone"] == "hold"
        assert [reply.status_code for reply in await asyncio.gather(*calls)] == [200, 200]
        assert proxy.stats()["drain"] is None and len(session.turns()) == 2


async def test_a_held_call_of_a_session_that_is_closed_is_told_so(fleet: Fleet) -> None:
    proxy = fleet.proxy
    session = proxy.start_session()
    assert proxy.drain("close").status_code == 200
    call = asyncio.create_task(asyncio.to_thread(session.raw_chat, BODY))
    await until(lambda: (proxy.stats()["drain"] or {}).get("held") == 1)
    assert session.post("close").status_code == 200
    assert (await call).json()["error"]["code"] == "session_closed"
    with proxy.admin() as admin:
        admin.delete("/drain").raise_for_status()


async def test_a_worker_that_is_killed_in_the_middle_of_a_drain_is_followed_and_loses_nothing(fleet: Fleet) -> None:
    proxy = fleet.proxy
    session = proxy.start_session()
    first = session.raw_chat(BODY).json()["id"]
    client = session.client(max_retries=10)
    fleet.engine.fault("slow", seconds=60)
    running = asyncio.create_task(asyncio.to_thread(turn_of, client))
    await eventually(lambda: fleet.engine.counters()["running"] == 1)
    assert proxy.drain("killed", then="restart").status_code == 200
    await until(lambda: (proxy.stats()["drain"] or {}).get("holding"))
    held = asyncio.create_task(asyncio.to_thread(turn_of, client))
    await until(lambda: (proxy.stats()["drain"] or {}).get("held") == 1)
    proxy.kill_worker()
    answers = {first, await running, await held}
    boot = await booted(proxy, "killed")
    assert boot["reason"] == "crash: was killed by SIGKILL" and boot["rss_before"] > 0
    assert proxy.stats()["drain"] is None
    assert answers <= {turn["turn_id"] for turn in session.turns()}
    assert proxy.audit()["balanced"]
    assert proxy.drain("killed", then="restart").json()["done"] is True


async def test_connections_wait_while_a_dead_worker_is_replaced(fleet: Fleet) -> None:
    proxy = fleet.proxy
    before = proxy.stats()
    proxy.kill_worker()
    reply = await asyncio.to_thread(httpx.get, f"{proxy.url}/health", timeout=PATIENCE)
    assert reply.status_code == 200
    after = proxy.stats()
    assert after["pid"] != before["pid"] and after["store_id"] == before["store_id"]
    assert after["boots"][-1]["reason"] == "crash: was killed by SIGKILL"


def test_a_worker_ends_with_its_parent_and_lets_go_of_the_store(fleet: Fleet) -> None:
    proxy = fleet.proxy
    worker = psutil.Process(proxy.stats()["pid"])
    proxy.kill_alone()
    worker.wait(PATIENCE)
    proxy.start()
    assert proxy.stats()["boots"][-1]["reason"] == "crash: its end was not recorded"


def test_a_store_in_use_and_a_taken_port_end_the_command_as_a_mistake_does(fleet: Fleet, tmp_path: Path) -> None:
    used = tried(tmp_path, {**fleet.proxy.settings, "port": 0})
    assert used.returncode == 2 and "is in use by another proxy" in used.stderr
    taken = tried(tmp_path, {**fleet.proxy.settings, "state_dir": str(tmp_path / "state")})
    assert taken.returncode == 1 and "can't listen on" in taken.stderr
    wrong = tried(tmp_path, {**fleet.proxy.settings, "port": -1})
    assert wrong.returncode == 2 and "rolloutfleet-proxy: port:" in wrong.stderr
    assert all("Traceback" not in each.stderr for each in (used, taken, wrong))


def tried(folder: Path, settings: Json) -> "subprocess.CompletedProcess[str]":
    """A start that is expected to fail."""
    file = folder / "settings.json"
    file.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "rolloutfleet_proxy", "--settings", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


async def test_sigterm_lets_calls_finish_and_nothing_is_lost(fleet: Fleet) -> None:
    proxy = fleet.proxy
    sessions = [proxy.start_session() for _ in range(4)]
    await until(lambda: fleet.engine.counters()["running"] == 0)
    fleet.engine.fault("slow", seconds=10, count=len(sessions))
    calls = [asyncio.create_task(asyncio.to_thread(session.raw_chat, BODY)) for session in sessions]
    await eventually(lambda: fleet.engine.counters()["running"] == len(sessions))
    process = proxy.process
    assert process is not None
    os.kill(process.pid, signal.SIGTERM)
    await until(lambda: proxy.stats()["drain"])
    late = asyncio.create_task(asyncio.to_thread(sessions[0].raw_chat, BODY))
    answered = await asyncio.gather(*calls)
    assert [reply.status_code for reply in answered] == [200] * len(sessions)
    told = await late
    assert told.status_code == 503 and told.json()["error"]["code"] == "draining"
    assert (told.headers["retry-after"], told.headers["connection"]) == ("1", "close")
    assert await asyncio.to_thread(process.wait, PATIENCE) == 0
    proxy.start()
    assert proxy.stats()["boots"][-1]["reason"] == "stopped: SIGTERM"
    assert [session.turns()[0]["turn_id"] for session in sessions] == [reply.json()["id"] for reply in answered]
    assert [len(session.turns()) for session in sessions] == [1] * len(sessions)


def test_an_ephemeral_proxy_dumps_what_it_has_when_it_is_stopped_or_told_to(tmp_path: Path, shared: Fleet) -> None:
    with running_fleet(tmp_path, beside=shared, settings={"ephemeral": True}) as fleet:
        proxy = fleet.proxy
        first, second = proxy.start_session(), proxy.start_session()
        turns = {first.raw_chat(BODY).json()["id"]}
        with proxy.admin() as admin:
            assert admin.post("/dumps").json()["error"]["code"] == "not_draining"
            proxy.drain("move", mode="quiesce")
            told = admin.post("/dumps").json()
            assert (told["reclaimed"], told["failing"]) == (2, {})
            admin.delete("/drain").raise_for_status()
            assert admin.get("/audit").json()["turns"]["live"] == 0
        gone = first.raw_chat(BODY)
        assert gone.status_code == 410 and gone.json()["error"]["reason"] == "retired"
        assert second.raw_chat(BODY).status_code == 410
        later = proxy.start_session()
        turns.add(later.raw_chat(BODY).json()["id"])
        proxy.stop()
        assert dumped_turns(proxy) == turns
        proxy.start()
        assert later.raw_chat(BODY).status_code == 410 and proxy.audit()["balanced"]


def dumped_turns(proxy: ProxyProcess) -> set[str]:
    files = (Path(proxy.settings["state_dir"]) / "dumps").glob("*.json")
    return {turn.turn_id for file in files for turn in decode(file.read_bytes()).turns}


@pytest.mark.parametrize("while_it", ["crashed", "restarts"])
async def test_ephemeral_proxy_dumps_when_it_is_stopped_while_no_worker_serves(
    tmp_path: Path, shared: Fleet, while_it: str
) -> None:
    with running_fleet(tmp_path, beside=shared, settings={"ephemeral": True}) as fleet:
        proxy, process = fleet.proxy, fleet.proxy.process
        assert process is not None
        session, other = proxy.start_session(), proxy.start_session()
        turns = {session.raw_chat(BODY).json()["id"]}
        if while_it == "crashed":
            worker = psutil.Process(proxy.stats()["pid"])
            proxy.kill_worker()
            await asyncio.to_thread(worker.wait, PATIENCE)
        else:
            fleet.engine.fault("slow", seconds=2 * PATIENCE, count=1)
            last = asyncio.create_task(asyncio.to_thread(other.raw_chat, BODY))
            await eventually(lambda: fleet.engine.counters()["running"] == 1)
            assert proxy.drain("memory", then="restart").status_code == 200
            await until(lambda: proxy.stats()["drain"]["holding"])
            held = asyncio.create_task(asyncio.to_thread(session.raw_chat, BODY))
            await until(lambda: proxy.stats()["drain"]["held"])
            with proxy.admin() as admin:
                assert admin.delete(f"/sessions/{other.session_id}").status_code == 204
            assert ((await last).status_code, (await held).status_code) == (410, 503), "the worker ends"
        process.terminate()
        assert await asyncio.to_thread(process.wait, START) == 0
        assert dumped_turns(proxy) == turns


async def test_an_exit_ends_the_command_and_the_next_start_knows_why(hasty: Fleet) -> None:
    proxy = hasty.proxy
    process = proxy.process
    assert process is not None
    assert proxy.drain("leave", reason="rollout", then="exit").status_code == 200
    assert await asyncio.to_thread(process.wait, PATIENCE) == 0
    proxy.start()
    boot = proxy.stats()["boots"][-1]
    assert (boot["reason"], boot["id"]) == ("planned: rollout", "leave")
    assert proxy.drain("leave", then="exit").json()["done"] is True


async def test_a_restart_that_can_not_come_leaves_the_worker_serving(hasty: Fleet) -> None:
    proxy = hasty.proxy
    file = proxy.folder / "settings.json"
    settings = file.read_text()
    before = proxy.stats()["pid"]
    file.write_text("{}")
    session = proxy.start_session()
    assert proxy.drain("broken", then="restart").status_code == 200
    assert session.raw_chat(BODY).status_code == 200
    await until(lambda: proxy.stats()["drain"] is None)
    assert proxy.stats()["pid"] == before
    file.write_text(settings)
    assert proxy.drain("broken", then="restart").json()["done"] is False
    await booted(proxy, "broken")


async def test_sessions_go_elsewhere_and_calls_passed_on_outlive_their_owners_restart(pair: Fleet) -> None:
    first, second = pair.proxies
    session = first.start_session()
    while not session.session_id.startswith(owned_by(first)):
        session = first.start_session()
    await until(lambda: states(first) == states(second) == ["ready", "ready"])
    assert first.drain("cordon", mode="cordon").status_code == 200
    await until(lambda: states(second) == ["draining", "ready"])
    for proxy in pair.proxies:
        assert {proxy.start_session().session_id[: len(owned_by(second))] for _ in range(4)} == {owned_by(second)}
    assert session.raw_chat(BODY).status_code == 200
    with first.admin() as admin:
        assert admin.delete("/drain", params={"id": "cordon"}).json()["undone"] == "cordon"

    through = openai.OpenAI(
        base_url=session.base_url.replace(first.url, second.url), api_key=session.api_key, timeout=PATIENCE
    )
    first.clients.append(through)
    pair.engine.fault("slow", seconds=5, count=2)
    calls = [asyncio.create_task(asyncio.to_thread(turn_of, through)) for _ in range(2)]
    await eventually(lambda: pair.engine.counters()["running"] == 2)
    assert first.drain("owner", then="restart").status_code == 200
    calls += [asyncio.create_task(asyncio.to_thread(turn_of, through))]
    answers = [await call for call in calls]
    await booted(first, "owner")
    assert set(answers) <= {turn["turn_id"] for turn in session.turns()}


async def test_calls_passed_on_are_cut_as_a_proxys_own_are(tmp_path: Path, shared: Fleet) -> None:
    settings = {"drain_timeout": 0.5, "stream_comment": 0.2}
    with running_fleet(tmp_path, beside=shared, proxies=2, settings=settings) as fleet:
        first, second = fleet.proxies
        await until(lambda: states(first) == states(second) == ["ready", "ready"])
        session = first.start_session()
        while not session.session_id.startswith(owned_by(first)):
            session = first.start_session()
        through = dataclasses.replace(session, base_url=session.base_url.replace(first.url, second.url))
        fleet.engine.fault("never", count=2)
        call = asyncio.create_task(asyncio.to_thread(through.raw_chat, BODY))
        async with opened(through, {**BODY, "stream": True}) as streamed:
            lines = streamed.aiter_lines()
            await anext(lines)  # its first comment, and with it its status
            await eventually(lambda: fleet.engine.counters()["running"] == 2)
            assert second.drain("cut", then="exit").status_code == 200
            events = [line async for line in lines if line.startswith("data: ")]
        whole = await call
        assert whole.status_code == 503 and whole.json()["error"]["code"] == "draining"
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "draining"


def states(proxy: ProxyProcess) -> list[str]:
    """How it sees the fleet's proxies."""
    with proxy.admin() as admin:
        return [each["state"] for each in admin.get("/proxies").raise_for_status().json()["proxies"]]


def owned_by(proxy: ProxyProcess) -> str:
    """What the names of its sessions begin with."""
    return f"s{proxy.ordinal}-"
