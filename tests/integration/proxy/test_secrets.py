"""No answer holds a key, whatever stands where the gateway, an engine or a proxy should: what goes wrong with a request
is said in our own words, and what another program says of it is said without keys."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fleets import AgentSession, Fleet, ProxyProcess, running_fleet
from tests.waiting import PATIENCE, until

from rolloutfleet_proxy.ids import Owner, random_hex

GATEWAY_KEY = 'sk-the "key" of-the-gateway'
NEWER_KEY = "sk-the-newer-key-of-the-gateway"
CONTROL_KEY = "sk-the-key-of-the-gateways-own-routes"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}

Reply = Callable[[bytes], bytes]


def says(data: bytes) -> Reply:
    return lambda asked: data


def http(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def echo(asked: bytes) -> bytes:
    return http(asked)


def echo_as_error(status: str) -> Reply:
    return lambda asked: http(json.dumps({"error": {"message": asked.decode("latin-1")}}).encode(), status)


def echo_as_event(asked: bytes) -> bytes:
    said = json.dumps({"error": {"message": asked.decode("latin-1"), "code": 500}}).encode()
    return http(b"data: " + said + b"\n\n", kind="text/event-stream")


def echo_as_finish(asked: bytes) -> bytes:
    reason = {"type": "abort", "status_code": 500, "message": asked.decode("latin-1")}
    meta = {"finish_reason": reason, "prompt_tokens": 1, "completion_tokens": 0, "output_token_logprobs": []}
    return http(json.dumps({"output_ids": [], "meta_info": meta}).encode())


def echo_in_head(before: bytes, after: bytes = b"\r\n\r\n") -> Reply:
    return lambda asked: before + asked.replace(b"\r\n", b" ") + after


REPLIES: dict[str, Reply] = {
    "nothing": says(b""),
    "another program": says(b"220 mail.example ESMTP ready\r\n"),
    "a bad status line": says(b"HTTP/1.1 OK\r\n\r\n"),
    "a status of four digits": says(b"HTTP/1.1 2000 OK\r\n\r\n"),
    "a bad header": says(b"HTTP/1.1 200 OK\r\nno header\r\n\r\n"),
    "a header with a zero": says(b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n"),
    "a header without an end": says(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000),
    "many headers": says(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n"),
    "a bad length": says(b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n"),
    "two lengths": says(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}"),
    "less than its length": says(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"),
    "a bad chunk": says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n"),
    "a chunk that breaks off": says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nda"),
    "an unknown encoding": says(http(b"{}").replace(b"\r\n\r\n", b"\r\nContent-Encoding: zz\r\n\r\n")),
    "a web page": says(http(b"<html></html>", kind="text/html")),
    "no such page": says(http(b"<html></html>", "404 Not Found", "text/html")),
    "another place": says(http(b"", "307 Temporary Redirect").replace(b"\r\n\r\n", b"\r\nLocation: /x\r\n\r\n")),
    "an echo": echo,
    "an echo in a status line": echo_in_head(b"HTTP/1.1 400 "),
    "an echo instead of a status line": echo_in_head(b""),
    "an echo in a header's name": echo_in_head(b"HTTP/1.1 200 OK\r\n"),
    "an echo in a length": echo_in_head(b"HTTP/1.1 200 OK\r\nContent-Length: "),
    "an echo in a chunk": echo_in_head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "an echo as an event": echo_as_event,
    "an echo as a finish reason": echo_as_finish,
    **{
        f"an echo with status {status}": echo_as_error(f"{status} X")
        for status in (400, 401, 404, 409, 422, 429, 500, 502, 504)
    },
}


@dataclass
class Program:
    """Answers whatever comes to its port with `reply`, and hangs up."""

    listening: socket.socket
    reply: Reply = echo
    asked: list[bytes] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.listening.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(10)
                asked = b""
                while b"\r\n\r\n" not in asked:
                    if not (data := connection.recv(65536)):
                        return
                    asked += data
                self.asked.append(asked)
                connection.sendall(self.reply(asked.partition(b"\r\n\r\n")[0]))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
            except OSError:
                pass


@contextmanager
def program(port: int = 0) -> Iterator[Program]:
    with socket.create_server(("127.0.0.1", port)) as listening:
        running = Program(listening)
        threading.Thread(target=running.serve, daemon=True).start()
        yield running
        listening.shutdown(socket.SHUT_RDWR)


@dataclass
class Scene:
    """Two proxies whose gateway and engines are another program, and a third in whose place there is one."""

    fleet: Fleet
    gateway: Program
    third: Program
    key_file: Path
    http: httpx.Client
    sessions: list[AgentSession] = field(default_factory=list)

    @property
    def secrets(self) -> set[str]:
        keys = {GATEWAY_KEY, NEWER_KEY, CONTROL_KEY, self.fleet.proxy.key, *(each.api_key for each in self.sessions)}
        return keys | {json.dumps(key)[1:-1] for key in keys}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("secrets")
    key_file = folder / "gateway.key"
    key_file.write_text(GATEWAY_KEY)
    control_key_file = folder / "control.key"
    control_key_file.write_text(CONTROL_KEY)
    with (
        program() as gateway,
        program() as third,
        running_fleet(folder, beside=shared, proxies=2, start_proxies=False) as fleet,
    ):
        ports = [*(proxy.port for proxy in fleet.proxies), third.port]
        for proxy in fleet.proxies:
            proxy.settings |= {
                "replicas": 3,
                "peers": {"ports": ports},
                "gateway_url": gateway.url,
                "abort_rounds": 2,
                "gateway_api_key_file": str(key_file),
                "gateway_control_key_file": str(control_key_file),
            }
        # One is told of its engines, the other asks the gateway for them.
        fleet.proxies[1].settings["engine_urls"] = [gateway.url]
        for proxy in fleet.proxies:
            proxy.launch()
        for proxy in fleet.proxies:
            proxy.wait_until_ready()
        until(lambda: fleet.proxies[0].sees() == fleet.proxies[1].sees() == {0, 1})
        sessions = [proxy.start_session(here=True) for proxy in fleet.proxies]
        with httpx.Client(timeout=PATIENCE) as client:
            yield Scene(fleet, gateway, third, key_file, client, sessions)


def ask(scene: Scene, proxy: ProxyProcess, key: str, method: str, path: str, body: Any = None) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return scene.http.request(method, f"{proxy.url}{path}", headers=headers, json=body)


def chats(scene: Scene) -> Iterator[httpx.Response]:
    """Each session's chat, whole and streamed, at its owner and passed on by the other proxy."""
    for session in scene.sessions:
        for proxy in scene.fleet.proxies:
            for stream in (False, True):
                path = f"/sessions/{session.session_id}/v1/chat/completions"
                yield ask(scene, proxy, session.api_key, "POST", path, {**CHAT, "stream": stream})


