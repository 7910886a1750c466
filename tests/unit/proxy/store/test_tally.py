"""What was committed, in a file beside the store's: what the store lacks of it is remembered once."""

import json
from typing import Any

import pytest
from tests.unit.proxy.stores import SyncStore

from rolloutfleet_proxy.domain.errors import DiskFull
from rolloutfleet_proxy.store.store import Store
from rolloutfleet_proxy.store.tally import FILE, Tally, load_missing


def lacking(store: SyncStore, commits: int) -> None:
    """The file says that there were so many commits more."""
    store.wait(Tally(store.store).write())
    file = store.folder / FILE
    noted = json.loads(file.read_text())
    file.write_text(json.dumps(noted | {"commits": noted["commits"] + commits}))


def test_a_loss_is_counted_once_when_a_crash_follows(store: SyncStore) -> None:
    lacking(store, 5)
    assert store.wait(Tally(store.store).compare()) == {"commits": 5}
    assert store.wait(Tally(store.store).compare()) == {}
    assert store.read(load_missing)["commits"] == 5


def test_file_is_kept_when_what_is_missing_can_not_be_remembered(
    store: SyncStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> None:
        raise DiskFull("full")

    lacking(store, 5)
    before = (store.folder / FILE).read_text()
    tally = Tally(store.store)
    with monkeypatch.context() as full:
        full.setattr(Store, "write", refuse)
        assert store.wait(tally.compare()) == {"commits": 5}
        store.wait(tally.write())
    assert (store.folder / FILE).read_text() == before
    store.wait(tally.write())
    assert store.read(load_missing)["commits"] == 5
    assert store.wait(Tally(store.store).compare()) == {}
