"""A caller that closes its connection and asks again, both of which the event loop learns in one round; and one that is
still asking when its proxy is stopped.

Two whole proxies and an engine on the loop of a test: what a client does without awaiting anything, they find all at
once. A round's events come in the order in which they happened, or in the opposite one.
"""

import asyncio
import json
import math
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from tests.unit.engine.serving import engine_here
from tests.unit.loop import UnitLoop
from tests.waiting import PATIENCE, comes_true

from rolloutfleet.settings import PeersSettings, ProxySettings
from rolloutfleet.spec_for_proxies import TokenizerSpec
from rolloutfleet_engine.engine import Engine
from rolloutfleet_engine.faults import Fault
from rolloutfleet_engine.model import model_path
from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_proxy.app import ProxyApp
from rolloutfleet_proxy.http.connections import Connections
from rolloutfleet_proxy.http.headers import PLACED
from rolloutfleet_proxy.http.protocol import HttpProtocol
from rolloutfleet_proxy.process.drain import POLL_INTERVAL
from rolloutfleet_proxy.tokens.loading import ModelSource
from rolloutfleet_proxy.tokens.render import ChatFormat
from rolloutfleet_proxy.wiring import Start

PORTS = [9_000, 9_001]
ADMIN = "an-admin-key-for-tests-alone"
MODEL = "simulated"
MARK = "x-stainless-retry-count: 1"
CASES = [(stream, mark) for stream in (False, True) for mark in ((), (MARK,))]


class Protocol(HttpProtocol):
    """As uvicorn makes one."""

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state, connections=Connections())


@asynccontextmanager
async def served(app: ProxyApp, port: int) -> AsyncIterator[None]:
    config = uvicorn.Config(app, port=port, http=Protocol, ws="none", log_config=None, timeout_graceful_shutdown=1)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield
    finally:
        await server.shutdown()


@dataclass
class Proxies:
    """Two, of which proxy 0 is asked."""

    apps: list[ProxyApp]
    engine: Engine
    admins: list[httpx.AsyncClient]

    @property
    def generations(self) -> int:
        """How many the engine was ever asked for."""
        return self.engine.counters["received"]

    async def session(self, owner: int) -> "Session":
        reply = await self.admins[owner].post("/sessions", json={}, headers={PLACED: str(owner)})
        return Session(self.admins[owner], reply.json()["session_id"], reply.json()["api_key"])

    async def connect(self) -> socket.socket:
        """Over which what is sent is read in the next round."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, UnitLoop)
        made = loop.connect("127.0.0.1", PORTS[0])
        await asyncio.wait(loop.accepting)
        return made


@dataclass
class Session:
    admin: httpx.AsyncClient
    name: str
    key: str

    def asking(self, *headers: str, stream: bool = False) -> bytes:
        """A call as it goes over a connection."""
        content = json.dumps({"messages": [{"role": "user", "content": "Tell"}], "max_tokens": 60, "stream": stream})
        lines = ["host: a", f"authorization: Bearer {self.key}", f"content-length: {len(content)}", *headers]
        return "\r\n".join(["POST /v1/chat/completions HTTP/1.1", *lines, "", content]).encode()

    async def turns(self) -> int:
        return len((await self.admin.get(f"/sessions/{self.name}/turns")).json()["turns"])


@pytest.fixture(scope="module")
def chat_format() -> ChatFormat:
    return ModelSource(source=str(model_path()), model=MODEL).load()


@pytest.fixture
async def proxies(tmp_path: Path, chat_format: ChatFormat) -> AsyncIterator[Proxies]:
    key_file = tmp_path / "admin.key"
    key_file.write_text(ADMIN)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(engine_here(EngineOptions(served_model_name=MODEL)))
        running = Proxies([], engine.engine, [])
        for ordinal, port in enumerate(PORTS):
            settings = ProxySettings(
                fleet="test",
                model=MODEL,
                tokenizer=TokenizerSpec(path=str(model_path())),
                ordinal=ordinal,
                replicas=len(PORTS),
                port=port,
                peers=PeersSettings(ports=PORTS),
                state_dir=tmp_path / str(ordinal),
                gateway_url=engine.url,
                admin_key_file=key_file,
            )
            app = ProxyApp(settings)
            app.start = Start(chat_format=chat_format)
            running.apps.append(app)
            await stack.enter_async_context(served(app, port))
            client = httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", headers={"authorization": f"Bearer {ADMIN}"}
            )
            running.admins.append(await stack.enter_async_context(client))
        await comes_true(lambda: engine.engine.counters["received"] == len(PORTS))  # Each proxy tries it at its start.
        yield running


@pytest.fixture(params=[False, True], ids=["in order", "reversed"])
async def order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In which a round's events come."""
    selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
    select = selector.select
    if request.param:
        monkeypatch.setattr(selector, "select", lambda timeout=None: select(timeout)[::-1])


