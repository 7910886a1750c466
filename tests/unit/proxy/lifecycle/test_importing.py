"""Dumps taken in again: exported as if nothing had happened, once, and all of them or none."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.client.dumps.samples import turn
from tests.unit.client.dumps.strangers import BAD_HEADS, IRREGULAR
from tests.unit.proxy.lifecycle.imports import Store, refusal
from tests.unit.proxy.summing import said, summed

from rolloutfleet.dumps.form import Damaged, DumpedLineage, DumpedShard, encode
from rolloutfleet.dumps.reading import decode
from rolloutfleet.dumps.tensors import Tensor
from rolloutfleet.wire import CloseSession, GiveReward, ImportDumps
from rolloutfleet_proxy.domain.errors import DiskFull, DomainError, StoreBusy
from rolloutfleet_proxy.domain.lineage import MAIN, Lineage
from rolloutfleet_proxy.domain.matching import Matching
from rolloutfleet_proxy.domain.recovery import DROP
from rolloutfleet_proxy.domain.turn import Extras
from rolloutfleet_proxy.http.errors import status_of
from rolloutfleet_proxy.lifecycle.contents import turn_row
from rolloutfleet_proxy.lifecycle.folder import DumpFolder
from rolloutfleet_proxy.services.importing import Importer
from rolloutfleet_proxy.store import imports, recoveries, writer
from rolloutfleet_proxy.store.dumps import turn_ids
from rolloutfleet_proxy.store.leases import acknowledge, release
from rolloutfleet_proxy.store.rewards import give_reward
from rolloutfleet_proxy.store.trajectories import close_session, delete_session
from rolloutfleet_proxy.store.writer import Writer

STRANGERS = {name: make for name, make in (IRREGULAR | BAD_HEADS).items() if name != "2 GiB of nothing"}
"""Without those that a process of its own reads."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store", tmp_path / "dumps")
    yield store
    store.close()


def branched(store: Store, session: int) -> None:
    """Two trajectories, the second of which stands on the first; an orphan; rewards, versions and runs of all kinds."""
    first = store.commit(session, name=f"{session}-a", output=[7, 8, 9], logprobs=[-0.1, -1e-30, -3.5], version=2)
    store.commit(session, name=f"{session}-b", parent=first, versions=[(2, 1), (3, 1)], mixed_cache=True)
    store.run(lambda transaction: transaction.execute("UPDATE turns SET reward = 0.1 WHERE number = 1").rowcount)
    store.trajectory(session, reward_turn=first)
    left = store.commit(session, name=f"{session}-c", parent=first, prompt=[], output=[5])
    store.commit(
        session,
        name=f"{session}-d",
        parent=left,
        run=1,
        extras=Extras(cached_tokens=2),
        finish_reason="length",
        lineage=Lineage("a1", "subagent", "main"),
    )
    store.commit(session, name=f"{session}-e", parent=first, asks="lost", delivered=False)
    store.commit(session, name=f"{session}-f", parent=first, asks="lost")
    store.run(lambda transaction: transaction.execute("UPDATE turns SET reward = -2.5 WHERE number = 4").rowcount)
    store.trajectory(session)


def test_an_import_is_exported_as_it_would_have_been(store: Store) -> None:
    ((session, name),) = store.start(metadata={"seed": 1e16, "names": ["ä", None]}, task_id="task")
    branched(store, session)
    before = store.exported(session_ids=[name])
    names = store.dump(session)
    assert store.exported(session_ids=[name])["concat", "json"] == b'{"lease_id":null,"trajectories":[]}'
    store.import_dumps(names)
    assert store.exported(session_ids=[name]) == before
    assert store.exported(max_trajectories=64) == before
    sums = store.sums()
    assert (sums["turns"]["dumped"], sums["turns"]["imported"], sums["turns"]["live"]) == (5, 5, 5)
    assert (sums["sessions"]["dumped"], sums["sessions"]["imported"], sums["sessions"]["live"]) == (1, 1, 1)
    store.ack(store.ask(session_ids=[name]))
    sums = store.sums()
    assert (sums["turns"]["live"], sums["turns"]["acknowledged"], sums["keys"]) == (0, 5, 0)
    assert [file.name for file in sorted(store.dumps.iterdir())] == [f"{name}.imported" for name in names]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)], ids=str)
