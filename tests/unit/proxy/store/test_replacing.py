"""A session in the place of another: of the old one nothing is left but what the ledger says."""

import dataclasses
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.unit.proxy.cluster.served import served, settings_of
from tests.unit.proxy.exports import app
from tests.unit.proxy.lifecycle.imports import Store
from tests.unit.proxy.store.test_leases import ack, ask, close, give_back, group_of, names, ready, sums
from tests.unit.proxy.stores import SyncStore

from rolloutfleet.wire import StartSessions
from rolloutfleet_proxy.cluster.peers import Peers
from rolloutfleet_proxy.domain.errors import ReplaceConflict
from rolloutfleet_proxy.domain.session import SessionRecord
from rolloutfleet_proxy.ids import SESSION, Owner
from rolloutfleet_proxy.store.sessions import find, start
from rolloutfleet_proxy.store.trajectories import discard_replaced
from rolloutfleet_proxy.store.transaction import Transaction

PORTS = [7100, 7101]


def replace_in(transaction: Transaction, *, owner: Owner, name: str, **asked: Any) -> str:
    """The session_id of the session that takes the place of this one."""
    replaced = find(transaction, name=name)
    assert isinstance(replaced, SessionRecord)
    _, [started] = start(transaction, owner, StartSessions(replaces=name, **asked), replaced=replaced)
    discard_replaced(transaction, replaced.id)
    return started.name


def replace(store: SyncStore, name: str, **asked: Any) -> tuple[int, str]:
    """(row id, session_id) of the session that takes the place of this one."""
    made = store.run(partial(replace_in, owner=store.owner, name=name, **asked))
    return store.rows("SELECT id FROM sessions WHERE name = ?", made)[0][0], made


@pytest.mark.parametrize("had_ended", [False, True])
def test_the_new_session_takes_the_place_of_the_old_one_in_its_group(store: SyncStore, had_ended: bool) -> None:
    (_, first), (old, gone), (_, last) = members = store.start(3, task_id="task", metadata={"a": 1})
    for session, _ in members:
        ready(store, session, turns=2)
    if had_ended:
        close(store, old)
    else:
        store.commit(old, name="open")
    group = group_of(store, old)
    new, name = replace(store, gone, metadata={"a": 2})
    assert store.freed == [gone]
    assert store.rows("SELECT group_name, task_id, metadata FROM sessions WHERE id = ?", new) == [
        (group, "task", '{"a":2}')
    ]
    assert [status for status in ask(store, group_id=group).statuses if status[1] != "leased"] == [(name, "not_ready")]
    assert sums(store)["turns"]["discarded"] == {"replaced": 2 if had_ended else 3}
    assert sums(store)["sessions"]["discarded"] == {"replaced": 1}
    assert sums(store)["sessions"]["created"] == 4
    store.advance(1000)
    ready(store, new)
    granted = ask(store, group_id=group, lease_seconds=10)
    assert [session for session, _ in granted.statuses] == [first, name, last]
    assert [each.session_name for each in granted.members] == [first, name, last]


def test_an_export_that_is_asked_for_again_has_the_same_order(store: SyncStore) -> None:
    (one, _), (two, other) = store.start(2)
    new, name = replace(store, store.rows("SELECT name FROM sessions WHERE id = ?", one)[0][0])
    again, newest = replace(store, name)
    for session in (two, again):
        ready(store, session)
    assert new != again
    first, second = ask(store, key="k"), ask(store, key="k")
    assert names(first) == names(second) == [f"{newest}-trajectory-1", f"{other}-trajectory-1"]


def test_a_session_that_ended_without_a_turn_is_replaced_and_counted_once(store: SyncStore) -> None:
    (old, gone), (_, _) = store.start(2)
    close(store, old)
    replace(store, gone)
    assert sums(store)["sessions"]["discarded"] == {"empty": 1} and sums(store)["sessions"]["live"] == 2


@pytest.mark.parametrize("acknowledged", [False, True])
def test_a_session_that_a_trainer_has_is_not_replaced(store: SyncStore, acknowledged: bool) -> None:
    (old, name), _ = store.start(2)
    ready(store, old)
    granted = ask(store, session_ids=[name])
    if acknowledged:
        ack(store, granted.lease)
    before = sums(store)
    with pytest.raises(ReplaceConflict):
        replace(store, name)
    assert sums(store) == before
    if not acknowledged:
        give_back(store, granted.lease)
        replace(store, name)
        assert sums(store)["turns"]["discarded"] == {"replaced": 1}


