"""Whatever is sent: a 4xx that says what is wrong and where, never a 5xx, and nothing changes."""

import importlib
import json
import pkgutil
import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load as load_tensors
from starlette.routing import Route
from tests.fleets import Fleet, ProxyProcess, running_fleet
from tests.integration.proxy.metrics import samples
from tests.unit.proxy.dialects.openai_chat.test_request import FIELDS, IN_MESSAGES, IN_TOOLS
from tests.waiting import until
from tests.wording import LIBRARIES

from rolloutfleet import errors
from rolloutfleet_proxy import control
from rolloutfleet_proxy.dialects.registry import call_paths, count_paths
from rolloutfleet_proxy.ids import LEASE, SESSION, TENSOR, Owner

BODY_LIMIT = 200_000
USER = {"role": "user", "content": "hello"}
CHAT: dict[str, Any] = {"messages": [USER], "max_tokens": 20}
CODES = {value for name, value in vars(errors).items() if name.isupper()}
SURROGATE = "\ud800"
"""Half a character: JSON can write it, UTF-8 can't. In what is said it is mended (test_ignored_fields)."""

Json = Any


class Target:
    """A proxy with a session of two turns, a trajectory and a lease; and whether any of it has changed."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.proxy = fleet.proxy
        self.session = self.proxy.start_session(agent_may=["reward"])
        self.other = self.proxy.start_session()
        for session in (self.session, self.other):
            assert [session.raw_chat(CHAT).status_code for _ in range(2)] == [200, 200]
        assert self.other.post("reward", {"reward": 1.0}).status_code == 200
        self.admin = self.proxy.admin()
        exported = self.send("POST", "/export", {"session_ids": [self.other.session_id], "lease_seconds": 7200})
        self.lease = exported.json()["lease_id"]
        self.unchanged = self.state()

    def state(self) -> Json:
        stats = self.proxy.stats()
        return {
            "audit": self.proxy.audit(),
            "turns": [self.session.turns(), self.other.turns()],
            "sessions": self.admin.get("/sessions").json()["sessions"][0].keys(),
            "engine": self.fleet.engine.counters()["received"],
            "weights": [stats[name] for name in ("run", "version", "epoch", "paused")],
            "shown": [
                # A call that is refused is use of the session, too.
                {**session.show(), "idle_seconds": 0, "last_activity_at": 0}
                for session in (self.session, self.other)
            ],
        }

    def send(self, method: str, path: str, body: Json = None, **options: Any) -> httpx.Response:
        return self.admin.request(method, path, content=_written(body), headers=_JSON, **options)

    def chat(self, body: Json, **headers: str) -> httpx.Response:
        return self.session.raw_chat(_written(body), **headers)

    def check_unchanged(self) -> None:
        assert self.state() == self.unchanged


_JSON = {"content-type": "application/json"}


def _latin(headers: dict[str, str]) -> dict[bytes, bytes]:
    """Headers as HTTP has them: httpx would refuse most of what is not ASCII."""
    return {name.encode(): value.encode("latin-1") for name, value in headers.items()}


def _written(body: Json) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[Target]:
    with running_fleet(tmp_path_factory.mktemp("bad"), beside=shared, settings={"body_limit": BODY_LIMIT}) as fleet:
        target = Target(fleet)
        yield target
        target.admin.close()
        assert "Traceback" not in fleet.proxy.log.read_text()


@pytest.fixture
def target(running: Target) -> Iterator[Target]:
    yield running
    running.check_unchanged()


def by_anthropic(reply: httpx.Response) -> bool:
    """Whether errors of this path have that API's envelope."""
    return "/v1/messages" in reply.request.url.path


def refused(reply: httpx.Response, *, status: int | None = None, param: str | None = None) -> Json:
    """The error of a refusal, whose form is checked."""
    assert 400 <= reply.status_code < 500, f"{reply.status_code} {reply.text}"
    assert status in (None, reply.status_code), reply.text
    assert reply.headers["content-type"] == "application/json"
    assert reply.json() == {"error": reply.json()["error"]} | ({"type": "error"} if by_anthropic(reply) else {})
    error = reply.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"] and error["type"].endswith("_error") and error["code"] in CODES
    # The name is the caller's, who may have called a field `bool`.
    assert not LIBRARIES.search(error["message"].removeprefix(f"{error['param']}: ")), error
    assert param in (None, error["param"]), error
    return error


