"""What a proxy does when it is told to stop, and the bounds that hold whatever comes."""

import asyncio
import json
import time
from collections.abc import Iterator

import pytest
from tests.capture.fleets import Fleet, running_fleet
from tests.capture.test_retries import BODY, eventually
from tests.capture.test_streams import opened


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    settings = {
        "body_limit": 100_000,
        "drain_timeout": 1,
        "stream_comment": 0.2,
        "sessions": {"limits": {"turns": 2, "sessions": 50}},
    }
    with running_fleet(tmp_path_factory.mktemp("small"), settings=settings) as running:
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
        reply = admin.post("/sessions", json={"group_size": 51})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "group_size"


def test_nothing_is_told_of_the_api_without_a_key(small: Fleet) -> None:
    with small.proxy.admin() as admin:
        del admin.headers["authorization"]
        answers = {path: admin.get(path).status_code for path in ("/docs", "/openapi.json", "/stats", "/audit")}
    assert answers == {"/docs": 404, "/openapi.json": 404, "/stats": 401, "/audit": 401}


async def test_calls_that_outlast_the_stop_are_told_so_and_leave_nothing(small: Fleet) -> None:
    session = small.proxy.start_session()
    small.engine.fault("never", count=2)
    running = small.engine.counters()["running"]
    whole = asyncio.create_task(asyncio.to_thread(session.raw_chat, BODY))
    async with opened(session, {**BODY, "stream": True}) as streamed:
        lines = streamed.aiter_lines()
        await anext(lines)  # its first comment, and with it its status
        await eventually(lambda: small.engine.counters()["running"] == running + 2)

        began = time.monotonic()
        process = small.proxy.process
        assert process is not None
        process.terminate()
        await asyncio.to_thread(process.wait, 30)
        assert time.monotonic() - began < 6
        events = [line async for line in lines if line.startswith("data: ")]

    refused = await whole
    assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "draining"
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "draining"
    await eventually(lambda: small.engine.counters()["running"] == running)
    small.proxy.start()
    assert session.turns() == []