def test_parts_of_a_session_come_in_in_any_order(store: Store, order: tuple[int, ...]) -> None:
    ((session, name),) = store.start()
    branched(store, session)
    left = store.commit(session, name="open-a", parent=3)
    store.commit(session, name="open-b", parent=left, asks="again", delivered=False)
    store.commit(session, name="open-c", parent=left, asks="again")
    names = store.dump(session)
    assert names == [f"{name}-trajectory-1.json", f"{name}-trajectory-2.json", f"{name}-active.json"]
    for place in order:
        (arrived,) = store.import_dumps([names[place]])
        assert arrived.trajectory_id == f"{name}-trajectory-{place + 1}"
        assert said(store) == summed(store)
        store.sums()
    assert store.exported_ids(session_ids=[name]) == [f"{name}-trajectory-{number}" for number in (1, 2, 3)]
    assert store.rows("SELECT trajectories FROM sessions") == [(3,)]
    sums = store.sums()
    assert (sums["sessions"]["imported"], sums["turns"]["imported"], sums["turns"]["live"]) == (1, 8, 7)
    assert sums["turns"]["discarded"] == {"orphan": 2}, "one of the first life, one of what was open"


def test_what_was_open_becomes_the_trajectory_that_closing_would_have_made(store: Store) -> None:
    sessions = store.start(2)
    for session, _ in sessions:
        left = store.commit(session, name="a")
        store.commit(session, name="b", parent=left, asks="again", delivered=False)
        store.commit(session, name="c", parent=left, asks="again")
    (session, name), (twin, twin_name) = sessions
    store.trajectory(twin)
    expected = {
        key: value.replace(twin_name.encode(), name.encode())
        for key, value in store.exported(session_ids=[twin_name]).items()
    }
    store.import_dumps(store.dump(session))
    assert store.exported(session_ids=[name]) == expected


def test_what_others_extend_is_not_taken_for_imported(store: Store) -> None:
    """Its turns are in the store, as context of a later trajectory; the dump is all that there is of it."""
    ((session, name),) = store.start()
    first = store.commit(session, name="a")
    store.trajectory(session)
    store.commit(session, name="b", parent=first)
    store.trajectory(session)
    before = store.exported(session_ids=[name])
    names = store.dump(session)
    store.import_dumps(names[1:])
    assert refusal(store, names[1:])[:2] == (409, "already_imported")
    ((session,),) = store.rows("SELECT id FROM sessions")
    (store.dumps / names[1]).write_bytes((store.dumps / f"{names[1]}.imported").read_bytes())
    known = turn_ids(store.connection, session)
    assert [DumpFolder(store.dumps, store.owner).holds_only(each, known) for each in names] == [False, True]
    store.import_dumps(names[:1])
    assert store.exported(session_ids=[name]) == before
    assert store.sums()["turns"]["imported"] == 2