# Chat


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_of_a_chat_request(target: Target, name: str) -> None:
    for value in FIELDS[name]:
        for stream in (False, True):
            error = refused(target.chat({**CHAT, "stream": stream} | {name: value}), status=400)
            assert error["param"].split("[")[0].split(".")[0] == name
            assert error["code"] in (errors.INVALID_REQUEST, errors.UNSUPPORTED_PARAMETER)


@pytest.mark.parametrize(
    ("kwargs", "name", "said"),
    [
        ({"no_such": 1}, "no_such", "it takes enable_thinking"),
        ({"enable_thinking": "x"}, "enable_thinking", "must be true or false"),
        ({"thinking_retention": "all"}, "thinking_retention", "has no argument"),
    ],
)
def test_a_template_argument_is_named(target: Target, kwargs: Json, name: str, said: str) -> None:
    for stream in (False, True):
        reply = target.chat({**CHAT, "stream": stream, "chat_template_kwargs": kwargs})
        assert said in refused(reply, status=400, param=f"chat_template_kwargs.{name}")["message"]


def test_every_field_of_a_message_and_of_a_tool(target: Target) -> None:
    for message, param in IN_MESSAGES:
        refused(target.chat({**CHAT, "messages": [message]}), status=400, param=param)
    for tool, param in IN_TOOLS:
        refused(target.chat({**CHAT, "tools": [tool]}), status=400, param=param)


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b" ", b"{", b"null", b"[]", b"1", b'"hello"', b"true", b"{}", b"\xff\xfe", b'{"messages": "\xff"}'),
        *(b'{"messages": [{"role": "user", "content": "\xc3"}]', b"[" * 1_500, b'{"messages":' + b"[" * 1_500),
        json.dumps(CHAT).encode("utf-16"),
        json.dumps(CHAT).encode() + b"x",
        json.dumps(CHAT).encode()[:-1],
        b'{"messages": [], "messages": 1}',
        *(
            json.dumps({**CHAT, "temperature": 12345}).replace("12345", number).encode()
            for number in ("NaN", "Infinity", "-Infinity", "1e999", "--1", "0x1", "1" * 5000)
        ),
    ],
    ids=lambda text: repr(text[:20]),
)
def test_what_is_no_chat_request_at_all(target: Target, text: bytes) -> None:
    refused(target.chat(text), status=400)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{**USER, "name": SURROGATE}]},
        {"messages": [{"role": "user", "content": "a", "odd": SURROGATE}]},
        {"messages": [{"role": "user", "content": "a", SURROGATE: 1}]},
        {"messages": [{"role": SURROGATE, "content": "a"}]},
        {SURROGATE: 1},
        {"model": SURROGATE},
        {"stop": SURROGATE},
        {"tools": [{"type": "function", "function": {"name": SURROGATE}}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {SURROGATE: {}}}}]},
        {"chat_template_kwargs": {"a": SURROGATE}},
        {"user": SURROGATE},
    ],
    ids=str,
)
def test_half_characters_are_refused_but_in_what_is_said(target: Target, fields: dict[str, Any]) -> None:
    refused(target.chat(CHAT | fields), status=400)
    refused(target.chat({**CHAT, "stream": True} | fields), status=400)


@pytest.mark.parametrize("text", [b"[" * 90_000, b'{"messages": [' + b"{}," * 20_000 + b"{}]}"])
def test_body_with_too_many_values_is_refused(target: Target, text: bytes) -> None:
    assert refused(target.chat(text), status=413)["code"] == errors.BODY_TOO_LARGE


