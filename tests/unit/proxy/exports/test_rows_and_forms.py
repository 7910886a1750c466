"""Exports: rows, returns, tensors, and both forms on the wire."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.proxy.exports.app import large_sessions, served, whole_export
from tests.unit.proxy.stores import SyncStore, new_turn

from rolloutfleet.wire import AskExport, Export, ExportStyle, GiveReward, StartSessions
from rolloutfleet_proxy.control.negotiation import preferred
from rolloutfleet_proxy.domain.errors import DiskFull
from rolloutfleet_proxy.domain.session import Started
from rolloutfleet_proxy.domain.trajectory import ExportTurn
from rolloutfleet_proxy.exports import forms as export_forms
from rolloutfleet_proxy.exports.forms import json_pieces
from rolloutfleet_proxy.exports.rows import TENSORS, Row, path, rows
from rolloutfleet_proxy.services.shards import Shards
from rolloutfleet_proxy.store.audit import audit
from rolloutfleet_proxy.store.leases import Grant, grant
from rolloutfleet_proxy.store.rewards import give_reward
from rolloutfleet_proxy.store.sessions import start
from rolloutfleet_proxy.store.trajectories import close_session
from rolloutfleet_proxy.store.turns import commit_turn

# Rows and returns


def turn(number: int, parent: int | None = None, reward: float | None = None) -> ExportTurn:
    return ExportTurn(
        number=number,
        name=f"t{number}",
        parent=parent,
        prompt_tokens=2,
        output_tokens=1,
        reward=reward,
        finish_reason="stop",
        mixed_cache=False,
    )


def tree(*turns: ExportTurn) -> dict[int, ExportTurn]:
    return {turn.number: turn for turn in turns}


BRANCHED = tree(
    turn(1, None, 1.0),
    turn(2, 1),
    turn(3, 2, 4.0),
    turn(4, 2, 8.0),
    turn(5, 1, 16.0),
)


def test_concat_has_a_row_for_each_leaf_and_trains_what_is_shared_once() -> None:
    made = rows(BRANCHED, [1, 2, 3, 4, 5], style="concat", discount=0.5)
    assert made == [
        Row(3, (1, 2, 3), frozenset({1, 2, 3}), 1 + 0.5 * (0 + 0.5 * 4)),
        Row(4, (1, 2, 4), frozenset({4}), 1 + 0.5 * (0 + 0.5 * 8)),
        Row(5, (1, 5), frozenset({5}), 1 + 0.5 * 16),
    ]


def test_individual_has_a_row_for_each_turn_with_the_mean_of_its_children() -> None:
    made = rows(BRANCHED, [1, 2, 3, 4, 5], style="individual", discount=0.5)
    second = 0.5 * (4 + 8) / 2
    assert [(row.last, row.own, row.reward) for row in made] == [
        (1, (1,), 1 + 0.5 * (second + 16) / 2),
        (2, (2,), second),
        (3, (3,), 4),
        (4, (4,), 8),
        (5, (5,), 16),
    ]


def test_context_of_another_trajectory_is_neither_trained_nor_paid() -> None:
    made = rows(BRANCHED, [3, 4], style="concat", discount=0.5)
    assert made == [Row(3, (3,), frozenset({3}), 4.0), Row(4, (4,), frozenset({4}), 8.0)]
    assert path(BRANCHED, 3) == [1, 2, 3]


def test_no_discount_sums_and_zero_keeps_the_first() -> None:
    chain = tree(turn(1, None, 1.0), turn(2, 1, 2.0), turn(3, 2))
    assert [row.reward for row in rows(chain, [1, 2, 3], style="concat", discount=1.0)] == [3.0]
    assert [row.reward for row in rows(chain, [1, 2, 3], style="concat", discount=0.0)] == [1.0]


@st.composite
def forests(draw: st.DrawFn) -> tuple[dict[int, ExportTurn], list[int]]:
    count = draw(st.integers(1, 12))
    turns = {}
    for number in range(1, count + 1):
        parent = draw(st.none() | st.integers(1, number - 1)) if number > 1 else None
        turns[number] = turn(number, parent, draw(st.none() | st.floats(-4, 4)))
    first = draw(st.integers(1, count))
    return turns, list(range(first, count + 1))


@given(forests(), st.sampled_from(["concat", "individual"]), st.sampled_from([0.0, 0.5, 1.0]))
def test_every_kept_turn_trains_in_exactly_one_row(
    forest: tuple[dict[int, ExportTurn], list[int]], style: ExportStyle, discount: float
) -> None:
    turns, kept = forest
    made = rows(turns, kept, style=style, discount=discount)
    assert sorted(number for row in made for number in row.trained) == kept
    for row in made:
        assert row.trained <= set(row.own)
        assert row.own == tuple(number for number in path(turns, row.last) if number in kept) or style == "individual"
    lasts = [row.last for row in made]
    assert lasts == sorted(lasts)
    for row in made:
        summed = row.own if style == "concat" else [number for number in kept if row.last in path(turns, number)]
        assert (row.reward is None) == all(turns[number].reward is None for number in summed)
        assert discount > 0.0 or row.reward in (None, turns[row.own[0]].reward or 0.0)


# Both forms of what a store holds


def branched_session(store: SyncStore) -> tuple[int, str]:
    """Two trajectories: 1 and its children 2, 3 (and an orphan), then 4 and 5 that extend 2."""
    [(session, name)] = store.start(task_id="sum", metadata={"level": "é"})
    store.commit(session, name="a", prompt=[1, 2], output=[10, 11], logprobs=[-0.1, -0.2], version=3)
    store.commit(
        session, name="b", parent=1, prompt=[3], output=[12, 13, 14], versions=[(3, 1), (4, 2)], logprobs=[-1, -2, -3]
    )
    store.commit(session, name="lost", parent=1, prompt=[9, 9], output=[99], asks="again", delivered=False)
    store.commit(session, name="c", parent=1, prompt=[4, 4], output=[15], logprobs=[-4], asks="again")
    reward(store, session, 0.5, turn_id="a")
    reward(store, session, 2.0)
    store.commit(session, name="d", parent=2, prompt=[5], output=[16], logprobs=[-5], finish_reason="length")
    store.commit(session, name="e", parent=5, prompt=[6, 7], output=[17], logprobs=[-6], mixed_cache=True)
    store.run(lambda transaction: close_session(transaction, session))
    return session, name


def reward(store: SyncStore, session: int, value: float, **asked: Any) -> None:
    store.run(lambda transaction: give_reward(transaction, session, GiveReward(reward=value, **asked)))


def leased(store: SyncStore, **asked: Any) -> Grant:
    return store.run(lambda transaction: grant(transaction, store.owner, AskExport(**asked)))


HEAD = {"lease_id": "l", "expires_in": 1.0, "run": 0, "version": 7, "sessions": []}


def as_json(store: SyncStore, granted: Grant) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(b"".join(json_pieces(store.read, granted, HEAD)))
    return found


def as_safetensors(store: SyncStore, granted: Grant) -> tuple[dict[str, Any], dict[str, Any]]:
    """(metadata's export, tensors), as the safetensors library reads them."""
    file = export_forms.safetensors(store.read, granted, HEAD)
    body = b"".join(file.pieces)
    assert len(body) == file.size
    header = int.from_bytes(body[:8], "little")
    assert header % 8 == 0
    metadata = json.loads(body[8 : 8 + header])["__metadata__"]
    return json.loads(metadata["export"]), safetensors.numpy.load(body)


def test_json_has_exactly_what_was_sampled(store: SyncStore) -> None:
    _, name = branched_session(store)
    export = as_json(store, leased(store, discount=0.5))
    Export.model_validate(export)
    first, second = export["trajectories"]
    assert {key: first[key] for key in ("trajectory_id", "session_id", "task_id", "metadata", "marked")} == {
        "trajectory_id": f"{name}-trajectory-1",
        "session_id": name,
        "task_id": "sum",
        "metadata": {"level": "é"},
        "marked": None,
    }
    assert [each["oldest_version"] for each in export["trajectories"]] == [0, 0]
    assert [(turn["turn_id"], turn["parent_id"], turn["reward"]) for turn in first["turns"]] == [
        ("a", None, 0.5),
        ("b", "a", None),
        ("c", "a", 2.0),
    ]
    assert [(turn["turn_id"], turn["parent_id"], turn["finish_reason"]) for turn in second["turns"]] == [
        ("d", "b", "length"),
        ("e", "d", "stop"),
    ]
    assert [turn["mixed_cache"] for turn in second["turns"]] == [False, True]
    assert first["turns"][0]["message"] == {"role": "assistant", "content": "10 11"}

    one, two = first["rows"]
    assert (one["turn_ids"], one["reward"]) == (["a", "b"], 0.5)
    assert one["tensors"] == {
        "input_ids": [1, 2, 10, 11, 3, 12, 13, 14],
        "logprobs": [0, 0, *floats(-0.1, -0.2), 0, -1, -2, -3],
        "versions": [-1, -1, 3, 3, -1, 3, 4, 4],
        "turn_ids": [-1, -1, 0, 0, -1, 1, 1, 1],
        "loss_mask": [0, 0, 1, 1, 0, 1, 1, 1],
    }
    assert (two["turn_ids"], two["reward"]) == (["a", "c"], 0.5 + 0.5 * 2.0)
    assert two["tensors"] == {
        "input_ids": [1, 2, 10, 11, 4, 4, 15],
        "logprobs": [0, 0, 0, 0, 0, 0, -4],
        "versions": [-1, -1, -1, -1, -1, -1, 0],
        "turn_ids": [-1, -1, -1, -1, -1, -1, 2],
        "loss_mask": [0, 0, 0, 0, 0, 0, 1],
    }
    [three] = second["rows"]
    assert three["tensors"] == {
        "input_ids": [1, 2, 10, 11, 3, 12, 13, 14, 5, 16, 6, 7, 17],
        "logprobs": [0] * 9 + [-5, 0, 0, -6],
        "versions": [-1] * 9 + [0, -1, -1, 0],
        "turn_ids": [-1] * 9 + [3, -1, -1, 4],
        "loss_mask": [0] * 9 + [1, 0, 0, 1],
    }


def test_individual_rows_hold_the_whole_prompt(store: SyncStore) -> None:
    branched_session(store)
    granted = leased(store, style="individual", discount=0.5, credit="branch")
    first, second = as_json(store, granted)["trajectories"]
    assert [(row["turn_ids"], row["reward"]) for row in first["rows"]] == [
        (["a"], 0.5 + 0.5 * (0 + 2.0) / 2),
        (["b"], None),
        (["c"], 2.0),
    ]
    assert second["rows"][1]["tensors"]["input_ids"] == [1, 2, 10, 11, 3, 12, 13, 14, 5, 16, 6, 7, 17]
    assert second["rows"][1]["tensors"]["loss_mask"] == [0] * 12 + [1]


@pytest.mark.parametrize("style", ["concat", "individual"])
def test_safetensors_hold_the_same(store: SyncStore, style: str) -> None:
    branched_session(store)
    branched_session(store)
    granted = leased(store, style=style, discount=0.9, credit="branch")
    export = as_json(store, granted)
    described, tensors = as_safetensors(store, granted)
    flat = [row for trajectory in export["trajectories"] for row in trajectory["rows"]]
    turns = [turn for trajectory in export["trajectories"] for turn in trajectory["turns"]]
    parts = [row.pop("tensors") for row in flat]
    assert described == export, "the same object less `tensors`"
    ends = [0, *np.cumsum([len(part["input_ids"]) for part in parts]).tolist()]
    assert tensors["cu_seqlens"].dtype == np.int64 and tensors["cu_seqlens"].tolist() == ends
    for name, dtype in TENSORS.items():
        assert tensors[name].dtype == dtype
        assert tensors[name].tolist() == [value for part in parts for value in part[name]]
    returns = [row["reward"] for row in flat]
    assert None in returns
    expected = np.array([np.nan if value is None else value for value in returns], np.float32)
    assert tensors["rewards"].dtype == np.float32 and np.array_equal(tensors["rewards"], expected, equal_nan=True)
    assert tensors["rewarded"].tolist() == [value is not None for value in returns]
    assert tensors["turn_rewards"].tolist() == [turn["reward"] or 0.0 for turn in turns]
    assert tensors["turn_rewarded"].tolist() == [turn["reward"] is not None for turn in turns]
    names = [turn["turn_id"] for turn in turns]
    assert {names[index] for index in tensors["turn_ids"] if index >= 0} == set(names)


def test_nothing_leased_is_an_empty_export(store: SyncStore) -> None:
    granted = leased(store)
    assert as_json(store, granted) == HEAD | {"trajectories": []}
    described, tensors = as_safetensors(store, granted)
    assert described == HEAD | {"trajectories": []}
    assert tensors["cu_seqlens"].tolist() == [0]
    assert all(len(tensors[name]) == 0 for name in tensors if name != "cu_seqlens")


def test_a_header_that_no_reader_takes_is_refused_before_the_rest_is_read(
    store: SyncStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    branched_session(store)
    branched_session(store)
    granted, read = leased(store), []

    def noting(load: Any) -> Any:
        read.append(load.func)
        return store.read(load)

    monkeypatch.setattr(export_forms, "HEADER_LIMIT", 500)
    with pytest.raises(export_forms.TooLarge):
        export_forms.safetensors(noting, granted, HEAD)
    assert len(granted.members) == 4 and read.count(export_forms.load_plan) == 1


def floats(*values: float) -> list[float]:
    return np.array(values, np.float32).tolist()  # type: ignore[no-any-return]


# Over HTTP


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[SimpleNamespace]:
    """The routes over a real store; what they need of a proxy beside it stands still."""
    made = await served(tmp_path)
    async with made.client:
        yield made
    await made.store.close()
    made.store.database.close()


async def started(api: SimpleNamespace, *, agent_may: tuple[str, ...] = (), turns: int = 1) -> Started:
    asked = StartSessions.model_validate({"agent_may": list(agent_may)})
    session: Started
    _, [session] = await api.writer.run(lambda transaction: start(transaction, api.owner, asked))
    row = (await api.sessions.named(session.name)).id
    for number in range(turns):
        made = new_turn(row, name=f"turn-{row}-{number}", parent=number or None, tokens=4 * number)
        await api.writer.run(lambda transaction, made=made: commit_turn(transaction, made))
    return session


async def test_shards_that_the_disk_refuses_leave_nothing_leased(
    api: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> None:
        raise DiskFull("no room")

    session = await started(api)
    await api.client.post(f"/sessions/{session.name}/close")
    with monkeypatch.context() as full:
        full.setattr(Shards, "put_export", refuse)
        assert (await api.client.post("/export", json={"as": "shards"})).status_code == 507
    export = (await api.client.post("/export", json={})).json()
    assert export["sessions"] == [{"session_id": session.name, "status": "leased"}]


async def test_reward_export_acknowledge(api: SimpleNamespace) -> None:
    session = await started(api)
    answer = await api.client.post(f"/sessions/{session.name}/reward", json={"reward": 1.5})
    assert answer.json()["trajectory_id"] == f"{session.name}-trajectory-1"
    export = await api.client.post("/export", json={})
    lease = export.headers["lease-id"]
    assert export.headers["content-type"] == "application/json"
    body = export.json()
    assert (body["lease_id"], body["expires_in"], body["run"], body["version"]) == (lease, 600.0, 2, 7)
    assert (body["ordinals"], body["failed"]) == ([0], [])
    assert body["sessions"] == [{"session_id": session.name, "status": "leased"}]
    assert body["trajectories"][0]["rows"][0]["reward"] == 1.5
    renewed = await api.client.post(f"/leases/{lease}/renew", json={"lease_seconds": 5})
    assert renewed.json() == {"lease_id": lease, "expires_in": 5.0, "ordinals": [0]}
    done = await api.client.post(f"/leases/{lease}/ack")
    named = [f"{session.name}-trajectory-1"]
    assert done.json() == {"lease_id": lease, "acknowledged": named, "ordinals": [0]}
    assert (await api.client.post(f"/leases/{lease}/ack")).json() == done.json()
    assert (await api.client.post(f"/leases/{lease}/release")).status_code == 409
    assert (await api.client.post("/leases/l0-x/ack")).json()["error"]["code"] == "lease_unknown"


async def test_safetensors_by_accept(api: SimpleNamespace) -> None:
    session = await started(api)
    await api.client.post(f"/sessions/{session.name}/reward", json={"reward": 1})
    answer = await api.client.post(
        "/export", json={"session_ids": [session.name]}, headers={"Accept": "application/octet-stream"}
    )
    assert answer.headers["content-type"] == "application/octet-stream"
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert safetensors.numpy.load(answer.content)["rewards"].tolist() == [1.0]
    assert answer.headers["lease-id"]


async def test_nothing_to_lease_has_no_lease_id(api: SimpleNamespace) -> None:
    answer = await api.client.post("/export", json={})
    assert answer.status_code == 200
    assert "lease-id" not in answer.headers
    assert (answer.json()["lease_id"], answer.json()["trajectories"]) == (None, [])


async def test_the_same_key_brings_the_same_after_a_release(api: SimpleNamespace) -> None:
    session = await started(api)
    await api.client.post(f"/sessions/{session.name}/reward", json={"reward": 1})
    headers = {"Idempotency-Key": "step-1"}
    first = await api.client.post("/export", json={}, headers=headers)
    released = await api.client.post(f"/leases/{first.headers['lease-id']}/release", json={})
    assert released.json()["released"] == [f"{session.name}-trajectory-1"]
    again = await api.client.post("/export", json={}, headers=headers)
    assert again.json() == first.json()
    other = await api.client.post("/export", json={"style": "individual"}, headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")


@pytest.mark.parametrize(
    ("body", "headers", "status", "param"),
    [
        ({"as": "shards"}, {"Accept": "application/octet-stream"}, 406, "Accept"),
        ({}, {"Accept": "text/html"}, 406, "Accept"),
        ({}, {"Accept": "application/json;q=0"}, 406, "Accept"),
        ({}, {"Idempotency-Key": "k" * 256}, 400, "Idempotency-Key"),
        ({"group_id": "g0-none"}, {}, 404, "group_id"),
    ],
)
async def test_what_is_refused_leases_nothing(
    api: SimpleNamespace, body: dict[str, Any], headers: dict[str, str], status: int, param: str
) -> None:
    session = await started(api)
    await api.client.post(f"/sessions/{session.name}/reward", json={"reward": 1})
    answer = await api.client.post("/export", json=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    assert (await api.reader.run(audit))["turns"]["leased"] == 0


@pytest.mark.parametrize(
    "body",
    [
        {"session_ids": []},
        {"session_ids": ["a"], "group_id": "b"},
        {"session_ids": ["a", "a"]},
        {"max_trajectories": 0},
        {"max_trajectories": True},
        {"max_trajectories": "3"},
        {"style": "both"},
        {"discount": 1.5},
        {"discount": "1"},
        {"lease_seconds": 0},
        {"lease_seconds": 1e9},
        {"as": "files"},
        {"more": 1},
        [],
    ],
)
async def test_bad_values_are_refused(api: SimpleNamespace, body: Any) -> None:
    assert (await api.client.post("/export", json=body)).status_code == 422, "the app answers 400 for these"


async def test_exports_and_leases_are_the_admins(api: SimpleNamespace) -> None:
    session = await started(api, agent_may=("reward",))
    key = {"Authorization": f"Bearer {session.key}"}
    for route in ("/export", "/leases/x/ack", "/leases/x/release", "/leases/x/renew"):
        assert (await api.client.post(route, json={}, headers=key)).status_code == 403
        assert (await api.client.post(route, json={}, headers={"Authorization": ""})).status_code == 401


async def test_a_session_rewards_itself_where_it_may(api: SimpleNamespace) -> None:
    may, may_not = await started(api, agent_may=("reward",)), await started(api)
    for session, status in ((may, 200), (may_not, 403)):
        answer = await api.client.post(
            f"/sessions/{session.name}/reward",
            json={"reward": 1},
            headers={"Authorization": f"Bearer {session.key}"},
        )
        assert answer.status_code == status


async def test_a_reward_again_with_its_key_answers_as_the_first(api: SimpleNamespace) -> None:
    session = await started(api)
    headers = {"Idempotency-Key": "r"}
    first = await api.client.post(f"/sessions/{session.name}/reward", json={"reward": 1}, headers=headers)
    later = new_turn((await api.sessions.named(session.name)).id, name="later")
    await api.writer.run(lambda transaction: commit_turn(transaction, later))
    again = await api.client.post(f"/sessions/{session.name}/reward", json={"reward": 1}, headers=headers)
    assert again.json() == first.json()
    other = await api.client.post(f"/sessions/{session.name}/reward", json={"reward": 2}, headers=headers)
    assert other.status_code == 422


async def test_a_header_too_large_gives_everything_back(api: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await started(api)
    await api.client.post(f"/sessions/{session.name}/reward", json={"reward": 1})
    monkeypatch.setattr(export_forms, "HEADER_LIMIT", 100)
    answer = await api.client.post("/export", json={}, headers={"Accept": "application/octet-stream"})
    assert answer.status_code == 400
    assert (await api.reader.run(audit))["turns"]["leased"] == 0


@pytest.mark.parametrize("media", ["application/json", "application/octet-stream"])
async def test_a_large_export_is_made_in_pieces_beside_the_loop(api: SimpleNamespace, media: str) -> None:
    """How long others wait meanwhile is measured in `tests/timing`."""
    await api.writer.run(lambda transaction: large_sessions(transaction, api.owner, sessions=8))
    done = asyncio.Event()
    turns = 0
    turns_between: list[int] = []
    sizes: list[int] = []

    async def work() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            await asyncio.sleep(0)

    def took(size: int) -> None:
        nonlocal turns
        if size:
            sizes.append(size)
            turns_between.append(turns)
            turns = 0

    working = asyncio.create_task(work())
    await whole_export(api.app, media, took)
    done.set()
    await working
    assert sum(sizes) > 5_000_000
    assert max(sizes) < 4_000_000
    assert len(sizes) > 2 and min(turns_between) > 0


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, "a/x"),
        ("", "a/x"),
        ("*/*", "a/x"),
        ("b/y", "b/y"),
        ("B/Y; q=0.1", "b/y"),
        ("a/x;q=0.5, b/y", "b/y"),
        ("a/*;q=0.9, b/*;q=0.8", "a/x"),
        ("b/y, */*", "b/y"),
        ("a/x, b/y", "a/x"),
        ("*/*, a/x;q=0", "b/y"),
        ("text/html", None),
        ("a/x;q=0", None),
        ("a/x;q=nonsense, b/y;q=0.1", "b/y"),
        ("a/x;q=nan", None),
        (";;, ,", None),
    ],
)
def test_which_form_an_accept_header_asks_for(accept: str | None, expected: str | None) -> None:
    assert preferred(accept, ("a/x", "b/y")) == expected
