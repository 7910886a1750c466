"""The OpenAPI document, the documentation, the client and a running proxy say the same of the API."""

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from safetensors.numpy import save
from tests.fleets import Fleet, running_fleet
from tests.paths import ROOT
from tests.schemas import operation_of, wrongs
from tests.unit.proxy.shards.shelf import form_of_all
from tests.unit.proxy.shards.shelf import safetensors as one_tensor

API = (ROOT / "docs" / "api.md").read_text()
CLIENT = ROOT / "client" / "rolloutfleet"
CALL = re.compile(r"`(GET|HEAD|PUT|POST|DELETE) (/[^\s`]*)`")
CHAT = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[Fleet]:
    with running_fleet(
        tmp_path_factory.mktemp("schema"), beside=shared, proxies=2, settings={"api_docs": True}
    ) as running:
        yield running


@pytest.fixture(scope="module")
def document(fleet: Fleet) -> Any:
    with fleet.proxy.admin() as admin:
        return admin.get("/openapi.json").raise_for_status().json()


def unnamed(path: str) -> str:
    return re.sub(r"\{\w*\}", "{id}", path)


def test_it_takes_the_admins_key(fleet: Fleet) -> None:
    session = fleet.proxy.start_session(here=True)
    url = f"{fleet.proxy.url}/openapi.json"
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, headers={"x-api-key": session.api_key}).status_code == 403


def test_the_page_is_there_only_where_it_is_set(fleet: Fleet) -> None:
    page = httpx.get(f"{fleet.proxy.url}/docs")
    assert page.status_code == 200 and '"/leases/{lease_id}/ack"' in page.text
    fleet.proxies[1].stop()
    del fleet.proxies[1].settings["api_docs"]
    fleet.proxies[1].start()
    fleet.proxies[1].wait_until_ready()
    assert httpx.get(f"{fleet.proxies[1].url}/docs").status_code == 404


def test_it_has_what_is_written_down_and_nothing_else(document: Any) -> None:
    has = {f"{method.upper()} {unnamed(path)}" for path, each in document["paths"].items() for method in each}
    assert has == {f"{method} {path}" for method, path in CALL.findall(API)}


def test_it_has_the_statuses_that_are_written_down(document: Any) -> None:
    for row in re.findall(r"^\| `(?:GET|HEAD|PUT|POST|DELETE) .*$", API, re.MULTILINE):
        method, path = CALL.findall(row)[0]
        replies = operation_of(document, method, path.replace("{id}", "x"))["responses"]
        told = {status for status in re.findall(r"\b([245]0\d)\b", row) if status in replies or status < "400"}
        assert told | {"default"} | (set() if {"201", "204"} & told else {"200"}) >= replies.keys() - {"404"}, row
        assert told <= replies.keys(), row


def test_what_the_client_calls_is_in_it(document: Any) -> None:
    paths = {unnamed(path) for path in document["paths"]}
    called = {path for file in sorted(CLIENT.rglob("*.py")) for path in _paths(ast.parse(file.read_text()))}
    roots = {path.split("/")[1] for path in paths}
    asked = {path for path in called if path.split("/")[1] in roots}
    assert len(asked) > 15
    patterns = {path: re.escape(path).replace(r"\{id\}", "[^/]+") for path in asked}
    assert {path for path in asked if not any(re.fullmatch(patterns[path], one) for one in paths)} == set()


def _paths(tree: ast.AST) -> Iterator[str]:
    """Paths that are written in code: `f"/leases/{lease}/ack"` is /leases/{id}/ack."""
    for node in ast.walk(tree):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        text = "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{id}"
            for part in parts
            if isinstance(part, ast.Constant | ast.FormattedValue)
        )
        if re.fullmatch(r"/[a-z{}/\-]+[a-z}](\?.*)?", text):
            yield text.partition("?")[0]