def test_a_body_is_read_up_to_the_limit_and_no_further(target: Target) -> None:
    def sized(size: int) -> bytes:
        empty = len(_written({**CHAT, "user": ""}))
        return _written({**CHAT, "user": "x" * (size - empty)})

    refused(target.chat(sized(BODY_LIMIT + 1)), status=413)
    assert target.chat(b" " * BODY_LIMIT).status_code == 400

    def pieces() -> Iterator[bytes]:
        for _ in range(5):
            yield b" " * (BODY_LIMIT // 4)

    for path, key in [
        (f"/sessions/{target.session.session_id}/v1/chat/completions", target.session.api_key),
        ("/v1/chat/completions", target.session.api_key),
        ("/sessions", target.proxy.key),
        (f"/sessions/{target.session.session_id}/reward", target.proxy.key),
        ("/export", target.proxy.key),
    ]:
        headers = {"authorization": f"Bearer {key}", **_JSON}
        for content in (b" " * (BODY_LIMIT + 1), pieces()):
            error = refused(httpx.post(target.proxy.url + path, content=content, headers=headers), status=413)
            assert error["code"] == errors.BODY_TOO_LARGE


@pytest.mark.parametrize("key", ["", "x" * 256, "café", "tab\there"])
def test_idempotency_keys(target: Target, key: str) -> None:
    session = target.session
    raw = _latin({"Idempotency-Key": key})
    chat = _latin({"Idempotency-Key": key, "authorization": f"Bearer {session.api_key}"})
    refused(httpx.post(f"{session.base_url}/chat/completions", json=CHAT, headers=chat), status=400)
    for path, body in [
        ("/sessions", {}),
        (f"/sessions/{session.session_id}/reward", {"reward": 1}),
        ("/export", {"session_ids": [session.session_id]}),
    ]:
        reply = target.admin.post(path, json=body, headers=raw)
        error = refused(reply, status=400)
        assert error["param"] == "Idempotency-Key"


@pytest.mark.parametrize("count", ["", "-1", "1.5", "many", "²", "9" * 5000, "0x1"])
def test_a_retry_count_that_is_none_says_nothing(target: Target, count: str) -> None:
    bad = {**CHAT, "n": 2}
    headers = _latin({"authorization": f"Bearer {target.session.api_key}", "x-stainless-retry-count": count})
    refused(httpx.post(f"{target.session.base_url}/chat/completions", json=bad, headers=headers), status=400)


# The native API

WHOLE: list[Any] = [-1, 1.5, "1", True, None, 2**31, [], {}, 1e300]
NAMES: list[Any] = ["", "x" * 129, 1, [], {}]
SECONDS: list[Any] = [0, -1, "1", True, 1e300, []]
UNKNOWN: dict[str, list[Any]] = {"more": [1], SURROGATE: [1]}

NATIVE: dict[tuple[str, str], tuple[dict[str, Any], dict[str, list[Any]]]] = {
    ("POST", "/sessions"): (
        {},
        {
            "task_id": [1, "x" * 513, [], SURROGATE],
            "group_size": [0, *WHOLE],
            "stale_after": SECONDS,
            "await_reward": SECONDS,
            "train": [0, 1, "false", None, []],
            "replaces": NAMES,
            "group": [1, [], {}, {"quorum": 1, "deadline": 1}, {"quorum": 1, "deadline": 1, "more": 1}],
            "limits": [1, [], {"turns": 0}, {"turns": 1.5}, {"tokens": -1}, {"tokens": True}, {"more": 1}],
            "metadata": [1, [], "x", {"a": "x" * 65_536}, {"a": SURROGATE}, {SURROGATE: 1}],
            "agent_may": ["reward", ["fly"], [1], ["reward", "reward"], {}],
        },
    ),
    ("POST", "/sessions/{session}/reward"): (
        {"reward": 1.0},
        {
            "reward": ["1", True, None, [], 1e31, -1e31],
            "turn_id": [*NAMES, "turn-of-nobody", SURROGATE],
            "close": [1, "true", []],
        },
    ),
    ("POST", "/export"): (
        {},
        {
            "session_ids": [[], "x", [1], [""], ["a", "a"], ["x" * 129], {}, [SURROGATE]],
            "group_id": [*NAMES, "g0-of-nobody", SURROGATE],
            "max_trajectories": [0, 100_001, *(value for value in WHOLE if value is not None)],
            "style": ["both", 1, None],
            "discount": [-0.1, 1.1, "1", True, None],
            "as": ["parquet", 1, None],
            "lease_seconds": [0, -1, 7 * 86400 + 1, "1", None],
        },
    ),
    ("POST", "/leases/{lease}/ack"): ({}, {"trajectory_ids": ["x", [1], [""], ["of-nobody"], {}, [SURROGATE]]}),
    ("POST", "/leases/{lease}/release"): ({}, {"trajectory_ids": ["x", [1], [""], ["of-nobody"], {}]}),
    ("POST", "/leases/{lease}/renew"): ({}, {"lease_seconds": [0, -1, 7 * 86400 + 1, "1", None, []]}),
    ("POST", "/shards/batch"): (
        {"ids": ["a"]},
        {"ids": ["x", [1], [""], ["x" * 129], {}, [SURROGATE]], "partial": [1, "true", None, []]},
    ),
    ("DELETE", "/shards"): ({"ids": ["a"]}, {"ids": ["x", [1], [""], ["x" * 129], {}, [SURROGATE]]}),
    ("PUT", "/version"): ({"version": 1}, {"version": WHOLE, "epoch": [-1, 1.5, "1", True, 2**31]}),
    ("POST", "/recover"): (
        {"version": 0, "run": 0},
        {
            "version": WHOLE,
            "run": WHOLE,
            "newer": ["burn", 1, None],
            "open": ["burn", True, None],
            "confirm": [1, "true", None],
        },
    ),
    ("POST", "/pause"): (
        {},
        {"mode": ["gently", 1, None], "timeout": [*SECONDS, None], "epoch": [-1, 1.5, "1", True]},
    ),
    ("POST", "/continue"): ({}, {"epoch": [-1, 1.5, "1", True, 2**31]}),
}
"""Route -> a body that is right, and values of each field that are wrong."""


@pytest.mark.parametrize(("method", "path"), NATIVE, ids=lambda value: value)
def test_every_field_of_the_native_api(target: Target, method: str, path: str) -> None:
    right, fields = NATIVE[method, path]
    url = path.format(session=target.session.session_id, lease=target.lease)
    for name, values in (fields | UNKNOWN).items():
        for value in values:
            error = refused(target.send(method, url, right | {name: value}))
            assert error["param"] is None or name.isascii(), error
            if name.isascii():
                named = re.split(r"[.\[]", error["param"] or "")[0]
                assert named in (name, "") and (named == name or name in error["message"]), error
    for text in (b"", b"{", b"[]", b"1", b'"x"', b"\xff", b"[" * 90_000, b'{"a":' * 20_000, b'{"%s": NaN}' % b"more"):
        if text or right:
            refused(target.send(method, url, text), status=400)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_of_the_native_api_are_finite(target: Target, number: str) -> None:
    session = target.session.session_id
    for path, body in [
        (f"/sessions/{session}/reward", '{"reward": %s}'),
        ("/sessions", '{"stale_after": %s}'),
        ("/sessions", '{"metadata": {"a": %s}}'),
        ("/export", '{"discount": %s}'),
        ("/export", '{"lease_seconds": %s}'),
        ("/pause", '{"timeout": %s}'),
        (f"/leases/{target.lease}/renew", '{"lease_seconds": %s}'),
    ]:
        error = refused(target.send("POST", path, (body % number).encode()), status=400)
        assert error["param"] is None or error["param"] in ("metadata.a", *json.loads(body % 0)), error


@pytest.mark.parametrize(
    "path",
    [
        *("/sessions?limit=0", "/sessions?limit=1001", "/sessions?limit=x", "/sessions?limit=1e3", "/sessions?limit="),
        *("/sessions?cursor=x", "/sessions?cursor=-1", f"/sessions?cursor={'9' * 30}", "/sessions?cursor=0:1,1:2"),
        *("/sessions?state=some", "/sessions?scope=world", "/sessions?scope=fleet&cursor=5", "/sessions?cursor=²"),
        *("/sessions/{session}/turns?limit=0", "/sessions/{session}/turns?limit=1001"),
        *("/sessions/{session}/turns?cursor=x", "/sessions/{session}/turns?cursor=-1"),
        *("/audit?scope=x", "/stats?scope=x", "/version?scope=x"),
        *(
            "/sessions/nobody",
            "/sessions/nobody/turns",
            "/sessions/%FF",
            "/sessions/%00/turns",
            f"/sessions/{'x' * 9000}",
        ),
        *(
            "/sessions/..%2Faudit",
            "/nothing",
            "/sessions/{session}/nothing",
            "/v2/chat/completions",
            "//",
            "/%E2%80%8B",
        ),
    ],
    ids=lambda path: path[:40],
)
def test_paths_and_queries(target: Target, path: str) -> None:
    refused(target.admin.get(path.format(session=target.session.session_id)))


def test_methods(target: Target) -> None:
    session = target.session.session_id
    for method, path in [
        ("PUT", "/sessions"),
        ("DELETE", "/sessions"),
        ("GET", f"/sessions/{session}/v1/chat/completions"),
        ("PUT", "/v1/chat/completions"),
        ("PATCH", f"/sessions/{session}"),
        ("GET", "/export"),
        ("DELETE", "/version"),
        ("POST", "/audit"),
    ]:
        assert refused(target.send(method, path, {}))["code"] in (errors.METHOD_NOT_ALLOWED, errors.NOT_FOUND)


def test_a_slash_at_the_end_leads_nowhere_else(target: Target) -> None:
    for path in ("/stats/", "/health/", "/sessions/", "/v1/models/", f"/sessions/{target.session.session_id}/"):
        reply = target.admin.get(path, headers={"host": "elsewhere.example"})
        assert refused(reply, status=404)["code"] == errors.NOT_FOUND and "location" not in reply.headers


@pytest.mark.parametrize(
    "media", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "nonsense"]
)
def test_a_body_is_json_whatever_it_is_called(target: Target, media: str | None) -> None:
    headers = {} if media is None else {"content-type": media}
    for method, path, body in [
        ("POST", "/export", b'{"max_trajectories": "1"}'),
        ("POST", f"/sessions/{target.session.session_id}/reward", b'{"reward": "1"}'),
        ("PUT", "/version", b'{"version": "1"}'),
    ]:
        error = refused(target.admin.request(method, path, content=body, headers=headers), status=400)
        assert "must be a" in error["message"] and error["param"] in ("max_trajectories", "reward", "version")
    assert target.admin.post("/shards/batch", content=b'{"ids": []}', headers=headers).status_code == 200


