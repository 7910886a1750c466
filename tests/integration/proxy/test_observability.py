"""Every chat call has one line at its start and exactly one at its end, whatever becomes of it; the log shows no
secret; request ids go all the way; and /metrics, /audit and the log say the same."""

import asyncio
import itertools
import json
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import prometheus_client
import pytest
from tests.fleets import AgentSession, Fleet, ProxyProcess, running_fleet
from tests.integration.proxy.calls import leave_early, opened
from tests.integration.proxy.logged import ENDED, STARTED, calls_told_otherwise_than_once, comes, counted, lines
from tests.integration.proxy.metrics import samples
from tests.processes import ends_with_this_process, free_port, wait_until_ready
from tests.waiting import PATIENCE, START, eventually

from rolloutfleet.errors import INTERNAL
from rolloutfleet.settings import ProxySettings
from rolloutfleet_proxy.app import ProxyApp
from rolloutfleet_proxy.ids import SESSION, Owner
from rolloutfleet_proxy.telemetry.phases import STEPS

SAID, ARGUMENT, FROM_ENGINE = "a-thing-that-was-said", "an-argument-of-a-tool", "a-thing-an-engine-said"
ARGUMENTS = json.dumps({"at": ARGUMENT})
GATEWAY_KEY = "sk-the-key-of-the-gateway"
SECRETS = {SAID, ARGUMENT, FROM_ENGINE, GATEWAY_KEY}
"""What no line may hold; keys are added as they are made."""
GRACE = 5.0
BODY: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": SAID},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "look", "arguments": ARGUMENTS},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": SAID},
    ],
    "max_tokens": 20,
}
LONG = {**BODY, "max_tokens": 600, "ignore_eos": True}
LONGER = {**LONG, "max_tokens": 2400}
"""12 s, of which a caller that leaves within 6 s misses more than the grace."""
TIMES = tuple(f"{step}_ms" for step in STEPS)
REACHED_NOTHING = dict.fromkeys(TIMES, -1)
STATS_INTERVAL = 1.0

numbers = itertools.count()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("watched")
    key_file = folder / "gateway.key"
    key_file.write_text(GATEWAY_KEY)
    settings = {
        "log": {"format": "json", "stats_interval": STATS_INTERVAL},
        "sessions": {"retryGrace": f"{GRACE}s"},
        "engine_timeout": 8.0,
        "drain_timeout": 1.0,
        "body_limit": 100_000,
        "gateway_api_key_file": str(key_file),
    }
    options = ("--token-latency", "0.005")
    with running_fleet(folder, proxies=2, engine_options=options, settings=settings) as fleet:
        SECRETS.update(proxy.key for proxy in fleet.proxies)
        yield fleet


@dataclass(frozen=True)
class Asked:
    """A call, and what its last line must say."""

    body: Any = field(default_factory=lambda: BODY)
    status: int = 200
    outcome: str = "committed"
    headers: dict[str, str] = field(default_factory=dict)
    fault: dict[str, Any] | None = None


CALLS = {
    "whole": Asked(),
    "streamed": Asked({**BODY, "stream": True}),
    "no JSON": Asked(SAID.encode(), 400, "invalid_json"),
    "a wrong type": Asked({"messages": SAID}, 400, "invalid_request"),
    "a parameter that can't be honoured": Asked({**BODY, "n": 2}, 400, "unsupported_parameter"),
    "too long for the model": Asked({**BODY, "max_tokens": 10**6}, 400, "context_length_exceeded"),
    "too large a body": Asked(b"x" * 200_000, 413, "body_too_large"),
    "an unknown key": Asked(BODY, 401, "invalid_key", {"authorization": f"Bearer {Owner(0, '0' * 12).key()}"}),
    "no key": Asked(BODY, 401, "invalid_key", {"authorization": ""}),
    "a wrong key for retries": Asked(BODY, 400, "invalid_request", {"idempotency-key": "x" * 300}),
    "an engine's error": Asked(BODY, 502, "engine_error", fault={"kind": "error_500", "message": FROM_ENGINE}),
    "an engine that is overloaded": Asked(BODY, 429, "engine_overloaded", fault={"kind": "error_429"}),
    "no evidence": Asked(BODY, 502, "evidence_refused", fault={"kind": "nan"}),
    "a silent engine": Asked(BODY, 504, "engine_timeout", fault={"kind": "never"}),
    # Cut 1.5 s after its first text has gone to the caller, and long before its end is made.
    "a stream that the engine breaks off": Asked(
        {**BODY, "stream": True, "max_tokens": 1500, "ignore_eos": True},
        200,
        "engine_error",
        fault={"kind": "abort_with_status", "after_tokens": 300},
    ),
}