async def said(connection: socket.socket) -> bytes:
    return await asyncio.get_running_loop().sock_recv(connection, 1 << 16)


async def all_said(connection: socket.socket) -> bytes:
    found = b""
    while piece := await said(connection):
        found += piece
    return found


@pytest.mark.parametrize("owner", [0, 1], ids=["owner", "passed on"])
@pytest.mark.parametrize("under_way", [True, False], ids=["under way", "unread"])
async def test_a_retry_that_is_heard_together_with_its_callers_leaving_is_one_generation_with_it(
    proxies: Proxies, order: None, under_way: bool, owner: int
) -> None:
    """Also where the request itself is heard only then: by a proxy that was away for as long as a client waits."""
    for stream, mark in CASES:
        session = await proxies.session(owner)
        proxies.engine.faults.append(Fault(kind="slow"))
        before = proxies.generations
        with closing(await proxies.connect()) as first, closing(await proxies.connect()) as again:
            first.sendall(session.asking(stream=stream))
            if under_way:
                await comes_true(lambda: proxies.engine.running)
            first.close()
            again.sendall(session.asking(*mark, stream=stream))
            assert (await said(again)).startswith(b"HTTP/1.1 200 ")
            await comes_true(lambda: not proxies.engine.calls)
            async with asyncio.timeout(PATIENCE):  # A stream's first bytes leave long before its commit.
                while not await session.turns():
                    await asyncio.sleep(0.01)
        assert (proxies.generations, await session.turns()) == (before + 1, 1), (stream, mark)


@pytest.mark.parametrize("owner", [0, 1], ids=["owner", "passed on"])
@pytest.mark.parametrize("under_way", [True, False], ids=["under way", "unread"])
async def test_half_closed_callers_of_equal_calls_are_both_answered(
    proxies: Proxies, order: None, under_way: bool, owner: int
) -> None:
    session = await proxies.session(owner)
    proxies.engine.faults.append(Fault(kind="slow"))
    with closing(await proxies.connect()) as first, closing(await proxies.connect()) as second:
        first.sendall(session.asking())
        if under_way:
            await comes_true(lambda: proxies.engine.running)
        first.shutdown(socket.SHUT_WR)
        second.sendall(session.asking())
        second.shutdown(socket.SHUT_WR)
        answers = await asyncio.gather(all_said(first), all_said(second))
    assert [answer.count(b"HTTP/1.1 200 ") for answer in answers] == [1, 1]
    assert await session.turns() == 2


@pytest.mark.parametrize("owner", [0, 1], ids=["owner", "passed on"])
async def test_a_call_whose_body_is_arriving_when_its_proxy_is_stopped_is_answered(
    proxies: Proxies, owner: int
) -> None:
    session = await proxies.session(owner)
    opened = proxies.apps[0].opened
    assert opened is not None
    asking = session.asking()
    with closing(await proxies.connect()) as caller:
        caller.sendall(asking[:-1])
        await comes_true(lambda: opened.under_way.before(math.inf))
        opened.services.drains.stop("SIGTERM")
        await asyncio.sleep(5 * POLL_INTERVAL)
        caller.sendall(asking[-1:])
        assert (await said(caller)).startswith(b"HTTP/1.1 200 ")
