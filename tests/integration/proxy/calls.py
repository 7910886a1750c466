"""Chat calls as tests make them: on the wire, in streams, and left by their callers."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
from tests.fleets import AgentSession, Fleet
from tests.waiting import PATIENCE, eventually

from rolloutfleet_proxy.capture.answering import IGNORED

BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me something"}], "max_tokens": 60}
RETRY = {"x_stainless_retry_count": "1"}


def sent(fleet: Fleet) -> int:
    return total(fleet, "received")


def total(fleet: Fleet, counter: str) -> int:
    """Over all engines."""
    return sum(engine.counters()[counter] for engine in fleet.engines)


async def leave_early(
    fleet: Fleet, session: AgentSession, body: dict[str, Any], path: str = "chat/completions", **headers: str
) -> None:
    """Call, and close the connection once an engine generates, before the answer."""
    before = sent(fleet)
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        call = asyncio.create_task(
            client.post(
                f"{session.base_url}/{path}",
                content=json.dumps(body),
                headers={"authorization": f"Bearer {session.api_key}", **headers},
            )
        )
        await eventually(lambda: sent(fleet) > before and total(fleet, "running") > 0)
        assert call.cancel(), "it was answered before"
        with contextlib.suppress(asyncio.CancelledError):
            await call


def asking(session: AgentSession, body: dict[str, Any], *headers: str) -> bytes:
    """A chat call as it goes over a connection."""
    content = json.dumps(body).encode()
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        f"host: 127.0.0.1:{session.proxy.port}",
        f"authorization: Bearer {session.api_key}",
        f"content-length: {len(content)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + content


@contextlib.asynccontextmanager
async def opened(session: AgentSession, body: Any, **headers: str) -> AsyncIterator[httpx.Response]:
    """A stream as it comes over the wire."""
    url = f"{session.base_url}/chat/completions"
    sent = {"authorization": f"Bearer {session.api_key}", **headers}
    async with (
        httpx.AsyncClient(timeout=PATIENCE) as client,
        client.stream("POST", url, json=body, headers=sent) as reply,
    ):
        yield reply


HEADER = IGNORED.decode()


def named(reply: httpx.Response) -> list[str]:
    assert reply.status_code == 200, reply.text
    return reply.headers[HEADER].split(", ") if HEADER in reply.headers else []
