"""What a proxy does when it is told to stop, and the bounds that hold whatever comes."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
from tests.fleets import Fleet, running_fleet
from tests.integration.proxy.calls import BODY, opened
from tests.waiting import PATIENCE, eventually

MOST_SESSIONS = 10


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[Fleet]:
    settings = {
        "body_limit": 100_000,
        "drain_timeout": 1,
        "stream_comment": 0.2,
        "sessions": {"limits": {"turns": 2, "sessions": MOST_SESSIONS}},
    }
    with running_fleet(tmp_path_factory.mktemp("small"), beside=shared, settings=settings) as running:
        yield running


def test_a_body_is_read_up_to_the_limit_on_every_route(small: Fleet) -> None:
    def pieces() -> Iterator[bytes]:
        yield from (b"x" * 10_000 for _ in range(20))

    session = small.proxy.start_session()
    with small.proxy.admin() as admin:
        for path in ("/sessions", "/export", "/pause", f"/sessions/{session.session_id}/reward"):
            for body in (b"x" * 200_000, pieces()):
                reply = admin.post(path, content=body, headers={"content-type": "application/json"})
                assert reply.status_code == 413 and reply.json()["error"]["code"] == "body_too_large"
    assert session.raw_chat(b"x" * 200_000).status_code == 413


def test_the_fleets_limit_of_turns_is_a_sessions_unless_it_has_its_own(small: Fleet) -> None:
    usual, longer = small.proxy.start_session(), small.proxy.start_session(limits={"turns": 3})
    assert [usual.raw_chat(BODY).status_code for _ in range(3)] == [200, 200, 400]
    assert [longer.raw_chat(BODY).status_code for _ in range(4)] == [200, 200, 200, 400]


def test_a_group_that_no_proxy_has_room_for_is_refused_for_good(small: Fleet) -> None:
    with small.proxy.admin() as admin:
        reply = admin.post("/sessions", json={"group_size": MOST_SESSIONS + 1})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "group_size"


async def test_however_many_start_at_once_the_limit_of_sessions_holds(small: Fleet) -> None:
    """With and without a key; a start that is made again takes no place, and needs none."""
    proxy = small.proxy
    there = proxy.stats()["sessions"]["open"]
    free = MOST_SESSIONS - there
    headers = {"authorization": f"Bearer {proxy.key}"}
    async with httpx.AsyncClient(base_url=proxy.url, headers=headers, timeout=PATIENCE) as admin:

        async def start(number: int) -> httpx.Response:
            key = {"idempotency-key": f"at once {number}"} if number % 2 else {}
            return await admin.post("/sessions", json={"metadata": {"number": number}}, headers=key)

        answers = await asyncio.gather(*map(start, range(200)))
        assert Counter(answer.status_code for answer in answers) == {201: free, 429: 200 - free}
        again = [number for number, answer in enumerate(answers) if number % 2 and answer.status_code == 201]
        assert {answer.status_code for answer in await asyncio.gather(*map(start, again))} <= {201}
        assert proxy.stats()["sessions"]["open"] == MOST_SESSIONS
        for answer in answers:
            if answer.status_code == 201:
                assert (await admin.delete(f"/sessions/{answer.json()['session_id']}")).status_code == 204
    assert proxy.stats()["sessions"]["open"] == there


def test_nothing_is_told_of_the_api_without_a_key(small: Fleet) -> None:
    with small.proxy.admin() as admin:
        del admin.headers["authorization"]
        answers = {path: admin.get(path).status_code for path in ("/docs", "/openapi.json", "/stats", "/audit")}
    assert answers == {"/docs": 404, "/openapi.json": 401, "/stats": 401, "/audit": 401}


async def test_calls_that_outlast_the_stop_are_told_so_and_leave_nothing(small: Fleet) -> None:
    session = small.proxy.start_session()
    small.engine.fault("never", count=2)
    running = small.engine.counters()["running"]
    whole = asyncio.create_task(asyncio.to_thread(session.raw_chat, BODY))
    async with opened(session, {**BODY, "stream": True}) as streamed:
        lines = streamed.aiter_lines()
        await anext(lines)  # its first comment, and with it its status
        await eventually(lambda: small.engine.counters()["running"] == running + 2)

        process = small.proxy.process
        assert process is not None
        process.terminate()
        await asyncio.to_thread(process.wait, PATIENCE)
        events = [line async for line in lines if line.startswith("data: ")]

    refused = await whole
    assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "draining"
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "draining"
    await eventually(lambda: small.engine.counters()["running"] == running)
    small.proxy.start()
    assert session.turns() == []
