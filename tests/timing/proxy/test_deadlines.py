"""Seconds that a proxy takes at the most, whatever its clients and its collector do."""

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.fleets import Fleet, running_fleet
from tests.integration.proxy.calls import BODY, opened
from tests.integration.proxy.edge import answer, begun, fleet_of_few_descriptors, idle_connections
from tests.integration.proxy.logged import lines
from tests.printing import say
from tests.processes import free_port
from tests.timing.stalls import Stalls
from tests.waiting import PATIENCE, eventually

from rolloutfleet.http_serving import HEAD_TIMEOUT
from rolloutfleet_proxy.http import request_bodies
from rolloutfleet_proxy.http.in_flight import CALL_BYTES

STATS_INTERVAL = 1.0


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_of_few_descriptors(tmp_path_factory.mktemp("edge")) as running:
        yield running


def test_probes_are_answered_beside_more_idle_connections_than_descriptors(two: Fleet) -> None:
    """At once, and not when those are timed out."""
    with idle_connections(two.proxy, answered_within=HEAD_TIMEOUT / 2):
        pass


async def test_a_body_that_is_silent_is_408_on_every_way_that_it_can_take(two: Fleet) -> None:
    """Read whole for a chat or a control call, streamed to disk for a shard, or passed on to its owner."""
    here, there = two.proxy.start_session(), two.proxies[1].start_session()
    with two.proxies[1].admin() as admin:
        reply = admin.post("/sessions", json={}, headers={"x-rolloutfleet-placed": "1"}).json()
    assert reply["ordinals"] == [1]
    key = two.proxy.key
    began = time.monotonic()
    waiting = [
        begun(two.proxy.port, "/v1/chat/completions", here.api_key),
        begun(two.proxy.port, "/sessions", key),
        begun(two.proxy.port, "/export", key),
        begun(two.proxy.port, "/shards/silent", key, method="PUT"),
        begun(two.proxy.port, f"/sessions/{reply['session_id']}/v1/chat/completions", reply["api_key"]),
        begun(two.proxy.port, f"/sessions/{reply['session_id']}/reward", key),
    ]
    for each in waiting:
        each.settimeout(2 * request_bodies.BODY_IDLE_TIMEOUT)
    for status, error in await asyncio.gather(*(asyncio.to_thread(answer, each) for each in waiting)):
        assert (status, error["code"], error["type"]) == (408, "request_timeout", "timeout_error"), error
    assert request_bodies.BODY_IDLE_TIMEOUT <= time.monotonic() - began < request_bodies.BODY_IDLE_TIMEOUT + 15
    assert there.turns() == [] and here.turns() == []
    with two.proxy.admin() as admin:
        assert admin.get("/shards/silent").status_code == 404


async def test_a_planned_stop_waits_for_a_body_that_dribbles_no_longer_than_for_a_silent_one(two: Fleet) -> None:
    here = two.proxy.start_session(here=True)
    bodies = [
        begun(two.proxy.port, "/v1/chat/completions", here.api_key),
        begun(two.proxy.port, "/export", two.proxy.key),
    ]
    await eventually(lambda: two.proxy.stats()["in_flight_bytes"] >= len(bodies) * CALL_BYTES)
    process = two.proxy.process
    assert process is not None

    async def dribble(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                await asyncio.to_thread(connection.sendall, b" ")
                await asyncio.sleep(1)

    dribbling = [asyncio.create_task(dribble(body)) for body in bodies]
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(process.wait, 55)
    assert time.monotonic() - began < request_bodies.BODY_IDLE_TIMEOUT + 10
    for task in dribbling:
        task.cancel()
    await asyncio.gather(*dribbling, return_exceptions=True)
    for body in bodies:
        status, error = answer(body)
        assert (status, error["code"]) == (503, "draining")
    two.proxy.start()


async def test_calls_that_outlast_a_stop_hold_it_up_no_longer_than_a_drain(tmp_path: Path) -> None:
    with running_fleet(tmp_path, settings={"drain_timeout": 1, "stream_comment": 0.2}) as fleet:
        session = fleet.proxy.start_session()
        fleet.engine.fault("never", count=2)
        whole = asyncio.create_task(asyncio.to_thread(session.raw_chat, BODY))
        async with opened(session, {**BODY, "stream": True}) as streamed:
            await anext(streamed.aiter_lines())
            await eventually(lambda: fleet.engine.counters()["running"] == 2)
            process = fleet.proxy.process
            assert process is not None
            began = time.monotonic()
            process.terminate()
            await asyncio.to_thread(process.wait, PATIENCE)
            assert time.monotonic() - began < 20
        await whole


def test_who_follows_events_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    with running_fleet(tmp_path) as fleet, fleet.proxy.admin() as admin, admin.stream("GET", "/events") as events:
        assert next(events.iter_lines()).startswith(":")
        began = time.monotonic()
        fleet.proxy.stop()
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("kind", ["gone", "silent"])
def test_a_dead_collector_keeps_nobody_waiting(tmp_path: Path, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if kind == "silent" else free_port()
        # Longer than the SDK itself takes at the most to end.
        collector = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "NO_PROXY": "127.0.0.1",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "600",
        }
        with running_fleet(tmp_path, environment=collector) as fleet:
            began = time.monotonic()
            assert fleet.proxy.start_session().raw_chat(BODY).is_success
            process = fleet.proxy.process
            assert process is not None
            process.terminate()
            assert process.wait(PATIENCE) == 0
            assert time.monotonic() - began < 25


async def test_the_line_of_figures_is_on_time_under_load(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    settings = {"log": {"format": "json", "stats_interval": STATS_INTERVAL}}
    with running_fleet(tmp_path, engine_options=("--token-latency", "0.005"), settings=settings) as fleet:
        proxy = fleet.proxy
        sessions = [proxy.start_session() for _ in range(40)]
        before = len(lines(proxy, "stats"))
        until = time.monotonic() + 6 * STATS_INTERVAL

        async def talk(client: httpx.AsyncClient, number: int) -> None:
            session = sessions[number]
            while time.monotonic() < until:
                headers = {"authorization": f"Bearer {session.api_key}"}
                reply = await client.post(f"{session.base_url}/chat/completions", json=BODY, headers=headers)
                assert reply.status_code == 200

        with Stalls() as stalls:
            async with httpx.AsyncClient(timeout=PATIENCE, limits=httpx.Limits(max_connections=None)) as client:
                await asyncio.gather(*(talk(client, number) for number in range(len(sessions))))
        figures = lines(proxy, "stats")[before:]
        slowest = max(line["late_ms"] for line in figures)
        calls = sum(line["since_last"] for line in figures)
        say(request, f"{calls} calls; the line of figures {slowest:g} ms late at most")
        assert len(figures) >= 3 and slowest - 1000 * stalls.longest() < 3000