FLEETWIDE: tuple[tuple[str, str, Any], ...] = (
    *(("POST", "/pause?scope=fleet", {"mode": mode, "timeout": 5}) for mode in ("abort", "wait")),
    ("POST", "/continue?scope=fleet", None),
    *(("GET", f"/{name}?scope=fleet", None) for name in ("version", "stats", "audit", "sessions", "dumps")),
    ("PUT", "/version?scope=fleet", {"version": 1}),
    ("GET", "/proxies", None),
)
"""Calls that a proxy answers by asking others."""
OF_ENGINES: tuple[tuple[str, str, Any], ...] = (
    *(("POST", "/pause", {"mode": mode, "timeout": 5}) for mode in ("abort", "wait")),
    ("POST", "/continue", None),
    *(call for call in FLEETWIDE if call[0] == "POST"),
    *(("GET", f"/{name}", None) for name in ("metrics", "ready", "sessions", "stats")),
    ("POST", "/export", {}),
)
"""Calls that make one proxy, or all, ask the gateway and the engines, and calls that show the outcome."""


def admin_calls(scene: Scene) -> Iterator[httpx.Response]:
    for proxy in scene.fleet.proxies:
        for method, path, body in OF_ENGINES:
            yield ask(scene, proxy, proxy.key, method, path, body)


def unpause(scene: Scene) -> None:
    """A proxy that could not tell the engines to go on stays paused until it can."""
    scene.gateway.reply = says(http(json.dumps({"workers": [{"url": scene.gateway.url}]}).encode()))
    for proxy in scene.fleet.proxies:
        ask(scene, proxy, proxy.key, "POST", "/continue?scope=fleet").raise_for_status()
        assert not proxy.stats()["paused"]


def own_route(asked: bytes) -> bool:
    """Whether a request is for one of the gateway's own routes, with the key of those."""
    return asked.startswith(b"GET /workers ") and b"Bearer " + CONTROL_KEY.encode() in asked


