"""An engine reads so much of a request and no more."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.engine.serving import engine_here
from tests.unit.raw_client import connected

from rolloutfleet.http_serving import HEAD_BYTES
from rolloutfleet_engine import exchange


async def said(asked: bytes) -> bytes:
    """All that an engine answers until it closes the connection."""
    address = ("127.0.0.1", 30_000)
    async with engine_here(port=address[1]), connected(address, asked) as client:
        return await client.rest()


async def test_a_head_without_an_end_is_refused_at_the_bound_of_the_proxies() -> None:
    answer = await said(b"GET /health HTTP/1.1\r\n" + b"x-long: yyyyyyy\r\n" * (HEAD_BYTES // 16))
    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_a_body_is_read_up_to_its_bound(engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "BODY_BYTES", 1000)
    http = engine().http
    assert (await http.post("/v1/chat/completions", content=b" " * 1000)).status_code == 400
    refused = await http.post("/v1/chat/completions", content=b" " * 1001)
    assert (refused.status_code, refused.json()["message"]) == (413, "the body is larger than 1000 bytes")


async def test_a_stream_to_a_client_of_http_1_0_has_no_chunks() -> None:
    body = b'{"text": "hello", "stream": true, "sampling_params": {"max_new_tokens": 4}}'
    answer = await said(b"POST /generate HTTP/1.0\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    head, stream = answer.split(b"\r\n\r\n", 1)
    assert b"transfer-encoding" not in head and b"connection: close" in head
    assert stream.startswith(b"data: {") and stream.endswith(b"data: [DONE]\n\n")
