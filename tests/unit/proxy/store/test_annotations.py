"""What a trainer says of turns is kept beside them, goes with them, and takes nothing else along."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.proxy.lifecycle.imports import Store
from tests.unit.proxy.stores import SyncStore

from rolloutfleet.dumps.checks import verify
from rolloutfleet.dumps.reading import load as load_dump
from rolloutfleet_proxy.domain.errors import DomainError, InvalidParameter, SessionClosed, SessionDeleted, TurnNotFound
from rolloutfleet_proxy.store import annotations
from rolloutfleet_proxy.store.annotations import Annotations, Series
from rolloutfleet_proxy.store.audit import audit
from rolloutfleet_proxy.store.remains import TURNS_AT_ONCE, clear_some
from rolloutfleet_proxy.store.trajectories import delete_session
from rolloutfleet_proxy.store.transaction import Transaction

TWO = np.array([0.5, np.nan], np.float32).tobytes()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store", tmp_path / "dumps")
    yield store
    store.close()


def saying(session: int, turn: str, *names: str, note: str | None = None) -> Callable[[Transaction], None]:
    given = Annotations([Series(turn, name, TWO) for name in names], {} if note is None else {turn: note})
    return lambda transaction: annotations.annotate(transaction, session, given)


def kept(store: SyncStore) -> list[Any]:
    return store.rows("SELECT turn, name FROM annotations ORDER BY session, turn, name")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (Series("b", "x", TWO), TurnNotFound),
        (Series("a", "x", TWO[:4]), InvalidParameter),
        (Series("a", "x", TWO * 2), InvalidParameter),
    ],
)
def test_a_call_is_kept_whole_or_not_at_all(store: Store, wrong: Series, error: type[DomainError]) -> None:
    ((session, _),) = store.start()
    store.commit(session, name="a")
    given = Annotations([Series("a", "good", TWO), wrong], {"a": "note"})
    with pytest.raises(error):
        store.run(lambda transaction: annotations.annotate(transaction, session, given))
    assert kept(store) == []


def test_a_session_that_is_gone_takes_none(store: Store) -> None:
    ((session, _),) = store.start()
    store.commit(session, name="a")
    store.trajectory(session)
    granted = store.ask()
    store.run(lambda transaction: delete_session(transaction, session))
    with pytest.raises(SessionDeleted):
        store.run(saying(session, "a", "x"))
    store.ack(granted)
    with pytest.raises(SessionClosed):
        store.run(saying(session, "a", "x"))


def test_they_go_with_the_rows_of_their_session_a_piece_at_a_time(store: Store) -> None:
    [(session, _), (other, _)] = [*store.start(), *store.start()]
    for number in range(20):
        for each in (session, other):
            store.commit(each, name=f"{each}-{number}")
            store.run(saying(each, f"{each}-{number}", *"abcdefghijklmnop", note="n"))
    store.run(lambda transaction: delete_session(transaction, session))
    left, pieces = 20 * 17 + 20 - TURNS_AT_ONCE, 0
    while store.run(clear_some):
        pieces += 1
    assert pieces == -(-left // TURNS_AT_ONCE), "no piece deletes more rows than one may"
    assert len(kept(store)) == 20 * 17 and store.rows("SELECT count(*) FROM turns") == [(20,)]
    assert store.read(audit)["balanced"]


def test_a_dump_holds_them_and_an_import_brings_them_back(store: Store) -> None:
    ((session, name),) = store.start()
    first = store.commit(session, name="a")
    store.run(saying(session, "a", "x", "y", note="von früher"))
    store.trajectory(session)
    store.commit(session, name="b", parent=first)
    store.run(saying(session, "b", "x"))
    before = kept(store)
    names = store.dump(session)
    for file in store.dumps.iterdir():
        with file.open("rb") as opened:
            assert verify(opened, name=file.name) == []
    with (store.dumps / names[1]).open("rb") as opened:
        context, own = load_dump(opened).turns
    assert context.note == "von früher" and own.note is None
    assert own.annotations["x"].data == TWO and context.annotations.keys() == {"x", "y"}
    store.import_dumps(names[1:])
    store.run(saying(store.rows("SELECT id FROM sessions")[0][0], "a", "x", note="newer"))
    store.import_dumps(names[:1])
    ((again,),) = store.rows("SELECT id FROM sessions WHERE name = ?", name)
    assert kept(store) == before
    assert store.read(lambda read: annotations.load_note(read, again, 1)) == "newer", "what came since stays"
    assert store.read(lambda read: annotations.load(read, again, 2)) == {"x": TWO}


def test_an_older_store_gets_its_table(tmp_path: Path) -> None:
    store = SyncStore(tmp_path)
    ((session, _),) = store.start()
    store.commit(session, name="a")
    store.reopen(after_version=5)
    store.run(saying(session, "a", "x"))
    assert kept(store) == [(1, "x")]
    store.close()