UNREADABLE = [b"{", b'{"a" 1}', b"\xff", b"nonsense", b"[" * 1_500]
DECODERS = re.compile(r"Expecting|delimiter|Extra data|codec|parsing|malformed|truncated|recursion|byte", re.IGNORECASE)
"""Words of libraries that read JSON."""


@pytest.mark.parametrize("path", ["/sessions", "/export", "/shards/batch", "chat"])
@pytest.mark.parametrize("body", UNREADABLE, ids=lambda body: repr(body[:12]))
def test_what_cannot_be_read_as_json_is_told_so_in_the_same_words_everywhere(
    target: Target, path: str, body: bytes
) -> None:
    reply = target.chat(body) if path == "chat" else target.send("POST", path, body)
    error = refused(reply, status=400)
    assert not DECODERS.search(error["message"]), error
    assert (error["code"], error["param"]) == (errors.INVALID_JSON, None), error


def test_no_shards_at_all_are_fetched_and_cleared_like_any_others(target: Target) -> None:
    assert load_tensors(target.send("POST", "/shards/batch", {"ids": []}).content) == {}
    for scope in ("proxy", "fleet"):
        cleared = target.send("DELETE", "/shards", {"ids": []}, params={"scope": scope})
        assert cleared.status_code == 200 and (cleared.json()["deleted"], cleared.json()["bytes"]) == (0, 0)


