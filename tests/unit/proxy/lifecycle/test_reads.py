"""Rows of a store as dumps: everything that training needs of a trajectory is in its file."""

import io

import pytest
from tests.unit.proxy.lifecycle.written import dumped
from tests.unit.proxy.stores import SyncStore

from rolloutfleet.dumps.checks import verify
from rolloutfleet.dumps.reading import decode
from rolloutfleet_proxy.domain.trajectory import BY_REWARD
from rolloutfleet_proxy.domain.turn import Extras
from rolloutfleet_proxy.store.trajectories import close_turns


def test_a_dump_holds_its_turns_and_what_they_extend(store: SyncStore) -> None:
    ((session, name),) = store.start(metadata={"seed": 1.5}, task_id="task", limits={"turns": 9})
    first = store.commit(session, name="first", output=[7, 8, 9], logprobs=[-0.1, -0.2, -0.3])
    store.commit(session, name="beside")
    store.run(lambda transaction: close_turns(transaction, session, closed_by=BY_REWARD, reward_turn=first))
    second = store.commit(session, name="second", parent=first, prompt=[5], versions=[(3, 1), (4, 1)], mixed_cache=True)
    store.commit(session, name="third", parent=second, tools={"tools": []}, extras=Extras(cached_tokens=3))
    store.run(lambda transaction: close_turns(transaction, session, closed_by=BY_REWARD, reward_turn=second))
    store.commit(session, name="open", parent=second, delivered=False)

    file, content = dumped(store.connection, store.owner, session, 2)
    assert file == f"{name}-trajectory-2.json"
    assert verify(io.BytesIO(content), name=file) == []
    dump = decode(content)
    assert [(turn.turn_id, turn.context, turn.trajectory) for turn in dump.turns] == [
        ("first", True, 1),
        ("second", False, 2),
        ("third", False, 2),
    ]
    assert (dump.head.session.turns, dump.head.session.metadata) == (5, {"seed": 1.5})
    assert dump.turns[1].versions.numpy().tolist() == [3, 4] and dump.turns[1].mixed_cache
    assert dump.turns[0].output_ids.numpy().tolist() == [7, 8, 9]

    file, content = dumped(store.connection, store.owner, session, None)
    assert file == f"{name}-active.json"
    assert verify(io.BytesIO(content), name=file) == []
    dump = decode(content)
    assert dump.head.trajectory is None
    assert [(turn.turn_id, turn.context) for turn in dump.turns] == [("first", True), ("second", True), ("open", False)]


def test_no_key_is_in_a_dump(store: SyncStore) -> None:
    ((session, _),) = store.start()
    store.commit(session, name="only")
    hashed = store.rows("SELECT key_hash FROM sessions")[0][0]
    _, content = dumped(store.connection, store.owner, session, None)
    assert hashed.hex().encode() not in content and b"key" not in content


def test_what_is_gone_is_said(store: SyncStore) -> None:
    ((session, _),) = store.start()
    with pytest.raises(LookupError):
        dumped(store.connection, store.owner, session, 1)
    with pytest.raises(LookupError):
        dumped(store.connection, store.owner, session + 1, None)