@pytest.mark.parametrize(("of_the_episode", "own"), [(True, False), (True, True), (False, False)])
def test_trajectory_keeps_return_and_training_when_the_rewarded_one_was_acknowledged(
    store: Store, of_the_episode: bool, own: bool
) -> None:
    ((session, name),) = store.start()
    first = store.commit(session, name="a")
    store.commit(session, name="b", parent=first)
    asked = GiveReward(reward=0.5, turn_id=None if of_the_episode else "b", close=True)
    store.run(lambda transaction: give_reward(transaction, session, asked))
    store.commit(session, name="c")
    if own:
        store.commit(session, name="d")
        beside = GiveReward(reward=2.0, turn_id="d")
        store.run(lambda transaction: give_reward(transaction, session, beside))
    failed = CloseSession(outcome="failed")
    store.run(lambda transaction: close_session(transaction, session, failed))
    granted = store.ask(session_ids=[name])
    store.ack(granted, [f"{name}-trajectory-1"])
    lease = granted.lease
    assert lease is not None
    store.run(lambda transaction: release(transaction, lease))
    before = store.exported(session_ids=[name])
    row = json.loads(before["concat", "json"])["trajectories"][0]["rows"][0]
    assert row["reward"] == (0.25 if of_the_episode else None) and 1 in row["tensors"]["loss_mask"]
    store.import_dumps(store.dump(session))
    assert store.exported(session_ids=[name]) == before
    ((session,),) = store.rows("SELECT id FROM sessions")
    store.import_dumps(store.dump(session))
    assert store.exported(session_ids=[name]) == before


def test_members_that_come_together_are_exported_together(store: Store) -> None:
    members = store.start(3)
    for session, name in members:
        store.commit(session, name=name)
        store.trajectory(session)
    before = store.exported_ids(max_trajectories=1)
    names = [dump for session, _ in members for dump in store.dump(session)]
    store.import_dumps(names[::-1])
    assert store.exported_ids(max_trajectories=1) == before and len(before) == 3


def test_a_dump_is_imported_once(store: Store) -> None:
    ((session, name),) = store.start()
    branched(store, session)
    names = store.dump(session)
    copies = {dump: (store.dumps / dump).read_bytes() for dump in names}
    store.import_dumps(names)
    assert refusal(store, names)[:2] == (409, "already_imported")
    for dump, content in copies.items():
        (store.dumps / dump).write_bytes(content)
    assert refusal(store, names)[:2] == (409, "already_imported"), "it is here"
    store.ack(store.ask(session_ids=[name]))
    assert refusal(store, names)[:2] == (409, "already_imported"), "it was here"


def test_dump_is_imported_from_the_folder_that_is_in_force(store: Store, tmp_path: Path) -> None:
    ((session, _),) = store.start()
    store.commit(session, name="turn")
    names = store.dump(session)
    moved = store.dumps.rename(tmp_path / "moved")
    store.folder_of_dumps = DumpFolder(moved, store.owner)
    store.import_dumps(names)
    assert [file.name for file in moved.iterdir()] == [f"{name}.imported" for name in names]


def test_what_was_imported_can_be_dumped_and_imported_again(store: Store) -> None:
    ((session, name),) = store.start()
    branched(store, session)
    before = store.exported(session_ids=[name])
    for _ in range(3):
        ((session,),) = store.rows("SELECT id FROM sessions")
        store.import_dumps(store.dump(session))
        assert store.exported(session_ids=[name]) == before
    assert store.sums()["turns"]["imported"] == 15


def test_of_two_calls_one_wins(store: Store) -> None:
    ((session, _),) = store.start()
    branched(store, session)
    names = store.dump(session)

    async def both() -> list[Any]:
        asked = ImportDumps(names=names)
        return await asyncio.gather(*(store.importer.run(asked) for _ in range(2)), return_exceptions=True)

    won, lost = store.wait(both())
    assert len(won) == 2 and isinstance(lost, DomainError) and lost.code == "already_imported"
    assert store.sums()["turns"]["imported"] == 5


