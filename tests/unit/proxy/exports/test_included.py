"""What an export includes beside tensors: messages and tools of each row, in every form, and no more than a bound."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.proxy.exports.app import served
from tests.unit.proxy.exports.test_rows_and_forms import HEAD, as_json, as_safetensors, leased
from tests.unit.proxy.stores import SyncStore, new_turn, refusing_reads

from rolloutfleet.fleet.trajectories import read_export
from rolloutfleet.wire import JSON_MEDIA_TYPE, TENSORS_MEDIA_TYPE, StartSessions
from rolloutfleet_proxy.exports import conversations
from rolloutfleet_proxy.exports import forms as export_forms
from rolloutfleet_proxy.store import damage
from rolloutfleet_proxy.store.audit import audit
from rolloutfleet_proxy.store.damage import is_sound
from rolloutfleet_proxy.store.sessions import start
from rolloutfleet_proxy.store.trajectories import close_session
from rolloutfleet_proxy.store.turns import commit_turn

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
BOTH = ["messages", "tools"]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


LOOK = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at": "é"}'}}
BEGINNING = [user("begin"), {"role": "assistant", "content": None, "tool_calls": [LOOK]}]
RESULTS = [{"role": "tool", "tool_call_id": "c", "content": "ü" * 9}, user("and?")]


def branched(store: SyncStore) -> None:
    """A turn with tools, which two extend; then a conversation without tools."""
    [(session, _)] = store.start()
    asked = {"tools": TOOLS, "template_kwargs": {"enable_thinking": False}}
    store.commit(session, name="a", messages=BEGINNING, output=[1], tools=asked)
    store.commit(session, name="b", parent=1, messages=RESULTS, output=[2])
    store.commit(session, name="c", parent=1, messages=[], output=[3])
    store.commit(session, name="d", messages=[user("else")], output=[4])
    store.run(lambda transaction: close_session(transaction, session))


def checked(rows: list[Any]) -> None:
    """The three rows of `branched`."""
    assert rows[0]["messages"] == [*BEGINNING, said("1"), *RESULTS, said("2")]
    assert rows[1]["messages"] == [*BEGINNING, said("1"), said("3")]
    assert rows[0]["tools"] == rows[1]["tools"] == TOOLS
    assert (rows[2]["messages"], rows[2]["tools"]) == ([user("else"), said("4")], [])


def test_each_row_has_its_whole_conversation_and_the_tools_it_began_with(
    store: SyncStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "_AT_ONCE", 3)
    branched(store)
    granted = leased(store, include=BOTH)
    export = as_json(store, granted)
    checked(export["trajectories"][0]["rows"])
    described, _ = as_safetensors(store, granted)
    checked(described["trajectories"][0]["rows"])


def test_individual_rows_end_with_their_own_turn(store: SyncStore) -> None:
    branched(store)
    [trajectory] = as_json(store, leased(store, include=["messages"], style="individual"))["trajectories"]
    assert [len(row["messages"]) for row in trajectory["rows"]] == [3, 6, 4, 2]
    assert all("tools" not in row for row in trajectory["rows"])


def test_rows_have_neither_where_nobody_asks(store: SyncStore) -> None:
    branched(store)
    [trajectory] = as_json(store, leased(store))["trajectories"]
    assert all(row.keys() == {"turn_ids", "reward", "tensors"} for row in trajectory["rows"])


def test_the_client_reads_both_forms_and_references(store: SyncStore) -> None:
    branched(store)
    granted = leased(store, include=BOTH)
    whole = b"".join(export_forms.json_pieces(store.read, granted, HEAD))
    flat = b"".join(export_forms.safetensors(store.read, granted, HEAD).pieces)
    for content, form in ((whole, JSON_MEDIA_TYPE), (flat, TENSORS_MEDIA_TYPE)):
        [trajectory] = read_export(content, media_type=form).trajectories
        checked([{"messages": row.messages, "tools": row.tools} for row in trajectory.rows])
    bare = read_export(b"".join(export_forms.json_pieces(store.read, leased(store), HEAD)), media_type=JSON_MEDIA_TYPE)
    assert bare.trajectories == ()


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[SimpleNamespace]:
    made = await served(tmp_path)
    async with made.client:
        yield made
    await made.store.close()
    made.store.database.close()


async def closed(api: SimpleNamespace, name: str) -> None:
    _, [session] = await api.writer.run(lambda transaction: start(transaction, api.owner, StartSessions()))
    row = (await api.sessions.named(session.name)).id
    await api.writer.run(lambda transaction: commit_turn(transaction, new_turn(row, name=name)))
    await api.writer.run(lambda transaction: close_session(transaction, row))


async def test_more_than_an_answer_holds_is_refused_and_leases_nothing(
    api: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await closed(api, "one")
    await closed(api, "two")
    monkeypatch.setattr(export_forms, "INCLUDED_LIMIT", 100)
    refused = await api.client.post("/export", json={"include": ["messages"]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")
    assert "ask for fewer trajectories" in refused.json()["error"]["message"]
    assert (await api.reader.run(audit))["turns"]["leased"] == 0
    one = (await api.client.post("/export", json={"include": ["messages"], "max_trajectories": 1})).json()
    assert [row["messages"] for row in one["trajectories"][0]["rows"]] == [[user("one"), said("3 4")]]


async def test_an_export_leases_nothing_when_a_read_of_its_rows_fails(
    api: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await closed(api, "one")
    with monkeypatch.context() as patched:
        refusing = refusing_reads(sqlite3.SQLITE_IOERR_READ)
        patched.setattr(damage, "is_sound", lambda _, **asked: is_sound(refusing, **asked))
        with pytest.raises(sqlite3.OperationalError, match="refused"):
            await api.client.post("/export", json={})
    assert (await api.reader.run(audit))["turns"]["leased"] == 0
    assert len((await api.client.post("/export", json={})).json()["trajectories"]) == 1


async def test_messages_come_beside_references_and_again_with_the_same_key(api: SimpleNamespace) -> None:
    await closed(api, "one")
    asked = {"include": BOTH, "as": "shards"}
    first = await api.client.post("/export", json=asked, headers={"Idempotency-Key": "k"})
    [row] = first.json()["trajectories"][0]["rows"]
    assert row["messages"] == [user("one"), said("3 4")] and row["tools"] == []
    assert row["tensors"]["input_ids"]["type"] == "remote_tensor"
    again = await api.client.post("/export", json=asked, headers={"Idempotency-Key": "k"})
    assert again.json()["trajectories"] == first.json()["trajectories"]