def test_names_of_nobody(target: Target) -> None:
    for name in ("nobody", "s0-000000000000-0000000000000000", target.session.session_id + "0", "s0", "%00", "x" * 500):
        for path in ("reward", "close", "touch"):
            refused(target.send("POST", f"/sessions/{name}/{path}", {"reward": 1}))
        refused(target.send("DELETE", f"/sessions/{name}"))
    for name in ("nobody", "l0-000000000000-0000000000000000", target.lease + "0", "%00"):
        for path in ("ack", "release", "renew"):
            refused(target.send("POST", f"/leases/{name}/{path}", {}))


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"null", b"[]", b'"x"', b"{}{}", b"\xff", b"[" * 100_000, b'{"group_size": ' + b"9" * 5000 + b"}"],
    ids=lambda text: repr(text[:20]),
)
def test_what_starts_no_session(target: Target, text: bytes) -> None:
    refused(target.send("POST", "/sessions", text), status=400)


def test_who_leaves_in_the_middle_of_a_start_leaves_no_mistake(target: Target) -> None:
    """What a mistake leaves is a traceback in the log, which the fixture looks for."""
    before = _started_by_route(target.proxy, "400")
    host, port = target.proxy.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /sessions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {target.proxy.key}\r\n"
        connection.sendall(f"{head}content-length: 100\r\n\r\n{{".encode())
    until(lambda: _started_by_route(target.proxy, "400") != before)
    assert _started_by_route(target.proxy, "400") == before + 1
    assert _started_by_route(target.proxy, "201") > 0, "starts are counted under their route"