def test_of_two_proxies_over_one_folder_one_wins(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other", store.dumps, ordinal=1)
    try:
        ((session, name),) = store.start()
        branched(store, session)
        before = store.exported(session_ids=[name])
        names = store.dump(session)
        other.import_dumps(names)
        assert refusal(store, names)[:2] == (409, "already_imported")
        assert other.exported(session_ids=[name]) == before
        assert other.wait(other.adopted.holds(name)) and not store.wait(store.adopted.holds(name))
        other.reopen()
        assert other.wait(other.adopted.holds(name)), "also after a restart"
        ((group,),) = other.rows("SELECT group_name FROM sessions")
        assert other.wait(other.adopted.among([], group=group)) == {group}
        other.ack(other.ask(session_ids=[name]))
        assert other.wait(other.adopted.holds(name)), "its tombstone answers"
    finally:
        other.close()


def test_a_damaged_dump_is_refused_and_with_it_all_others(store: Store) -> None:
    sessions = store.start(2)
    for session, _ in sessions:
        branched(store, session)
    names = [dump for session, _ in sessions for dump in store.dump(session)]
    content = bytearray((store.dumps / names[2]).read_bytes())
    content[len(content) // 2] ^= 1
    (store.dumps / names[2]).write_bytes(content)
    status, code, message = refusal(store, names)
    assert (status, code) == (409, "dump_damaged") and names[2] in message
    store.import_dumps(names[:2])


@pytest.mark.parametrize("make", STRANGERS.values(), ids=STRANGERS.keys())
def test_what_is_no_dump_is_refused_and_the_others_are_imported(store: Store, make: Callable[[Path], None]) -> None:
    ((session, _),) = store.start()
    store.commit(session, name="a")
    names = store.dump(session)
    bad = "s0-0123456789ab-0011223344556677-active.json"
    make(store.dumps / bad)
    status, code, message = refusal(store, [*names, bad])
    assert (status, code) == (409, "dump_damaged") and bad in message and len(message) < 1000
    store.import_dumps(names)
    assert os.path.lexists(store.dumps / bad), "it stays as it was"


def test_a_dump_without_its_shards_is_refused_unless_asked_for(store: Store) -> None:
    ((session, _),) = store.start()
    store.commit(session, name="a")
    names = store.dump(session, incomplete=["shard-1"])
    status, code, message = refusal(store, names)
    assert (status, code) == (409, "dump_incomplete") and "shard-1" in message
    store.import_dumps(names, incomplete=True)


def test_a_folder_that_is_none_holds_up_no_proxy(tmp_path: Path) -> None:
    (tmp_path / "dumps").touch()
    store = Store(tmp_path / "store", tmp_path / "dumps")
    with pytest.raises(DomainError) as refused:
        store.import_dumps(["s0-0123456789ab-0011223344556677-active.json"])
    assert status_of(refused.value) in (404, 503)
    store.close()


def test_shards_come_back_with_their_session(store: Store) -> None:
    ((session, name),) = store.start()
    store.commit(session, name="a")
    store.trajectory(session)
    data = bytes(range(12))
    shards = [
        DumpedShard(shard_id="image-1", tensor=Tensor(dtype="bfloat16", shape=(2, 3), data=data)),
        DumpedShard(shard_id="nothing", tensor=Tensor(dtype="bool", shape=(0,), data=b"")),
    ]
    store.import_dumps(store.dump(session, shards=shards))
    assert (store.kept("image-1"), store.kept("nothing")) == (data, b"")
    store.ack(store.ask(session_ids=[name]))
    assert store.kept("image-1") is None, "they go with their session"


def test_an_import_that_fails_leaves_no_shards(store: Store) -> None:
    sessions = store.start(2)
    names = []
    for (session, _), content in zip(sessions, (b"1", b"2"), strict=True):
        store.commit(session, name="a")
        shards = [DumpedShard(shard_id="same", tensor=Tensor(dtype="uint8", shape=(1,), data=content))]
        names += store.dump(session, shards=shards)
    assert refusal(store, names)[:2] == (409, "shard_conflict")
    assert store.kept("same") is None
    store.import_dumps(names[:1])
    assert store.kept("same") == b"1"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../secret.json", (400, "invalid_request")),
        ("s0-0123456789ab-0011223344556677-active.json", (404, "dump_unknown")),
    ],
)
def test_what_is_not_there_is_said(store: Store, name: str, said: tuple[int, str]) -> None:
    ((session, _),) = store.start()
    store.commit(session, name="a")
    names = store.dump(session)
    assert refusal(store, [*names, name])[:2] == said