def told(answer: httpx.Response) -> str:
    return f"{answer.status_code} {answer.headers} {answer.text}"


@pytest.mark.parametrize("kind", REPLIES)
def test_an_answer_holds_no_key_whatever_the_gateway_replies(scene: Scene, kind: str) -> None:
    unpause(scene)
    scene.gateway.reply = REPLIES[kind]
    before = len(scene.gateway.asked)
    answers = [*chats(scene), *admin_calls(scene)]
    for answer in answers:
        said = told(answer)
        assert not [key for key in scene.secrets if key in said], said
        assert "RequestInfo" not in said and "object at 0x" not in said, said
    refused = [answer for answer in answers if answer.request.url.path.endswith("/chat/completions")]
    assert all(answer.status_code >= 400 or "error" in answer.text for answer in refused)
    sent = b"".join(scene.gateway.asked[before:])
    assert b"Bearer " + GATEWAY_KEY.encode() in sent and scene.sessions[0].api_key.encode() not in sent


@pytest.mark.parametrize("kind", REPLIES)
def test_an_answer_holds_no_key_of_others_whatever_stands_in_a_proxys_place(scene: Scene, kind: str) -> None:
    unpause(scene)
    scene.third.reply = REPLIES[kind]
    scene.gateway.reply = REPLIES["nothing"]
    owner = Owner(2, "0" * 12)
    own_key, name = owner.key(), f"s2-{owner.store_id}-{random_hex()}"
    calls = (
        (own_key, "POST", "/v1/chat/completions", CHAT),
        (own_key, "POST", f"/sessions/{name}/v1/chat/completions", {**CHAT, "stream": True}),
        (scene.fleet.proxy.key, "GET", f"/sessions/{name}", None),
        (scene.fleet.proxy.key, "POST", "/sessions", {}),
        *((scene.fleet.proxy.key, *call) for call in FLEETWIDE),
    )
    for proxy in scene.fleet.proxies:
        for key, *call in calls:
            try:
                answer = ask(scene, proxy, key, *call)
            except (httpx.RemoteProtocolError, httpx.ReadError):
                continue  # it is passed on as it comes, and ends as it ends
            # A proxy's answer comes as it is, so an echo of the caller's own key is the caller's own.
            others = scene.secrets - {key, json.dumps(key)[1:-1]}
            if answer.status_code == 201:
                others -= {answer.json()["api_key"]}
            assert not [each for each in others if each in told(answer)], told(answer)
            assert "RequestInfo" not in told(answer) and "object at 0x" not in told(answer), told(answer)


def test_the_gateways_key_is_read_again_while_it_runs(scene: Scene) -> None:
    unpause(scene)
    scene.gateway.reply = echo_as_error("500 X")
    pids = [proxy.stats()["pid"] for proxy in scene.fleet.proxies]

    def sent(key: str) -> bool:
        before = len(scene.gateway.asked)
        answers = [
            *chats(scene),
            ask(scene, scene.fleet.proxy, scene.fleet.proxy.key, "POST", "/pause", {"timeout": 5}),
        ]
        assert not [each for each in scene.secrets for answer in answers if each in told(answer)]
        return all(b"Bearer " + key.encode() in asked for asked in scene.gateway.asked[before:] if not own_route(asked))

    assert sent(GATEWAY_KEY)
    scene.key_file.write_text(NEWER_KEY + "\n")
    until(lambda: sent(NEWER_KEY))
    scene.key_file.write_text("")
    until(lambda: all("the gateway's keys can't be used" in proxy.log.read_text() for proxy in scene.fleet.proxies))
    assert sent(NEWER_KEY), "a file that can't be used changes nothing"
    scene.key_file.write_text(GATEWAY_KEY)
    until(lambda: sent(GATEWAY_KEY))
    assert [proxy.stats()["pid"] for proxy in scene.fleet.proxies] == pids


def test_no_log_holds_a_key(scene: Scene) -> None:
    """After all of the above."""
    for proxy in scene.fleet.proxies:
        text = proxy.log.read_text()
        assert not [key for key in scene.secrets if key in text]


def test_the_gateways_own_routes_and_the_third_place_are_asked(scene: Scene) -> None:
    assert any(map(own_route, scene.gateway.asked)), "else nothing was shown above"
    assert any(scene.fleet.proxy.key.encode() in asked for asked in scene.third.asked), "else nothing was shown above"
