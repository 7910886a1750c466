"""Compressed bodies over HTTP: read wherever plain ones are, by whichever proxy they come to."""

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.fleets import Fleet, running_fleet

from rolloutfleet_proxy.ids import SESSION, owner_of_name

BODY_LIMIT = 200_000
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20}
BOMB = gzip.compress(b" " * (BODY_LIMIT + 1))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("encoded"), proxies=2, settings={"body_limit": BODY_LIMIT}) as running:
        yield running
        for proxy in running.proxies:
            assert "Traceback" not in proxy.log.read_text()


def send(url: str, key: str, content: bytes, *, encoding: str = "gzip", **headers: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}", "content-encoding": encoding, **headers}
    return httpx.post(url, content=content, headers=headers, timeout=60)


def error(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


def test_turn_of_a_compressed_body_is_that_of_the_plain_one(two: Fleet) -> None:
    session = two.proxy.start_session()
    plain = session.raw_chat(CHAT, **{"Idempotency-Key": "one"})
    path, content = f"/sessions/{session.session_id}/v1/chat/completions", json.dumps(CHAT).encode()
    for proxy in two.proxies:
        for encoding, body in (("gzip", gzip.compress(content)), ("deflate", zlib.compress(content))):
            again = send(proxy.url + path, session.api_key, body, encoding=encoding, **{"Idempotency-Key": "one"})
            assert (again.status_code, again.json()["id"]) == (200, plain.json()["id"])
    assert len(session.turns()) == 1


def test_compressed_bodies_are_refused_alike_in_every_api(two: Fleet) -> None:
    session = two.proxy.start_session()
    own = f"/sessions/{session.session_id}"
    calls = ("chat/completions", "messages", "messages/count_tokens", "responses")
    for url, key in [
        *((f"{proxy.url}{own}/v1/{call}", session.api_key) for proxy in two.proxies for call in calls),
        *((f"{proxy.url}{path}", proxy.key) for proxy in two.proxies for path in (f"{own}/reward", "/sessions")),
    ]:
        assert error(send(url, key, BOMB)) == (413, "body_too_large")
        assert error(send(url, key, b"no gzip"))[0] == 400
        other = send(url, key, b"{}", encoding="br")
        assert error(other) == (415, "unsupported_encoding") and "'br'" in other.json()["error"]["message"]
        assert error(send(url, "wrong", BOMB))[0] == 401
    assert session.turns() == []
    assert all(proxy.stats()["in_flight_bytes"] == 0 for proxy in two.proxies)


def test_native_calls_take_compressed_bodies_also_for_another_proxy(two: Fleet) -> None:
    session = two.proxy.start_session()
    assert session.raw_chat(CHAT).status_code == 200
    for proxy in two.proxies:
        body = gzip.compress(json.dumps({"reward": 1.0, "close": False}).encode())
        assert send(f"{proxy.url}/sessions/{session.session_id}/reward", proxy.key, body).status_code == 200
    session.post("reward", {"reward": 1.0})
    # What this body names decides which proxy it is for, so it is read by one and passed on.
    body = gzip.compress(json.dumps({"session_ids": [session.session_id], "lease_seconds": 60}).encode())
    owner = owner_of_name(session.session_id, kind=SESSION)
    assert owner is not None
    exported = send(f"{two.proxies[1 - owner.ordinal].url}/export", two.proxy.key, body)
    assert exported.status_code == 200 and exported.headers["lease-id"]


def test_shard_is_not_taken_compressed(two: Fleet) -> None:
    headers = {"authorization": f"Bearer {two.proxy.key}", "content-encoding": "gzip"}
    reply = httpx.put(f"{two.proxy.url}/shards/a", content=gzip.compress(b"a"), headers=headers)
    assert error(reply) == (415, "unsupported_encoding") and reply.headers["accept-encoding"] == "identity"
