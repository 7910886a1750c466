"""A retry gets the same turn, or joins the call in flight; what is no retry is a new turn."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.fleets import AgentSession, Fleet, ProxyProcess, running_fleet
from tests.integration.proxy.calls import BODY, RETRY, asking, leave_early, sent, total
from tests.processes import free_port
from tests.waiting import PATIENCE, eventually, until


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """What comes for a process meanwhile, it finds all at once."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_same_key_gets_the_same_answer_to_the_byte(proxy: ProxyProcess, stream: bool) -> None:
    session = proxy.start_session()
    body = {**BODY, "stream": stream, "logprobs": True}
    first = session.raw_chat(body, idempotency_key="a-key")
    again = session.raw_chat(body, idempotency_key="a-key")
    assert first.status_code == again.status_code == 200
    assert joined(again.text) == joined(first.text) if stream else again.content == first.content
    assert len(session.turns()) == 1


def joined(events: str) -> dict[str, Any]:
    """What a stream says, however it was cut."""
    said: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "logprobs": []}
    for line in events.splitlines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line.removeprefix("data: "))
        said["id"], said["created"] = event["id"], event["created"]
        for choice in event["choices"]:
            delta = choice["delta"]
            said["content"] += delta.get("content") or ""
            said["reasoning"] += delta.get("reasoning_content") or ""
            said["calls"] += delta.get("tool_calls") or []
            said["logprobs"] += (choice["logprobs"] or {}).get("content") or []
            said["finish_reason"] = choice["finish_reason"]
    assert events.rstrip().endswith("data: [DONE]")
    return said


