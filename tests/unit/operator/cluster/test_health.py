"""The operator's server reads so much of a request and no more, as kubelets and Prometheus ask for little."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.unit.raw_client import connected

from rolloutfleet_operator.cluster.health import HEAD_TIMEOUT, HEADER_BYTES, HEADERS, Health, serve
from rolloutfleet_operator.cluster.metrics import OperatorMetrics

ADDRESS = ("127.0.0.1", 8080)
GET = b"GET /healthz HTTP/1.1\r\n"


@pytest.fixture(autouse=True)
async def served() -> AsyncIterator[None]:
    runner = await serve(*ADDRESS, Health(asyncio.get_running_loop().time), OperatorMetrics())
    yield
    await runner.cleanup()


async def said(asked: bytes) -> bytes:
    """All that is answered until the connection is closed."""
    async with connected(ADDRESS, asked) as client:
        return await client.rest()


@pytest.mark.parametrize(
    "endless",
    [
        GET + b"".join(b"x-%d: y\r\n" % number for number in range(HEADERS + 2)),
        GET + b"x-long: " + b"y" * HEADER_BYTES,
        b"GET /" + b"y" * HEADER_BYTES,
    ],
    ids=["headers", "a header", "a path"],
)
async def test_a_head_without_an_end_is_refused_at_its_bound(endless: bytes) -> None:
    assert (await said(endless)).startswith(b"HTTP/1.0 400 ")


async def test_a_head_within_the_bounds_is_answered() -> None:
    headers = b"connection: close\r\nhost: a\r\n" + b"x-long: %s\r\n" % (b"y" * 1900) * (HEADERS - 2)
    answer = await said(GET + headers + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"ok\n")


@pytest.mark.parametrize("first", [b"", GET], ids=["nothing", "a part"])
async def test_a_head_that_does_not_come_is_not_waited_for_for_ever(first: bytes) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await said(first) == b""
    assert HEAD_TIMEOUT <= loop.time() - began <= HEAD_TIMEOUT + 2.0
