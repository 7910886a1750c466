"""Calls that reach the wrong proxy: passed on once and whole, or told where the owner is."""

import asyncio
import json
from collections.abc import AsyncIterator, Container
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from tests.unit.proxy.cluster.served import Served, served, settings_of

from rolloutfleet_proxy.cluster.forwarding import Forwarding, PassedOn
from rolloutfleet_proxy.cluster.holding import Holding
from rolloutfleet_proxy.cluster.ownership import Ownership, owner_of_call, owner_of_names
from rolloutfleet_proxy.cluster.peers import GIVEN_UP_AFTER, Peers
from rolloutfleet_proxy.cluster.receipting import Receipting
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.http.errors import status_of
from rolloutfleet_proxy.http.headers import FORWARDED, end_to_end
from rolloutfleet_proxy.ids import GROUP, LEASE, SESSION, Owner
from rolloutfleet_proxy.lifecycle.adopted import Adopted
from rolloutfleet_proxy.services.weights import WeightService
from rolloutfleet_proxy.store.store import Reader
from rolloutfleet_proxy.telemetry.metrics import Metrics, by_label

OWNERS = [Owner(ordinal, f"{ordinal:012x}") for ordinal in range(3)]
LIMIT = 100_000
PORTS = [7000, 7001]


@dataclass
class Request:
    """What the owner saw of a call."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: list[bytes] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    def header(self, name: str) -> list[str]:
        return [value for known, value in self.headers if known == name]


class App:
    """A proxy's own app: notes what it is asked, and answers as the path's last part says."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()
        self.peers: Peers | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        target = scope["raw_path"].decode() + "?" + scope["query_string"].decode()
        headers = [(name.decode(), value.decode()) for name, value in scope["headers"]]
        request = Request(scope["method"], target, headers)
        self.requests.append(request)
        self.asked.set()
        last = scope["path"].rsplit("/", 1)[1]
        if last == "silent":
            await self._left(request, receive)
            return
        await self._read(request, receive)
        if last == "elsewhere" and not request.header(FORWARDED):
            assert self.peers is not None
            await PassedOn(self.peers, 1, body=b"".join(request.body))(scope, receive, send)
        elif last == "stream":
            await self._stream(request, receive, send)
        elif last == "cut":
            await self._start(send)
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        else:
            await self._start(send, [(b"retry-after", b"7"), (b"connection", b"close, x-own"), (b"x-own", b"1")], 418)
            await send({"type": "http.response.body", "body": b"".join(request.body)})

    async def _start(self, send: Any, headers: Any = (), status: int = 200) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"x-kind", b"a"), (b"x-kind", b"b"), *headers],
            }
        )

    async def _read(self, request: Request, receive: Any) -> None:
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                request.left.set()
                raise ConnectionError
            request.body.append(message.get("body", b""))
            request.arrived.set()
            more = message.get("more_body", False)

    async def _stream(self, request: Request, receive: Any, send: Any) -> None:
        await self._start(send)
        await send({"type": "http.response.body", "body": b"data: first\n\n", "more_body": True})
        going_on = asyncio.create_task(self.go_on.wait())
        leaving = asyncio.create_task(self._left(request, receive))
        await asyncio.wait((going_on, leaving), return_when=asyncio.FIRST_COMPLETED)
        going_on.cancel()
        if not request.left.is_set():
            await send({"type": "http.response.body", "body": b"data: last\n\n"})
        leaving.cancel()

    async def _left(self, request: Request, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        request.left.set()


@dataclass
class Proxies:
    urls: list[str]
    apps: list[App]
    metrics: Metrics
    servers: list[Served]
    client: httpx.AsyncClient

    def path(self, owner: int, what: str) -> str:
        """A path of a session that proxy `owner` made."""
        return f"{self.urls[0]}/sessions/{OWNERS[owner].name(SESSION)}/{what}"


class Weights:
    """The weights of a proxy that nobody tells of any."""

    def __init__(self) -> None:
        self.gate = SimpleNamespace(starting=False)

    async def adopt(self, known: Any) -> None:
        pass


class Imported(Adopted):
    """Sessions that were imported here, by their names, without a store."""

    def __init__(self, own: Owner, names: Container[str]) -> None:
        super().__init__(cast(Reader, None), own)
        self.names = names

    async def holds(self, session: str) -> bool:
        return session in self.names


def ownership_of(ordinal: int, peers: Peers, *, ephemeral: bool, imported: Container[str] = ()) -> Ownership:
    own = OWNERS[ordinal]
    return Ownership(own=own, peers=peers, adopted=Imported(own, imported), ephemeral=ephemeral)


@asynccontextmanager
async def running(
    *, misled: bool = False, ephemeral: bool = False, up: int = 2, imported: Container[str] = ()
) -> AsyncIterator[Proxies]:
    """Two proxies of a fleet that once had three. `misled`: each thinks that the other's address is its own."""
    async with AsyncExitStack() as stack:
        apps, metrics, servers = [App(), App()], Metrics(), []
        for ordinal in range(up):
            known = [PORTS[0], PORTS[0]] if misled else PORTS
            peers = Peers(settings_of(ordinal, known, replicas=2), ever=3)
            apps[ordinal].peers = peers
            stack.push_async_callback(peers.close)
            app = Forwarding(
                apps[ordinal],
                ownership_of(ordinal, peers, ephemeral=ephemeral, imported=imported),
                body_limit=lambda scope: LIMIT,
                metrics=metrics,
                receipting=Receipting(peers),
                holding=Holding(peers=peers, max_hold=lambda: 0.0),
            )
            servers.append(await served(app, PORTS[ordinal]))
            stack.push_async_callback(servers[ordinal].stop)
        client = await stack.enter_async_context(httpx.AsyncClient())
        yield Proxies([f"http://127.0.0.1:{port}" for port in PORTS], apps, metrics, servers, client)


def whose(path: str, headers: list[tuple[bytes, bytes]], method: str = "POST") -> Owner | None:
    return owner_of_call({"type": "http", "method": method, "path": path, "headers": headers, "query_string": b""})


def test_whose_a_call_is_follows_from_its_path_or_its_key() -> None:
    owner = OWNERS[2]
    session, lease, key = owner.name(SESSION), owner.name(LEASE), owner.key()
    bearer = [(b"authorization", f"Bearer {key}".encode())]
    assert whose(f"/sessions/{session}/v1/chat/completions", []) == owner
    assert whose(f"/sessions/{session}", bearer) == owner
    assert whose(f"/leases/{lease}/ack", []) == owner
    assert whose("/v1/chat/completions", bearer) == owner
    assert whose("/v1/models", [(b"x-api-key", key.encode())]) == owner
    for path in ("/sessions", "/version", f"/sessions/{lease}", f"/leases/{session}/ack", "/sessions/s1-x/touch"):
        assert whose(path, bearer) is None
    assert whose("/v1/models", [(b"authorization", b"Bearer something-else")]) is None


def test_what_a_body_names_has_one_owner_or_is_refused() -> None:
    one, other = OWNERS[0], OWNERS[1]
    whose = partial(owner_of_names, group=None, param="session_ids", own=one)
    assert whose([one.name(SESSION), "no name", one.name(SESSION)]) == one
    assert whose([], group=other.name(GROUP), param="group_id") == other
    assert whose(["no name"]) is None
    with pytest.raises(DomainError, match="proxies 0, 1") as refused:
        whose([one.name(SESSION), other.name(SESSION)])
    assert (status_of(refused.value), refused.value.param) == (400, "session_ids")


def test_what_was_imported_is_its_importers_whatever_its_name_says() -> None:
    one, session, group = OWNERS[0], OWNERS[1].name(SESSION), OWNERS[1].name(GROUP)
    whose = partial(owner_of_names, param="session_ids", own=one, here={session, group})
    assert whose([session, one.name(SESSION)], group=None) == one
    assert whose([], group=group) == one
    assert whose([OWNERS[1].name(SESSION)], group=None) == OWNERS[1]


def test_headers_of_one_connection_stay_on_it() -> None:
    headers = [(b"Accept", b"*/*"), (b"Connection", b"x-mine, close"), (b"X-Mine", b"1"), (b"TE", b"trailers")]
    assert end_to_end(headers) == [(b"accept", b"*/*")]


async def test_a_call_for_another_proxy_arrives_whole_and_its_answer_returns_whole() -> None:
    async with running() as proxies:
        body = bytes(range(256)) * 300
        answer = await proxies.client.post(
            proxies.path(1, "a%2Fb/echo") + "?after=1&state=a%20b",
            content=body,
            headers=[
                ("Authorization", "Bearer some-key"),
                ("Idempotency-Key", "one"),
                ("x-stainless-retry-count", "1"),
                ("Accept", "application/octet-stream"),
                ("X-Twice", "1"),
                ("X-Twice", "2"),
                ("Connection", "keep-alive, x-hop"),
                ("X-Hop", "1"),
            ],
        )
        [request] = proxies.apps[1].requests
        assert proxies.apps[0].requests == []
        assert b"".join(request.body) == body
        assert request.method == "POST"
        assert request.target.endswith("/a%2Fb/echo?after=1&state=a%20b")
        assert request.header("authorization") == ["Bearer some-key"]
        assert request.header("idempotency-key") == ["one"]
        assert request.header("x-stainless-retry-count") == ["1"]
        assert request.header("accept") == ["application/octet-stream"]
        assert request.header("x-twice") == ["1", "2"]
        assert request.header(FORWARDED) == ["0"]
        assert request.header("x-hop") == []
        assert request.header("host") == [proxies.urls[1].removeprefix("http://")]
        assert (answer.status_code, answer.content) == (418, body)
        assert answer.headers["retry-after"] == "7"
        assert answer.headers.get_list("x-kind") == ["a", "b"]
        assert "x-own" not in answer.headers
        assert len(answer.headers.get_list("date")) == 1


async def test_the_own_calls_stay() -> None:
    async with running() as proxies:
        answer = await proxies.client.get(proxies.path(0, "echo"))
        assert (answer.status_code, proxies.apps[1].requests) == (418, [])
        [request] = proxies.apps[0].requests
        assert request.header(FORWARDED) == []


async def test_a_stream_passes_as_it_comes() -> None:
    async with running() as proxies:
        async with proxies.client.stream("GET", proxies.path(1, "stream")) as answer:
            pieces = answer.aiter_raw()
            assert await anext(pieces) == b"data: first\n\n"
            proxies.apps[1].go_on.set()
            assert await anext(pieces) == b"data: last\n\n"
        assert not by_label(proxies.metrics.refused)


async def test_a_body_passes_as_it_comes() -> None:
    async with running() as proxies:
        first_arrived = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield b"one"
            await first_arrived.wait()
            yield b"two"

        call = asyncio.create_task(proxies.client.post(proxies.path(1, "echo"), content=body()))
        await proxies.apps[1].asked.wait()
        [request] = proxies.apps[1].requests
        await request.arrived.wait()
        assert request.body == [b"one"]
        first_arrived.set()
        assert (await call).content == b"onetwo"


@pytest.mark.parametrize("what", ["silent", "stream"])
async def test_a_caller_that_leaves_is_gone_at_the_owner_too(what: str) -> None:
    async with running() as proxies:
        call = asyncio.create_task(proxies.client.get(proxies.path(1, what)))
        await proxies.apps[1].asked.wait()
        call.cancel()
        await proxies.apps[1].requests[0].left.wait()
        await asyncio.gather(call, return_exceptions=True)


@pytest.mark.parametrize("lost", [[1], []], ids=["lost", "silent for long"])
@pytest.mark.parametrize("what", ["silent", "stream"])
async def test_a_call_under_way_ends_once_its_owner_is_given_up(what: str, lost: list[int]) -> None:
    async with running() as proxies:
        call = asyncio.create_task(proxies.client.get(proxies.path(1, what), timeout=None))
        await proxies.apps[1].asked.wait()
        peers = proxies.apps[0].peers
        assert peers is not None
        began = asyncio.get_running_loop().time()
        looking = asyncio.create_task(peers.begin(cast(WeightService, Weights()), own=lambda: peers.itself()))
        peers.follow(2, lost=lost)
        await proxies.apps[1].requests[0].left.wait()
        waited = asyncio.get_running_loop().time() - began
        assert waited < 5 if lost else GIVEN_UP_AFTER <= waited < GIVEN_UP_AFTER + 5
        if what == "silent":
            assert ((await call).status_code, code_of(await call)) == (503, "owner_unavailable")
        else:
            with pytest.raises(httpx.RemoteProtocolError):
                await call
        looking.cancel()


async def test_a_caller_that_leaves_in_mid_body_is_gone_at_the_owner_too() -> None:
    async with running() as proxies:

        async def body() -> AsyncIterator[bytes]:
            yield b"one"
            await asyncio.Event().wait()

        call = asyncio.create_task(proxies.client.post(proxies.path(1, "echo"), content=body()))
        await proxies.apps[1].asked.wait()
        await proxies.apps[1].requests[0].arrived.wait()
        call.cancel()
        await proxies.apps[1].requests[0].left.wait()
        await asyncio.gather(call, return_exceptions=True)
        assert not by_label(proxies.metrics.refused)


async def test_an_answer_that_breaks_off_is_not_taken_for_whole() -> None:
    async with running() as proxies:
        with pytest.raises(httpx.RemoteProtocolError):
            await proxies.client.get(proxies.path(1, "cut"))


async def test_a_body_over_the_limit_is_413_declared_or_not() -> None:
    async with running() as proxies:

        async def undeclared() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield bytes(LIMIT // 2)

        for content in (bytes(LIMIT + 1), undeclared()):
            answer = await proxies.client.post(proxies.path(1, "echo"), content=content)
            assert (answer.status_code, code_of(answer)) == (413, "body_too_large")
        at_the_limit = await proxies.client.post(proxies.path(1, "echo"), content=bytes(LIMIT))
        assert at_the_limit.status_code == 418


async def test_a_handler_passes_on_a_body_that_it_has_read() -> None:
    async with running() as proxies:
        answer = await proxies.client.post(f"{proxies.urls[0]}/elsewhere", content=b'{"group_id": "x"}')
        assert (answer.status_code, answer.content) == (418, b'{"group_id": "x"}')
        [request] = proxies.apps[1].requests
        assert b"".join(request.body) == b'{"group_id": "x"}'


async def test_a_call_is_passed_on_once_and_no_more() -> None:
    async with running(misled=True) as proxies:
        answer = await proxies.client.get(proxies.path(1, "echo"))
        assert (answer.status_code, code_of(answer)) == (503, "owner_unreachable")
        assert proxies.apps[0].requests == []


async def test_an_owner_that_does_not_answer_is_503_with_retry_after() -> None:
    async with running(up=1) as proxies:
        answer = await proxies.client.get(proxies.path(1, "echo"))
        assert (answer.status_code, code_of(answer)) == (503, "owner_unreachable")
        assert answer.headers["retry-after"] == "1"
        assert "x-should-retry" not in answer.headers
        assert by_label(proxies.metrics.refused) == {"owner_unreachable": 1}


async def test_an_owner_that_breaks_off_is_owner_unavailable_as_it_may_have_done_it() -> None:
    async with running() as proxies:
        call = asyncio.create_task(proxies.client.post(proxies.path(1, "silent"), content=b"do it"))
        await proxies.apps[1].asked.wait()
        for connection in list(proxies.servers[1].server.server_state.connections):
            connection.transport.abort()
        answer = await call
        assert (answer.status_code, code_of(answer)) == (503, "owner_unavailable")
        assert answer.headers["retry-after"] == "1"


async def test_an_owner_that_is_scaled_away_keeps_it_on_its_volume() -> None:
    async with running() as proxies:
        answer = await proxies.client.get(proxies.path(2, "echo"))
        assert (answer.status_code, code_of(answer)) == (503, "kept_on_volume")
        assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/sessions/s3-{}-{}/echo", "session_unknown"),
        ("/leases/l999999-{}-{}/ack", "lease_unknown"),
        ("/shards/t3-{}-{}", "shard_unknown"),
        ("/shards/mine?session_id=s3-{}-{}", "shard_unknown"),
    ],
)
@pytest.mark.parametrize("ephemeral", [True, False])
async def test_what_a_proxy_that_never_was_would_own_is_unknown(path: str, code: str, ephemeral: bool) -> None:
    async with running(ephemeral=ephemeral) as proxies:
        answer = await proxies.client.get(proxies.urls[0] + path.format("0" * 12, "0" * 16))
        assert (answer.status_code, code_of(answer)) == (404, code)