def test_a_session_that_is_here_is_not_imported_over(store: Store) -> None:
    ((session, _),) = store.start()
    store.commit(session, name="a")
    names = store.dump(session)
    ((session, other),) = store.start()
    store.commit(session, name="a")
    file = names[0].replace(names[0].removesuffix("-active.json"), other)
    whole = decode((store.dumps / names[0]).read_bytes())
    head = whole.head.model_copy(update={"session": whole.head.session.model_copy(update={"session_id": other})})
    (store.dumps / file).write_bytes(b"".join(encode(head, whole.turns)))
    assert refusal(store, [names[0], file])[:2] == (409, "dump_conflict")


def test_a_turn_that_is_another_one_refuses_the_import(store: Store) -> None:
    ((session, _),) = store.start()
    branched(store, session)
    names = store.dump(session)
    whole = decode((store.dumps / names[1]).read_bytes())
    whole.turns[0] = whole.turns[0].model_copy(update={"turn_id": "another"})
    (store.dumps / names[1]).write_bytes(b"".join(encode(whole.head, whole.turns)))
    assert refusal(store, names)[:2] == (409, "dump_conflict")
    store.import_dumps(names[:1])
    assert refusal(store, names[1:])[:2] == (409, "dump_conflict")
    assert len(store.exported_ids(max_trajectories=64)) == 1


