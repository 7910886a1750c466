"""The gateway's own count of requests is explained to the last one: nothing is sent twice, nothing in secret."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.fleets import AgentSession, Fleet, running_fleet
from tests.integration.proxy.calls import leave_early, total
from tests.printing import say
from tests.waiting import eventually

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me something"}], "max_tokens": 20}
LONG = {**CHAT, "max_tokens": 600, "ignore_eos": True}
"""6 s, of which the calls that a test cuts see the beginning."""
FAULTS = ("error_500", "error_429", "context_length", "nan", "wrong_length", "never")
OUTAGES = ("error_503", "cut_stream")
ENGINE_TIMEOUT = 12.0

_REQUESTS = re.compile(r'^smg_http_requests_total\{method="POST",path="/generate"\} (\d+)$', re.MULTILINE)
_GENERATIONS = re.compile(r"^rolloutfleet_generations_total (\d+)", re.MULTILINE)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    settings = {"sessions": {"retryGrace": "200ms"}, "engine_timeout": ENGINE_TIMEOUT}
    options = ("--token-latency", "0.01")
    folder = tmp_path_factory.mktemp("counted")
    with running_fleet(folder, engines=2, engine_options=options, settings=settings) as fleet:
        yield fleet


def seen_by_the_gateway(fleet: Fleet) -> int:
    found = _REQUESTS.search(httpx.get(fleet.gateway.metrics_url).text)
    return int(found[1]) if found else 0


def running(fleet: Fleet) -> int:
    return total(fleet, "running")


async def test_every_request_is_a_turn_a_failure_a_cancellation_or_a_resubmission(
    counted: Fleet, request: pytest.FixtureRequest
) -> None:
    proxy = counted.proxy
    turns = await plain_turns(proxy.start_session())
    turns += await retried_turns(proxy.start_session())
    await refused_before_anything_is_sent(proxy.start_session())
    failures = await failed_calls(counted)
    cancellations = await cancelled_calls(counted)
    cut_turns, resubmissions = await cut_calls(counted)
    outage_turns = await turns_through_outages(counted)
    turns, resubmissions = turns + cut_turns + outage_turns, resubmissions + outage_turns

    await eventually(lambda: running(counted) == 0 and proxy.stats()["in_flight"] == 0)
    assert proxy.audit()["turns"]["created"] == turns
    expected = turns + failures + cancellations + resubmissions
    probes = proxy.stats()["gateway"]["probes"]
    assert probes == 1
    say(
        request,
        f"the gateway saw {seen_by_the_gateway(counted)} requests: {turns} turns, {failures} failures, "
        f"{cancellations} cancellations, {resubmissions} resubmissions, {probes} probe",
    )
    assert seen_by_the_gateway(counted) == expected + probes
    assert sum(engine.counters()["received"] for engine in counted.engines) == expected + probes
    generations = _GENERATIONS.search(httpx.get(f"{proxy.url}/metrics").text)
    assert generations is not None and int(generations[1]) == expected


async def plain_turns(session: AgentSession) -> int:
    replies = await asyncio.gather(
        *(asyncio.to_thread(session.raw_chat, {**CHAT, "stream": number % 2 == 0}) for number in range(10))
    )
    assert [reply.status_code for reply in replies] == [200] * 10
    return 10


async def retried_turns(session: AgentSession) -> int:
    """Retries of what is answered, and of what is under way, are no new requests."""
    for stream in (False, True):
        body = {**CHAT, "stream": stream, "seed": 1}
        key = f"key {stream}"
        for _ in range(3):
            assert session.raw_chat(body, idempotency_key=key).status_code == 200
        assert session.raw_chat(body).status_code == 200
        assert session.raw_chat(body, x_stainless_retry_count="1").status_code == 200
        together = [
            asyncio.to_thread(session.raw_chat, {**body, "seed": 2}, idempotency_key=f"{key} 2") for _ in range(2)
        ]
        assert [reply.status_code for reply in await asyncio.gather(*together)] == [200, 200]
    assert len(session.turns()) == 6
    return 6


async def refused_before_anything_is_sent(session: AgentSession) -> None:
    wrongs: list[dict[str, Any]] = [{"n": 2}, {"model": 7}, {"max_tokens": 10**6}, {"messages": []}]
    for wrong in wrongs:
        assert session.raw_chat(CHAT | wrong).status_code in (400, 404)
    assert session.raw_chat(CHAT, authorization="Bearer nonsense").status_code == 401


async def failed_calls(fleet: Fleet) -> int:
    session = fleet.proxy.start_session()
    failed = 0
    for kind in FAULTS:
        for engine in fleet.engines:
            engine.fault(kind, count=2)
        calls = (asyncio.to_thread(session.raw_chat, {**CHAT, "stream": stream}) for stream in (False, True))
        for reply in await asyncio.gather(*calls):
            assert reply.status_code >= 400 or 'data: {"error":' in reply.text
            failed += 1
        for engine in fleet.engines:
            engine.clear_faults()
    assert session.turns() == []
    return failed


async def turns_through_outages(fleet: Fleet) -> int:
    """Turns of which one request was lost: each is sent once more."""
    session = fleet.proxy.start_session()
    for kind in OUTAGES:
        for stream in (False, True):
            for engine in fleet.engines:
                engine.fault(kind)
            assert session.raw_chat({**CHAT, "stream": stream}).status_code == 200
            for engine in fleet.engines:
                engine.clear_faults()
    return len(session.turns())


async def cancelled_calls(fleet: Fleet) -> int:
    """Callers that leave, and sessions that are deleted and closed under their calls."""
    for stream in (False, True):
        session = fleet.proxy.start_session()
        await leave_early(fleet, session, {**LONG, "stream": stream})
        await eventually(lambda: running(fleet) == 0)
        assert session.turns() == []
    for act in ("close", "delete"):
        await eventually(lambda: running(fleet) == 0)
        session = fleet.proxy.start_session()
        call = asyncio.create_task(asyncio.to_thread(session.raw_chat, LONG))
        await eventually(lambda: running(fleet) == 1)
        with fleet.proxy.admin() as admin:
            path = f"/sessions/{session.session_id}"
            reply = admin.post(f"{path}/close") if act == "close" else admin.delete(path)
        assert reply.is_success and (await call).status_code == 410
    return 4


async def cut_calls(fleet: Fleet) -> tuple[int, int]:
    """Turns that an engine cuts by itself, and turns that a pause cuts: each is sent once more."""
    session = fleet.proxy.start_session()
    for stream in (False, True):
        for engine in fleet.engines:
            engine.fault("bare_abort", after_tokens=5)
        assert session.raw_chat({**CHAT, "stream": stream}).status_code == 200
        for engine in fleet.engines:
            engine.clear_faults()
    sessions = [fleet.proxy.start_session() for _ in range(4)]
    calls = [
        asyncio.create_task(asyncio.to_thread(session.raw_chat, {**LONG, "stream": number % 2 == 0}))
        for number, session in enumerate(sessions)
    ]
    await eventually(lambda: running(fleet) == len(calls))
    with fleet.proxy.admin() as admin:
        assert (await asyncio.to_thread(admin.post, "/pause", json={})).is_success
        assert running(fleet) == 0
        assert (await asyncio.to_thread(admin.post, "/continue", json={})).is_success
    assert [reply.status_code for reply in await asyncio.gather(*calls)] == [200] * len(calls)
    return 2 + len(calls), 2 + len(calls)