async def test_a_key_of_a_proxy_that_never_was_is_not_known() -> None:
    async with running() as proxies:
        key = {"authorization": f"Bearer rf-3-{'0' * 12}-{'x' * 43}"}
        answer = await proxies.client.get(f"{proxies.urls[0]}/v1/models", headers=key)
        assert (answer.status_code, code_of(answer)) == (401, "invalid_key")


async def test_an_ephemeral_owner_that_is_scaled_away_is_gone() -> None:
    async with running(ephemeral=True) as proxies:
        path = proxies.path(2, "echo")
        answer = await proxies.client.get(path)
        assert (answer.status_code, code_of(answer)) == (410, "owner_gone")
        session = path.split("/")[-2]
        assert answer.json()["error"]["dumps"] == [f"{session}-trajectory-1.json", f"{session}-active.json"]


@pytest.mark.parametrize("ordinal", [0, 1])
async def test_another_stores_session_is_lost_and_never_an_empty_one(ordinal: int) -> None:
    async with running() as proxies:
        lost = Owner(ordinal, "ffffffffffff").name(SESSION)
        answer = await proxies.client.get(f"{proxies.urls[0]}/sessions/{lost}/echo")
        assert (answer.status_code, code_of(answer)) == (410, "store_lost")
        assert by_label(proxies.metrics.refused) == {"store_lost": 1}
        assert not any(app.requests for app in proxies.apps)