def test_a_proxy_answers_as_it_says(fleet: Fleet, document: Any) -> None:
    """One call after the other, each with what it needs from those before."""
    seen: set[str] = set()
    with fleet.proxy.admin() as admin:

        def ask(method: str, path: str, status: int = 200, **given: Any) -> Any:
            answer = admin.request(method, path, **given)
            assert answer.status_code == status, answer.text
            assert wrongs(document, answer) == [], (method, path)
            seen.add(f"{method} {operation_of(document, method, path.partition('?')[0])['operationId']}")
            return answer.json() if answer.headers.get("content-type") == "application/json" else None

        placed = {"X-RolloutFleet-Placed": "0"}
        asked = {"task_id": "t", "metadata": {"a": 1}, "limits": {"turns": 9}, "agent_may": ["reward"]}
        one = ask("POST", "/sessions", 201, json=asked, headers=placed)
        group = ask("POST", "/sessions", 201, json={"group_size": 2}, headers=placed)["sessions"]
        left = {"authorization": f"Bearer {group[0]['api_key']}"}
        ask("POST", "/v1/chat/completions", json=CHAT, headers=left)
        session, key = one["session_id"], {"authorization": f"Bearer {one['api_key']}"}
        for path in ("/v1", f"/sessions/{session}/v1"):
            ask("POST", f"{path}/chat/completions", json=CHAT, headers=key)
            ask("POST", f"{path}/messages", json={"messages": CHAT["messages"], "max_tokens": 9}, headers=key)
            ask("POST", f"{path}/messages/count_tokens", json={"messages": CHAT["messages"]}, headers=key)
            ask("HEAD", f"{path.removesuffix('/v1')}/api/hello")
            response = ask("POST", f"{path}/responses", json={"input": "Hello?"}, headers=key)["id"]
            ask("GET", f"{path}/responses/{response}", headers=key)
            ask("DELETE", f"{path}/responses/{response}", headers=key)
            ask("GET", f"{path}/models", headers=key)
            ask("GET", f"{path}/models/any", headers=key)
        ask("POST", f"/sessions/{session}/touch")
        noted = save({}, metadata={"notes": json.dumps({response.removeprefix("resp_"): "good"})})
        ask("POST", f"/sessions/{session}/annotations", content=noted)
        for path in ("", "/turns", "/turns?limit=1", "/conversation"):
            ask("GET", f"/sessions/{session}{path}")
        ask("POST", f"/sessions/{session}/reward", json={"reward": 1})
        for scope in ("", "?scope=fleet"):
            for path in ("/sessions", "/dumps", "/stats", "/audit", "/version"):
                ask("GET", path + scope)
        for given in ({"style": "individual"}, {"as": "shards"}, {}):
            lease = ask("POST", "/export", json=given)["lease_id"]
            ask("POST", f"/leases/{lease}/renew")
            ask("POST", f"/leases/{lease}/{'release' if given else 'ack'}")
        ask("POST", "/export", headers={"accept": "application/octet-stream"}, json={})
        ask("POST", f"/sessions/{session}/close")
        third = ask("POST", "/sessions", 201, json={}, headers=placed)["session_id"]
        ask("DELETE", f"/sessions/{third}", 204)
        ask("GET", f"/sessions/{third}", 410)
        tensor = one_tensor(*form_of_all("uint8", 4))
        for status in (201, 200):
            ask("PUT", "/shards/x?ttl=60", status, content=tensor)
        ask("GET", "/shards/x")
        ask("GET", "/shards/y", 404)
        ask("POST", "/shards/batch", json={"ids": ["x"]})
        ask("POST", "/shards/batch", 404, json={"ids": ["y"]})
        ask("DELETE", "/shards", json={"ids": ["x"]})
        ask("DELETE", "/shards?scope=fleet", json={"ids": ["x"]})
        ask("PUT", "/version?scope=fleet", json={"version": 1})
        ask("PUT", "/version", 409, json={"version": 0})
        for scope in ("", "?scope=fleet"):
            ask("POST", f"/pause{scope}", json={"timeout": 20})
            ask("POST", f"/continue{scope}")
            ask("POST", f"/load-from-disk{scope}", json={"path": "weights", "version": 1})
        ask("POST", "/recover?scope=fleet", json={"version": 1, "run": 1})
        for path in ("", "/at-stake?run=1&version=1", "/recovered?run=1"):
            ask("GET", f"/peers/weights{path}")
        known = ask("POST", "/peers/weights/join", json=ask("GET", "/peers/weights"))
        ask("POST", "/peers/weights/settled", 409, json={"epoch": known["epoch"] + 1, "timeout": 1})
        ask("POST", "/dumps", 409)
        ask("POST", "/drain", json={"id": "a"})
        ask("GET", "/ready", 503)
        ask("POST", "/dumps")
        name = ask("GET", "/dumps")["dumps"][0]["name"]
        ask("GET", f"/dumps/{name}")
        ask("DELETE", "/drain")
        ask("POST", "/dumps/import", json={"names": [name]})
        for path in ("/health", "/ready", "/metrics", "/proxies", "/openapi.json", "/events?follow=false"):
            ask("GET", path)
        ask("GET", "/sessions?limit=0", 400)
    everything = {
        f"{method.upper()} {one['operationId']}" for each in document["paths"].values() for method, one in each.items()
    }
    assert everything - seen == set()