def test_a_full_disk_leaves_all_as_it_was(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ((session, name),) = store.start()
    branched(store, session)
    before = store.exported(session_ids=[name])
    names = store.dump(session)
    add = imports.add_turns
    calls = 0

    def fails(*given: Any, **named: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise DiskFull("no room")
        add(*given, **named)

    monkeypatch.setattr(imports, "add_turns", fails)
    with pytest.raises(DiskFull) as _full:
        store.import_dumps(names)
    assert not [file.path for file in psutil.Process().open_files() if Path(file.path).is_relative_to(store.dumps)]
    monkeypatch.undo()
    assert store.sums()["turns"]["imported"] == 0 and store.rows("SELECT * FROM turns") == []
    store.import_dumps(names)
    assert store.exported(session_ids=[name]) == before


def test_import_gives_its_files_back_when_the_store_is_no_longer_locked(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((session, name),) = store.start()
    branched(store, session)
    before = store.exported(session_ids=[name])
    names = store.dump(session)
    submit = Writer.submit
    with closing(store.database.connect()) as other:

        def until_it_waits(*given: Any, waits: bool = False, **named: Any) -> Any:
            if waits and other.in_transaction:
                other.execute("ROLLBACK")
            return submit(*given, waits=waits, **named)

        with monkeypatch.context() as locked:
            locked.setattr(writer, "PATIENCE", 0.0)
            locked.setattr(Writer, "submit", until_it_waits)
            stage = Importer._stage

            async def then_locked(importer: Importer, dump: Any) -> Any:
                staged = await stage(importer, dump)
                other.execute("BEGIN IMMEDIATE")
                return staged

            locked.setattr(Importer, "_stage", then_locked)
            with pytest.raises(StoreBusy):
                store.import_dumps(names)
    assert {each.state for each in store.folder_of_dumps.listed(after="", limit=99)} == {"ready"}
    store.import_dumps(names)
    assert store.exported(session_ids=[name]) == before


def test_a_session_deleted_in_the_middle_stays_deleted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ((session, _),) = store.start()
    branched(store, session)
    names = store.dump(session)
    store.import_dumps(names[:1])
    ((session,),) = store.rows("SELECT id FROM sessions")
    arrive = imports.arrive

    def late(transaction: Any, coming: Any) -> Any:
        delete_session(transaction, session)
        return arrive(transaction, coming)

    monkeypatch.setattr(imports, "arrive", late)
    with pytest.raises(DomainError, match="was deleted meanwhile"):
        store.import_dumps(names[1:])
    monkeypatch.undo()
    assert said(store) == summed(store)
    store.sums()
    store.run(lambda transaction: delete_session(transaction, session))
    assert store.sums()["turns"]["discarded"] == {"orphan": 1, "deleted": 2}
    assert store.rows("SELECT * FROM turns") == []


def test_what_is_acknowledged_in_the_middle_does_not_free_what_comes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((session, name),) = store.start()
    branched(store, session)
    names = store.dump(session)
    store.import_dumps(names[:1])
    lease = store.ask(session_ids=[name]).lease
    assert lease is not None
    arrive = imports.arrive

    def late(transaction: Any, coming: Any) -> Any:
        acknowledge(transaction, lease)
        return arrive(transaction, coming)

    monkeypatch.setattr(imports, "arrive", late)
    store.import_dumps(names[1:])
    assert store.exported_ids(session_ids=[name]) == [f"{name}-trajectory-2"]
    sums = store.sums()
    assert (sums["turns"]["acknowledged"], sums["turns"]["live"], sums["sessions"]["live"]) == (2, 3, 1)


def test_a_recovery_drops_what_comes_in_late(store: Store) -> None:
    ((session, name),) = store.start()
    branched(store, session)
    names = store.dump(session)
    store.run(lambda transaction: recoveries.add_recovery(transaction, 2, 1, DROP))
    store.import_dumps(names)
    assert store.sums()["turns"]["discarded"] == {"orphan": 1, "recovered": 2}
    assert store.exported_ids(session_ids=[name]) == [f"{name}-trajectory-2"]


def test_rewards_stay_frozen(store: Store) -> None:
    ((session, name),) = store.start()
    branched(store, session)
    store.exported(session_ids=[name])
    store.import_dumps(store.dump(session))
    assert store.rows("SELECT frozen FROM trajectories") == [(1,), (1,)]


def test_turns_of_earlier_versions_were_the_main_loops() -> None:
    assert Matching.decode(turn_row(turn(1)).matching).lineage == MAIN
    agent = DumpedLineage(id="a1", kind="subagent", parent=None)
    assert Matching.decode(turn_row(turn(1, lineage=agent)).matching).lineage == Lineage("a1", "subagent")


@pytest.mark.parametrize("extras", [{"constrained": 5}, {"sampling": {"top_k": "all"}}, {"placeholders": None}])
def test_extras_that_no_export_could_read_make_a_dump_damaged(extras: dict[str, Any]) -> None:
    with pytest.raises(Damaged, match="the extras of"):
        turn_row(turn(1, extras=extras))


TURNS = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.lists(st.integers(0, 2**31 - 1), max_size=5),
        st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(-(2.0**90), 0, width=32)), max_size=5),
        st.none() | st.floats(-1e30, 1e30),
        st.integers(0, 3),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@given(TURNS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_session_comes_back(tmp_path_factory: pytest.TempPathFactory, turns: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("any")
    store = Store(folder / "store", folder / "dumps")
    try:
        ((session, name),) = store.start()
        for number, (parent, prompt, output, reward, close, delivered) in enumerate(turns, start=1):
            made = store.commit(
                session,
                name=f"turn-{number}",
                parent=parent if 0 < parent < number else None,
                asks=str(parent),
                prompt=prompt,
                output=[token for token, _ in output],
                logprobs=[logprob for _, logprob in output],
                versions=[(close, len(output))],
                delivered=delivered,
            )
            store.run(
                lambda transaction, made=made, reward=reward: (
                    transaction.execute(  # type: ignore[misc]
                        "UPDATE turns SET reward = ? WHERE number = ?", (reward, made)
                    ).rowcount
                )
            )
            if close == 0:
                store.trajectory(session)
        store.trajectory(session)
        before = store.exported(session_ids=[name])
        live = store.sums()["turns"]["live"]
        store.import_dumps(store.dump(session))
        assert store.exported(session_ids=[name]) == before
        assert said(store) == summed(store)
        assert json.dumps(store.sums()["turns"]["live"]) == json.dumps(live)
    finally:
        store.close()