@pytest.mark.parametrize("path", ["sessions/{}/echo", "shards/image-1?session_id={}"])
async def test_what_was_imported_here_is_served_here_whatever_its_id_says(path: str) -> None:
    imported = [Owner(0, "ffffffffffff").name(SESSION), OWNERS[1].name(SESSION), OWNERS[2].name(SESSION)]
    async with running(imported=imported) as proxies:
        for session in imported:
            answer = await proxies.client.get(f"{proxies.urls[0]}/{path.format(session)}")
            assert answer.status_code == 418
        assert len(proxies.apps[0].requests) == 3


def test_who_owns_nothing_here_is_told_why() -> None:
    peers = Peers(settings_of(0, [1, 2], replicas=2), ever=3)
    ownership = ownership_of(0, peers, ephemeral=False)
    assert ownership.elsewhere(OWNERS[0], named="session") is None
    assert ownership.elsewhere(OWNERS[1], named="session") == 1
    for owner, ephemeral, code in [
        (OWNERS[2], False, "kept_on_volume"),
        (OWNERS[2], True, "owner_gone"),
        (Owner(0, "ffffffffffff"), True, "store_lost"),
    ]:
        with pytest.raises(DomainError) as refused:
            ownership_of(0, peers, ephemeral=ephemeral).check(owner, named="session")
        assert refused.value.code == code


def code_of(answer: httpx.Response) -> str:
    return str(json.loads(answer.content)["error"]["code"])