def fresh(proxy: ProxyProcess) -> AgentSession:
    """A session of this very proxy."""
    session = proxy.start_session(here=True)
    SECRETS.add(session.api_key)
    return session


def named() -> str:
    return f"case-{next(numbers)}"


async def the_end(proxy: ProxyProcess, request_id: str) -> dict[str, Any]:
    """The only line at the end of a call, which has one at the start."""
    [ended] = await comes(proxy, ENDED, request_id=request_id)
    [started] = lines(proxy, STARTED, request_id=request_id)
    assert started["call_id"] == ended["call_id"]
    assert (started["pid"], started["ordinal"]) == (ended["pid"], ended["ordinal"]) == (proxy_pid(proxy), proxy.ordinal)
    assert started["messages"] == ended["messages"] and started["stream"] == ended["stream"]
    return ended


def proxy_pid(proxy: ProxyProcess) -> int:
    pid: int = proxy.stats()["pid"]
    return pid


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_is_told_of_once_at_its_start_and_once_at_its_end(watched: Fleet, name: str) -> None:
    asked, proxy, request_id = CALLS[name], watched.proxy, named()
    session = fresh(proxy)
    if asked.fault is not None:
        watched.engine.fault(**asked.fault)
    headers = {header.replace("-", "_"): value for header, value in asked.headers.items()}
    reply = await asyncio.to_thread(session.raw_chat, asked.body, x_request_id=request_id, **headers)
    watched.engine.clear_faults()
    assert reply.status_code == asked.status and reply.headers["x-request-id"] == request_id

    ended = await the_end(proxy, request_id)
    assert (ended["status"], ended["outcome"]) == (asked.status, asked.outcome)
    assert ended["total_ms"] > 0 and ended["in_flight_after"] == 0 and ended["held_ms"] == -1
    failures = lines(proxy, "engine_failure", request_id=request_id)
    if asked.outcome == "committed":
        assert all(ended[each] >= 0 for each in TIMES)
        assert sum(ended[each] for each in TIMES) <= ended["total_ms"]
        assert ended["messages"] == 3 and ended["prompt_tokens"] > 0 and ended["completion_tokens"] == 20
        assert ended["turn_id"] == session.turns()[0]["turn_id"] and ended["session_id"] == session.session_id
    elif asked.fault is None:
        expected = REACHED_NOTHING if name != "too long for the model" else {"engine_ms": ended["engine_ms"]}
        assert {each: ended[each] for each in expected} == expected and ended["commit_ms"] == -1
    else:
        assert ended["engine_ms"] >= 0 and ended["commit_ms"] == ended["completion_tokens"] == -1
        assert ended["prompt_tokens"] > 0
    assert [(failure["level"], failure["code"]) for failure in failures] == (
        [] if asked.fault is None else [("warning", asked.outcome)]
    )
    for failure in failures:
        assert failure["url"] == f"{watched.gateway.url}/generate"
        assert 0 < failure["elapsed_ms"] <= ended["total_ms"] and failure["error_type"]
        assert failure["session_id"] == session.session_id and failure["turn_id"].startswith(ended["turn_id"])


async def test_a_retry_that_gets_a_turn_again_is_told_so(watched: Fleet) -> None:
    session, first, second = fresh(watched.proxy), named(), named()
    for request_id in (first, second):
        await asyncio.to_thread(session.raw_chat, BODY, idempotency_key="k", x_request_id=request_id)
    ends = [await the_end(watched.proxy, request_id) for request_id in (first, second)]
    assert [end["outcome"] for end in ends] == ["committed", "replayed"]
    assert ends[0]["turn_id"] == ends[1]["turn_id"] and ends[1].items() >= REACHED_NOTHING.items()
    assert ends[0]["completion_tokens"] == ends[1]["completion_tokens"]
    reused = named()
    await asyncio.to_thread(session.raw_chat, LONG, idempotency_key="k", x_request_id=reused)
    assert (await the_end(watched.proxy, reused))["outcome"] == "idempotency_key_reused"


