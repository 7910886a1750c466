"""Responses that are shown, deleted and gone on from: at any proxy of a fleet, through kills, and when all is gone."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from tests.fleets import AgentSession, Fleet, running_fleet
from tests.waiting import PATIENCE, until

Json = Any
HELLO: dict[str, Any] = {"model": "m", "input": "Hello?", "max_output_tokens": 20}
NOWHERE = "resp_turn-0"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("pair"), beside=shared, proxies=2) as running:
        yield running


def addresses(session: AgentSession, fleet: Fleet) -> list[str]:
    """Everywhere that responses of a session are to be had with its key."""
    below = [f"{proxy.url}/sessions/{session.session_id}/v1/responses" for proxy in fleet.proxies]
    return [*below, *(f"{proxy.url}/v1/responses" for proxy in fleet.proxies)]


def call(session: AgentSession, method: str, address: str, body: Json = None) -> httpx.Response:
    return httpx.request(
        method, address, json=body, headers={"authorization": f"Bearer {session.api_key}"}, timeout=PATIENCE
    )


def made(session: AgentSession, **fields: Json) -> str:
    reply = call(session, "POST", f"{session.base_url}/responses", HELLO | fields).raise_for_status()
    name: str = reply.json()["id"]
    return name


def told(reply: httpx.Response) -> tuple[int, str, str | None]:
    error = reply.json()["error"]
    return reply.status_code, error["code"], error["param"]


def everything(session: AgentSession, fleet: Fleet, name: str) -> list[tuple[int, str, str | None]]:
    """What calls that make, show and delete a response are told everywhere."""
    answers = []
    for address in addresses(session, fleet):
        answers += [call(session, "POST", address, HELLO | {"stream": stream}) for stream in (False, True)]
        answers += [call(session, method, f"{address}/{name}") for method in ("GET", "DELETE")]
    return list(map(told, answers))


def test_a_response_is_shown_and_deleted_at_any_proxy(pair: Fleet) -> None:
    session = pair.proxy.start_session(here=True)
    for address in addresses(session, pair):
        name = made(session)
        shown = [call(session, "GET", f"{each}/{name}").raise_for_status().json() for each in addresses(session, pair)]
        assert shown == shown[:1] * 4 and shown[0]["id"] == name
        deleted = call(session, "DELETE", f"{address}/{name}").raise_for_status().json()
        assert deleted == {"id": name, "object": "response", "deleted": True}
        gone = [
            call(session, method, f"{each}/{name}") for each in addresses(session, pair) for method in ("GET", "DELETE")
        ]
        assert {told(each) for each in gone} == {(404, "response_unknown", "response_id")}
    turns = {turn["turn_id"] for turn in session.turns()}
    session.post("close").raise_for_status()
    with pair.proxy.admin() as admin:
        exported = admin.post("/export", json={"session_ids": [session.session_id]}).raise_for_status().json()
    [trajectory] = exported["trajectories"]
    assert {turn["turn_id"] for turn in trajectory["turns"]} == turns and len(turns) == 4


@pytest.mark.parametrize("store", [False, True])
def test_a_response_is_kept_whatever_store_says(pair: Fleet, store: bool) -> None:
    session = pair.proxy.start_session(here=True)
    first = made(session, store=store)
    second = made(session, store=store, previous_response_id=first)
    for name in (first, second):
        call(session, "GET", f"{session.base_url}/responses/{name}").raise_for_status()
    assert [turn["parent_id"] for turn in session.turns()] == [None, first.removeprefix("resp_")]


@pytest.mark.parametrize("field", ["background", "conversation", "prompt"])
def test_what_is_not_there_is_refused_by_name_at_any_proxy(pair: Fleet, field: str) -> None:
    session = pair.proxy.start_session(here=True)
    asked: Json = HELLO | {field: True if field == "background" else {"id": "a_1"}}
    for address in addresses(session, pair):
        for stream in (False, True):
            reply = call(session, "POST", address, asked | {"stream": stream})
            assert told(reply) == (400, "unsupported_parameter", field)
    assert session.turns() == []


def test_no_other_sessions_key_shows_or_deletes_a_response(pair: Fleet) -> None:
    session, other = (pair.proxy.start_session(here=True) for _ in range(2))
    name = made(session)
    below, by_key = addresses(session, pair)[:2], addresses(session, pair)[2:]
    for method in ("GET", "DELETE"):
        assert {told(call(other, method, f"{each}/{name}")) for each in below} == {(403, "forbidden_scope", None)}
        assert {told(call(other, method, f"{each}/{name}"))[:2] for each in by_key} == {(404, "response_unknown")}
        nobody = [httpx.request(method, f"{each}/{name}") for each in addresses(session, pair)]
        assert {told(each)[:2] for each in nobody} == {(401, "invalid_key")}
    call(session, "GET", f"{session.base_url}/responses/{name}").raise_for_status()


def test_what_names_no_response_is_404(pair: Fleet) -> None:
    session = pair.proxy.start_session(here=True)
    turn = made(session).removeprefix("resp_")
    for name in (NOWHERE, turn, "resp_", f"msg_{turn}"):
        for method in ("GET", "DELETE"):
            assert {told(call(session, method, f"{each}/{name}"))[:2] for each in addresses(session, pair)} == {
                (404, "response_unknown")
            }


def test_what_is_gone_is_a_400_to_every_call_of_the_api(pair: Fleet) -> None:
    deleted, acknowledged = (pair.proxy.start_session(here=True) for _ in range(2))
    names = [made(session) for session in (deleted, acknowledged)]
    with pair.proxy.admin() as admin:
        admin.delete(f"/sessions/{deleted.session_id}").raise_for_status()
        acknowledged.post("close").raise_for_status()
        closed = call(acknowledged, "POST", f"{acknowledged.base_url}/responses", HELLO)
        assert told(closed) == (400, "session_closed", None)
        call(acknowledged, "GET", f"{acknowledged.base_url}/responses/{names[1]}").raise_for_status()
        leased = admin.post("/export", json={"session_ids": [acknowledged.session_id]}).raise_for_status().json()
        admin.post(f"/leases/{leased['lease_id']}/ack", json={}).raise_for_status()
    assert set(everything(deleted, pair, names[0])) == {(400, "session_deleted", None)}
    assert set(everything(acknowledged, pair, names[1])) == {(400, "session_closed", None)}


def test_a_trajectory_that_was_exported_and_acknowledged_can_be_gone_on_from(pair: Fleet) -> None:
    """While its session lives, which may add to what it said."""
    session = pair.proxy.start_session(here=True)
    name = made(session)
    session.post("reward", {"reward": 1.0}).raise_for_status()
    with pair.proxy.admin() as admin:
        leased = admin.post("/export", json={"session_ids": [session.session_id]}).raise_for_status().json()
        admin.post(f"/leases/{leased['lease_id']}/ack", json={}).raise_for_status()
    made(session, previous_response_id=name)
    first, second = session.turns()
    assert (second["parent_id"], second["branch_reason"]) == (first["turn_id"], None)


def too_large(session: AgentSession, address: str) -> tuple[int, str, str | None]:
    """What a call is told whose body is announced to be too large; none of it is sent."""
    url = httpx.URL(address)
    connection = http.client.HTTPConnection(url.host, url.port, timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.putrequest("POST", url.path)
        connection.putheader("Authorization", f"Bearer {session.api_key}")
        connection.putheader("Content-Length", str(1 << 40))
        connection.endheaders()
        with connection.getresponse() as reply:
            error = json.loads(reply.read())["error"]
            return reply.status, error["code"], error["param"]


def test_what_is_refused_before_the_dialect_reads_it_has_its_form(pair: Fleet) -> None:
    session = pair.proxy.start_session(here=True)
    for address in addresses(session, pair):
        assert told(httpx.post(address, json=HELLO))[:2] == (401, "invalid_key")
        wrong = httpx.post(address, json=HELLO, headers={"authorization": "Bearer wrong"})
        assert told(wrong)[:2] == (401, "invalid_key")
        assert too_large(session, address) == (413, "body_too_large", None)
    assert session.turns() == []


def test_every_429_says_when_to_come_again(pair: Fleet) -> None:
    session = pair.proxy.start_session(here=True)
    for address in addresses(session, pair):
        pair.engine.fault("error_429", count=100)
        reply = call(session, "POST", address, HELLO)
        pair.engine.clear_faults()
        assert (told(reply)[:2], reply.headers["retry-after"]) == ((429, "engine_overloaded"), "1")
    assert session.turns() == []


def test_a_response_is_gone_on_from_after_its_proxy_was_killed_and_is_gone_with_its_store(pair: Fleet) -> None:
    owner, other = pair.proxies[1], pair.proxies[0]
    session = owner.start_session(here=True)
    asked: Json = {"instructions": "Be brief.", "metadata": {"a": "b"}}
    first, hidden = made(session, **asked), made(session, **asked)
    second = made(session, **asked, previous_response_id=first)
    call(session, "DELETE", f"{session.base_url}/responses/{hidden}").raise_for_status()
    before = [call(session, "GET", f"{session.base_url}/responses/{each}").json() for each in (first, second)]
    owner.kill()
    passed = f"{other.url}/sessions/{session.session_id}/v1/responses"
    refused = call(session, "GET", f"{passed}/{first}")
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] in ("owner_unreachable", "owner_unavailable")
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(call, session, "POST", passed, HELLO)
        until(lambda: other.gauge('rolloutfleet_calls_held{by="owner"}') == 1)
        owner.start()
        waits.result().raise_for_status()
    after = [call(session, "GET", f"{session.base_url}/responses/{each}").json() for each in (first, second)]
    assert after == before
    for name in (hidden, NOWHERE):
        assert told(call(session, "GET", f"{session.base_url}/responses/{name}"))[0] == 404
        reply = call(session, "POST", f"{session.base_url}/responses", HELLO | {"previous_response_id": name})
        assert told(reply) == (400, "previous_response_not_found", "previous_response_id")
    third = made(session, **asked, previous_response_id=second)
    parents = {f"resp_{turn['turn_id']}": (turn["parent_id"], turn["branch_reason"]) for turn in session.turns()}
    assert [parents[name] for name in (second, third)] == [
        (each.removeprefix("resp_"), None) for each in (first, second)
    ]

    owner.stop()
    shutil.rmtree(owner.settings["state_dir"])
    owner.start()
    pair.wait_until_complete()
    assert set(everything(session, pair, first)) == {(400, "store_lost", None)}
