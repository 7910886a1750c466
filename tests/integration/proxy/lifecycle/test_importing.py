"""Dumps with long lines, which a process of its own reads: taken in or refused as others are."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.client.dumps.strangers import BAD_HEADS, BAD_LINES
from tests.unit.proxy.lifecycle.imports import Store, refusal

from rolloutfleet.dumps.form import DumpedShard
from rolloutfleet.dumps.tensors import Tensor
from rolloutfleet_proxy.lifecycle import contents

LARGE = {name: make for name, make in (BAD_HEADS | BAD_LINES).items() if name.startswith("2 GiB")}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store", tmp_path / "dumps")
    yield store
    store.close()


@pytest.mark.parametrize("make", LARGE.values(), ids=LARGE.keys())
def test_what_is_large_and_no_dump_is_refused_alone(store: Store, make: Callable[[Path], None]) -> None:
    ((session, _),) = store.start()
    store.commit(session, name="a")
    names = store.dump(session)
    bad = "s0-0123456789ab-0011223344556677-active.json"
    make(store.dumps / bad)
    status, code, message = refusal(store, [*names, bad])
    assert (status, code) == (409, "dump_damaged") and bad in message and len(message) < 1000
    store.import_dumps(names)
    assert os.path.lexists(store.dumps / bad), "it stays as it was"


def long(store: Store) -> tuple[str, list[str], dict[tuple[str, str], bytes]]:
    """(session_id, dumps, what it was exported as) of a session with a message that is read in a process of its own."""
    ((session, name),) = store.start()
    store.commit(session, name="a", messages=[{"role": "user", "content": "a line\n" * (contents.LONG_LINE // 6)}])
    store.trajectory(session)
    before = store.exported(session_ids=[name])
    messages = store.rows("SELECT messages FROM turns")
    names = store.dump(session, shards=[DumpedShard(shard_id="one", tensor=Tensor.of([1.5]))])
    store.import_dumps(names)
    assert store.rows("SELECT messages FROM turns") == messages and store.kept("one") is not None
    return name, names, before


def test_a_dump_with_a_long_line_comes_back(store: Store) -> None:
    name, _, before = long(store)
    assert store.exported(session_ids=[name]) == before


def test_a_damaged_dump_with_a_long_line_is_refused(store: Store) -> None:
    name, names, _ = long(store)
    content = bytearray((store.dumps / f"{names[0]}.imported").read_bytes())
    content[contents.LONG_LINE] ^= 1
    (store.dumps / names[0]).write_bytes(content)
    store.ack(store.ask(session_ids=[name]))
    assert refusal(store, names)[:2] == (409, "dump_damaged")


def test_a_reader_that_dies_is_said(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    name, names, _ = long(store)
    store.ack(store.ask(session_ids=[name]))
    (store.dumps / f"{names[0]}.imported").rename(store.dumps / names[0])
    monkeypatch.setattr(sys, "executable", "/bin/false")
    status, code, message = refusal(store, names)
    assert (status, code) == (503, "internal") and "has died" in message