async def test_a_retry_that_joins_a_call_is_told_so(watched: Fleet) -> None:
    session, first, second = fresh(watched.proxy), named(), named()
    body = {**LONG, "max_tokens": 1000}  # 5 s
    call = asyncio.create_task(asyncio.to_thread(session.raw_chat, body, idempotency_key="k", x_request_id=first))
    await comes(watched.proxy, STARTED, request_id=first)
    await asyncio.to_thread(session.raw_chat, body, idempotency_key="k", x_request_id=second)
    await call
    ends = [await the_end(watched.proxy, request_id) for request_id in (first, second)]
    assert [end["outcome"] for end in ends] == ["committed", "joined"]
    assert ends[0]["turn_id"] == ends[1]["turn_id"]
    assert lines(watched.proxy, STARTED, request_id=second)[0]["in_flight_before"] == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_caller_that_leaves_ends_its_call_and_the_turns_fate_is_told(watched: Fleet, stream: bool) -> None:
    session, request_id = fresh(watched.proxy), named()
    if stream:
        async with opened(session, {**LONGER, "stream": True}, **{"x-request-id": request_id}) as reply:
            async for _ in reply.aiter_lines():
                break
    else:
        await leave_early(watched, session, LONGER, **{"x-request-id": request_id})
    ended = await the_end(watched.proxy, request_id)
    assert (ended["status"], ended["outcome"]) == (200 if stream else -1, "client_gone")
    assert ended["engine_ms"] > 0 and ended["commit_ms"] == -1
    [fate] = await comes(watched.proxy, "turn_ended_unwaited", turn_id=ended["turn_id"])
    assert (fate["outcome"], fate["request_id"], fate["session_id"]) == ("client_gone", request_id, session.session_id)


async def test_a_turn_that_is_committed_for_nobody_is_told_of(watched: Fleet) -> None:
    session, request_id = fresh(watched.proxy), named()
    # 1.7 s, of which nobody who leaves misses more than the grace.
    await leave_early(watched, session, {**LONG, "max_tokens": 340}, **{"x-request-id": request_id})
    assert (await the_end(watched.proxy, request_id))["outcome"] == "client_gone"
    [fate] = await comes(watched.proxy, "turn_ended_unwaited", request_id=request_id)
    assert fate["outcome"] == "committed" and session.turns()[0]["turn_id"] == fate["turn_id"]


@pytest.mark.parametrize(("act", "outcome"), [("close", "session_closed"), ("delete", "session_deleted")])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_call_whose_session_ends_is_told_so_and_so_are_later_ones(
    watched: Fleet, act: str, outcome: str, stream: bool
) -> None:
    session, cut, later = fresh(watched.proxy), named(), named()
    body = {**LONGER, "stream": stream}
    call = asyncio.create_task(asyncio.to_thread(session.raw_chat, body, x_request_id=cut))
    await comes(watched.proxy, STARTED, request_id=cut)
    await eventually(lambda: watched.engine.counters()["running"] > 0)
    with watched.proxy.admin() as admin:
        path = f"/sessions/{session.session_id}"
        reply = admin.post(f"{path}/close") if act == "close" else admin.delete(path)
    assert reply.is_success
    await call
    ended = await the_end(watched.proxy, cut)
    assert ended["outcome"] == outcome and ended["status"] in ((200, 410) if stream else (410,))
    assert ended["commit_ms"] == -1 and not lines(watched.proxy, "turn_ended_unwaited", request_id=cut)
    await asyncio.to_thread(session.raw_chat, BODY, x_request_id=later)
    assert (await the_end(watched.proxy, later))["outcome"] == outcome


async def test_a_call_that_a_drain_holds_says_for_how_long(watched: Fleet) -> None:
    session, request_id = fresh(watched.proxy), named()
    with watched.proxy.admin() as admin:
        assert admin.post("/drain", json={"id": "hold", "mode": "quiesce", "then": "stay"}).is_success
        call = asyncio.create_task(asyncio.to_thread(session.raw_chat, BODY, x_request_id=request_id))
        await eventually(lambda: samples(watched.proxy)["rolloutfleet_calls_held", ("drain",)] == 1)
        assert samples(watched.proxy)["rolloutfleet_draining", ()] == 1
        assert admin.delete("/drain", params={"id": "hold"}).is_success
    assert (await call).status_code == 200
    ended = await the_end(watched.proxy, request_id)
    assert ended["outcome"] == "committed"
    assert 0 < ended["held_ms"] < ended["total_ms"] - sum(ended[each] for each in TIMES)