def _started_by_route(proxy: ProxyProcess, status: str) -> float:
    return samples(proxy).get(("rolloutfleet_requests_total", ("POST", "/sessions", status)), 0.0)


# Keys


def _routers() -> list[APIRouter]:
    names = [f"{control.__name__}.{found.name}" for found in pkgutil.iter_modules(control.__path__)]
    modules = [importlib.import_module(name) for name in names]
    return [module.router for module in modules if hasattr(module, "router")]


def _routes(router: APIRouter) -> list[tuple[str, set[str]]]:
    return [(route.path, route.methods or set()) for route in router.routes if isinstance(route, Route)]


def test_every_route_needs_its_key(target: Target) -> None:
    """By the proxy's own list of routes, so that a new one can't be forgotten."""
    routes = [(method, path) for router in _routers() for path, methods in _routes(router) for method in methods]
    routes += [("POST", path) for _, path in (*call_paths(), *count_paths())]
    assert len(routes) > 25
    names = {
        "session_id": target.session.session_id,
        "lease_id": target.lease,
        "shard_id": "a",
        "name": "a",
        "model": "a",
        "response_id": "a",
    }
    stranger = target.other.api_key
    for method, path in routes:
        if path in ("/health", "/ready", "/metrics"):
            continue
        url = path.replace(":path", "").format(**names)
        for headers in (
            {},
            {"authorization": "Bearer nonsense"},
            {"authorization": "Bearer"},
            {"authorization": f"Basic {target.proxy.key}"},
            {"authorization": f"Bearer {target.proxy.key}x"},
            {"x-api-key": "nonsense"},
            {"authorization": "Bearer caf\xe9"},
        ):
            reply = httpx.request(method, target.proxy.url + url, json={}, headers=_latin(headers))
            assert refused(reply, status=401)["code"] == errors.INVALID_KEY
            empty = httpx.request(method, target.proxy.url + url, headers=_latin(headers))
            assert refused(empty, status=401)["code"] == errors.INVALID_KEY
        if not path.startswith("/v1/"):  # Where the key says which session is meant.
            reply = httpx.request(
                method, target.proxy.url + url, json={}, headers={"authorization": f"Bearer {stranger}"}
            )
            assert refused(reply, status=403)["code"] == errors.FORBIDDEN_SCOPE, path


def test_who_has_no_key_is_not_told_what_became_of_what_a_name_says(target: Target) -> None:
    own = target.proxy.stats()["store_id"]
    lost, never = Owner(0, "0" * 12), Owner(9, own)
    unknown = ["", "nonsense", Owner(0, own).key(), never.key(), target.proxy.key + "x"]
    for owner, status in ((lost, 410), (never, 404)):
        for method, path in (
            ("GET", f"/sessions/{owner.name(SESSION)}"),
            ("POST", f"/sessions/{owner.name(SESSION)}/v1/chat/completions"),
            ("POST", f"/leases/{owner.name(LEASE)}/ack"),
            ("GET", f"/shards/{owner.name(TENSOR)}"),
        ):
            for key in unknown:
                reply = httpx.request(method, target.proxy.url + path, headers={"x-api-key": key})
                assert refused(reply, status=401)["code"] == errors.INVALID_KEY, path
            assert target.admin.request(method, path).status_code == status
    session = {"authorization": f"Bearer {lost.key()}"}
    told = httpx.post(f"{target.proxy.url}/sessions/{lost.name(SESSION)}/v1/chat/completions", headers=session)
    assert refused(told, status=410)["code"] == errors.STORE_LOST, "its own agent is told"


