"""Memory and disk are never in danger: what there is no room for is refused before it is read, or before it is made."""

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.fleets import AgentSession, Fleet, ProxyProcess, running_fleet
from tests.waiting import PATIENCE, eventually

from rolloutfleet.errors import BODY_TOO_LARGE, INVALID_KEY, NO_ROOM

BODY_LIMIT = 1_000_000
IN_FLIGHT = 3_000_000
DECLARED = 900_000


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[Fleet]:
    settings = {"body_limit": BODY_LIMIT, "in_flight_bytes": IN_FLIGHT, "sessions": {"retry_grace": 0}}
    with running_fleet(tmp_path_factory.mktemp("narrow"), beside=shared, settings=settings) as running:
        yield running


def only_head(proxy: ProxyProcess, path: str, *, method: str = "POST", key: str | None, length: int) -> tuple[int, Any]:
    """Status and body of the answer to a request of whose body not one byte was sent."""
    head = [f"{method} {path} HTTP/1.1", "host: here", "content-type: application/json", f"content-length: {length}"]
    if key is not None:
        head.append(f"authorization: Bearer {key}")
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode())
        answer = connection.makefile("rb")
        status = int(answer.readline().split()[1])
        headers = dict(line.decode().strip().lower().split(": ", 1) for line in iter(answer.readline, b"\r\n"))
        return status, {**json.loads(answer.read(int(headers["content-length"]))), "headers": headers}


PATHS = ["/sessions", "/export", "/pause", "/sessions/{}/reward", "/sessions/{}/v1/chat/completions", "/nowhere"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("key", [None, "rf-0-wrong", "another-admin-key-for-tests"])
def test_without_a_key_no_body_is_read(narrow: Fleet, path: str, key: str | None) -> None:
    session = narrow.proxy.start_session()
    status, body = only_head(narrow.proxy, path.format(session.session_id), key=key, length=DECLARED)
    assert (status, body["error"]["code"]) == (401, INVALID_KEY)


@pytest.mark.parametrize("path", [path for path in PATHS if path != "/nowhere"])
def test_a_body_that_says_that_it_is_too_large_is_not_read(narrow: Fleet, path: str) -> None:
    session = narrow.proxy.start_session()
    key = session.api_key if "/v1/" in path else narrow.proxy.key
    status, body = only_head(narrow.proxy, path.format(session.session_id), key=key, length=BODY_LIMIT + 1)
    assert (status, body["error"]["code"]) == (413, BODY_TOO_LARGE)


def said(size: int) -> dict[str, Any]:
    """A request of about that many bytes, few of them for the model."""
    return {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5, "user": "u" * size}


async def test_calls_beyond_the_budget_are_refused_unread(narrow: Fleet) -> None:
    proxy = narrow.proxy
    sessions = [proxy.start_session() for _ in range(4)]
    narrow.engine.fault("never", count=3)
    before = narrow.engine.counters()["running"]
    held = [asyncio.create_task(asyncio.to_thread(each.raw_chat, said(700_000))) for each in sessions[:3]]
    await eventually(lambda: narrow.engine.counters()["running"] == before + 3)
    assert proxy.stats()["in_flight_bytes"] > 2_100_000

    last = sessions[3]
    refused = [(f"/sessions/{last.session_id}/v1/chat/completions", last.api_key)]
    refused += [("/sessions", proxy.key), ("/export", proxy.key)]
    for path, key in refused:
        status, body = only_head(proxy, path, key=key, length=DECLARED)
        assert (status, body["error"]["code"]) == (429, NO_ROOM), path
        assert int(body["headers"]["retry-after"]) > 0
    # What doesn't say how long it is is read as far as there is room.
    assert (await asyncio.to_thread(chunked, last, said(DECLARED))).status_code == 429
    assert last.turns() == [] and last.raw_chat(said(1_000)).status_code == 200

    for session in sessions[:3]:
        assert session.post("close").status_code == 200
    assert {(await each).status_code for each in held} == {410}
    await eventually(lambda: proxy.stats()["in_flight_bytes"] == 0)
    narrow.engine.clear_faults()
    assert last.raw_chat(said(700_000)).status_code == 200
    stats = proxy.stats()
    assert stats["in_flight_bytes"] == 0 and 2_100_000 < stats["most_in_flight_bytes"] <= IN_FLIGHT
    assert stats["refused"][NO_ROOM] == 4


def chunked(session: AgentSession, body: dict[str, Any]) -> httpx.Response:
    content = json.dumps(body).encode()
    pieces = (content[at : at + 50_000] for at in range(0, len(content), 50_000))
    headers = {"authorization": f"Bearer {session.api_key}"}
    return httpx.post(f"{session.base_url}/chat/completions", content=pieces, headers=headers, timeout=PATIENCE)


async def test_a_call_whose_client_left_keeps_its_place_in_the_budget_until_it_ends(narrow: Fleet) -> None:
    """Until then its messages are in memory."""
    session = narrow.proxy.start_session()
    narrow.engine.fault("never")
    before = narrow.engine.counters()["running"]
    async with session.async_client() as client:
        asking = asyncio.create_task(client.chat.completions.create(model="simulated", **said(500_000)))
        await eventually(lambda: narrow.engine.counters()["running"] == before + 1)
        assert narrow.proxy.stats()["in_flight_bytes"] > 500_000
        asking.cancel()
        await asyncio.wait([asking])
    await eventually(lambda: narrow.proxy.stats()["in_flight"] == 0)
    await eventually(lambda: narrow.proxy.stats()["in_flight_bytes"] == 0)
    narrow.engine.clear_faults()