def test_a_key_used_again_with_another_body_is_422_and_changes_nothing(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    session.raw_chat(BODY, idempotency_key="k")
    refused = session.raw_chat({**BODY, "max_tokens": 61}, idempotency_key="k")
    assert refused.status_code == 422 and refused.json()["error"]["code"] == "idempotency_key_reused"
    assert len(session.turns()) == 1


def test_a_key_used_again_at_another_api_is_422_though_the_body_is_the_same(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    body = {"model": "simulated", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}
    headers = {"authorization": f"Bearer {session.api_key}", "idempotency-key": "k"}
    statuses: dict[str, set[int]] = {}
    for route in ("chat/completions", "messages", "chat/completions"):
        reply = httpx.post(f"{session.base_url}/{route}", json=body, headers=headers, timeout=PATIENCE)
        statuses.setdefault(route, set()).add(reply.status_code)
    assert statuses == {"chat/completions": {200}, "messages": {422}}
    assert len(session.turns()) == 1


def test_an_identical_body_that_is_no_retry_is_a_new_turn(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    ids = [session.raw_chat(BODY).json()["id"] for _ in range(3)]
    assert len(set(ids)) == 3 and len(session.turns()) == 3


def test_an_sdk_retry_gets_the_newest_turn_with_that_body_unless_it_was_extended(proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    first = session.raw_chat(BODY).json()
    newest = session.raw_chat(BODY).json()
    assert session.raw_chat(BODY, **RETRY).json() == newest != first
    extending = [*BODY["messages"], newest["choices"][0]["message"], {"role": "user", "content": "More"}]
    session.raw_chat({**BODY, "messages": extending})
    fresh = session.raw_chat(BODY, **RETRY).json()
    assert fresh["id"] not in (first["id"], newest["id"])
    assert len(session.turns()) == 4


def test_a_failed_attempt_is_run_anew(fleet: Fleet, proxy: ProxyProcess) -> None:
    session = proxy.start_session()
    fleet.engine.fault("error_500")
    assert session.raw_chat(BODY, idempotency_key="k").status_code == 502
    assert session.raw_chat(BODY, idempotency_key="k").status_code == 200
    assert len(session.turns()) == 1


@pytest.mark.parametrize("by", ["key", "marker"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_retry_joins_the_call_whose_caller_has_gone(
    fleet: Fleet, proxy: ProxyProcess, stream: bool, by: str
) -> None:
    session = proxy.start_session()
    body = {**BODY, "stream": stream}
    fleet.engine.fault("slow", seconds=4)
    before = sent(fleet)
    headers = {"idempotency-key": "k"} if by == "key" else {}
    await leave_early(fleet, session, body, **headers)
    retry = {"idempotency_key": "k"} if by == "key" else RETRY
    reply = await asyncio.to_thread(session.raw_chat, body, **retry)
    assert reply.status_code == 200
    (turn,) = session.turns()
    assert sent(fleet) == before + 1, "one generation serves both"
    if stream:
        said = joined(reply.text)
        assert (said["id"] == turn["turn_id"] and said["content"] + said["reasoning"]) or said["calls"]
    else:
        assert reply.json()["id"] == turn["turn_id"]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("two"), beside=shared, proxies=2) as running:
        until(lambda: running.proxies[0].sees() == {0, 1})
        yield running


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kept", [False, True], ids=["connecting", "connected"])
@pytest.mark.parametrize("owner", [0, 1], ids=["owner", "passed on"])
async def test_a_retry_that_is_heard_together_with_its_callers_leaving_joins_the_call(
    two: Fleet, owner: int, kept: bool, stream: bool
) -> None:
    """A busy proxy may read of both in one round of its event loop."""
    asked, address = two.proxies[0], ("127.0.0.1", two.proxies[0].port)
    session = two.proxies[owner].start_session(here=True)
    body = {**BODY, "stream": stream}
    two.engine.fault("slow", seconds=4)
    with contextlib.ExitStack() as stack:
        again = stack.enter_context(socket.create_connection(address, timeout=PATIENCE)) if kept else None
        first = stack.enter_context(socket.create_connection(address, timeout=PATIENCE))
        first.sendall(asking(session, body))
        await eventually(lambda: session.show()["in_flight"] == 1)
        with stopped(asked.stats()["pid"]):
            first.close()
            again = again or stack.enter_context(socket.create_connection(address, timeout=PATIENCE))
            again.sendall(asking(session, body, "x-stainless-retry-count: 1"))
        assert (await asyncio.to_thread(again.recv, 4096)).startswith(b"HTTP/1.1 200 ")
    await eventually(lambda: session.show()["in_flight"] == 0)
    assert len(session.turns()) == 1, "one generation serves both"


async def test_a_caller_that_stays_away_has_its_generation_ended_at_the_engine(
    fleet: Fleet, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("impatient")
    impatient = ProxyProcess(
        0,
        fleet.proxy.port,
        folder / "proxy-0",
        {**fleet.proxy.settings, "port": 0, "peers": {}, "state_dir": str(folder / "state")},
    )
    impatient.port = impatient.settings["port"] = free_port()
    impatient.settings["sessions"] = {"retryGrace": "300ms"}
    (folder / "admin.key").write_text(fleet.proxy.key)
    impatient.start()
    try:
        session = impatient.start_session()
        await eventually(lambda: impatient.has_probed() and total(fleet, "running") == 0)
        for stream in (False, True):
            fleet.engine.fault("never")
            await leave_early(fleet, session, {**BODY, "stream": stream})
            await eventually(lambda: total(fleet, "running") == 0)
        assert session.turns() == [] and impatient.stats()["in_flight"] == 0
    finally:
        impatient.stop()


@pytest.mark.parametrize("act", ["delete", "close"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_delete_and_close_end_calls_in_flight_with_410_and_at_the_engine(
    fleet: Fleet, proxy: ProxyProcess, act: str, stream: bool
) -> None:
    session = proxy.start_session()
    await eventually(lambda: total(fleet, "running") == 0)  # what another test has left ends by itself
    fleet.engine.fault("never")
    call = asyncio.create_task(asyncio.to_thread(session.raw_chat, {**BODY, "stream": stream}))
    await eventually(lambda: total(fleet, "running") == 1)
    with proxy.admin() as admin:
        if act == "delete":
            assert admin.delete(f"/sessions/{session.session_id}").status_code == 204
        else:
            assert admin.post(f"/sessions/{session.session_id}/close").status_code == 200
    reply = await call
    assert reply.status_code == 410 and reply.json()["error"]["code"] in ("session_deleted", "session_closed")
    await eventually(lambda: total(fleet, "running") == 0)
    assert session.raw_chat(BODY).status_code == 410
    assert proxy.audit()["balanced"]
    if act == "delete":
        with proxy.admin() as admin:
            assert admin.delete(f"/sessions/{session.session_id}").status_code == 410


def test_a_replayed_start_returns_the_same_session_with_a_new_key(proxy: ProxyProcess) -> None:
    with proxy.admin() as admin:
        first, again = (
            admin.post("/sessions", json={"task_id": "t"}, headers={"Idempotency-Key": "start-1"}).json()
            for _ in range(2)
        )
        other = admin.post("/sessions", json={"task_id": "u"}, headers={"Idempotency-Key": "start-1"})
    assert first["session_id"] == again["session_id"] and first["api_key"] != again["api_key"]
    assert other.status_code == 422
    sessions = [
        AgentSession(proxy, reply["session_id"], reply["api_key"], reply["base_url"]) for reply in (first, again)
    ]
    assert [session.raw_chat(BODY).status_code for session in sessions] == [401, 200]