def test_a_sessions_key_opens_no_admin_route_and_the_admins_key_no_chat(target: Target) -> None:
    session = target.session
    key = {"authorization": f"Bearer {session.api_key}"}
    for method, path, body in [
        ("POST", "/sessions", {}),
        ("GET", "/sessions", None),
        ("POST", "/export", {}),
        ("POST", f"/leases/{target.lease}/ack", {}),
        ("PUT", "/version", {"version": 9}),
        ("POST", "/recover", {"version": 0, "run": 9}),
        ("POST", "/pause", {}),
        ("POST", "/continue", {}),
        ("GET", "/stats", None),
        ("GET", "/audit", None),
        ("GET", "/proxies", None),
        ("GET", "/openapi.json", None),
        ("POST", f"/sessions/{session.session_id}/close", {}),
        ("DELETE", f"/sessions/{session.session_id}", None),
    ]:
        error = refused(httpx.request(method, target.proxy.url + path, json=body, headers=key), status=403)
        assert error["code"] == errors.FORBIDDEN_SCOPE
    assert refused(session.raw_chat(CHAT, authorization=f"Bearer {target.proxy.key}"), status=401)
    not_mine = {"authorization": f"Bearer {target.other.api_key}"}
    reward = httpx.post(
        f"{target.proxy.url}/sessions/{target.other.session_id}/reward", json={"reward": 1}, headers=not_mine
    )
    assert refused(reward, status=403)["code"] == errors.FORBIDDEN_SCOPE, "its agent may not reward"


# Anything else that a client could think of

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(st.characters(), max_size=20)
)
_json = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(), max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
_MESSAGES = [
    USER,
    {"role": "assistant", "content": "a", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}]},
    {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "b"}]},
]
_VALID = {
    **CHAT,
    "messages": _MESSAGES,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
    "temperature": 1.0,
    "top_p": 0.9,
    "stop": ["END"],
    "seed": 1,
    "logprobs": True,
    "top_logprobs": 2,
    "chat_template_kwargs": {"enable_thinking": True},
    "response_format": {"type": "text"},
    "stream_options": None,
}
_EASY = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def _places(value: Json, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, the value itself left out."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for name, one in inner for place in ((*path, name), *_places(one, (*path, name)))]


def _with(value: Json, path: tuple[Any, ...], new: Json) -> Json:
    """The value with something else at a place."""
    name, *rest = path
    changed = _with(value[name], tuple(rest), new) if rest else new
    if isinstance(value, dict):
        return {**value, name: changed}
    return [changed if index == name else one for index, one in enumerate(value)]


_mutants = st.builds(lambda place, new: _with(_VALID, place, new), st.sampled_from(_places(_VALID)), _json)
_torn = st.builds(
    lambda at, bits: bytes([*_written(_VALID)[:at], *bits, *_written(_VALID)[at + len(bits) :]]),
    st.integers(0, len(_written(_VALID)) - 1),
    st.binary(min_size=1, max_size=4),
)


@_EASY
@given(body=_mutants.map(_written) | _torn | _json.map(_written) | st.binary(max_size=200))
def test_any_body_is_answered_or_refused(running: Target, body: bytes) -> None:
    before = running.fleet.engine.counters()["received"], len(running.session.turns())
    reply = running.chat(body)
    after = running.fleet.engine.counters()["received"], len(running.session.turns())
    if reply.status_code == 200:
        assert after == (before[0] + 1, before[1] + 1)
        running.unchanged = running.state()
    else:
        refused(reply)
        assert after == before


@_EASY
@given(route=st.sampled_from(sorted(NATIVE)), name=st.text(max_size=6), value=_json, data=st.data())
def test_any_body_of_the_native_api_is_answered_or_refused(
    running: Target, route: tuple[str, str], name: str, value: Json, data: st.DataObject
) -> None:
    method, path = route
    right, fields = NATIVE[route]
    body = right | {data.draw(st.sampled_from([*fields, name])): value}
    if path in ("/pause", "/recover", "/continue"):
        # What is right would stop the fleet: only what no reading of it makes right is sent.
        body["more"] = value
    reply = running.send(method, path.format(session=running.session.session_id, lease="of-nobody"), body)
    if reply.is_success:
        running.unchanged = running.state()
    else:
        refused(reply)
        running.check_unchanged()