async def test_a_mistake_of_ours_is_told_of_with_its_traceback(watched: Fleet) -> None:
    session, request_id = fresh(watched.proxy), named()
    with sqlite3.connect(watched.proxy.store_file, timeout=30) as store:
        store.execute("ALTER TABLE turns RENAME TO turns_away")
    try:
        reply = await asyncio.to_thread(session.raw_chat, BODY, x_request_id=request_id)
    finally:
        with sqlite3.connect(watched.proxy.store_file, timeout=30) as store:
            store.execute("ALTER TABLE turns_away RENAME TO turns")
    assert reply.status_code == 500
    ended = await the_end(watched.proxy, request_id)
    assert (ended["status"], ended["outcome"]) == (500, INTERNAL)
    [mistake] = await comes(watched.proxy, "message", level="error")
    assert "Traceback" in mistake["trace"] and "OperationalError: no such table" in mistake["trace"]


# Several proxies


async def test_a_call_that_is_passed_on_is_told_of_by_its_owner_and_shortly_by_the_other(watched: Fleet) -> None:
    other, owner = watched.proxies
    session, request_id = fresh(owner), named()
    traces = {"traceparent": f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01", "tracestate": "ours=1"}
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        reply = await client.post(
            f"{other.url}/sessions/{session.session_id}/v1/chat/completions",
            json={**BODY, "stream": True},
            headers={"authorization": f"Bearer {session.api_key}", "x-request-id": request_id, **traces},
        )
    assert reply.status_code == 200 and reply.headers.get_list("x-request-id") == [request_id]
    ended = await the_end(owner, request_id)
    assert ended["outcome"] == "committed"
    [passed] = await comes(other, "pass_ended", request_id=request_id)
    [started] = lines(other, "pass_started", request_id=request_id)
    assert started["call_id"] == passed["call_id"]
    assert (passed["passed_to"], passed["status"], passed["outcome"]) == (owner.ordinal, 200, "answered")
    # The owner may take its own time a little later than the other has passed on the last of the answer.
    assert passed["total_ms"] >= ended["engine_ms"] + ended["commit_ms"] > 0
    assert not lines(other, STARTED, request_id=request_id) and not lines(other, ENDED, request_id=request_id)
    [generated] = [entry for entry in watched.engine.log() if entry["traces"].get("x-request-id") == request_id]
    assert generated["traces"] == {"x-request-id": request_id, **traces}


async def test_a_caller_that_leaves_a_call_that_was_passed_on_is_told_of_by_both(watched: Fleet) -> None:
    other, owner = watched.proxies
    session, request_id = fresh(owner), named()
    elsewhere = AgentSession(
        other, session.session_id, session.api_key, f"{other.url}/sessions/{session.session_id}/v1"
    )
    await leave_early(watched, elsewhere, LONGER, **{"x-request-id": request_id})
    assert (await the_end(owner, request_id))["outcome"] == "client_gone"
    [passed] = await comes(other, "pass_ended", request_id=request_id)
    assert (passed["status"], passed["outcome"]) == (-1, "cut_short")


@pytest.mark.parametrize(
    ("owner", "status", "outcome"),
    [(Owner(0, "0123456789ab"), 410, "store_lost"), (Owner(7, "0123456789ab"), 404, "session_unknown")],
)
async def test_a_call_that_nobody_here_owns_is_told_of_where_it_is_refused(
    watched: Fleet, owner: Owner, status: int, outcome: str
) -> None:
    request_id, name = named(), owner.name(SESSION)
    headers = {"x-request-id": request_id, "authorization": f"Bearer {fresh(watched.proxy).api_key}"}
    reply = httpx.post(f"{watched.proxy.url}/sessions/{name}/v1/chat/completions", json=BODY, headers=headers)
    assert reply.status_code == status and reply.headers["x-request-id"] == request_id
    ended = await the_end(watched.proxy, request_id)
    assert (ended["status"], ended["outcome"], ended["session_id"]) == (status, outcome, name)


async def test_other_requests_have_a_line_at_their_end_and_fleet_scope_keeps_the_id(watched: Fleet) -> None:
    first, second = watched.proxies
    request_id = named()
    with first.admin() as admin:
        headers = {"x-request-id": request_id}
        assert admin.get("/stats", params={"scope": "fleet"}, headers=headers).is_success
        assert admin.post("/export", json={"max_trajectories": 1}, headers=headers).status_code == 200
        assert admin.post(f"/sessions/{fresh(second).session_id}/close", headers=headers).is_success
        assert admin.get(f"/{SAID}", headers=headers).status_code == 404
        assert admin.get("/stats", headers=headers | {"authorization": ""}).status_code == 401
    # A line is written when its request has ended, which may be after the next one has.
    told = await comes(first, "request_ended", request_id=request_id, count=5)
    assert Counter((line["method"], line["route"], line["status"], line["passed_to"]) for line in told) == Counter(
        [
            ("GET", "/stats", 200, -1),
            ("POST", "/export", 200, -1),
            ("POST", "passed_on", 200, 1),
            ("GET", "none", 404, -1),
            ("GET", "/stats", 401, -1),
        ]
    )
    told = await comes(second, "request_ended", request_id=request_id, count=2)
    assert Counter(line["route"] for line in told) == Counter(["/stats", "/sessions/{session_id}/close"])


# Request ids


async def test_every_answer_has_a_request_id(watched: Fleet) -> None:
    proxy = watched.proxy
    session = fresh(proxy)
    for path in ("/health", "/ready", "/metrics", "/stats", "/nothing", "/sessions/unknown", "/v1/models"):
        taken = httpx.get(proxy.url + path, headers={"x-request-id": "mine"})
        assert taken.headers.get_list("x-request-id") == ["mine"], path
        made = httpx.get(proxy.url + path).headers.get_list("x-request-id")
        assert len(made) == 1 and made[0].startswith("req-"), path
    bad = f"{session.api_key}"
    for reply in (
        session.raw_chat(BODY, x_request_id=bad),
        session.raw_chat({**BODY, "stream": True}, x_request_id="a b"),
        session.raw_chat(b"{", x_request_id="x" * 1000),
    ):
        [made_for_it] = reply.headers.get_list("x-request-id")
        assert made_for_it.startswith("req-") and len(made_for_it) == 28
        assert (await the_end(proxy, made_for_it))["request_id"] == made_for_it


# The figures


async def test_a_line_of_figures_tells_of_the_calls_since_the_last(watched: Fleet) -> None:
    proxy = watched.proxy
    before, session = len(lines(proxy, "stats")), fresh(proxy)

    def told() -> list[Any]:
        assert session.raw_chat(BODY).status_code == 200
        return lines(proxy, "stats")[before:]

    await eventually(lambda: len(told()) >= 3)
    figures = told()
    assert max(line["since_last"] for line in figures) > 0
    assert figures[-1]["log_dropped"] == 0


async def test_the_metrics_the_sums_and_the_log_say_the_same(watched: Fleet) -> None:
    for proxy in watched.proxies:
        await eventually(lambda proxy=proxy: proxy.stats()["in_flight"] == 0)  # type: ignore[misc]
        await eventually(lambda proxy=proxy: samples(proxy)["rolloutfleet_queue_length", ("log",)] == 0)  # type: ignore[misc]
        read, audit = samples(proxy), proxy.audit()
        assert calls_told_otherwise_than_once(proxy) == []
        assert of(read, "rolloutfleet_calls_total") == counted(proxy, ENDED, "outcome")
        assert of(read, "rolloutfleet_calls_passed_on_total") == counted(proxy, "pass_ended", "outcome")
        assert of(read, "rolloutfleet_engine_failures_total") == counted(proxy, "engine_failure", "code")
        assert of(read, "rolloutfleet_turns_unwaited_total") == counted(proxy, "turn_ended_unwaited", "outcome")
        assert sum(of(read, "rolloutfleet_call_seconds_count").values()) == len(lines(proxy, ENDED))
        turns = audit["turns"]["created"]
        assert sum(of(read, "rolloutfleet_turns_total").values()) == turns
        assert set(of(read, "rolloutfleet_step_seconds_count").values()) == {turns}
        assert read["rolloutfleet_calls_in_flight", ()] == 0
        assert read.get(("rolloutfleet_turns_ended_total", ("committed",)), 0) == turns
        assert read["rolloutfleet_keys", ()] == audit["keys"]
        assert of(read, "rolloutfleet_shards") == {(kind,): audit["shards"][kind] for kind in ("count", "bytes")}
        for kind in ("turns", "sessions"):
            for term, n in audit[kind].items():
                for reason, count in n.items() if isinstance(n, dict) else [("", n)]:
                    assert read["rolloutfleet_ledger", (kind, reason, term)] == count
        assert read["rolloutfleet_sessions_open", ()] == proxy.stats()["sessions"]["open"]
    assert audit["balanced"]


async def test_a_new_metric_takes_its_declaration_and_the_place_that_counts(watched: Fleet, tmp_path: Path) -> None:
    own = {"ordinal": 0, "replicas": 1, "peers": {}, "state_dir": str(tmp_path)}
    app = ProxyApp(ProxySettings.model_validate(watched.proxy.settings | own))
    async with app._opened(app._control):
        assert app.opened is not None
        toys = prometheus_client.Counter(
            "rolloutfleet_toys", "Toys by colour.", ["colour"], registry=app.opened.services.metrics.registry
        )
        toys.labels("red").inc()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://proxy") as client:
            text = (await client.get("/metrics")).raise_for_status().text
    assert "# HELP rolloutfleet_toys_total Toys by colour.\n" in text
    assert 'rolloutfleet_toys_total{colour="red"} 1.0\n' in text


def of(read: dict[tuple[str, tuple[str, ...]], float], name: str) -> dict[tuple[str, ...], float]:
    return {labels: value for (each, labels), value in read.items() if each == name}


# The end, and what a log must never do


async def test_a_call_that_a_stop_cuts_is_told_so_and_the_log_is_whole(watched: Fleet) -> None:
    proxy = watched.proxies[1]
    session, request_id = fresh(proxy), named()
    watched.engine.fault("never")
    call = asyncio.create_task(asyncio.to_thread(session.raw_chat, BODY, x_request_id=request_id))
    await comes(proxy, STARTED, request_id=request_id)
    assert proxy.process is not None
    proxy.process.send_signal(signal.SIGTERM)
    assert (await call).status_code == 503
    await asyncio.to_thread(proxy.process.wait, PATIENCE)
    [ended] = lines(proxy, ENDED, request_id=request_id)
    assert (ended["status"], ended["outcome"]) == (503, "draining")
    assert calls_told_otherwise_than_once(proxy) == []
    assert lines(proxy, pid=ended["pid"])[-1]["event"] == "stats"


def test_what_is_no_http_is_answered_and_not_told_of(watched: Fleet) -> None:
    with socket.create_connection(("127.0.0.1", watched.proxy.port)) as connection:
        connection.sendall(f"{SAID} {GATEWAY_KEY}\r\n\r\n".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")
    assert lines(watched.proxy, "message", logger="uvicorn.error") == []


def test_no_line_shows_a_key_or_what_was_said(watched: Fleet) -> None:
    assert len(SECRETS) > 10
    for proxy in watched.proxies:
        log = proxy.log.read_text()
        assert len(log) > 2_000
        assert [secret for secret in SECRETS if secret in log] == []
        assert "Bearer" not in log and "uthorization" not in log


def test_a_log_that_nobody_reads_stalls_no_call(watched: Fleet, tmp_path: Path) -> None:
    port = free_port()
    file = tmp_path / "settings.json"
    own = {"port": port, "ordinal": 0, "replicas": 1, "peers": {}, "state_dir": str(tmp_path / "state")}
    file.write_text(json.dumps(watched.proxy.settings | own))
    command = [*ends_with_this_process(), sys.executable, "-m", "rolloutfleet_proxy", "--settings", str(file)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(process, url=f"{url}/ready", log=file, seconds=START)
            with httpx.Client(base_url=url, timeout=PATIENCE) as client:
                # Two lines each, of some 800 bytes together: a pipe holds 64 KiB.
                statuses = {client.post("/v1/chat/completions", json=BODY).status_code for _ in range(300)}
                assert statuses == {401}
                assert "rolloutfleet_log_dropped_total 0" in client.get("/metrics").text
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)
        finally:
            process.kill()