def test_a_session_that_was_replaced_comes_in_no_dump_and_its_heir_keeps_its_place_there(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", tmp_path / "dumps")
    (one, gone), (two, other) = store.start(2)
    new, name = replace(store, gone)
    for session in (new, two):
        store.commit(session, name=f"{session}-a")
    files = [*store.dump(two), *store.dump(new)]
    store.import_dumps(files)
    assert store.exported_ids() == [f"{name}-trajectory-1", f"{other}-trajectory-1"]
    assert one not in (new, two)
    store.sums()
    store.close()


# Over HTTP


@pytest.fixture
async def proxy(tmp_path: Path) -> SimpleNamespace:
    return await app.served(tmp_path)


@pytest.fixture
def post(proxy: SimpleNamespace) -> Callable[..., Awaitable[httpx.Response]]:
    async def post(path: str, body: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer: httpx.Response = await proxy.client.post(path, json=body, headers=named)
        return answer

    return post


async def test_calls_of_a_session_that_was_replaced_are_410_and_its_key_opens_nothing(
    proxy: SimpleNamespace, post: Any
) -> None:
    service = proxy.app.state.services.sessions
    old = (await service.start(StartSessions(task_id="t"), None)).sessions[0]
    answer = await post("/sessions", {"replaces": old.session_id, "task_id": "t"}, idempotency_key="k")
    assert answer.status_code == 201
    assert service.admission.sessions_open == 1
    again = await post("/sessions", {"replaces": old.session_id, "task_id": "t"}, idempotency_key="k")
    assert again.json()["session_id"] == answer.json()["session_id"]
    assert again.json()["api_key"] != answer.json()["api_key"]
    for key in (app.ADMIN, old.api_key):
        for path in ("touch", "close"):
            refused = await post(f"/sessions/{old.session_id}/{path}", authorization=f"Bearer {key}")
            assert (refused.status_code, refused.json()["error"]["code"]) == (410, "session_closed")
    refused = await post("/sessions", {"replaces": old.session_id})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "replace_conflict")
    assert "it was replaced" in refused.json()["error"]["message"]


async def test_a_refused_replacement_names_its_reason_and_changes_nothing(proxy: SimpleNamespace, post: Any) -> None:
    service = proxy.app.state.services.sessions
    old = (await service.start(StartSessions(task_id="t"), None)).sessions[0]
    for body, status, param in (
        ({"replaces": "s0-nobody"}, 404, "replaces"),
        ({"replaces": old.session_id, "task_id": "u"}, 400, "task_id"),
        ({"replaces": old.session_id, "train": False}, 400, "train"),
    ):
        refused = await post("/sessions", body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)
    assert (await post(f"/sessions/{old.session_id}/touch")).status_code == 200
    await proxy.client.delete(f"/sessions/{old.session_id}")
    assert (await post("/sessions", {"replaces": old.session_id})).json()["error"]["code"] == "session_deleted"
    assert service.admission.sessions_open == 0


async def test_an_open_session_is_replaced_where_there_is_no_room_for_another(
    proxy: SimpleNamespace, post: Any
) -> None:
    service = proxy.app.state.services.sessions
    old = (await service.start(StartSessions(), None)).sessions[0]
    service.admission.limits = service.admission.limits.model_copy(update={"sessions": 1})
    assert (await post("/sessions", {"replaces": old.session_id})).status_code == 201
    assert service.admission.sessions_open == 1


async def test_a_session_of_another_proxy_is_replaced_there(proxy: SimpleNamespace) -> None:
    asked: list[bytes] = []

    async def owner(scope: Any, receive: Any, send: Any) -> None:
        asked.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"there"})

    peers, services = Peers(settings_of(0, PORTS, replicas=2)), proxy.app.state.services
    services.ownership = dataclasses.replace(services.ownership, peers=peers)
    servers = [await served(proxy.app, PORTS[0]), await served(owner, PORTS[1])]
    name = Owner(1, "0123456789ab").name(SESSION)
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {app.ADMIN}"}) as client:
        answer = await client.post(f"http://127.0.0.1:{PORTS[0]}/sessions", json={"replaces": name})
    assert (answer.status_code, answer.text) == (201, "there")
    assert [json.loads(body) for body in asked] == [{"replaces": name}]
    for server in servers:
        await server.stop()
    await peers.close()
